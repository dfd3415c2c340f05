"""Our side: one process drives all GPUs. The executors, and the two yardsticks that make the limit.

Two GPUs may stand for more ranks than two (`on_two`): each does what one rank does, and is all peers of the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from ficco_rt.compiler import compile_schedule
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan

from .clock import Clock, meeting
from .data import OPERANDS, empty, fill, off, plain, reference
from .executors import Contestant, Executors, ask_for_connections
from .measure import COPIES, GEMM
from .on_two import on_two
from .scaled import Product, products
from .scenarios import Scenario
from .selected import picked
from .variants import CHOSEN, Variant, variants


class Ours(Executors):
    """A `workers.Side` over `gpus` GPUs; `values` parameters of every choice are tried (None: all; `CHOSEN`: what
    would be chosen for the sizes, and no yardsticks). Of `ranks` ranks each has a GPU, or two GPUs stand for all."""

    def __init__(self, ranks: int, values: int | None, gpus: int) -> None:
        ask_for_connections()
        import torch

        devices = [torch.device("cuda", g) for g in range(gpus)]
        super().__init__(ranks, devices, replace(discover("cuda", gpus), ranks=ranks))
        self._values = values
        self._of_two = gpus < ranks
        self._places = (0, ranks // 2) if self._of_two else tuple(range(ranks))  # the rank of each GPU
        self._own: dict[str, list[Any]] = {}  # the yardsticks'
        self._products: dict[str, list[Product]] = {}  # of scaled operands, by yardstick: on each GPU
        for a in devices:  # peer access, for the yardstick's copies
            for b in devices:
                torch.zeros(1, device=a).to(b)
        self._clock = Clock(self._streams, meeting(self._streams))

    # ---- contestants

    def load(self, scenario: Scenario) -> dict[str, str | None]:
        chosen = self._values == CHOSEN
        answer = super().begin(scenario) if chosen else self.begin(scenario)
        for variant in picked(scenario, self.machine) if chosen else variants(scenario.operation, self._values):
            answer |= self.add(variant, partial(plan_for, variant, scenario, self.machine, len(self._devices)))
        return answer

    def begin(self, scenario: Scenario) -> dict[str, str | None]:
        """Tensors and yardsticks of a scenario, instead of those before."""
        super().begin(scenario)
        self._yardsticks(scenario)
        return dict.fromkeys(self._contestants)

    def keep(self, keys: Sequence[str]) -> None:
        if not keys:
            self._own, self._products = {}, {}
        super().keep(keys)

    # ---- data

    def data(self, seed: int) -> None:
        for name in OPERANDS:
            for rank, tensor in enumerate(self._tensors[name]):
                fill(tensor, name, rank, self._scenario.k, seed)
        # NOTE not zeros: a GEMM of them takes less power, so it is an eighth faster
        for whole in self._own.get("left", ()) if self._scenario.gathers else ():
            for rank, piece in enumerate(zip(*(part.chunk(self._ranks) for part in _parts(whole)), strict=True)):
                fill(piece if len(piece) > 1 else piece[0], "A", rank, self._scenario.k, seed)
        self._prepare()
        self._wait()
        if self._of_two:
            return
        a, b = (partial(lambda name, rank: plain(self._tensors[name][rank]), name) for name in OPERANDS)
        collective, shape = self._scenario.collective, self._scenario.shapes(self._ranks)["C"]
        self._reference = [
            reference(collective, shape, self._ranks, rank, a, b, device, self._scenario.transb)
            for rank, device in enumerate(self._devices)
        ]
        self._wait()

    def check(self, key: str) -> float | None:
        """Where two GPUs stand for more, pieces come from others than they should: that all of C is written, and from
        what was there, is all that can be checked."""
        if self._contestants[key].executor is None:
            return None if self._of_two else self._check_yardstick(key)
        if not self._of_two:
            return super().check(key)
        self.run_poisoned(key)
        return None if all(bool(c.isfinite().all()) for c in self._tensors["C"]) else math.inf

    # ---- the limit: the whole GEMM alone, the copies alone

    def _yardsticks(self, scenario: Scenario) -> None:
        """The own tensors: `left` and `out` of the whole GEMM, `land`, where the peers' pieces come in."""
        m, n, gathers = scenario.m, scenario.n, scenario.gathers
        (_, k), blocks = scenario.layouts(self._ranks)["A"]

        def each(columns: int, blocks: tuple[int, int] | None = None) -> list[Any]:
            made = [empty(((m, columns), blocks), d) for d in self._devices]
            for tensor in made:
                fill(tensor, "A", 0, k, 0)
            return made

        self._own = (
            {"land": each(k, blocks), "out": self._tensors["C"]} if gathers else {"land": each(n), "out": each(n)}
        )
        self._own["left"] = self._own["land"] if gathers else self._tensors["A"]
        if scenario.collective == "all_reduce":
            self._own["back"] = each(n)
        if scenario.scales:
            each_gpu = zip(self._own["left"], self._tensors["B"], self._own["out"], strict=True)
            made = [products(*of) for of in each_gpu]
            self._products = {f"{GEMM} {name}": [of[name] for of in made] for name in made[0]}
        self._pushes = [self._pushes_of(gpu) for gpu in range(len(self._devices))]
        for key in self._products or (GEMM,):
            self._contestants[key] = Contestant(partial(self._gemm, key), self._wait)
        self._contestants[COPIES] = Contestant(self._copies, self._wait)

    def _pushes_of(self, gpu: int) -> list[tuple[int, int, int]]:
        """(destination, source, bytes) of what the GPU's rank sends to rank + 1, rank + 2, …"""
        own, ranks = self._own, self._ranks
        gathers = self._scenario.gathers
        way = ways(gpu, self._places, ranks)
        pairs: list[tuple[Any, Any]] = []
        for i, source in enumerate(_parts(self._tensors["A"][gpu] if gathers else own["out"][gpu])):
            pieces = [source] * ranks if gathers else source.chunk(ranks)
            pairs += [(_parts(own["land"][to])[i].chunk(ranks)[place], pieces[peer]) for peer, to, place in way]
            if "back" in own:
                mine = source.chunk(ranks)[self._places[gpu]]
                pairs += [(own["back"][to].chunk(ranks)[place], mine) for _, to, place in way]
        return [(to.data_ptr(), source.data_ptr(), source.nbytes) for to, source in pairs]

    def _gemm(self, key: str) -> None:
        own = self._own
        for i, stream in enumerate(self._streams):
            with self._torch.cuda.stream(stream):
                if self._products:
                    self._products[key][i].run()
                    continue
                self._torch.mm(own["left"][i], self._scenario.weight(self._tensors["B"][i]), out=own["out"][i])

    def _copies(self) -> None:
        from cuda.bindings import driver

        for device, stream, pushes in zip(self._devices, self._streams, self._pushes, strict=True):
            with self._torch.cuda.device(device):
                for to, source, size in pushes:
                    (code,) = driver.cuMemcpyDtoDAsync(to, source, size, stream.cuda_stream)
                    if code:
                        raise DeviceError(f"cuMemcpyDtoDAsync of {size} bytes from {device}: {code.name}")

    def _prepare(self) -> None:
        """Left scales in the order that each library wants."""
        for product in chain.from_iterable(self._products.values()):
            product.prepare()

    def _check_yardstick(self, key: str) -> float:
        """Both in the order of the operation: then the copies have brought what the GEMM needs, or made."""
        torch, own = self._torch, self._own
        for tensor in own["land"] + own["out"]:
            for part in _parts(tensor):
                part.fill_(float("nan"))
        self._wait()
        gathers = self._scenario.gathers
        multiply = partial(self._gemm, next(iter(self._products), GEMM) if key == COPIES else key)
        if gathers:
            for rank, land in enumerate(own["land"]):
                for part, mine in zip(_parts(land), _parts(self._tensors["A"][rank]), strict=True):
                    part.chunk(self._ranks)[rank].copy_(mine)
            self._wait()
        for step in (self._copies, self._prepare, multiply) if gathers else (self._prepare, multiply, self._copies):
            step()
            self._wait()
        worst = 0.0
        for rank, wanted in enumerate(self._reference):
            result = own["out"][rank]
            if not gathers:
                own["land"][rank].chunk(self._ranks)[rank].copy_(result.chunk(self._ranks)[rank])
                result = torch.stack(own["land"][rank].chunk(self._ranks)).sum(0, dtype=torch.float32)
                if self._scenario.collective == "all_reduce":
                    wanted = wanted.chunk(self._ranks)[rank]
            worst = max(worst, off(result, wanted))
        return worst


def _parts(tensor: Any) -> Sequence[Any]:
    """A tensor, or a pair's values and scales."""
    return tensor if isinstance(tensor, tuple) else (tensor,)


def ways(gpu: int, places: Sequence[int], ranks: int) -> list[tuple[int, int, int]]:
    """Where a GPU sends what its rank has for rank + 1, rank + 2, …: the rank that it is for, the GPU, and the rank as
    whose it arrives. `places` has the rank of each GPU; where two stand for all ranks, all goes to the other one, to
    the place of the rank that would have sent it there."""
    rank, found = places[gpu], []
    for distance in range(1, ranks):
        peer = (rank + distance) % ranks
        to = peer if len(places) == ranks else 1 - gpu
        found.append((peer, to, (places[to] - distance) % ranks))
    return found


def plan_for(variant: Variant, scenario: Scenario, machine: Machine, gpus: int) -> Plan:
    """The plan of a variant for the ranks of the machine, or for two GPUs that stand for them."""
    # what a variant leaves open is the text's own, not what rules would give
    plan = compile_schedule(variant.schedule, machine.ranks, variant.arguments(scenario), machine)
    return on_two(plan) if gpus < machine.ranks else plan

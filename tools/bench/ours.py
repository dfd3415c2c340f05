"""Our side: one process drives all GPUs. The executors, and the two yardsticks that make the limit.

Two GPUs may stand for more ranks than two (`on_two`): each does what one rank does, and is all peers of the other.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ficco_rt
from ficco_rt.compiler import compile_schedule
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError, ScheduleError, UsageError
from ficco_rt.exec.bound import Bound
from ficco_rt.exec.executor import Executor
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan

from .clock import Clock, meeting
from .data import OPERANDS, fill, off, reference
from .measure import COPIES, GEMM
from .on_two import on_two
from .scenarios import Scenario
from .variants import MODES, Variant, variants
from .workers import Turn

TIMEOUT = 20.0  # seconds that a run may take


@dataclass(slots=True)
class _Contestant:
    run: Callable[[], None]
    finish: Callable[[], None]
    executor: Executor | None = None


class Ours:
    """A `workers.Side` over `gpus` GPUs; `values` parameters of every choice are tried (None: all). Of `ranks` ranks
    each has a GPU, or two GPUs stand for all."""

    def __init__(self, ranks: int, values: int | None, gpus: int) -> None:
        ask_for_connections()
        import torch

        self._torch = torch
        self._ranks = ranks
        self._values = values
        self._of_two = gpus < ranks
        self._places = (0, ranks // 2) if self._of_two else tuple(range(ranks))  # the rank of each GPU
        self._devices = [torch.device("cuda", g) for g in range(gpus)]
        self._streams = [torch.cuda.Stream(d) for d in self._devices]
        self.machine = replace(discover("cuda", gpus), ranks=ranks)
        for a in self._devices:  # peer access, for the yardstick's copies
            for b in self._devices:
                torch.zeros(1, device=a).to(b)
        self._clock = Clock(self._streams, meeting(self._streams))
        self._tensors: dict[str, list[Any]] = {}
        self._own: dict[str, list[Any]] = {}  # the yardsticks'
        self._reference: list[Any] = []
        self._executors: dict[str, Executor] = {}
        self._contestants: dict[str, _Contestant] = {}

    def about(self) -> dict[str, str]:
        torch = self._torch
        return {
            "ficco_rt": ficco_rt.__version__,
            "gpus": f"{len(self._devices)} × {torch.cuda.get_device_name(0)}",
            "driver": driver_version(),
            "torch": str(torch.__version__),
            "cuda": str(torch.version.cuda),
        }

    def _wait(self) -> None:
        for device in self._devices:
            self._torch.cuda.synchronize(device)

    # ---- contestants

    def load(self, scenario: Scenario) -> dict[str, str | None]:
        answer = self.begin(scenario)
        for variant in variants(scenario.operation, self._values):
            answer |= self.add(variant, partial(plan_for, variant, scenario, self.machine, len(self._devices)))
        return answer

    def begin(self, scenario: Scenario) -> dict[str, str | None]:
        """Tensors and yardsticks of a scenario, instead of those before."""
        self.keep(())
        torch = self._torch
        self._scenario = scenario
        shapes = scenario.shapes(self._ranks)
        self._tensors = {
            name: [torch.empty(shape, dtype=torch.bfloat16, device=d) for d in self._devices]
            for name, shape in shapes.items()
        }
        self._yardsticks(scenario)
        return {GEMM: None, COPIES: None}

    def add(self, variant: Variant, make: Callable[[], Plan]) -> dict[str, str | None]:
        """A variant as a contestant in each of its modes, or why it cannot take part."""
        keys = [f"{variant.label} {mode}" for mode in MODES]
        try:
            executor = Executor(make(), "cuda", timeout=TIMEOUT)
            self._executors[variant.label] = executor
            bound = executor.bind(**self._tensors)
        except (ScheduleError, UsageError, DeviceError) as error:
            return dict.fromkeys(keys, str(error).splitlines()[0])
        for mode, key in zip(MODES, keys, strict=True):
            run = partial(self._run, executor, bound, mode == "graph")
            self._contestants[key] = _Contestant(run, executor.synchronize, executor)
        return dict.fromkeys(keys)

    def _run(self, executor: Executor, bound: Bound, graph: bool) -> None:
        executor.graph = graph
        executor.run(bound, streams=self._streams)

    def keep(self, keys: Sequence[str]) -> None:
        for key in [k for k in self._contestants if k not in keys]:
            del self._contestants[key]
        still = {id(c.executor) for c in self._contestants.values()}
        for label in [x for x, executor in self._executors.items() if id(executor) not in still]:
            self._executors.pop(label).close()
        if not keys:
            self._tensors, self._reference, self._own = {}, [], {}
        self._torch.cuda.empty_cache()

    # ---- data

    def data(self, seed: int) -> None:
        for name in OPERANDS:
            for rank, tensor in enumerate(self._tensors[name]):
                fill(tensor, name, rank, self._scenario.k, seed)
        self._wait()
        if self._of_two:
            return
        a, b = (self._tensors[name].__getitem__ for name in OPERANDS)
        operation, shape = self._scenario.operation, self._scenario.shapes(self._ranks)["C"]
        self._reference = [
            reference(operation, shape, self._ranks, rank, a, b, device) for rank, device in enumerate(self._devices)
        ]
        self._wait()

    def check(self, key: str) -> float | None:
        """Where two GPUs stand for more, pieces come from others than they should: that all of C is written, and from
        what was there, is all that can be checked."""
        contestant = self._contestants[key]
        if contestant.executor is None:
            return None if self._of_two else self._check_yardstick(key)
        for tensor in self._tensors["C"]:
            tensor.fill_(float("nan"))
        self._wait()
        contestant.executor.poison()
        contestant.run()
        contestant.finish()
        self._wait()
        if self._of_two:
            return None if all(bool(c.isfinite().all()) for c in self._tensors["C"]) else math.inf
        return max(off(c, r) for c, r in zip(self._tensors["C"], self._reference, strict=True))

    # ---- measuring

    def turn(self, key: str, warmup: int, singles: int, loop: int) -> Turn:
        """The own clock is read in a run of its own: its events take time."""
        contestant = self._contestants[key]
        alone, together = self._clock.turn(contestant.run, contestant.finish, warmup, singles, loop)
        own: list[float] = []
        if contestant.executor is not None:
            contestant.executor.timed = True
            self._clock.time(contestant.run, 1, contestant.finish)
            own.append(contestant.executor.duration)
            contestant.executor.timed = False
        return Turn(alone, together, own)

    # ---- the limit: the whole GEMM alone, the copies alone

    def _yardsticks(self, scenario: Scenario) -> None:
        """The own tensors: `left` and `out` of the whole GEMM, `land`, where the peers' pieces come in."""
        torch = self._torch
        m, n, k = scenario.m, scenario.n, scenario.k

        def each(rows: int, columns: int) -> list[Any]:
            return [torch.zeros(rows, columns, dtype=torch.bfloat16, device=d) for d in self._devices]

        gathers = scenario.operation == "ag_gemm"
        self._own = (
            {"land": each(m, k), "out": self._tensors["C"]} if gathers else {"land": each(m, n), "out": each(m, n)}
        )
        self._own["left"] = self._own["land"] if gathers else self._tensors["A"]
        if scenario.operation == "gemm_ar":
            self._own["back"] = each(m, n)
        self._pushes = [self._pushes_of(gpu) for gpu in range(len(self._devices))]
        self._contestants[GEMM] = _Contestant(self._gemm, self._wait)
        self._contestants[COPIES] = _Contestant(self._copies, self._wait)

    def _pushes_of(self, gpu: int) -> list[tuple[int, int, int]]:
        """(destination, source, bytes) of what the GPU's rank sends to rank + 1, rank + 2, …"""
        own, ranks = self._own, self._ranks
        gathers = self._scenario.operation == "ag_gemm"
        source = self._tensors["A"][gpu] if gathers else own["out"][gpu]
        pieces = [source] * ranks if gathers else source.chunk(ranks)
        way = ways(gpu, self._places, ranks)
        pairs = [(own["land"][to].chunk(ranks)[place], pieces[peer]) for peer, to, place in way]
        if "back" in own:
            mine = source.chunk(ranks)[self._places[gpu]]
            pairs += [(own["back"][to].chunk(ranks)[place], mine) for _, to, place in way]
        return [(to.data_ptr(), source.data_ptr(), source.nbytes) for to, source in pairs]

    def _gemm(self) -> None:
        own = self._own
        for i, stream in enumerate(self._streams):
            with self._torch.cuda.stream(stream):
                self._torch.mm(own["left"][i], self._tensors["B"][i], out=own["out"][i])

    def _copies(self) -> None:
        from cuda.bindings import driver

        for device, stream, pushes in zip(self._devices, self._streams, self._pushes, strict=True):
            with self._torch.cuda.device(device):
                for to, source, size in pushes:
                    (code,) = driver.cuMemcpyDtoDAsync(to, source, size, stream.cuda_stream)
                    if code:
                        raise DeviceError(f"cuMemcpyDtoDAsync of {size} bytes from {device}: {code.name}")

    def _check_yardstick(self, key: str) -> float:
        """Both in the order of the operation: then the copies have brought what the GEMM needs, or made."""
        torch, own = self._torch, self._own
        for name in ("land", "out"):
            for tensor in own[name]:
                tensor.fill_(float("nan"))
        self._wait()
        gathers = self._scenario.operation == "ag_gemm"
        if gathers:
            for rank, land in enumerate(own["land"]):
                land.chunk(self._ranks)[rank].copy_(self._tensors["A"][rank])
            self._wait()
        for step in (self._copies, self._gemm) if gathers else (self._gemm, self._copies):
            step()
            self._wait()
        worst = 0.0
        for rank, wanted in enumerate(self._reference):
            result = own["out"][rank]
            if not gathers:
                own["land"][rank].chunk(self._ranks)[rank].copy_(result.chunk(self._ranks)[rank])
                result = torch.stack(own["land"][rank].chunk(self._ranks)).sum(0, dtype=torch.float32)
                if self._scenario.operation == "gemm_ar":
                    wanted = wanted.chunk(self._ranks)[rank]
            worst = max(worst, off(result, wanted))
        return worst


def ask_for_connections() -> None:
    """As many as ficco_rt's driver asks for. The library reads it once: before it is used at all."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


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


def driver_version() -> str:
    """NVIDIA's, as the kernel module tells it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    return next((word for word in text.split() if word[:1].isdigit() and "." in word), "unknown")

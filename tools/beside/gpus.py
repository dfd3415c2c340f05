"""A side's GPUs: one schedule at a time, on the caller's PyTorch tensors and streams.

Of ficco_rt only public functions are called, as `worker` says.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ficco_rt
from ficco_rt.compiler import compile_schedule
from tools.bench.clock import Clock, meeting
from tools.bench.data import OPERANDS, fill, reference

TIMEOUT = 20.0  # seconds that a run may take
VARIANCE = 600  # of an element of C that is made of integers: bf16 holds whole numbers up to 256 exactly, 10 deviations


@contextmanager
def one_core() -> Iterator[None]:
    """This thread runs on one core, the same for both sides: which core it is makes graphs' launches up to twice as
    slow."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


class Gpus:
    """Ranks share a GPU, `each` of them, in their order."""

    def __init__(self, gpus: int, each: int) -> None:
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # as the driver asks: before any context is made
        import torch

        self._torch = torch
        self._each = each
        self._devices = [torch.device("cuda", rank // each) for rank in range(gpus * each)]  # by rank
        self._streams = [torch.cuda.Stream(device) for device in self._devices]
        self._machine = ficco_rt.discover(len(self._devices), ranks_per_gpu=each)
        self._clock = Clock(self._streams, meeting(self._streams))
        self._executor: Any = None
        self._bound: Any = None
        self._tensors: dict[str, list[Any]] = {}

    def about(self) -> dict[str, object]:
        """Versions, devices, and the bytes that are free on the fullest GPU."""
        torch = self._torch
        return {
            "gpus": f"{len(set(self._devices))} × {torch.cuda.get_device_name(0)}",
            "torch": str(torch.__version__),
            "cuda": str(torch.version.cuda),
            "free": min(torch.cuda.mem_get_info(device)[0] for device in self._devices),
        }

    def load(
        self, schedule: str, arguments: dict[str, object], shapes: Mapping[str, list[int]], graph: bool
    ) -> dict[str, object]:
        """Make a schedule ready; `shapes` are those of A, B and C on a rank. The plan's hash and number of commands."""
        torch = self._torch
        self._tensors = {
            name: [torch.empty(shape, dtype=torch.bfloat16, device=device) for device in self._devices]
            for name, shape in shapes.items()
        }
        plan = compile_schedule(schedule, len(self._devices), arguments, self._machine)  # the text's own defaults
        self._executor = ficco_rt.Executor(plan, "cuda", ranks_per_gpu=self._each, graph=graph, timeout=TIMEOUT)
        self._bound = self._executor.bind(**self._tensors)
        return {"hash": ficco_rt.plan_hash(plan), "commands": sum(len(s.commands) for s in plan.streams)}

    def drop(self) -> None:
        """Give back all memory."""
        executor, self._executor, self._bound = self._executor, None, None
        self._tensors = {}
        if executor is not None:
            executor.close()
        self._torch.cuda.empty_cache()

    def check(self, collective: str, k: int) -> int:
        """How many elements of C are wrong, of a run on integers, where every sum is exact in any order."""
        torch = self._torch
        density = min(1.0, math.sqrt(VARIANCE / k))
        for name in OPERANDS:
            for rank, tensor in enumerate(self._tensors[name]):
                torch.manual_seed(rank * len(OPERANDS) + OPERANDS.index(name))
                tensor.uniform_(-1, 1)
                tensor.copy_(tensor.sign() * (tensor.abs() < density))  # −1, 0 and 1
        for tensor in self._tensors["C"]:
            tensor.fill_(math.nan)
        self._wait()
        self._executor.poison()
        self._run()
        self._executor.synchronize()
        self._wait()
        a, b = (self._tensors[name].__getitem__ for name in OPERANDS)
        wrong = 0
        for rank, result in enumerate(self._tensors["C"]):
            wanted = reference(collective, result.shape, len(self._devices), rank, a, b, result.device)
            wrong += int((result != wanted).sum())
        torch.cuda.empty_cache()
        return wrong

    def fill(self, k: int) -> None:
        """Normal numbers, as the bench has them: what operands hold decides how much power a product takes."""
        for name in OPERANDS:
            for rank, tensor in enumerate(self._tensors[name]):
                fill(tensor, name, rank, k, seed=0)
        self._wait()

    def turn(self, warmup: int, singles: int, loop: int) -> dict[str, list[Any]]:
        """Microseconds on the clock of `tools.bench`: single runs by GPU and run, a run of the loop by GPU."""
        alone, together = self._clock.turn(self._run, self._executor.synchronize, warmup, singles, loop)
        return {"singles": alone, "loop": together}

    def host(self, warmup: int, runs: int) -> list[float]:
        """Microseconds that the host takes to issue a run, each waited for."""
        issued = []
        with one_core():
            for _ in range(warmup + runs):
                self._run()
                issued.append(self._executor.issued_in)
                self._executor.synchronize()
        return issued[warmup:]

    def _run(self) -> None:
        self._executor.run(self._bound, streams=self._streams)

    def _wait(self) -> None:
        for device in self._devices:
            self._torch.cuda.synchronize(device)

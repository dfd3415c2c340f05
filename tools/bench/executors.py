"""What a process holds of ours: tensors, executors on them, and a clock. Worker processes alone import PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ficco_rt
from ficco_rt.errors import DeviceError, ScheduleError, UsageError
from ficco_rt.exec.bound import Bound
from ficco_rt.exec.executor import Executor
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan
from ficco_rt.process.group import Group

from .clock import Clock
from .data import empty, off
from .measure import first_line
from .scenarios import Scenario
from .variants import MODES, Variant
from .workers import Turn

TIMEOUT = 20.0  # seconds that a run may take


@dataclass(slots=True)
class Contestant:
    """`executor`: None for a yardstick."""

    run: Callable[[], None]
    finish: Callable[[], None]
    executor: Executor | None = None


class Executors:
    """The part of a `workers.Side` that one process a machine and a process a GPU have in common. `devices` are this
    process's; `group`: the processes that have the other ranks."""

    def __init__(self, ranks: int, devices: Sequence[Any], machine: Machine, group: Group | None = None) -> None:
        import torch

        self._torch = torch
        self._ranks = ranks
        self._devices = devices
        self._streams = [torch.cuda.Stream(d) for d in devices]
        self.machine = machine
        self._group = group
        self._clock: Clock
        self._tensors: dict[str, list[Any]] = {}
        self._reference: list[Any] = []
        self._executors: dict[str, Executor] = {}
        self._contestants: dict[str, Contestant] = {}

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

    def begin(self, scenario: Scenario) -> dict[str, str | None]:
        """Tensors of a scenario, instead of those before; contestants that need no executor."""
        self.keep(())
        self._scenario = scenario
        self._tensors = {
            name: [empty(layout, d) for d in self._devices] for name, layout in scenario.layouts(self._ranks).items()
        }
        return {}

    def add(self, variant: Variant, make: Callable[[], Plan]) -> dict[str, str | None]:
        """A variant as a contestant in each of its modes, or why it cannot take part."""
        keys = [f"{variant.label} {mode}" for mode in MODES]
        try:
            executor = Executor(make(), "cuda", timeout=TIMEOUT, group=self._group)
            self._executors[variant.label] = executor
            bound = executor.bind(**self._tensors)
        except (ScheduleError, UsageError, DeviceError) as error:
            return dict.fromkeys(keys, first_line(error))
        for mode, key in zip(MODES, keys, strict=True):
            run = partial(self._run, executor, bound, mode == "graph")
            self._contestants[key] = Contestant(run, executor.synchronize, executor)
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
        self._agree("keep")  # nobody gives back a tensor that another process may still have mapped
        if not keys:
            self._tensors, self._reference = {}, []
        self._torch.cuda.empty_cache()

    def _agree(self, step: str) -> None:
        """All processes have come so far."""
        if self._group is not None:
            self._group.barrier(TIMEOUT, step)

    # ---- numbers

    def check(self, key: str) -> float | None:
        self.run_poisoned(key)
        return max(off(c, r) for c, r in zip(self._tensors["C"], self._reference, strict=True))

    def run_poisoned(self, key: str) -> None:
        """A run on outputs and scratch that hold NaN."""
        contestant = self._contestants[key]
        for tensor in self._tensors["C"]:
            tensor.fill_(float("nan"))
        self._wait()
        if contestant.executor is not None:
            contestant.executor.poison()
        self._wait()
        self._agree("poison")  # nobody writes into what another process is about to poison
        contestant.run()
        contestant.finish()
        self._wait()

    # ---- measuring

    def turn(self, key: str, warmup: int, singles: int, loop: int) -> Turn:
        """The own clock, of an executor that drives all GPUs, is read in a run of its own: its events take time."""
        contestant = self._contestants[key]
        alone, together = self._clock.turn(contestant.run, contestant.finish, warmup, singles, loop)
        own: list[float] = []
        if contestant.executor is not None and self._group is None:
            contestant.executor.timed = True
            self._clock.time(contestant.run, 1, contestant.finish)
            own.append(contestant.executor.duration)
            contestant.executor.timed = False
        return Turn(alone, together, own)


def ask_for_connections() -> None:
    """As many as ficco_rt's driver asks for. The library reads it once: before it is used at all."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def driver_version() -> str:
    """NVIDIA's, as the kernel module tells it."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    return next((word for word in text.split() if word[:1].isdigit() and "." in word), "unknown")

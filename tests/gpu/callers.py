"""Executors of shipped schedules in threads, and beside the work of other libraries: what `test_callers` calls."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import ficco_dsl
from ficco_rt.driver.api import Array, DriverName
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError, InternalError, NumbersError, ScheduleError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.files import shipped
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan
from tests.gpu.rows import Row, rows

ERRORS = (DeviceError, InternalError, NumbersError, ScheduleError, UsageError)
SIZE = "large bf16"
NAMES = tuple(entry.name for entry in shipped.entries())
BURST = 20  # runs that are each waited for, then as many of which the last one is
OWN_STREAM = 2  # each thread's default stream of each GPU, by the handle that both vendors have for it
PRODUCTS, SIDE = 2, 4096  # matrix products a run, and their rows and columns
REDUCED = 16 << 20  # elements of an all-reduce, bf16
SLOW = 3  # times as long as on streams a graph may take where ranks share a GPU


def threads(
    backend: DriverName, ranks: int, each: int, number: int, count: int, executors: int, runs: int, limit: float
) -> bool:
    """A process of `count` threads, each with executors one after another, of schedules by the process's number."""
    machine = discover(backend, ranks, each)
    per, wrong = count * executors, list[str]()
    names = [NAMES[(number * per + i) % len(NAMES)] for i in range(per)]

    def work(names: list[str], seed: int) -> None:
        for name in names:
            begun, error = time.monotonic(), ""
            try:
                _live(backend, machine, name, seed, runs // executors, limit / 2, each)
            except ERRORS as found:
                error = str(found)
                wrong.append(name)
            line = f"{name:28} {runs // executors:4} runs  {time.monotonic() - begun:5.1f} s  {error or 'right'}"
            print(line, flush=True)

    workers = [threading.Thread(target=work, args=(names[i::count], i)) for i in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return not wrong


def _live(backend: DriverName, machine: Machine, name: str, seed: int, runs: int, timeout: float, each: int) -> None:
    """One executor's life."""
    plan = plan_for(name, machine, machine.ranks)
    subject = Subject(plan, backend, machine, timeout, seed, each)
    with subject.executor as executor:
        for i in range(runs):
            waited = i // BURST % 2 == 0
            subject.run(graph=i % 2 == 0, streams=None if waited else [OWN_STREAM] * machine.ranks)
        executor.synchronize()
        subject.check()
        executor.poison()
        subject.run(graph=seed % 2 == 0)
        subject.check()


def foreign(
    backend: DriverName, ranks: int, each: int, names: Sequence[str], runs: int, room: int, limit: float
) -> bool:
    """Runs of schedules beside products and all-reduces, up to the first that fails: what it has left on the GPUs is
    not for the next one. `room`: multiprocessors that are left to these; `limit`: seconds of a schedule."""
    machine = discover(backend, ranks, each)
    load = Load(ranks, each)
    load.add()
    load.wait()
    for name in names:
        begun, error = time.monotonic(), ""
        times: tuple[list[float], list[float]] = [], []  # on streams, and as a graph
        try:
            plan = plan_for(name, machine, ranks, room)
            subject = Subject(plan, backend, machine, limit / 2, ranks_per_gpu=each)
            with subject.executor as executor:
                for i in range(runs):
                    before = time.perf_counter()
                    load.add()
                    subject.run(graph=i % 2 == 0, streams=load.streams)
                    if each > 1:
                        executor.synchronize()
                        times[i % 2 == 0].append(1e3 * (time.perf_counter() - before))
                        load.wait()
                executor.synchronize()
                load.wait()
                subject.check()
        except ERRORS as found:
            error = str(found)
        medians = tuple(median(taken) for taken in times if taken)
        if not error and len(medians) > 1 and medians[1] > SLOW * medians[0]:
            error = f"a graph takes more than {SLOW} times as long as streams"
        told = "  streams {:.2f} ms, graph {:.2f} ms".format(*medians) if len(medians) > 1 else ""
        print(f"{name:28} {runs:4} runs  {time.monotonic() - begun:5.1f} s  {error or 'right'}{told}", flush=True)
        if error:
            return False
    return True


class Load:
    """Products on a stream of each GPU, an all-reduce on another, and a third one for the runs."""

    def __init__(self, ranks: int, each: int) -> None:
        import torch
        import torch.cuda.nccl

        self._torch: Any = torch
        devices = [torch.device("cuda", i) for i in range(ranks // each)]
        self.streams = [torch.cuda.Stream(devices[rank // each]) for rank in range(ranks)]
        self._of_products, self._of_reduces = ([torch.cuda.Stream(device) for device in devices] for _ in range(2))
        self._factors = [torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16) for device in devices]
        self._products = [torch.empty_like(factor) for factor in self._factors]
        self._reduced = [torch.ones(REDUCED, device=device, dtype=torch.bfloat16) for device in devices]
        self.wait()

    def add(self) -> None:
        """Some work on all GPUs."""
        torch = self._torch
        for factor, product, stream in zip(self._factors, self._products, self._of_products, strict=True):
            with torch.cuda.stream(stream):
                for _ in range(PRODUCTS):
                    torch.mm(factor, factor, out=product)
        torch.cuda.nccl.all_reduce(self._reduced, streams=self._of_reduces)

    def wait(self) -> None:
        for stream in (*self.streams, *self._of_products, *self._of_reduces):
            stream.synchronize()
        for device in range(len(self._factors)):
            self._torch.cuda.synchronize(device)


def plan_for(name: str, machine: Machine, ranks: int, room: int = 0) -> Plan:
    """`room`: multiprocessors of each GPU that streamed stages leave free, by `sms` on the schedule's queues."""
    row = next(row for row in rows("small", ranks, name) if (row.name, row.label) == (name, SIZE))
    if room:
        path = Path(shipped.find(name))
        text, queues = re.subn(r"engine = sm\b", "engine = sm  sms = SMS", path.read_text(encoding="utf-8"))
        sms = max(1, (machine.device.sms - room) // queues)
        schedule = ficco_dsl.parse(text.replace("SMS", str(sms)), str(path))
        row = Row(row.sizes, row.label, name, schedule, row.params)
    return row.plan(ranks, machine)


class Subject:
    """An executor, made and verified alone; `check` compares what later runs leave with that, in every bit."""

    def __init__(
        self, plan: Plan, backend: DriverName, machine: Machine, timeout: float, seed: int = 0, ranks_per_gpu: int = 1
    ) -> None:
        self.executor = Executor(plan, backend, machine=machine, timeout=timeout, ranks_per_gpu=ranks_per_gpu)
        try:
            result = verified_run(self.executor, seed=seed, values="exact")
            if not result.ok:
                raise NumbersError(f"wrong numbers: {result.worst}")
            self._wanted = self._outputs()
            self._bound = self.executor.bind()
        except BaseException:
            self.executor.close()
            raise

    def run(self, *, graph: bool, streams: Sequence[object] | None = None) -> None:
        self.executor.graph = graph
        self.executor.run(self._bound, streams=streams)

    def check(self) -> None:
        """NumbersError: the last run's outputs are others than alone."""
        for key, got in self._outputs().items():
            if not np.array_equal(got.view(np.uint8), self._wanted[key].view(np.uint8)):
                raise NumbersError(f"{key[0]} of rank {key[1]} is not what it is alone")

    def _outputs(self) -> dict[tuple[str, int], Array]:
        plan = self.executor.plan
        names = [t.name for t in plan.tensors if t.kind == "output"]
        return {(name, rank): self.executor.read(name, rank) for name in names for rank in range(plan.ranks)}

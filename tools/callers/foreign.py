"""Work of other libraries beside runs: `python -m tools.callers foreign`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from ficco_rt.driver.registry import discover

from .child import ERRORS, Told, limited, run, tell
from .subject import NAMES, Subject, plan_for

PRODUCTS, SIDE = 2, 4096  # matrix products a run, and their rows and columns
REDUCED = 16 << 20  # elements of an all-reduce, bf16
SLOW = 3  # times as long as on streams a graph may take where ranks share a GPU


def main(options: argparse.Namespace) -> int:
    if options.child is not None:
        return child(options, options.child.split(","))
    left = [name for name in NAMES if options.only in name]
    print(f"{options.runs} runs each beside products and all-reduces; {options.room} multiprocessors left to them")
    begun, bad, total, first = time.monotonic(), 0, len(left), True
    while left:
        names = ("backend", "ranks", "ranks_per_gpu", "runs", "room", "limit")
        given = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in names]
        said, why = run([f"--child={','.join(left)}", "foreign", *given], options.limit * len(left) + 120 * first)
        first = False
        for one in said:
            bad += bool(one.error)
            times = "  streams {:.2f} ms, graph {:.2f} ms".format(*one.times) if one.times else ""
            print(f"{one.name:28} {one.runs:4} runs  {one.seconds:5.1f} s  {one.error or 'right'}{times}", flush=True)
        left = left[len(said) :]
        if left and (why or not said):  # it is the next one's doing
            bad += 1
            print(f"{left[0]:28}              {why or 'it told nothing'}", flush=True)
            left = left[1:]
    print(f"{total - bad} of {total} schedules right, {time.monotonic() - begun:.0f} s")
    return 4 if bad else 0


def child(options: argparse.Namespace, names: Sequence[str]) -> int:
    limited(options.limit + 90)  # PyTorch, NCCL and the first kernels
    machine, each = discover(options.backend, options.ranks, options.ranks_per_gpu), options.ranks_per_gpu
    load = Load(options.ranks, each)
    load.add()
    load.wait()
    for number, name in enumerate(names):
        limited(options.limit + (60 if number == 0 else 0))
        begun, error = time.monotonic(), ""
        times: tuple[list[float], list[float]] = [], []  # on streams, and as a graph
        try:
            plan = plan_for(name, machine, options.ranks, options.room)
            subject = Subject(plan, options.backend, machine, options.limit / 2, ranks_per_gpu=each)
            with subject.executor as executor:
                for i in range(options.runs):
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
        tell(Told(name, options.runs, time.monotonic() - begun, error, medians))
        if error:  # what it has left on the GPUs is not for the next one: the parent goes on in another process
            break
    return 0


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

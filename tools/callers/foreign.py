"""Work of other libraries beside runs: `python -m tools.callers foreign`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from ficco_rt.driver.registry import discover

from .child import ERRORS, Told, limited, run, tell
from .subject import NAMES, Subject, plan_for

PRODUCTS, SIDE = 2, 4096  # matrix products a run, and their rows and columns
REDUCED = 16 << 20  # elements of an all-reduce, bf16


def main(options: argparse.Namespace) -> int:
    if options.child is not None:
        return child(options, options.child.split(","))
    left = [name for name in NAMES if options.only in name]
    print(f"{options.runs} runs each beside products and all-reduces; {options.room} multiprocessors left to them")
    begun, bad, total, first = time.monotonic(), 0, len(left), True
    while left:
        given = [f"--{name}={getattr(options, name)}" for name in ("backend", "ranks", "runs", "room", "limit")]
        said, why = run([f"--child={','.join(left)}", "foreign", *given], options.limit * len(left) + 120 * first)
        first = False
        for one in said:
            bad += bool(one.error)
            print(f"{one.name:28} {one.runs:4} runs  {one.seconds:5.1f} s  {one.error or 'right'}", flush=True)
        left = left[len(said) :]
        if left and (why or not said):  # it is the next one's doing
            bad += 1
            print(f"{left[0]:28}              {why or 'it told nothing'}", flush=True)
            left = left[1:]
    print(f"{total - bad} of {total} schedules right, {time.monotonic() - begun:.0f} s")
    return 4 if bad else 0


def child(options: argparse.Namespace, names: Sequence[str]) -> int:
    limited(options.limit + 90)  # PyTorch, NCCL and the first kernels
    machine = discover(options.backend, options.ranks)
    load = Load(options.ranks)
    load.add()
    load.wait()
    for number, name in enumerate(names):
        limited(options.limit + (60 if number == 0 else 0))
        begun, error = time.monotonic(), ""
        try:
            plan = plan_for(name, machine, options.ranks, options.room)
            subject = Subject(plan, options.backend, machine, options.limit / 2)
            with subject.executor as executor:
                for i in range(options.runs):
                    load.add()
                    subject.run(graph=i % 2 == 0, streams=load.streams)
                executor.synchronize()
                load.wait()
                subject.check()
        except ERRORS as found:
            error = str(found)
        tell(Told(name, options.runs, time.monotonic() - begun, error))
        if error:  # what it has left on the GPUs is not for the next one: the parent goes on in another process
            break
    return 0


class Load:
    """Products on a stream of each GPU, an all-reduce on another, and a third one for the runs."""

    def __init__(self, ranks: int) -> None:
        import torch
        import torch.cuda.nccl

        self._torch: Any = torch
        devices = [torch.device("cuda", i) for i in range(ranks)]
        self.streams, self._of_products, self._of_reduces = (
            [torch.cuda.Stream(device) for device in devices] for _ in range(3)
        )
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

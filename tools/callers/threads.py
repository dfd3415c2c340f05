"""Executors in threads: `python -m tools.callers threads`."""

from __future__ import annotations

import argparse
import threading
import time

from ficco_rt.driver.registry import discover
from ficco_rt.machine.model import Machine

from .child import ERRORS, Told, limited, run, tell
from .subject import NAMES, Subject, plan_for

BURST = 20  # runs that are each waited for, then as many of which the last one is
OWN_STREAM = 2  # each thread's default stream of each GPU, by the handle that both vendors have for it


def main(options: argparse.Namespace) -> int:
    if options.child is not None:
        limited(options.limit)
        return child(options, int(options.child))
    print(f"{options.processes} processes of {options.threads} threads, {options.runs} runs each", flush=True)
    begun, told, bad = time.monotonic(), 0, 0
    runs: dict[str, int] = dict.fromkeys(NAMES, 0)
    for number in range(options.processes):
        limit = options.limit * (2 if number == 0 else 1)  # kernels are compiled in the first
        at = time.monotonic()
        names = ("backend", "ranks", "ranks_per_gpu", "runs", "threads", "executors")
        given = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in names]
        said, why = run([f"--child={number}", "threads", *given, f"--limit={limit}"], limit)
        errors = [f"{one.name}: {one.error}" for one in said if one.error] + ([why] if why else [])
        missing = options.threads * options.executors - len(said)
        if missing and not why:
            errors.append(f"{missing} executors told nothing")
        for one in said:
            runs[one.name] += one.runs
        told += len(said)
        bad += bool(errors)
        verdict = "right" if not errors else "WRONG"
        print(f"process {number + 1:2}  {len(said):2} executors  {time.monotonic() - at:5.1f} s  {verdict}", flush=True)
        for error in errors:
            print(f"    {error}", flush=True)
    print(f"\n{'schedule':28} runs")
    for name, count in runs.items():
        print(f"{name:28} {count}")
    good = options.processes - bad
    print(f"{good} of {options.processes} processes right, {told} executors, {time.monotonic() - begun:.0f} s")
    return 4 if bad else 0


def child(options: argparse.Namespace, number: int) -> int:
    machine = discover(options.backend, options.ranks, options.ranks_per_gpu)
    per = options.threads * options.executors
    names = [NAMES[(number * per + i) % len(NAMES)] for i in range(per)]
    workers = [
        threading.Thread(target=_work, args=(options, machine, names[i :: options.threads], i))
        for i in range(options.threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return 0


def _work(options: argparse.Namespace, machine: Machine, names: list[str], seed: int) -> None:
    for name in names:
        begun, error = time.monotonic(), ""
        try:
            _live(options, machine, name, seed)
        except ERRORS as found:
            error = str(found)
        tell(Told(name, options.runs // options.executors, time.monotonic() - begun, error))


def _live(options: argparse.Namespace, machine: Machine, name: str, seed: int) -> None:
    """One executor's life."""
    plan, each = plan_for(name, machine, options.ranks), options.ranks_per_gpu
    subject = Subject(plan, options.backend, machine, options.limit / 2, seed, each)
    with subject.executor as executor:
        for i in range(options.runs // options.executors):
            waited = i // BURST % 2 == 0
            subject.run(graph=i % 2 == 0, streams=None if waited else [OWN_STREAM] * options.ranks)
        executor.synchronize()
        subject.check()
        executor.poison()
        subject.run(graph=seed % 2 == 0)
        subject.check()

"""NCCL as the engine of collectives, on real GPUs: right, in graphs, seen in a trace, its errors answered, its times.

Parts, each in a process of its own:

    right    all_gather, all_reduce, reduce_scatter and all_to_all in bf16, fp16 and fp32, on random data and on
             integers: on streams, traced, and 50 times as graphs, one a GPU; with `ctas = 8` and with `ctas = 0`
    kernels  which kernels of NCCL PyTorch's profiler sees in a run, and the communicators in the holdings
    alone    on one GPU: a communicator of one rank is opened without blocking, sends to itself, is captured, replayed,
             and is aborted while its graph lives; is destroyed; is aborted in the midst of a send; and one whose second
             rank never comes is given up
    errors   a peer that never comes, and an asynchronous error: told with the schedule's line, and the next run right
    times    of each collective: ours by NCCL on streams and in graphs, ours by copies and sums, and torch.distributed;
             `-s` shows them

`--long 20` repeats each part 20 times. This looks for a broken heap (glibc before 2.34 needs no LD_PRELOAD):

    LD_PRELOAD=libc_malloc_debug.so.0 MALLOC_CHECK_=3 pytest tests/gpu/test_nccl.py -k errors --long 20
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.gpu.apart import apart
from tests.gpu.collectives import COLUMNS, every_plan

pytestmark = [pytest.mark.nccl, pytest.mark.torch]

DTYPES = cases.FLOATS
KINDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
ROWS = {"64 KiB": 32, "4 MiB": 2048, "64 MiB": 32768}  # of what a rank gives, in bf16
LIMITS = {"alone": 120, "right": 240, "kernels": 120, "errors": 120, "times": 300}  # seconds of a part
ROUNDS = 30


def test_alone(long: int) -> None:
    for _ in range(long):
        apart(alone, limit=LIMITS["alone"])


@pytest.mark.gpus2
@pytest.mark.parametrize("part", ["right", "kernels", "errors", "times"])
def test_part(part: str, ranks: int, long: int) -> None:
    parts: dict[str, Callable[..., bool]] = {"right": right, "kernels": kernels, "errors": errors, "times": times}
    for _ in range(long):
        apart(parts[part], ranks, "cuda", limit=LIMITS[part])


@contextmanager
def opened(plan: Plan, driver: str, **more: Any) -> Iterator[Executor]:
    machine = discover(driver, plan.ranks)  # type: ignore[arg-type]
    with Executor(plan, driver, machine=machine, **more) as executor:  # type: ignore[arg-type]
        yield executor


def right(gpus: int, driver: str, rows: int = 2048, replays: int = 50) -> bool:
    good = True
    for asked in ("", "ctas = 8", "ctas = 0"):
        for dtype in DTYPES if not asked else DTYPES[:1]:
            with opened(every_plan(gpus, driver, rows, dtype, asked), driver, collectives="library") as executor:
                found: dict[str, bool] = {}
                for values in ("exact", "normal"):
                    found[f"streams, {values}"] = verified_run(executor, values=values).ok
                executor.traced = True
                found["traced"] = verified_run(executor, values="exact").ok
                executor.traced, executor.graph = False, True
                found["graph"] = verified_run(executor, values="exact").ok
                for _ in range(replays):
                    executor.run()
                executor.driver.synchronize()
                found[f"graph after {replays} replays"] = verified_run(executor, values="normal").ok
                words = ", ".join(f"{what} {'right' if ok else 'WRONG'}" for what, ok in found.items())
                print(f"{executor.driver.collectives}, {dtype}{f', {asked}' if asked else ''}: {words}", flush=True)
                good &= all(found.values())
    return good


def kernels(gpus: int, driver: str) -> bool:
    import torch
    from torch.profiler import ProfilerActivity, profile

    for i in range(gpus):
        torch.zeros(1, device=f"cuda:{i}")
    with opened(every_plan(gpus, driver, 2048), driver, collectives="library") as executor:
        assert verified_run(executor, values="exact").ok
        held = executor.driver.holdings().communicators
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            executor.run()
            executor.driver.synchronize()
            for i in range(gpus):
                torch.cuda.synchronize(i)
    seen = sorted({e.name for e in profiled.events() if "nccl" in e.name.lower()})
    print(f"{held} communicators held; kernels seen: {', '.join(seen) or 'none'}")
    return held == gpus and bool(seen)


def alone() -> bool:
    """The steps of a communicator's life, as `driver.gpu.collectives` makes them."""
    import threading

    import torch

    from ficco_rt.driver.cuda.nccl import Nccl
    from ficco_rt.driver.gpu.collective_library import PENDING, Member
    from ficco_rt.driver.gpu.owner import OWNER
    from ficco_rt.graph.ir import CollectiveSettings

    library, stream = Nccl(), torch.cuda.Stream()
    given, taken = torch.arange(1 << 20, device="cuda", dtype=torch.float32), torch.zeros(1 << 20, device="cuda")

    def opened(ranks: int) -> Any:
        made: list[Any] = []

        def make() -> None:
            torch.cuda.set_device(0)
            with library.group():
                made.append(library.open(ranks, 0, library.unique(), CollectiveSettings()))

        OWNER.do(make)
        while ranks == 1 and library.state(made[0]) == PENDING:
            pass
        return made[0]

    def send(communicator: Any, *, polls: bool = True) -> None:
        size = given.numel()
        member = Member(taken.data_ptr(), given.data_ptr(), size, "fp32", stream.cuda_stream, size, 0, 0)
        with library.group():
            library.call("send_recv", communicator, 0, 1, member)
        while polls and library.state(communicator) == PENDING:
            pass

    def arrived() -> bool:
        torch.cuda.synchronize()
        same = bool(torch.equal(given, taken))
        taken.zero_()
        torch.cuda.synchronize()
        return same

    def aborted(communicator: Any) -> None:
        with library.group():
            library.abort(communicator)

    found, times = {}, []
    one = opened(1)
    send(one)
    found["a send"] = arrived()
    for _ in range(200):
        begun = time.perf_counter()
        send(one)
        times.append(1e6 * (time.perf_counter() - begun))
    arrived()
    graph = torch.cuda.CUDAGraph()
    for mode in ("global", "thread_local"):
        graph.reset()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
            send(one)
        graph.replay()
        found[f"a replay ({mode})"] = arrived()
    leaving = OWNER.begin(lambda: aborted(one), lasts=True)
    two = opened(1)  # by the thread that takes over
    send(two)
    found["another communicator beside an abort that waits"] = arrived() and not leaving.done.is_set()
    graph.reset()
    found["an abort ends with the graph"] = leaving.done.wait(10)
    found["a destroy"] = OWNER.begin(lambda: library.close(two), lasts=True).done.wait(10)
    three = opened(1)
    send(three, polls=False)
    found["an abort of what is in progress"] = OWNER.begin(lambda: aborted(three), lasts=True).done.wait(10)
    four = opened(2)
    found["an opening waits for the other rank"] = library.state(four) == PENDING
    found["and is given up"] = OWNER.begin(lambda: aborted(four), lasts=True).done.wait(10)
    left = sum(thread.name == "ficco communicators" for thread in threading.enumerate())
    words = ", ".join(f"{what} {'right' if ok else 'WRONG'}" for what, ok in found.items())
    print(f"a call takes the host {statistics.median(times):.1f} µs; {left} thread; {words}", flush=True)
    return all(found.values())


def errors(gpus: int, driver: str) -> bool:
    import torch

    from ficco_rt.driver.cuda.call import api
    from ficco_rt.driver.cuda.nccl import Nccl

    good = True
    plan = every_plan(gpus, driver, 2048)
    tensors: dict[str, Any] = {
        t.name: [torch.ones(shape, dtype=torch.bfloat16, device=f"cuda:{r}") for r, shape in enumerate(t.shapes)]
        for t in plan.tensors
    }
    for what in ("a peer that does not come", "an asynchronous error"):
        for graph in (False, True):
            with opened(plan, driver, timeout=2 if what.startswith("a peer") else 30, graph=graph) as executor:
                executor.run(**tensors)
                executor.driver.synchronize()
                streams = [torch.cuda.Stream(i) for i in range(gpus)]
                go = torch.zeros(1, dtype=torch.int32).pin_memory()
                with torch.cuda.device(gpus - 1):  # the last rank's caller is busy until communicators are aborted
                    assert not api().cuStreamWaitValue32(streams[-1].cuda_stream, go.data_ptr(), 1, 0)[0]
                real, abort, began = Nccl.state, Nccl.abort, time.monotonic()

                def aborted(library: Nccl, communicator: Any, go: Any = go, abort: Any = abort) -> None:
                    go.fill_(1)
                    abort(library, communicator)

                Nccl.abort = aborted  # type: ignore[method-assign, assignment]
                try:
                    executor.run(streams=streams, **tensors)
                    if what.startswith("an"):  # which the watchdog finds
                        Nccl.state = lambda *_: "ncclRemoteError"  # type: ignore[method-assign]
                    executor.driver.synchronize()
                    told = "NOTHING WAS TOLD"
                except DeviceError as error:
                    told = str(error)
                finally:
                    Nccl.state, Nccl.abort = real, abort  # type: ignore[method-assign]
                    go.fill_(1)
                took = time.monotonic() - began
                for stream in streams:
                    stream.synchronize()
                after = verified_run(executor, values="exact").ok
                fine = "every.ficco:" in told and after
                print(f"{what}, {'graph' if graph else 'streams'}: told after {took:.1f} s, next run", end=" ")
                print("right" if after else "WRONG", "" if fine else "-- NOT as it should be")
                print("    " + told.replace("\n", "\n    "), flush=True)
                good &= fine
    return good


def milliseconds(executor: Executor) -> float:
    """Median of runs, from the first device's begin to the last one's end."""
    found = []
    for number in range(-5, ROUNDS):
        executor.run()
        executor.driver.synchronize()
        if number >= 0:
            found.append(executor.duration / 1e3)
    return statistics.median(found)


def _theirs(rank: int, gpus: int, port: int, path: str) -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=gpus)
    lines = []
    for size, rows in ROWS.items():
        a = torch.randn(rows, COLUMNS, device="cuda").to(torch.bfloat16)
        whole, part = a.new_empty(rows * gpus, COLUMNS), a.new_empty(rows // gpus, COLUMNS)
        for kind, call, tensors in (
            ("all_gather", dist.all_gather_into_tensor, (whole, a)),
            ("all_reduce", dist.all_reduce, (a,)),
            ("reduce_scatter", dist.reduce_scatter_tensor, (part, a)),
            ("all_to_all", dist.all_to_all_single, (torch.empty_like(a), a)),
        ):
            found = []
            for number in range(-5, ROUNDS):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                dist.barrier()
                begin.record()
                call(*tensors)
                end.record()
                torch.cuda.synchronize()
                if number >= 0:
                    found.append(begin.elapsed_time(end))
            lines.append(f"{size}|{kind}|{statistics.median(found)}")
    if rank == 0:
        Path(path).write_text("\n".join(lines))
    dist.destroy_process_group()


def times(gpus: int, driver: str) -> bool:
    import torch.multiprocessing as mp

    ours: dict[tuple[str, str], dict[str, float]] = {}
    for size, rows in ROWS.items():
        for kind in KINDS:
            found = ours[size, kind] = {}
            for name, asked, by, graph in (
                ("NCCL, streams", "", "library", False),
                ("NCCL, graphs", "", "library", True),
                ("NCCL, 8 CTAs", "ctas = 8", "library", False),
                ("NCCL, ctas = 0", "ctas = 0", "library", False),
                ("copies and sums", "", "copies", False),
            ):
                plan = every_plan(gpus, driver, rows, "bf16", asked, kind)
                with opened(plan, driver, collectives=by, graph=graph) as executor:
                    assert verified_run(executor, values="exact").ok
                    found[name] = milliseconds(executor)
    theirs: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/times"
        mp.spawn(_theirs, (gpus, 29500 + os.getpid() % 1000, path), nprocs=gpus)
        for line in Path(path).read_text().splitlines():
            size, kind, time_ = line.split("|")
            theirs[size, kind] = float(time_)
    names = list(next(iter(ours.values())))
    print(f"ms, median of {ROUNDS}, {gpus} GPUs; what a rank gives in bf16")
    print(f"| size | collective | {' | '.join(names)} | torch.distributed |")
    print("|---|---" + "|--:" * (len(names) + 1) + "|")
    for (size, kind), found in ours.items():
        row = " | ".join(f"{found[name]:.4f}" for name in names)
        print(f"| {size} | {kind} | {row} | {theirs[size, kind]:.4f} |")
    return True

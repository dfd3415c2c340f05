"""A GEMM and a collective at once: PyTorch with NCCL and cuBLAS, and every setting of ours, on two NVIDIA GPUs.

The workloads are those of Cui and Pericàs (arXiv 2606.09200): 24 iterations over two buffers, the collective of an
iteration behind its GEMM. PyTorch's figures (GEMM alone, collective alone, sequential, overlapped, with priority) are
taken by turns, before our settings and behind them. Each setting of ours is a schedule of schedules/concurrent with
what its queues say. Its result is compared with torch.matmul on some rows, then it is timed, in a process that is
replaced when it hangs or breaks; the row then says why. Each timed run, ours and PyTorch's, begins when the GPUs have
rested for 0.1 s: GPUs that work without rest lower their clocks, and what comes last looks slow.

The table, which `-s` shows, says for each setting the time of an iteration over PyTorch's sequential time, and the
share of the ideal saving taken: (sequential - time) / (sequential - ideal), ideal = max(GEMM alone, collective alone).
A setting may fail to run, which its row says; a result that is wrong fails the test. A few settings take a minute, all
of them (`--long 2`) three; all figures are written to a file whose name is told.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.gpu.apart import apart, environment

ITERS, BUFFERS = 24, 2
PAUSE = 0.1  # seconds before each timed run, ours and PyTorch's: all begin with the clocks of a GPU that has rested
FIRST, LIMIT = 90.0, 25.0  # seconds of a setting: the first one of a process loads and compiles more
TORCH_LIMIT = 75.0
SECONDS, WHOLE = 55.0, 165.0  # after which no setting begins, of a few settings and of all
OFF = 0.1  # of the root mean square of the result; bf16 rounds its largest values by a fifth of that


@dataclass(frozen=True, slots=True)
class Workload:
    """What one GPU multiplies in an iteration, and the collective of the product."""

    name: str
    collective: str  # ar, a2a
    m: int
    n: int
    k: int


WORKLOADS = (
    Workload("cb-ar", "ar", 8192, 4096, 8192),
    Workload("mb-ar", "ar", 8192, 4096, 512),
    Workload("cb-a2a", "a2a", 8192, 8192, 8192),
    Workload("mb-a2a", "a2a", 8192, 8192, 512),
)


@dataclass(frozen=True, slots=True)
class Way:
    """A setting: a kind of schedule (`ar_vendor` without `ar_`), what is said with `--set`, and how it runs.
    `quick`: it takes part in a quick run. `theirs`: no kernel of ours runs. `env`: what the process is started with."""

    name: str
    kind: str
    said: Mapping[str, Any] = field(default_factory=dict)
    graph: bool = False
    quick: bool = False
    theirs: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


_HIGH = {"compute.priority": "low", "vendor.priority": "high"}
_VENDOR = {"kernel": "vendor"}
WAYS = (
    Way("NCCL + cuBLAS, sequential", "vendor", {**_VENDOR, "buffers": 1}, theirs=True, quick=True),
    Way("NCCL + cuBLAS, overlapped", "vendor", _VENDOR, theirs=True, quick=True),
    Way("NCCL + cuBLAS, priority", "vendor", {**_VENDOR, **_HIGH}, theirs=True, quick=True),
    Way("NCCL + cuBLAS, priority, graph", "vendor", {**_VENDOR, **_HIGH}, graph=True, theirs=True),
    *(
        Way(
            f"NCCL {ctas} CTAs + cuBLAS, priority",
            "vendor",
            {**_VENDOR, **_HIGH, "vendor.ctas": ctas},
            theirs=True,
        )
        for ctas in (8, 16)
    ),
    *(
        Way(
            f"NCCL {ctas} CTAs + cuBLAS on {sms} SMs, priority",
            "vendor",
            {**_VENDOR, **_HIGH, "vendor.ctas": ctas, "compute.sms": sms},
            theirs=True,
            quick=ctas == 16,
        )
        for ctas, sms in ((4, 128), (8, 124), (16, 116), (32, 100))
    ),
    Way("NCCL + our GEMM", "vendor"),
    Way("NCCL + our GEMM, priority", "vendor", _HIGH),
    *(
        Way(
            f"NCCL {ctas} CTAs + our GEMM on {sms} SMs",
            "vendor",
            {**_HIGH, "vendor.ctas": ctas, "compute.sms": sms},
            quick=ctas == 16,
        )
        for ctas, sms in ((4, 128), (8, 124), (16, 116), (32, 100))
    ),
    Way("NCCL + our GEMM, residency 2, priority", "vendor", {**_HIGH, "compute.residency": 2}),
    Way("NCCL + our GEMM, 64 KiB, no priority", "vendor", {"compute.smem": 65536}),
    Way("NCCL + our GEMM, 64 KiB, priority", "vendor", {**_HIGH, "compute.smem": 65536}),
    Way(
        "NCCL 256 threads + our GEMM, 64 KiB, priority",
        "vendor",
        {**_HIGH, "compute.smem": 65536, "vendor.threads": 256},
    ),
    Way("NCCL 256 threads + cuBLAS, priority", "vendor", {**_VENDOR, **_HIGH, "vendor.threads": 256}, theirs=True),
    Way("NCCL without CTAs + cuBLAS", "vendor", {**_VENDOR, **_HIGH, "vendor.ctas": 0}, theirs=True),
    Way("copy engines + our GEMM", "copies", quick=True),
    Way("copy engines + our GEMM, graph", "copies", graph=True),
    Way("copy engines + cuBLAS", "copies", _VENDOR, quick=True),
    Way("copy engines + cuBLAS, graph", "copies", _VENDOR, graph=True),
    Way("copy engines, our GEMM adds", "accumulated", quick=True),
    Way("copy engines, cuBLAS adds", "accumulated", _VENDOR, quick=True),
    Way("copy engines, cuBLAS adds, graph", "accumulated", _VENDOR, graph=True),
    Way("streamed", "streamed", quick=True),
    Way("streamed, graph", "streamed", graph=True),
    Way("streamed, 4 pieces", "streamed", {"chunks": 4}, quick=True),
)


def ways(workload: Workload, quick: bool, only: str) -> list[Way]:
    """Those that a run takes."""
    found = [w for w in WAYS if (w.quick or not quick) and only in w.name]
    return [w for w in found if workload.collective == "ar" or not ("chunks" in w.said or w.kind == "accumulated")]


def jobs_of(workloads: Sequence[Workload], quick: bool, only: str) -> list[tuple[str, int]]:
    """What is measured, in this order: the settings of a quick run first, for want of time."""
    found = [(w.name, WAYS.index(way)) for w in workloads for way in ways(w, quick, only)]
    return sorted(found, key=lambda job: not WAYS[job[1]].quick)


def group_of(way: Way) -> tuple[Any, ...]:
    """Settings of one process: NCCL reads its threads once."""
    return way.said.get("vendor.threads"), *sorted(way.env.items())


# ---------------------------------------------------------------- PyTorch


class Torch:
    """A workload in one of PyTorch's processes: what it multiplies, shares, and in which order. `sides` are streams
    for the collectives, and `groups` their process groups, by whether they have high priority."""

    def __init__(self, workload: Workload, sides: Mapping[bool, Any], groups: Mapping[bool, Any], main: Any) -> None:
        import torch

        self._sides, self._groups, self._main = sides, groups, main
        m, n, k = workload.m, workload.n, workload.k
        self._reduces = workload.collective == "ar"
        self._a = [torch.randn(m, k, device="cuda").to(torch.bfloat16) for _ in range(BUFFERS)]
        self._b = torch.randn(k, n, device="cuda").to(torch.bfloat16)
        self._p = [torch.empty(m, n, dtype=torch.bfloat16, device="cuda") for _ in range(BUFFERS)]
        self._c = [torch.empty_like(x) for x in self._p]
        self.runs: dict[str, Callable[[], None]] = {
            "gemm": lambda: self._in_order(multiplying=True, sharing=False),
            "collective": lambda: self._in_order(multiplying=False, sharing=True),
            "sequential": lambda: self._in_order(multiplying=True, sharing=True),
            "overlapped": lambda: self._overlapped(high=False),
            "priority": lambda: self._overlapped(high=True),
        }

    def timed(self, run: Callable[[], None]) -> float:
        """Milliseconds of an iteration. Every process calls this at the same time."""
        import torch
        import torch.distributed as dist

        for x in self._p:  # sums of sums would overflow
            x.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._main):
            torch.cuda._sleep(2_000_000)  # the host is ahead of the GPU
            begin.record()
        for side in self._sides.values():
            side.wait_event(begin)
        run()
        with torch.cuda.stream(self._main):
            end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / ITERS

    def _multiply(self, i: int) -> None:
        import torch

        torch.matmul(self._a[i % BUFFERS], self._b, out=self._p[i % BUFFERS])

    def _share(self, i: int, group: Any) -> None:
        import torch.distributed as dist

        if self._reduces:
            dist.all_reduce(self._p[i % BUFFERS], group=group)
        else:
            dist.all_to_all_single(self._c[i % BUFFERS], self._p[i % BUFFERS], group=group)

    def _in_order(self, *, multiplying: bool, sharing: bool) -> None:
        """All on one stream."""
        import torch

        with torch.cuda.stream(self._main):
            for i in range(ITERS):
                if multiplying:
                    self._multiply(i)
                if sharing:
                    self._share(i, self._groups[False])

    def _overlapped(self, *, high: bool) -> None:
        """The collective of an iteration behind its GEMM, and a GEMM behind the collective that read its buffer."""
        import torch

        side, shared = self._sides[high], [None] * BUFFERS
        for i in range(ITERS):
            with torch.cuda.stream(self._main):
                if shared[i % BUFFERS] is not None:
                    self._main.wait_event(shared[i % BUFFERS])
                self._multiply(i)
                made = self._main.record_event()
            with torch.cuda.stream(side):
                side.wait_event(made)
                self._share(i, self._groups[high])
                shared[i % BUFFERS] = side.record_event()
        self._main.wait_stream(side)


@dataclass(frozen=True, slots=True)
class Turns:
    """How often each thing is timed, and how long the GPUs rest before."""

    rounds: int  # behind two to warm up
    pause: float  # seconds


def theirs(rank: int, gpus: int, port: int, names: Sequence[str], turns: Turns, path: str) -> None:
    """What one of PyTorch's processes measures; the first one writes."""
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=gpus)
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    groups = {False: dist.group.WORLD, True: dist.new_group(pg_options=options)}
    sides = {False: torch.cuda.Stream(), True: torch.cuda.Stream(priority=-1)}
    main = torch.cuda.Stream()
    found: dict[str, dict[str, float]] = {}
    for workload in (w for w in WORKLOADS if w.name in names):
        work = Torch(workload, sides, groups, main)
        taken: dict[str, list[float]] = {name: [] for name in work.runs}
        for turn in range(-2, turns.rounds):
            for name, run in work.runs.items():
                time.sleep(turns.pause)
                spent = work.timed(run)
                taken[name] += [spent] if turn >= 0 else []
        everyone: list[Any] = [None] * gpus
        dist.all_gather_object(everyone, taken)
        slowest = {name: [max(times) for times in zip(*(e[name] for e in everyone), strict=True)] for name in taken}
        found[workload.name] = {name: median(times) for name, times in slowest.items()}
        found[workload.name] |= {f"{name}_least": min(times) for name, times in slowest.items()}
        found[workload.name] |= {f"{name}_most": max(times) for name, times in slowest.items()}
        if rank == 0:
            Path(path).write_text(json.dumps(found))
        del work
        torch.cuda.empty_cache()
    dist.destroy_process_group()


def torch_process(gpus: int, names: Sequence[str], turns: Turns, path: str) -> int:
    import torch.multiprocessing as mp

    port = 29500 + os.getpid() % 1000
    mp.spawn(theirs, (gpus, port, tuple(names), turns, path), nprocs=gpus)
    return 0


# ---------------------------------------------------------------- ours


class Data:
    """A workload's inputs and outputs on all GPUs, and some rows of what the outputs must hold."""

    def __init__(self, workload: Workload, gpus: int, rows: int = 64) -> None:
        import torch

        self.torch, w = torch, workload
        self.devices = [torch.device("cuda", g) for g in range(gpus)]
        made: dict[str, Any] = {"dtype": torch.bfloat16}
        self.a = [torch.randn(BUFFERS, w.m, w.k, device=d).to(torch.bfloat16) for d in self.devices]
        self.b = [torch.randn(w.k, w.n, device=d).to(torch.bfloat16) for d in self.devices]
        self.c = [torch.empty(BUFFERS, w.m, w.n, device=d, **made) for d in self.devices]
        step = max(1, w.m // rows)
        self.rows = list(range(step // 2, w.m, step))
        first = self.devices[0]
        products = [
            (a[:, self.rows].float() @ b.float()).to(first) for a, b in zip(self.a, self.b, strict=True)
        ]  # rows of each rank's product
        if w.collective == "ar":
            self.wanted = [sum(products)] * gpus
        else:  # piece g of the rows of every rank's product, one below the other
            shard = w.m // gpus
            pieces = [[i for i, row in enumerate(self.rows) if row // shard == g] for g in range(gpus)]
            self.wanted = [torch.cat([p[:, pieces[g]] for p in products], dim=1) for g in range(gpus)]
            self.places = [
                [s * shard + self.rows[i] % shard for s in range(gpus) for i in pieces[g]] for g in range(gpus)
            ]
        if w.collective == "ar":
            self.places = [self.rows] * gpus

    def poison(self) -> None:
        for c in self.c:
            c.fill_(float("nan"))
        self.wait()

    def wait(self) -> None:
        for device in self.devices:
            self.torch.cuda.synchronize(device)

    def off(self, buffers: int) -> float:
        """The largest error over the root mean square of what is wanted; not a number where nothing was written."""
        self.wait()
        worst = 0.0
        for c, wanted, places in zip(self.c, self.wanted, self.places, strict=True):
            found = c[:buffers, places].float().to(wanted.device)
            error = (found - wanted[:buffers]).abs().max() / wanted[:buffers].square().mean().sqrt()
            worst = max(worst, float(error)) if error == error else float("nan")
        return worst


def ours(jobs: Sequence[tuple[str, int]], gpus: int, turns: Turns, small: int) -> Iterator[dict[str, Any]]:
    """Records of settings, as they begin and end. `jobs`: a workload's name, and a setting's number."""
    import torch

    from ficco_rt.compiler import compile_schedule
    from ficco_rt.driver.registry import discover
    from ficco_rt.errors import DeviceError, ScheduleError, UsageError
    from ficco_rt.exec.executor import Executor

    torch.backends.cuda.matmul.allow_tf32 = False
    for a in range(gpus):
        torch.zeros(1, device=f"cuda:{a}")
    machine = discover("cuda", gpus)
    kept: tuple[str, Data] | None = None
    for name, number in jobs:
        workload, way = _workload(name, small), WAYS[number]
        yield {"begin": [name, number]}
        if kept is None or kept[0] != name:
            kept = None
            torch.cuda.empty_cache()
            kept = name, Data(workload, gpus)
        data, said = kept[1], dict(way.said)
        sizes = {"M": workload.m, "N": workload.n, "K": workload.k, "iters": ITERS, **said}
        buffers = int(sizes.get("buffers", BUFFERS))
        record: dict[str, Any] = {"end": [name, number]}
        try:
            plan = compile_schedule(f"concurrent/{workload.collective}_{way.kind}", gpus, sizes, machine)
            by = "library" if way.kind == "vendor" else "auto"
            with Executor(plan, "cuda", machine=machine, timeout=10, collectives=by, graph=way.graph) as executor:  # type: ignore[arg-type]
                data.poison()
                bound = executor.bind(A=[a[:buffers] for a in data.a], B=data.b, C=[c[:buffers] for c in data.c])
                executor.run(bound)
                record["off"] = data.off(buffers)
                times = []
                for turn in range(-2, turns.rounds):
                    time.sleep(turns.pause)
                    executor.run(bound)
                    if turn >= 0:
                        times.append(executor.duration / 1e3 / ITERS)
                record |= {"times": times, "host": executor.issued_in / 1e3 / ITERS}
                record["how"] = executor.driver.describe()
                executor.release(bound)
        except (ScheduleError, UsageError, DeviceError) as error:
            record["broken"] = isinstance(error, DeviceError)  # GPUs may be left in a state that no setting finds right
            record["failed"] = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        yield record


def _workload(name: str, small: int) -> Workload:
    found = next(w for w in WORKLOADS if w.name == name)
    return Workload(name, found.collective, found.m // small, found.n // small, max(64, found.k // small))


class Worker:
    """A process that measures settings, one after another; it is ended when one takes too long."""

    def __init__(self, jobs: Sequence[tuple[str, int]], gpus: int, turns: Turns, env: Mapping[str, str]) -> None:
        asked = json.dumps({"jobs": jobs, "gpus": gpus, "turns": asdict(turns)})
        command = [sys.executable, __file__, "ours", asked]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(env)
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._told: list[str] = []
        self._readers = []
        for stream, into in ((self._process.stdout, self._put), (self._process.stderr, self._told.append)):
            self._readers.append(threading.Thread(target=self._read, args=(stream, into), daemon=True))
            self._readers[-1].start()

    def _put(self, line: str) -> None:
        self._lines.put(line)

    def _read(self, stream: Any, into: Callable[[str], None]) -> None:
        with stream:
            for line in stream:
                into(line)
        if stream is self._process.stdout:
            self._lines.put(None)

    def record(self, seconds: float) -> dict[str, Any] | str:
        """The next record, or why none comes."""
        until = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return f"took more than {seconds:.0f} s"
            if line is None:
                code = self._process.wait()
                self._readers[1].join(5.0)
                return f"its process ended with code {code}: {' '.join(''.join(self._told).split())[-200:]}"
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join(5.0)


def measured(
    jobs: Sequence[tuple[str, int]], gpus: int, turns: Turns, until: float, tell: Callable[[str], None]
) -> dict[tuple[str, int], dict[str, Any]]:
    """A record for each job. What breaks its process is told in its record, and the next job has a new process."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    groups: dict[tuple[Any, ...], list[tuple[str, int]]] = {}
    for job in jobs:
        groups.setdefault(group_of(WAYS[job[1]]), []).append(job)
    for left in groups.values():
        while left:
            worker, first = Worker(left, gpus, turns, WAYS[left[0][1]].env), True
            try:
                while left:
                    job = left[0]
                    if time.monotonic() > until:
                        found |= {j: {"failed": "no time was left"} for j in left}
                        left.clear()
                        break
                    record = worker.record(FIRST if first else LIMIT)
                    if isinstance(record, dict) and "begin" in record:
                        continue
                    first = False
                    left.pop(0)
                    found[job] = record if isinstance(record, dict) else {"failed": record}
                    tell(f"{job[0]:7} {WAYS[job[1]].name}: {found[job].get('failed') or _shown(found[job])}")
                    if isinstance(record, str) or record.get("broken"):
                        break
            finally:
                worker.end()
    return found


def _shown(record: Mapping[str, Any]) -> str:
    return f"{median(record['times']):.3f} ms, off by {record['off']:.4f}"


# ---------------------------------------------------------------- the whole


def torch_figures(gpus: int, names: Sequence[str], turns: Turns) -> dict[str, dict[str, float]] | str:
    """PyTorch's, from processes of their own; or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "torch.json"
        asked = json.dumps({"gpus": gpus, "names": names, "turns": asdict(turns), "path": str(path)})
        command = [sys.executable, __file__, "torch", asked]
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment(),
        )
        try:
            _, told = process.communicate(timeout=TORCH_LIMIT)
            why = f"code {process.returncode}: {' '.join(told.split())[-300:]}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # its ranks, too
            process.wait()
            why = f"took more than {TORCH_LIMIT:.0f} s"
        if path.exists():
            whole: dict[str, dict[str, float]] = json.loads(path.read_text())
            return whole
        return why


def joined(before: Mapping[str, Any], after: Mapping[str, Any] | str) -> dict[str, Any]:
    """The mean of the figures before our settings and behind them."""
    if isinstance(after, str):
        return dict(before)
    return {
        w: {k: (v + after[w][k]) / 2 for k, v in figures.items()} if w in after else figures
        for w, figures in before.items()
    }


def ideal_of(figures: Mapping[str, float]) -> float:
    return max(figures["gemm"], figures["collective"])


def share(figures: Mapping[str, float], time_: float) -> float:
    """Of the ideal saving."""
    return (figures["sequential"] - time_) / (figures["sequential"] - ideal_of(figures))


def table(names: Sequence[str], figures: Mapping[str, Any], found: Mapping[tuple[str, int], Any]) -> str:
    """Time over PyTorch's sequential time, and the share of the ideal saving; the best of a workload has a star."""
    head = ["setting", *names]
    lines = [f"| {' | '.join(head)} |", "|---" + "|--:" * len(names) + "|"]
    ms = " ms".join(f"| {figures[w]['sequential']:.3f}" if w in figures else "| –" for w in names)
    lines.append(f"| PyTorch, sequential {ms} ms |")

    def cell(workload: str, time_: float | None, star: bool = False) -> str:
        if time_ is None or workload not in figures:
            return "–"
        of = figures[workload]
        return f"{time_ / of['sequential']:.3f} ({100 * share(of, time_):.0f} %){' *' if star else ''}"

    def row(name: str, times: Sequence[float | None], stars: Sequence[bool]) -> str:
        return f"| {name} | {' | '.join(cell(w, t, s) for w, t, s in zip(names, times, stars, strict=True))} |"

    none = [False] * len(names)
    lines.append(row("PyTorch, ideal", [ideal_of(figures[w]) if w in figures else None for w in names], none))
    for name in ("overlapped", "priority"):
        lines.append(row(f"PyTorch, {name}", [figures[w][name] if w in figures else None for w in names], none))
    times = {key: median(r["times"]) for key, r in found.items() if "times" in r and r["off"] < OFF}
    best = {w: min((t for (x, _), t in times.items() if x == w), default=None) for w in names}
    for number, way in enumerate(WAYS):
        if any((w, number) in found for w in names):
            mine = [times.get((w, number)) for w in names]
            stars = [t is not None and t == best[w] for w, t in zip(names, mine, strict=True)]
            lines.append(row(way.name, mine, stars))
    return "\n".join(lines)


def verdicts(names: Sequence[str], figures: Mapping[str, Any], found: Mapping[tuple[str, int], Any]) -> list[str]:
    """What was asked for: each workload's best setting, and the best without a kernel of ours."""
    lines = []
    times = {key: median(r["times"]) for key, r in found.items() if "times" in r and r["off"] < OFF}
    for w in (w for w in names if w in figures):
        of = figures[w]
        for what, keys in (
            ("best", [k for k in times if k[0] == w]),
            ("best of NCCL and cuBLAS", [k for k in times if k[0] == w and WAYS[k[1]].theirs]),
        ):
            if not keys:
                lines.append(f"{w}: {what}: none")
                continue
            key = min(keys, key=times.__getitem__)
            against = "priority" if what == "best" else "overlapped"
            gain = of[against] / times[key]
            lines.append(
                f"{w}: {what}: {WAYS[key[1]].name}, {times[key]:.3f} ms, {100 * share(of, times[key]):.0f} % of the "
                f"ideal saving, {gain:.3f} times as fast as PyTorch {against}"
            )
    return lines


def right(gpus: int, whole: bool, path: str) -> bool:
    """Print the table, and write all figures; whether no result is wrong. `whole`: of all settings."""
    names = [w.name for w in WORKLOADS]
    began = time.monotonic()
    until = began + (WHOLE if whole else SECONDS)
    turns = Turns(5 if whole else 3, PAUSE)

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    before = torch_figures(gpus, names, turns)
    assert not isinstance(before, str), f"PyTorch's figures are missing: {before}"
    tell("PyTorch measured")
    jobs = jobs_of(WORKLOADS, not whole, "")
    found = measured(jobs, gpus, turns, until, tell)
    after: dict[str, Any] | str = "left out"
    if whole and time.monotonic() < until:
        after = torch_figures(gpus, names, turns)
        tell("PyTorch measured again")
    figures = joined(before, after)
    record = {
        "iters": ITERS,
        "gpus": gpus,
        "rounds": turns.rounds,
        "pause": turns.pause,
        "torch": {"before": before, "after": after, "figures": figures},
        "settings": [
            {
                "workload": w,
                **asdict(WAYS[number]),
                **{k: v for k, v in record.items() if k != "end"},
                **({"ms": median(record["times"])} if "times" in record else {}),
            }
            for (w, number), record in found.items()
        ],
    }
    Path(path).write_text(json.dumps(record, indent=1) + "\n")
    print(f"all figures are in {path}")
    print(f"\n{gpus} GPUs, {ITERS} iterations over {BUFFERS} buffers; time over PyTorch's sequential time "
          "(share of the ideal saving)\n")  # fmt: skip
    print(table(names, figures, found))
    print("\n" + "\n".join(verdicts(names, figures, found)))
    wrong = [key for key, r in found.items() if "off" in r and not r["off"] < OFF]
    for w, number in wrong:
        print(f"WRONG: {w}, {WAYS[number].name}: off by {found[w, number]['off']:.3g}")
    return not wrong


@pytest.mark.gpus2
@pytest.mark.torch
@pytest.mark.nccl
@pytest.mark.nvmath
def test_settings(ranks: int, long: int, tmp_path: Path) -> None:
    whole = long > 1
    limit = 2 * TORCH_LIMIT + FIRST + (WHOLE if whole else SECONDS)
    apart(right, ranks, whole, str(tmp_path / "shape.json"), limit=limit)


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    turns = Turns(**given["turns"])
    if sys.argv[1] == "torch":
        sys.exit(torch_process(given["gpus"], given["names"], turns, given["path"]))
    for record in ours([tuple(j) for j in given["jobs"]], given["gpus"], turns, 1):
        print(json.dumps(record), flush=True)

"""Small plans, written by hand: each command comes from a line of its own of `x.ficco`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from ficco_rt.driver.api import Array
from ficco_rt.errors import DeviceError, Span
from ficco_rt.exec.executor import Executor
from ficco_rt.geometry.region import Axis, Interval, Region, whole
from ficco_rt.graph.ir import Claim, Combined, Engine, Gemm, Kernel, Operand, Product, Reduce, Tensor
from ficco_rt.kernels.catalogue import GEMM, REDUCE
from ficco_rt.machine.model import Device, Links, Machine
from ficco_rt.plan.ir import (
    VERSION,
    CollectiveCall,
    Command,
    CopyAsync,
    Launch,
    LaunchAttributes,
    Plan,
    Record,
    SignalFlag,
    Stream,
    Transfer,
    WaitEvent,
    WaitFlag,
    Work,
)
from ficco_rt.trace.model import Trace
from ficco_rt.types import Dtype, numpy_dtype

# Round numbers: 100 bytes and 1000 operations a microsecond, 10 bytes a microsecond on links.
MACHINE = Machine(
    name="toy",
    device=Device(
        name="toy",
        arch="none",
        sms=10,
        smem_per_sm=1 << 16,
        smem_per_block=1 << 16,
        smem_reserved=0,
        max_residency=1,
        warp=32,
        max_warps=64,
        memory=1 << 30,
        memory_rate=100.0,
        gemm_rate=(("bf16", 1000.0), ("fp16", 1000.0), ("fp32", 1000.0)),
        launch_time=3.0,
    ),
    links=Links(kind="switch", rate=10.0, copy_time=9.0, signal_time=4.0),
    ranks=2,
    source="made up",
)

ATTRIBUTES = LaunchAttributes(smem=0, residency=None, sms=None, priority=None)


def line(n: int, path: str = "x.ficco") -> Span:
    return Span(path, n, 3, n, 9)


def box(tensor: str, rank: int, *spans: tuple[int, int]) -> Region:
    """One rectangle."""
    return Region(tensor, rank, tuple(Axis((Interval(a, b),)) for a, b in spans))


def segments(tensor: str, rank: int, *axes: Sequence[tuple[int, int]]) -> Region:
    return Region(tensor, rank, tuple(Axis(tuple(Interval(a, b) for a, b in axis)) for axis in axes))


def tensor(name: str, kind: str, *shapes: tuple[int, ...], dtype: Dtype = "fp32", unproven: bool = True) -> Tensor:
    return Tensor(name, kind, dtype, shapes, unproven, line(1))  # type: ignore[arg-type]


def copy(dst: Region, src: Region, at: int) -> CopyAsync:
    return CopyAsync((Transfer(dst, src, at, line(at)),), "move")


def gemm_work(
    out: Region,
    left: Region,
    right: Region,
    at: int,
    *,
    transposed: tuple[bool, bool] = (False, False),
    accumulate: bool = False,
    waits: tuple[int, ...] = (),
    signals: tuple[int, ...] = (),
    tiles: tuple[int, int] = (1, 1),
    addends: tuple[Region, ...] = (),
) -> Work:
    body = Gemm(out, left, right, *transposed, accumulate, addends)
    return Work(body, waits, signals, at, line(at), tiles)


def launch(*works: Work, streamed: bool = False, kernel: str = GEMM, stage: str = "mm") -> Launch:
    return Launch(kernel, works, streamed, ATTRIBUTES, stage)


def reduce(out: Region, terms: tuple[Region, ...], at: int) -> Launch:
    return launch(Work(Reduce(out, terms), (), (), at, line(at)), kernel=REDUCE, stage="sum")


def record(event: int, at: int) -> Record:
    return Record(event, line(at))


def wait(event: int, at: int) -> WaitEvent:
    return WaitEvent(event, line(at))


def signal(flag: int, at: int) -> SignalFlag:
    return SignalFlag(flag, line(at))


def wait_flag(flag: int, at: int) -> WaitFlag:
    return WaitFlag(flag, line(at))


def collective(kind: str, group: int, dst: Region, src: Region, at: int) -> CollectiveCall:
    return CollectiveCall(kind, group, dst, src, op=at, stage="all", origin=line(at))  # type: ignore[arg-type]


def plan(
    tensors: Sequence[Tensor],
    streams: Sequence[tuple[int, Engine, Sequence[Command]]],
    *,
    events: int = 0,
    flag_homes: tuple[int, ...] = (),
    claims: tuple[Claim, ...] = (),
    kernels: tuple[Kernel, ...] = (),
) -> Plan:
    """`streams`: rank, engine, commands; the queue is called dma, compute or nccl after the engine."""
    ids = count()
    names: dict[Engine, str] = {"copy": "dma", "sm": "compute", "nccl": "nccl"}
    return Plan(
        version=VERSION,
        schedule="x",
        ranks=len(tensors[0].shapes),
        machine="toy",
        params=(),
        tensors=tuple(tensors),
        kernels=kernels,
        claims=claims,
        streams=tuple(
            Stream(next(ids), rank, names[engine], engine, "normal", None, tuple(commands))
            for rank, engine, commands in streams
        ),
        events=events,
        flag_homes=flag_homes,
        orders=(),
        made_for=replace(MACHINE, ranks=len(tensors[0].shapes)),
    )


def array(values: object, dtype: Dtype = "fp32") -> Array:
    return np.array(values, numpy_dtype(dtype))


def blank(*shape: int, dtype: Dtype = "fp32") -> Array:
    return np.full(shape, np.nan, numpy_dtype(dtype))


def gather_plan(dtype: Dtype = "fp32", m: int = 2, k: int = 4, n: int = 3) -> Plan:
    """Two ranks: C = all_gather(A) · B by pushes, own rows first."""
    a = [whole("A", r, (m, k)) for r in range(2)]
    b = [whole("B", r, (k, n)) for r in range(2)]
    streams: list[tuple[int, str, list[Command]]] = []
    for r in range(2):
        other = 1 - r
        here = box("G", other, (r * m, (r + 1) * m), (0, k))
        streams.append((r, "copy", [copy(here, a[r], 10), record(r, 10)]))
        own = gemm_work(box("C", r, (r * m, (r + 1) * m), (0, n)), a[r], b[r], 20)
        far = gemm_work(
            box("C", r, (other * m, (other + 1) * m), (0, n)),
            box("G", r, (other * m, (other + 1) * m), (0, k)),
            b[r],
            30,
        )
        streams.append((r, "sm", [launch(own), wait(other, 30), launch(far)]))
    value = Product(Combined("all_gather", Operand(tuple(a), False), 0, None), Operand(tuple(b), False))
    claim = Claim(tuple(whole("C", r, (2 * m, n)) for r in range(2)), value, "all_gather(A, rows) * B", line(5))
    return plan(
        [
            tensor("A", "input", (m, k), (m, k), dtype=dtype),
            tensor("B", "input", (k, n), (k, n), dtype=dtype),
            tensor("C", "output", (2 * m, n), (2 * m, n), dtype=dtype, unproven=False),
            tensor("G", "scratch", (2 * m, k), (2 * m, k), dtype=dtype),
        ],
        streams,  # type: ignore[arg-type]
        events=2,
        claims=(claim,),
    )


def executor_of(made: Plan, order: str = "fifo") -> Executor:
    return Executor(made, machine=MACHINE, order=order)


def run(made: Plan, order: str = "fifo", **tensors: object) -> Trace:
    """Run a plan on the tensors: what happened when."""
    with Executor(made, machine=MACHINE, order=order) as executor:
        executor.run(**tensors)
        return executor.trace


def message(made: Plan, order: str = "fifo", **tensors: object) -> str:
    """What a run that fails says."""
    with pytest.raises(DeviceError) as caught:
        run(made, order, **tensors)
    return str(caught.value)

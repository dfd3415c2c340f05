"""Flags of copy streams on CUDA: those that only launches wait for go out in one batch with the next copy or before it,
others are signalled, and all but the first are waited for, on streams beside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.features import usual
from ficco_rt.device.ir import Features, Placement, StreamMemOps, StreamName
from ficco_rt.driver.cuda.vendor import Cuda
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.machine import profiles as machine
from ficco_rt.plan.ir import Command, CopyAsync, Plan, SignalFlag, Stream, WaitFlag
from tests import cases
from tests.mock.standin import StandIn

RANKS = 3
CALLS = ("cuMemcpyBatchAsync", "cuMemcpyDtoDAsync", "cuMemcpy2DAsync", "cuStreamWriteValue32", "cuStreamWaitValue32")


def calls_of_a_run(
    library: StandIn, name: str, given: Mapping[str, object], version: int = 13000, each: int = 1
) -> tuple[dict[str, int], Executor]:
    """Of CALLS, for each rank, in a run on streams, `each` ranks a device."""
    counts, executor = called(library, planned(library, name, given, version, each), each)
    return each_rank(counts), executor


def planned(library: StandIn, name: str, given: Mapping[str, object], version: int = 13000, each: int = 1) -> Plan:
    library.reset(f"devices {RANKS}; version {version}")
    sizes = cases.sizes(name, RANKS, True) | dict(given)
    return plan_of(build(cases.schedule(name), RANKS, sizes), discover(library.face, RANKS, each))


def with_commands(plan: Plan, change: Callable[[Stream], Iterable[Command]]) -> Plan:
    return replace(plan, streams=tuple(replace(s, commands=tuple(change(s))) for s in plan.streams))


def each_rank(counts: Mapping[str, int]) -> dict[str, int]:
    assert all(counts.get(call, 0) % RANKS == 0 for call in CALLS), counts
    return {call: counts.get(call, 0) // RANKS for call in CALLS}


def called(library: StandIn, plan: Plan, each: int = 1) -> tuple[dict[str, int], Executor]:
    """The calls of a run on streams; runs in all orders are right."""
    with Executor(plan, library.face, timeout=30, ranks_per_gpu=each) as executor:
        for seed in range(60):
            library.set(f"seed {seed}; call_steps {seed % 3}; query_steps 5000")
            result = verified_run(executor, seed=seed, values="exact")
            assert result.ok, f"seed {seed}: {result.worst}"
        before = library.called()
        executor.run()
        executor.synchronize()
        after = library.called()
    assert not library.violations()
    assert not library.live()
    return {call: n - before.get(call, 0) for call, n in after.items()}, executor


def test_a_flag_goes_out_with_the_next_copy(cuda: StandIn) -> None:
    counts, _ = calls_of_a_run(cuda, "ag_gemm/streamed", {"chunks": 2})
    first, last = 1, 1
    assert counts == {
        "cuMemcpyBatchAsync": 4 - first, "cuMemcpyDtoDAsync": first, "cuMemcpy2DAsync": 0,
        "cuStreamWriteValue32": last, "cuStreamWaitValue32": 0,
    }  # fmt: skip


def test_a_flag_before_rows_of_a_pitch_goes_out_before_them(cuda: StandIn) -> None:
    counts, _ = calls_of_a_run(cuda, "ag_gemm/streamed", {"chunks": 2, "deep": [1, 1]})
    assert counts == {
        "cuMemcpyBatchAsync": 2 + 2, "cuMemcpyDtoDAsync": 1, "cuMemcpy2DAsync": 2,
        "cuStreamWriteValue32": 1, "cuStreamWaitValue32": 0,
    }  # fmt: skip


def test_a_driver_without_batches_raises_them_on_a_side_stream(cuda: StandIn) -> None:
    counts, _ = calls_of_a_run(cuda, "ag_gemm/streamed", {"chunks": 2}, version=12080)
    assert counts == {
        "cuMemcpyBatchAsync": 0, "cuMemcpyDtoDAsync": 4, "cuMemcpy2DAsync": 0,
        "cuStreamWriteValue32": 4, "cuStreamWaitValue32": 0,
    }  # fmt: skip


def test_flags_of_the_own_device_are_raised_on_a_side_stream(cuda: StandIn) -> None:
    """A semaphore's copy inside a device might need a multiprocessor."""
    counts, _ = calls_of_a_run(cuda, "ag_gemm/streamed", {"chunks": 2}, each=RANKS)
    assert (counts["cuMemcpyBatchAsync"], counts["cuStreamWriteValue32"]) == (0, 4)


def test_a_wait_parts_a_flag_from_the_next_copy(cuda: StandIn) -> None:
    """In one batch the flag would wait for what the copy waits for."""
    counts, executor = calls_of_a_run(cuda, "gemm_rs/relay", {"first": [1, 1], "middle": [1, 1], "last": [1, 1]})
    copies = [s for s in executor.plan.streams if s.engine == "copy"]
    for stream in copies:
        assert [type(c) for c in stream.commands[:2]] == [WaitFlag, CopyAsync]
    waits, signals = (sum(isinstance(c, kind) for c in copies[0].commands) for kind in (WaitFlag, SignalFlag))
    assert (counts["cuStreamWaitValue32"], counts["cuStreamWriteValue32"]) == (waits, signals)
    assert counts["cuMemcpyBatchAsync"] == 0


MIXED = """
schedule mixed
input   A[8, 8] : fp32
input   B[8, 8] : fp32
scratch G[8 * ranks, 8] : fp32
scratch H[8 * ranks, 8] : fp32
output  C[8 * ranks, 8] : fp32
output  D[8 * ranks, 8] : fp32
computes C = all_gather(A, rows) * B
computes D = all_gather(A, rows) * B
queue dma     { engine = copy }
queue compute { engine = sm }
stage push on dma {
  for p in peers {
    copy G.rows(rank of ranks).rows(0 of 2) @ p <- A.rows(0 of 2)
    for c in 0..2 { copy G.rows(rank of ranks).rows(1 of 2).cols(c of 2) @ p <- A.rows(1 of 2).cols(c of 2) }
    copy H.rows(rank of ranks) @ p <- A
  }
}
stage mm on compute streamed {
  gemm C.rows(rank of ranks) = A * B
  gemm D.rows(rank of ranks) = A * B
  for p in peers {
    gemm C.rows(p of ranks) = G.rows(p of ranks) * B
    gemm D.rows(p of ranks) = H.rows(p of ranks) * B
  }
}
"""  # copies of a run and rows of a pitch, and of runs, alternately


def test_a_flag_before_runs_and_rows_of_a_pitch_goes_out_before_them(cuda: StandIn) -> None:
    cuda.reset(f"devices {RANKS}")
    counts, _ = called(cuda, plan_of(build(ficco_dsl.parse(MIXED, "mixed.ficco"), RANKS), discover("cuda", RANKS)))
    assert each_rank(counts) == {
        "cuMemcpyBatchAsync": 2 + 1, "cuMemcpyDtoDAsync": 2, "cuMemcpy2DAsync": 4,
        "cuStreamWriteValue32": 1, "cuStreamWaitValue32": 0,
    }  # fmt: skip


def test_flags_in_a_row_go_out_together(cuda: StandIn) -> None:
    def later(stream: Stream) -> Iterable[Command]:
        if stream.engine != "copy":
            return stream.commands
        copy, flag, second, *rest = stream.commands
        return (copy, second, flag, *rest)

    plan = planned(cuda, "ag_gemm/streamed", {"chunks": 2})  # four copies a stream, a flag behind each
    counts, _ = called(cuda, with_commands(plan, later))
    assert each_rank(counts) == {
        "cuMemcpyBatchAsync": 2, "cuMemcpyDtoDAsync": 2, "cuMemcpy2DAsync": 0,
        "cuStreamWriteValue32": 1, "cuStreamWaitValue32": 0,
    }  # fmt: skip


def test_copies_flags_that_streams_wait_for_are_raised_on_a_side_stream(cuda: StandIn) -> None:
    """The compiler makes events of these; plans may come from elsewhere."""
    plan = planned(cuda, "ag_gemm/streamed", {"chunks": 2})  # four copies a stream, a flag behind each

    def awaited(stream: Stream) -> Iterable[Command]:
        if stream.engine == "copy":
            return stream.commands
        here = stream.commands[0].origin
        waits = [WaitFlag(flag, here) for flag, home in enumerate(plan.flag_homes) if home == stream.rank]
        return (*waits, *stream.commands)

    counts, _ = called(cuda, with_commands(plan, awaited))
    assert each_rank(counts) == {
        "cuMemcpyBatchAsync": 0, "cuMemcpyDtoDAsync": 4, "cuMemcpy2DAsync": 0,
        "cuStreamWriteValue32": 4, "cuStreamWaitValue32": 4,
    }  # fmt: skip


def test_copies_wait_on_a_side_stream_but_the_first(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event each, and one for the stream beside to begin behind."""
    given = {"first": [1, 1], "middle": [1, 1], "last": [1, 1]}
    counts = {}
    for beside in (False, True):
        features = partial(_features, beside)
        monkeypatch.setattr(Cuda, "features", features)
        counts[beside], _ = called(cuda, planned(cuda, "gemm_rs/relay", given))
    waits = counts[True]["cuStreamWaitValue32"]
    assert counts[True]["cuEventRecord"] - counts[False]["cuEventRecord"] == waits - RANKS
    assert counts[True]["cuStreamWaitEvent"] - counts[False]["cuStreamWaitEvent"] == waits


def _features(beside: bool, arch: str) -> Features:
    return replace(usual(arch), side_waits=beside)


def test_flags_between_copies(cuda: StandIn) -> None:
    """Side streams wait for the flags behind a copy stream's first copy, and signal those before its last one."""
    plan = planned(cuda, "gemm_rs/relay", {"first": [1, 1], "middle": [1, 1], "last": [1, 1]})
    layout = layout_of(plan, machine.profile("h200-switch", RANKS).device, Placement((0, 1, 2)), usual("sm_90a"))
    made = device_plan(layout, "streams")
    for stream in (s for s in plan.streams if s.engine == "copy"):
        places = [i for i, c in enumerate(stream.commands) if isinstance(c, CopyAsync)]
        flags = {
            "wait": {c.flag for c in stream.commands[places[0] :] if isinstance(c, WaitFlag)},
            "signal": {c.flag for c in stream.commands[: places[-1]] if isinstance(c, SignalFlag)},
        }
        for kind, wanted in flags.items():
            name = StreamName("wait" if kind == "wait" else "signal", stream.id)
            changes = [c for a in made.body if isinstance(a, StreamMemOps) and a.stream == name for c in a.changes]
            assert {made.semaphores[c.semaphore].flag for c in changes} == wanted
            assert {c.signals for c in changes} <= {kind == "signal"}

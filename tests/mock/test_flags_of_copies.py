"""Flags of copy streams on CUDA: those that only launches wait for go out in one batch with the next copy, others are
raised, and all but the first are waited for, on streams beside."""

from __future__ import annotations

from collections.abc import Mapping

from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import CopyAsync, SignalFlag, WaitFlag
from tests import cases
from tests.mock.standin import StandIn

RANKS = 3
CALLS = ("cuMemcpyBatchAsync", "cuMemcpyDtoDAsync", "cuMemcpy2DAsync", "cuStreamWriteValue32", "cuStreamWaitValue32")


def calls_of_a_run(
    library: StandIn, name: str, given: Mapping[str, object], version: int = 13000, each: int = 1
) -> tuple[dict[str, int], Executor]:
    """Of CALLS, for each rank, in a run on streams, `each` ranks a device; runs in all orders are right."""
    library.reset(f"devices {RANKS}; version {version}")
    sizes = cases.sizes(name, RANKS, True) | dict(given)
    plan = plan_of(build(cases.schedule(name), RANKS, sizes), discover(library.face, RANKS, each))
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
    counts = {call: after.get(call, 0) - before.get(call, 0) for call in CALLS}
    assert all(n % RANKS == 0 for n in counts.values()), counts
    return {call: n // RANKS for call, n in counts.items()}, executor


def test_a_flag_goes_out_with_the_next_copy(cuda: StandIn) -> None:
    counts, _ = calls_of_a_run(cuda, "ag_gemm/streamed", {"chunks": 2})
    first, last = 1, 1
    assert counts == {
        "cuMemcpyBatchAsync": 4 - first, "cuMemcpyDtoDAsync": first, "cuMemcpy2DAsync": 0,
        "cuStreamWriteValue32": last, "cuStreamWaitValue32": 0,
    }  # fmt: skip


def test_a_flag_before_rows_of_a_pitch_is_raised_beside(cuda: StandIn) -> None:
    counts, _ = calls_of_a_run(cuda, "ag_gemm/streamed", {"chunks": 2, "deep": [1, 1]})
    assert counts == {
        "cuMemcpyBatchAsync": 2, "cuMemcpyDtoDAsync": 1, "cuMemcpy2DAsync": 2,
        "cuStreamWriteValue32": 3, "cuStreamWaitValue32": 0,
    }  # fmt: skip


def test_a_driver_without_batches_raises_them_beside(cuda: StandIn) -> None:
    counts, _ = calls_of_a_run(cuda, "ag_gemm/streamed", {"chunks": 2}, version=12080)
    assert counts == {
        "cuMemcpyBatchAsync": 0, "cuMemcpyDtoDAsync": 4, "cuMemcpy2DAsync": 0,
        "cuStreamWriteValue32": 4, "cuStreamWaitValue32": 0,
    }  # fmt: skip


def test_flags_of_the_own_device_are_raised_beside(cuda: StandIn) -> None:
    """A word's copy inside a device might need a multiprocessor."""
    counts, _ = calls_of_a_run(cuda, "ag_gemm/streamed", {"chunks": 2}, each=RANKS)
    assert (counts["cuMemcpyBatchAsync"], counts["cuStreamWriteValue32"]) == (0, 4)


def test_flags_that_streams_wait_for_stay_in_place(cuda: StandIn) -> None:
    """A wait must not be issued before what it waits for."""
    counts, executor = calls_of_a_run(cuda, "gemm_rs/relay", {"first": [1, 1], "middle": [1, 1], "last": [1, 1]})
    copies = [s for s in executor.plan.streams if s.engine == "copy"]
    for stream in copies:
        assert [type(c) for c in stream.commands[:2]] == [WaitFlag, CopyAsync]
    waits, raises = (sum(isinstance(c, kind) for c in copies[0].commands) for kind in (WaitFlag, SignalFlag))
    assert (counts["cuStreamWaitValue32"], counts["cuStreamWriteValue32"]) == (waits, raises)
    assert counts["cuMemcpyBatchAsync"] == 0

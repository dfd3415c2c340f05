"""What a recorded run on GPUs becomes in a trace."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.device.build import layout_of
from ficco_rt.device.features import usual
from ficco_rt.device.ir import EventName, Placement
from ficco_rt.driver.gpu.inside import Marked, launch_times
from ficco_rt.driver.gpu.spans import events_of, raisers_of, spans_of
from ficco_rt.kernels.marks import MARK
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import CopyAsync, Launch, Stream, WaitEvent, WaitFlag
from tests import cases


def waits_before(stream: Stream) -> int:
    """Commands that do something right behind waits."""
    found, waiting = 0, False
    for command in stream.commands:
        if isinstance(command, CopyAsync | Launch):
            found += waiting
            waiting = False
        waiting = waiting or isinstance(command, WaitEvent | WaitFlag)
    return found


@pytest.mark.parametrize("name", ["ag_gemm/shard_ring", "gemm_rs/relay", "gemm_rs/serial"])
def test_waits_fill_the_time_between_what_streams_do(name: str) -> None:
    """Timestamps are 10 µs apart: every wait is long enough to be shown, once, before what stood behind it."""
    plan = plan_of(build(cases.schedule(name), 3, cases.sizes(name, 3, True)), profile("h200-switch", 3))
    dtypes = {t.name: t.dtype for t in plan.tensors}

    def time(event: EventName) -> float:
        return 10.0 * (event.rank + 1)

    shown = 0
    for stream in plan.streams:
        spans = list(spans_of(stream, dtypes, time, raisers_of(plan), {}, {}))
        waits = [s for s in spans if s.kind == "wait"]
        assert len(waits) == waits_before(stream)
        shown += len(waits)
        assert all(a.stop <= b.start for a, b in pairwise(spans))
        used = {time(event) for events in events_of(stream) for event in events}
        assert {s.stop for s in spans if s.kind != "wait"} <= used
    assert shown


def test_marks_are_set_on_the_runs_clock() -> None:
    """All launches of a device say where its clock's zero may lie. Times of works are the earliest and the latest of
    their tiles, waits the mean over all blocks; a work that waits for no flag has none."""
    machine = profile("h200-switch", 2)
    plan = plan_of(build(cases.schedule("ag_gemm/streamed"), 2, cases.sizes("ag_gemm/streamed", 2, True)), machine)
    launches = layout_of(plan, machine.device, Placement((0, 0)), usual(machine.device.arch), "").launches
    one, two = (replace(x, config=replace(x.config, blocks=2)) for x in launches if x.spins)
    assert [bool(work.waits) for work in one.works] == [False, True, True]
    epoch, tick = 1_763_800_000_000_000_000, 100  # of 10 ns: what floats of so many ticks could not tell apart
    tiles = [(10, 11, 20, 1), (12, 13, 22, 1), (20, 50, 60, 30), (22, 52, 61, 30), (60, 61, 70, 0)]  # µs

    def marks(later: int, of: list[tuple[int, ...]]) -> np.ndarray:
        rows = [(*(epoch + tick * (t + later) for t in times), tick * waited, 0) for *times, waited in of]
        return np.array(rows, MARK)

    works = [0, 0, 1, 1, 2]
    # the device's clock shows `epoch` at 100 µs: 104 … 172 leaves 4 µs before the first mark's 110, and 2 behind 170
    found = launch_times(
        [
            Marked(one, marks(0, tiles), works, 0, 106.0, 172.0),
            Marked(two, marks(200, tiles), works, 0, 302.0, 371.0),
        ],
        lambda device: tick,
    )
    first, second = (found[x.stream, x.command] for x in (one, two))
    assert first.within == second.within == pytest.approx(2.5)  # 4 before the one's first, 1 behind the other's last
    zero = 100 + (1 - 4) / 2
    told = [(w.came - zero, w.began - zero, w.ended - zero, w.waited) for w in first.works]
    assert told == [pytest.approx(w) for w in [(10, 11, 22, 0), (20, 50, 61, 30), (60, 61, 70, 0)]]
    assert [w.came - v.came for v, w in zip(first.works, second.works, strict=True)] == [pytest.approx(200)] * 3
    assert first.waited == pytest.approx(30)
    assert launch_times([Marked(one, np.zeros(5, MARK), works, 0, 0.0, 1.0)], lambda device: tick) == {}  # given up

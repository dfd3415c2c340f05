"""What a recorded run on GPUs becomes in a trace."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.device.ir import EventName
from ficco_rt.driver.gpu.spans import events_of, raisers_of, spans_of
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

"""One clock for the spans of several processes."""

from __future__ import annotations

import pickle
from typing import cast

import pytest

from ficco_rt.driver.gpu import clocks
from ficco_rt.driver.gpu.clocks import Reading, Spans
from ficco_rt.process.group import Group
from ficco_rt.report.tracefile import from_json, to_json
from ficco_rt.trace.model import Lane, Trace, TraceSpan


def span(rank: int, start: float, stop: float) -> TraceSpan:
    return TraceSpan(rank, rank, "copy", "a copy", "move", start, stop, "t.ficco:1")


class Told:
    """A group whose other process has told this."""

    size, rank = 2, 0

    def __init__(self, theirs: tuple[Spans, ...]) -> None:
        self.theirs = theirs

    def exchange(self, mine: bytes, timeout: float | None, step: str) -> tuple[bytes, bytes]:
        return mine, pickle.dumps(self.theirs)


def test_spans_stand_where_they_were_on_the_machines_clock() -> None:
    """Process 1 began 40 µs later, by the same clock."""
    mine = (Spans(Reading(1000.0, 3.0), (span(0, 0.0, 50.0),)),)
    theirs = (Spans(Reading(1040.0, 4.0), (span(1, 5.0, 20.0),)), Spans(Reading(1010.0, 1.0), (span(2, 0.0, 1.0),)))
    group = cast(Group, Told(theirs))
    spans, within = clocks.on_one_clock(group, ["here", "here"], mine, None)
    assert [(s.rank, s.start, s.stop) for s in spans] == [(0, 0.0, 50.0), (1, 45.0, 60.0), (2, 10.0, 11.0)]
    assert within == 7.0
    trace = Trace("t", "m", "device", 3, tuple(Lane(r, r, "dma", "copy") for r in range(3)), spans, within=within)
    assert from_json(to_json(trace), "t.json") == trace


@pytest.mark.parametrize("ahead", [-5000.0, 0.0, 123456.0])
def test_clocks_of_machines_are_compared_by_messages(ahead: float) -> None:
    """What processes 1 and 2 tell, which are on one machine, bounds its clock together."""
    sent = ([0.0, 100.0], [0.0 + ahead, 105.0 + ahead], [20.0 + ahead, 101.0 + ahead])
    taken = ([24.0, 115.0], [30.0 + ahead, 130.0 + ahead], [44.0 + ahead, 104.0 + ahead])
    told = [(list(s), list(t)) for s, t in zip(sent, taken, strict=True)]
    found = clocks.ahead(["a", "b", "b"], told)
    assert found[0] == Reading(0.0)
    assert found[1] == found[2]
    assert found[1].at - found[1].within <= ahead <= found[1].at + found[1].within
    assert found[1].within == 4.0  # between 20 - 24 and 104 - 100

"""Arrows of a trace: from what was waited for to what waited, as the plan's events and flags say."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import ficco_rt
from ficco_rt.arrows import arrows
from ficco_rt.cli import tracefile
from ficco_rt.errors import UsageError
from ficco_rt.plan.ir import Plan, Record, WaitEvent
from ficco_rt.sim.simulate import simulate
from ficco_rt.trace import Arrow, Trace
from tests.unit.test_timeline import overlapped


def drawn(schedule: str, ranks: int = 2, **params: Any) -> tuple[Plan, Trace]:
    plan = ficco_rt.compile(schedule, ranks, M=64 * ranks, N=64, K=64, **params)
    trace = simulate(plan, plan.target)
    return plan, replace(trace, arrows=arrows(plan, trace))


def told(trace: Trace) -> Counter[str]:
    """Each arrow's stages and ranks: `gather@1 → rest@0`."""
    ends = [(trace.spans[arrow.before], trace.spans[arrow.after]) for arrow in trace.arrows]
    return Counter(f"{a.stage}@{a.rank} → {b.stage}@{b.rank}" for a, b in ends)


def test_a_product_waits_for_its_chunk_and_for_no_other() -> None:
    _, trace = drawn("ag_gemm/hetero_unfused_1d", chunks=2)
    assert told(trace) == {"gather@1 → rest@0": 2, "gather@0 → rest@1": 2}
    for arrow in trace.arrows:
        before, after = trace.spans[arrow.before], trace.spans[arrow.after]
        assert before.stop <= after.start
        (piece,) = {before.label.rpartition("rows")[2].split(",")[0]}
        assert f"rows{piece}" in after.label


def test_works_inside_launches_wait_and_signal() -> None:
    plan, trace = drawn("gemm_rs/streamed", chunks=2)
    found = told(trace)
    assert found["mm@0 → scatter@0"] > 0
    assert all(trace.spans[arrow.before].kind != "wait" != trace.spans[arrow.after].kind for arrow in trace.arrows)
    works = {op for span in trace.spans if span.kind == "launch" for op in span.ops}
    assert works & {op for arrow in trace.arrows for op in trace.spans[arrow.before].ops}
    unmarked = replace(trace, spans=tuple(span for span in trace.spans if span.kind not in ("gemm", "reduce")))
    whole = {unmarked.spans[arrow.before].kind for arrow in arrows(plan, unmarked)}
    assert "launch" in whole  # where the works are not told, their launch is what was waited for


def test_a_signal_tells_of_what_its_stream_had_waited_for() -> None:
    """A stream without works between a wait and a signal passes the wait on."""
    plan, trace = drawn("ag_gemm/serial")
    copies, compute = (next(s for s in plan.streams if s.rank == 0 and s.queue == q) for q in ("dma", "compute"))
    origin = copies.commands[0].origin
    done = Record(plan.events, origin)
    relay = (WaitEvent(plan.events, origin), Record(plan.events + 1, origin))
    between = replace(copies, id=99, queue="between", commands=relay)
    waiting = replace(compute, commands=(WaitEvent(plan.events + 1, origin), *compute.commands[-1:]))
    streams = (replace(copies, commands=(*copies.commands[:-1], done)), between, waiting)
    (arrow,) = arrows(replace(plan, streams=streams, events=plan.events + 2), trace)
    assert (trace.spans[arrow.before].stage, trace.spans[arrow.after].stage) == ("gather", "mm")
    assert trace.spans[arrow.before].rank == trace.spans[arrow.after].rank == 0


# ---------------------------------------------------------------- in trace files


def test_arrows_are_flow_events_that_bind_to_their_spans() -> None:
    """As Perfetto binds them: the end's id is its beginning's, and at its time its span runs on its thread."""
    _, trace = drawn("ag_gemm/streamed", chunks=2)
    assert trace.arrows
    text = tracefile.to_json(trace, {"time_ms": float("nan")})
    assert tracefile.from_json(text, "t.json").arrows == trace.arrows
    data = json.loads(text)
    assert data["otherData"]["run"] == {"time_ms": None}
    spans = [e for e in data["traceEvents"] if e["ph"] == "X"]
    begins = {e["id"]: e for e in data["traceEvents"] if e["ph"] == "s"}
    ends = {e["id"]: e for e in data["traceEvents"] if e["ph"] == "f"}
    assert len(begins) == len(ends) == len(trace.arrows)
    for number, arrow in enumerate(trace.arrows):
        begin, end = begins[number], ends[number]
        assert (begin["name"], begin["cat"], end["bp"]) == (end["name"], end["cat"], "e")
        assert begin["ts"] <= end["ts"]
        for event, span in ((begin, spans[arrow.before]), (end, spans[arrow.after])):
            assert (event["pid"], event["tid"]) == (span["pid"], span["tid"])
            assert span["ts"] <= event["ts"] <= span["ts"] + span["dur"]


def test_files_of_older_versions_are_read_and_wrong_arrows_are_refused() -> None:
    trace = overlapped(ranks=2, chunks=1)
    data = json.loads(tracefile.to_json(replace(trace, arrows=(Arrow(0, 3),))))
    data["otherData"]["version"] = 2
    assert tracefile.from_json(json.dumps(data), "t.json").arrows == (Arrow(0, 3),)
    begin = next(e for e in data["traceEvents"] if e["ph"] == "s")
    for args, message in (
        ({"before": 0, "after": 99}, "an arrow to event 99 of 6 that took time"),
        ({"before": 0}, "'after' is missing or not a count"),
    ):
        begin["args"] = args
        with pytest.raises(UsageError, match=message):
            tracefile.from_json(json.dumps(data), "t.json")

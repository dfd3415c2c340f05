"""Arrows of a trace: from what was waited for to what waited, as the plan's events and flags say."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import ficco_dsl
import ficco_rt
from ficco_rt.analysis.causes import arrows, critical_path, path_times
from ficco_rt.compiler import build
from ficco_rt.errors import UsageError
from ficco_rt.files import shipped
from ficco_rt.machine.profiles import chosen
from ficco_rt.plan.ir import Launch, Plan, Record, WaitEvent
from ficco_rt.plan.lower import lower
from ficco_rt.report import tracefile
from ficco_rt.sim.simulate import simulate
from ficco_rt.trace.model import NO_WORK, Arrow, Lane, Trace, TraceSpan
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


# ---------------------------------------------------------------- the critical path


def test_the_critical_path_goes_back_along_what_ended_last() -> None:
    """Rank 1's product stood behind a sum and waited for two copies, of which rank 0's second one ended last."""

    def span(rank: int, stream: int, kind: Any, start: float, stop: float, stage: str) -> TraceSpan:
        return TraceSpan(rank, stream, kind, stage, stage, start, stop, "x:1")

    spans = (
        span(0, 0, "copy", 1, 5, "first"),
        span(0, 0, "copy", 6, 12, "second[1]"),
        span(1, 1, "copy", 1, 11, "other"),
        span(1, 2, "reduce", 1, 10, "sum"),
        span(1, 2, "wait", 10, 13, "mm"),
        span(1, 2, "gemm", 13, 20, "mm"),
        span(0, 3, "gemm", 1, 20, "equal"),
    )
    lanes = tuple(Lane(n, rank, str(n), "sm") for n, rank in enumerate((0, 1, 1, 0)))
    trace = Trace("t", "m", "virtual", 2, lanes, spans, (Arrow(1, 5), Arrow(2, 5)))
    assert critical_path(trace) == (0, 1, 5)
    assert path_times(trace) == {"first": 4, "second": 6, "mm": 7}
    assert critical_path(replace(trace, arrows=())) == (3, 5)
    # a launch whose works are not told began before what it waits for inside: its time counts from there
    early = replace(trace, spans=(*spans[:5], spans[5]._replace(start=2), spans[6]))
    assert path_times(early) == {"first": 4, "second": 6, "mm": 8}
    assert critical_path(replace(trace, spans=spans[4:5], arrows=())) == ()


def test_a_copy_whose_signal_came_after_the_stream_was_free_is_on_the_path() -> None:
    """The copies end before the products in front of those that wait for them, and their flags come after these."""
    machine = chosen("h200-switch", 4)
    less = 1.5
    quicker = replace(machine, links=replace(machine.links, copy_time=machine.links.copy_time - less))
    plan = ficco_rt.compile("ag_gemm/streamed", 4, machine, M=1024, N=1024, K=1024, chunks=1, deep=(1,))
    trace = simulate(plan, machine)
    trace = replace(trace, arrows=arrows(plan, trace))
    stages = [trace.spans[n].stage for n in critical_path(trace)]
    assert stages == ["gather", "gather", "gather", "mm"]
    first, *_, copy, product = (trace.spans[n] for n in critical_path(trace))
    assert any(copy.stop < span.stop < product.start for span in trace.spans if span.stream == product.stream)
    assert path_times(trace)["gather"] == pytest.approx(copy.stop - first.start)
    assert simulate(plan, quicker).duration == pytest.approx(trace.duration - less)


@pytest.mark.parametrize("schedule", ["ag_gemm/serial", "ag_gemm/streamed", "gemm_rs/streamed", "gemm_rs/relay"])
def test_a_path_is_no_longer_than_the_run(schedule: str) -> None:
    _, trace = drawn(schedule, ranks=4)
    path = [trace.spans[n] for n in critical_path(trace)]
    assert path[-1].stop == trace.duration
    assert all(before.stop <= after.stop for before, after in pairwise(path))
    works = [span for span in trace.spans if span.kind not in NO_WORK]
    assert path[0].start == min(span.start for span in works if span.stream == path[0].stream)
    assert 0 < sum(path_times(trace).values()) <= trace.duration


# ---------------------------------------------------------------- every dependency


@pytest.mark.parametrize("schedule", ["ag_gemm/streamed", "gemm_rs/streamed", "ag_gemm/shard_ring", "gemm_rs/relay"])
def test_arrows_and_streams_order_all_that_depends(schedule: str) -> None:
    """Whatever an op depends on comes before it along streams and arrows."""
    with shipped.find(schedule).open("rb") as file:
        graph = build(ficco_dsl.parse_bytes(file.read(), schedule), 3, {"M": 96, "N": 48, "K": 48})
    plan = lower(graph, chosen("h200-switch", 3))
    trace = simulate(plan, plan.target)
    trace = replace(trace, arrows=arrows(plan, trace))
    before: dict[int, set[int]] = {}  # of each op, those straight before it
    for arrow in trace.arrows:
        for after in trace.spans[arrow.after].ops:
            before.setdefault(after, set()).update(trace.spans[arrow.before].ops)
    for stream in plan.streams:
        done: set[int] = set()
        for command in stream.commands:
            ops = {part.op for part in command.parts}
            for op in ops:
                before.setdefault(op, set()).update(done - ops)
            done |= ops
            if isinstance(command, Launch) and command.streamed:  # its works have no order but flags
                done -= ops
    for op, dependencies in enumerate(graph.deps):
        earlier, ahead = set(), [op]
        while ahead:
            found = before.get(ahead.pop(), set()) - earlier
            earlier |= found
            ahead += found
        assert {dependency.before for dependency in dependencies} <= earlier | {op}, graph.ops[op]


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
        ({"before": 0}, r"traceEvents\[\d+\].args: missing after;"),
    ):
        begin["args"] = args
        with pytest.raises(UsageError, match=message):
            tracefile.from_json(json.dumps(data), "t.json")

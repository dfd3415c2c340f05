"""Trace files and drawings: what is written reads back, and a picture shows what the trace says."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import time
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import ficco_rt
from ficco_rt.analysis.account import rank_uses
from ficco_rt.cli.console import Style
from ficco_rt.cli.page.write import timeline_page
from ficco_rt.cli.timeline import sketch, timeline
from ficco_rt.errors import UsageError
from ficco_rt.kernels.sm90.cost import PIPELINE
from ficco_rt.machine.durations import gemm_rate
from ficco_rt.report import svg, tracefile
from ficco_rt.report.account_words import summary
from ficco_rt.report.drawing import lane_use, stack, stage_colours, tick_labels, ticks
from ficco_rt.report.wording import show_bytes, show_flops, show_time
from ficco_rt.sim.simulate import simulate
from ficco_rt.trace.inside import launches
from ficco_rt.trace.model import Lane, Launched, Trace, TraceSpan

SVG = "{http://www.w3.org/2000/svg}"


def overlapped(ranks: int = 4, chunks: int = 4, copy: float = 9.0, gemm: float = 8.0) -> Trace:
    """All-gather + GEMM as it would look: pushes on one stream, GEMMs that wait for pieces on the other."""
    lanes: list[Lane] = []
    spans: list[TraceSpan] = []
    arrived: dict[tuple[int, int, int], float] = {}
    for rank in range(ranks):
        lanes += [Lane(2 * rank, rank, "dma", "copy"), Lane(2 * rank + 1, rank, "compute", "sm")]
        now = 0.0
        for c in range(chunks):
            for k in range(1, ranks):
                peer = (rank + k) % ranks
                label, stop = f"gather  A → G@{peer} piece {c}", now + copy
                spans.append(
                    TraceSpan(
                        rank, 2 * rank, "copy", label, "gather", now, stop, "x.ficco:24", bytes=1 << 21, peer=peer
                    )
                )
                now = arrived[peer, rank, c] = stop
    for rank in range(ranks):
        now = 3.0 + gemm
        spans.append(TraceSpan(rank, 2 * rank + 1, "gemm", "own  C", "own", 3.0, now, "x.ficco:28", flops=10**9))
        for c in range(chunks):
            for k in range(1, ranks):
                start = max(now, arrived[rank, (rank - k) % ranks, c])
                if start > now:
                    spans.append(
                        TraceSpan(rank, 2 * rank + 1, "wait", "waits for gather", "rest", now, start, "x.ficco:33")
                    )
                now = start + gemm / 3
                spans.append(
                    TraceSpan(rank, 2 * rank + 1, "gemm", "rest  C", "rest", start, now, "x.ficco:33", flops=10**8)
                )
    return Trace("ag_gemm_test", "h200-switch", "virtual", ranks, tuple(lanes), tuple(spans))


def rounded(trace: Trace) -> Trace:
    spans = tuple(s._replace(start=round(s.start, 6), stop=round(s.stop, 6)) for s in trace.spans)
    return dataclasses.replace(trace, spans=spans)


# ---------------------------------------------------------------- trace files


def test_trace_round_trip() -> None:
    trace = overlapped()
    text = tracefile.to_json(trace)
    back = tracefile.from_json(text, "t.json")
    assert back == rounded(trace)
    assert tracefile.to_json(back) == text


def test_trace_file_is_what_perfetto_reads() -> None:
    data = json.loads(tracefile.to_json(overlapped(ranks=2)))
    meta = [e for e in data["traceEvents"] if e["ph"] == "M"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in meta if e["name"] == "thread_name"}
    assert names == {(0, 0): "dma", (0, 1): "compute", (1, 2): "dma", (1, 3): "compute"}
    assert [e["args"]["name"] for e in meta if e["name"] == "process_name"] == ["rank 0", "rank 1"]
    first = next(e for e in data["traceEvents"] if e["ph"] == "X")
    assert first == {
        "ph": "X", "name": "gather  A → G@1 piece 0", "cat": "copy", "pid": 0, "tid": 0, "ts": 0.0, "dur": 9.0,
        "args": {"stage": "gather", "place": "x.ficco:24", "stream": 0, "bytes": 1 << 21, "peer": 1},
    }  # fmt: skip
    other = data["otherData"]
    assert (other["schedule"], other["machine"], other["clock"], other["ranks"]) == (
        "ag_gemm_test",
        "h200-switch",
        "virtual",
        2,
    )


def test_works_that_run_together_get_threads_of_their_own() -> None:
    spans = tuple(TraceSpan(0, 0, "gemm", f"work {i}", "mm", float(i), i + 2.5, "x.ficco:1") for i in range(4))
    trace = Trace("streamed", "h200-switch", "virtual", 1, (Lane(0, 0, "compute", "sm"),), spans)
    events = json.loads(tracefile.to_json(trace))["traceEvents"]
    assert [e["tid"] for e in events if e["ph"] == "X"] == [0, 1, 2, 0]
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == [
        "compute",
        "compute (2)",
        "compute (3)",
    ]
    assert tracefile.from_json(tracefile.to_json(trace), "t.json") == trace


def edit(**changes: Any) -> str:
    """A good trace file with fields of its `otherData` or its first event replaced."""
    data = json.loads(tracefile.to_json(overlapped(ranks=2, chunks=1)))
    event = next(e for e in data["traceEvents"] if e["ph"] == "X")
    for name, value in changes.items():
        record = event if name in event else event["args"] if name in event["args"] else data["otherData"]
        record[name] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.json:1:1: this is no JSON: Expecting value"),
        ("[" * 100_000, "t.json:1:1: lists or objects are nested too deeply"),
        ("[]", "t.json: is not a trace of ours; `ficco-run --trace FILE` writes one"),
        ('{"traceEvents": []}', "t.json: is not a trace of ours; `ficco-run --trace FILE` writes one"),
        (
            edit(version=7),
            "t.json: is a trace of version 7; this ficco reads versions 1 to 3: let `ficco-run --trace FILE` ",
        ),
        (edit(version=True), "t.json: is a trace of version true; this ficco reads versions 1 to 3: let `ficco-run "),
        (
            edit(ranks="two"),
            't.json: otherData.ranks: a whole number expected, found "two"; let `ficco-run ',
        ),
        (edit(ranks=True), "t.json: otherData.ranks: a whole number expected, found true"),
        (edit(clock="sundial"), "t.json: otherData.clock: 'sundial' is none of 'device', 'virtual'"),
        (edit(lanes=[[0, 0, "dma"]]), "t.json: otherData.lanes[0]: 4 members expected, found 3"),
        (
            edit(lanes=[[2, 0, "dma", "copy"]]),
            "t.json: otherData.lanes: a lane's rank is not below 2",
        ),
        (edit(lanes=[]), "t.json: traceEvents[12]: rank 0 has no stream 0 in the list of lanes"),
        (edit(ts="soon"), 't.json: traceEvents[12].ts: a number expected, found "soon"'),
        (edit(ts=-1), "t.json: traceEvents[12].ts: -1 is less than 0"),
        (edit(dur=float("nan")), "t.json: traceEvents[12].dur: a number expected, found NaN"),
        (edit(cat="nap"), "t.json: traceEvents[12].cat: 'nap' is none of gemm, reduce, quantize, copy, collective, k"),
        (edit(bytes=1.5), "t.json: traceEvents[12].args.bytes: a whole number expected, found 1.5"),
        (edit(ph="B"), 't.json: traceEvents[12]: expected a complete event ("ph": "X")'),
    ],
)
def test_bad_trace_files(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        tracefile.from_json(text, "t.json")
    assert str(caught.value).startswith(message)


# ---------------------------------------------------------------- facts about a trace


def test_rank_use() -> None:
    lanes = (Lane(0, 0, "dma", "copy"), Lane(1, 0, "compute", "sm"))
    spans = (
        TraceSpan(0, 0, "copy", "c", "move", 0.0, 10.0, "x:1"),
        TraceSpan(0, 1, "wait", "w", "mm", 0.0, 4.0, "x:2"),
        TraceSpan(0, 1, "gemm", "g", "mm", 4.0, 9.0, "x:2"),
        TraceSpan(0, 1, "gemm", "g", "mm", 12.0, 20.0, "x:2"),
    )
    trace = Trace("t", "m", "virtual", 1, lanes, spans)
    (use,) = rank_uses(trace)
    assert (use.compute, use.moving, use.exposed) == (13.0, 10.0, 5.0)
    assert lane_use(trace) == {(0, 0): 0.5, (0, 1): 0.65}


def test_rows_hold_no_overlap() -> None:
    spans = [TraceSpan(0, 0, "gemm", "", "s", a, b, "x:1") for a, b in ((0, 3), (1, 2), (2, 5), (3, 4), (2.5, 6))]
    assert stack(spans) == [0, 1, 1, 0, 2]


def test_colours_say_what_a_stage_does_and_iterations_share_one() -> None:
    trace = overlapped()
    assert [c.name for c in stage_colours(trace)] == ["gather", "own", "rest"]
    colours = [c.colour for c in stage_colours(trace)]
    assert len(set(colours)) == 3
    again = dataclasses.replace(
        trace, spans=tuple(s._replace(stage=f"{s.stage}[{i % 3}]") for i, s in enumerate(trace.spans))
    )
    assert stage_colours(again) == stage_colours(trace)


@pytest.mark.parametrize(
    ("duration", "expected", "labels"),
    [
        (361.0, [0, 50, 100, 150, 200, 250, 300, 350], ["0 µs", "50", "100", "150", "200", "250", "300", "350 µs"]),
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0], ["0.0 µs", "0.2", "0.4", "0.6", "0.8", "1.0 µs"]),
        (2970.0, [0, 500, 1000, 1500, 2000, 2500], ["0.0 ms", "0.5", "1.0", "1.5", "2.0", "2.5 ms"]),
        (0.0, [0], ["0 µs"]),
    ],
)
def test_ticks_are_round(duration: float, expected: list[float], labels: list[str]) -> None:
    assert ticks(duration) == pytest.approx(expected)
    assert tick_labels(ticks(duration)) == labels


def test_numbers_for_people() -> None:
    times = [0.0, 0.25, 1.0, 9.994, 9.995, 482.3, 999.4, 999.6, 4820.0, 1.2e6]
    shown = ["0 µs", "250 ns", "1.00 µs", "9.99 µs", "9.99 µs", "482 µs", "999 µs", "1.00 ms", "4.82 ms", "1.20 s"]
    assert [show_time(t) for t in times[:4]] == shown[:4]
    assert [show_time(t) for t in times[5:]] == shown[5:]
    assert [show_bytes(b) for b in (0, 512, 2048, 12 << 20, 141 * 10**9)] == [
        "0 B",
        "512 B",
        "2.0 KiB",
        "12.0 MiB",
        "131 GiB",
    ]
    assert [show_flops(f) for f in (2, 34.4e9, 137e9)] == ["2 FLOP", "34.4 GFLOP", "137 GFLOP"]


# ---------------------------------------------------------------- pictures


def test_svg_shows_the_trace() -> None:
    trace = overlapped()
    picture = svg.draw(trace)
    assert svg.draw(trace) == picture
    root = ET.fromstring(picture)
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert texts[0] == "ag_gemm_test"
    assert texts[1] == show_time(trace.duration)
    assert texts[2] is not None
    assert texts[2].startswith("4 ranks · modelled for h200-switch, not measured · computing ")
    assert [t for t in texts if t and t.startswith("rank ")] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert texts.count("dma") == texts.count("compute") == 4
    assert {"gather", "own", "rest", "waiting"} <= set(texts)
    tips = [t.text for t in root.iter(f"{SVG}title")]
    assert len(tips) == len(trace.spans)
    assert tips[0] == "gather A → G@1 piece 0\n0 µs – 9.00 µs, 9.00 µs\n2.0 MiB, 233 GB/s\nstage gather, x.ficco:24"


def test_a_measured_trace_says_so() -> None:
    trace = dataclasses.replace(overlapped(ranks=2), clock="device", machine="2×H200")
    assert "2 ranks · measured on 2×H200 · " in svg.draw(trace)
    assert "modelled" not in svg.draw(trace)
    assert "2 ranks · measured on 2×H200 · computing " in timeline_page(trace)


def test_markup_in_names_stays_text() -> None:
    evil = "</script><script>alert(1)</script>&@DATA@"
    base = overlapped(ranks=2, chunks=1)
    spans = tuple(s._replace(label=evil, stage=evil, place=evil) for s in base.spans)
    lanes = tuple(dataclasses.replace(lane, name=evil) for lane in base.lanes)
    trace = dataclasses.replace(base, schedule=evil, machine=evil, spans=spans, lanes=lanes)
    ET.fromstring(svg.draw(trace))
    page = timeline_page(trace)
    assert page.count("<script") == page.count("</script>") == 2
    assert page.count("alert(1)</script>") == 0
    assert payload(page)["texts"][0] == evil


def test_control_characters_in_names_are_shown_as_such(tmp_path: Path) -> None:
    """XML has none, and a terminal obeys them."""
    evil = "\x1b]0;x\x07\x00"
    base = overlapped(ranks=2, chunks=1)
    launched = Launched(evil, 0, None, None)
    spans = tuple(s._replace(label=evil, stage=evil, place=evil, launched=launched) for s in base.spans)
    lanes = tuple(dataclasses.replace(lane, name=evil) for lane in base.lanes)
    trace = dataclasses.replace(base, schedule=evil, machine=evil, spans=spans, lanes=lanes)
    ET.fromstring(svg.draw(trace))
    for drawn in (svg.draw(trace), timeline_page(trace), sketch(trace, Style(io.StringIO()))):
        assert "\ufffd]0;x" in drawn
        assert not {"\x1b", "\x07", "\x00", "\\u001b"} & set(drawn)


def payload(page: str) -> Any:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match
    (run,) = json.loads(match[1])["runs"]
    return run


def test_html_needs_nothing_else_and_holds_every_span() -> None:
    trace = overlapped()
    page = timeline_page(trace)
    assert timeline_page(trace) == page
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", page)
    assert not re.search(r"\$[A-Z]{4,}", page)
    assert "<title>ag_gemm_test · " in page
    data = payload(page)
    assert len(data["spans"]) == len(trace.spans)
    assert [lane["name"] for lane in data["lanes"]] == ["dma", "compute"] * 4
    assert [stage[0] for stage in data["stages"]] == ["gather", "own", "rest"]
    assert data["waits"] is True


def test_picture_and_page_have_the_same_places() -> None:
    trace = overlapped()
    picture = ET.fromstring(svg.draw(trace))
    data = payload(timeline_page(trace))
    boxes = {css: [r for r in picture.iter(f"{SVG}rect") if r.get("class") == css] for css in ("band", "lane")}
    first = float(boxes["band"][0].get("y") or "nan")
    places = [(float(r.get("y") or "nan") - first, float(r.get("height") or "nan")) for r in boxes["lane"]]
    assert places == [(lane["y"], lane["h"]) for lane in data["lanes"]]
    bands = [(float(r.get("y") or "nan") - first, float(r.get("height") or "nan")) for r in boxes["band"]]
    assert bands == [(top, bottom - top) for _, top, bottom in data["bands"]]


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_small_and_empty_traces_draw(ranks: int) -> None:
    lanes = tuple(Lane(r, r, "compute", "sm") for r in range(ranks))
    for spans in ((), (TraceSpan(0, 0, "gemm", "g", "mm", 0.0, 0.0, "x:1"),)):
        trace = Trace("t", "m", "virtual", ranks, lanes, spans)
        ET.fromstring(svg.draw(trace))
        timeline_page(trace)
        assert "rank 0  compute │" in sketch(trace, Style(io.StringIO()), 60)


def test_many_spans_stay_small_and_quick() -> None:
    trace = overlapped(ranks=16, chunks=100, copy=0.5, gemm=1.0)
    assert len(trace.spans) > 40_000
    start = time.process_time()
    picture = svg.draw(trace)
    assert time.process_time() - start < 10
    assert len(picture) < 4_000_000
    marks = picture.count("<rect") + picture.count("M")
    assert marks < svg.PIECES + 2000
    ET.fromstring(picture)


def test_sketch() -> None:
    lanes = (Lane(0, 0, "dma", "copy"), Lane(1, 0, "compute", "sm"))
    spans = (
        TraceSpan(0, 0, "copy", "c", "gather", 0.0, 20.0, "x:1"),
        TraceSpan(0, 1, "wait", "w", "rest", 0.0, 10.0, "x:2"),
        TraceSpan(0, 1, "gemm", "g", "rest", 10.0, 40.0, "x:2"),
    )
    trace = Trace("t", "m", "virtual", 1, lanes, spans)
    assert sketch(trace, Style(io.StringIO()), 59).splitlines() == [
        "rank 0      dma │AAAAAAAAAAAAAAAAAAAA                    │",
        "        compute │          BBBBBBBBBBBBBBBBBBBBBBBBBBBBBB│",
        "                 0                                40.0 µs",
        "                 A gather   B rest",
    ]


# ---------------------------------------------------------------- the command


def test_timeline(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "t.json"
    source.write_text(tracefile.to_json(overlapped()))
    for name in ("t.svg", "t.html"):
        assert timeline(str(source), str(tmp_path / name)) == 0
        assert capsys.readouterr().out.endswith(f"{name}: ag_gemm_test, 4 ranks, 111 µs modelled for h200-switch\n")
    assert (tmp_path / "t.svg").read_text() == svg.draw(rounded(overlapped()))
    assert (tmp_path / "t.html").read_text() == timeline_page(rounded(overlapped()))
    with pytest.raises(UsageError, match=r"t\.png: a picture's name ends in \.svg or \.html"):
        timeline(str(source), str(tmp_path / "t.png"))
    with pytest.raises(UsageError, match=r"there is no directory"):
        timeline(str(source), str(tmp_path / "no" / "t.svg"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.html", "t.json", "t.svg"]


def test_how_a_kernel_is_launched_is_in_the_trace(tmp_path: Path) -> None:
    from ficco_rt import compile, simulate
    from ficco_rt.files import shipped

    text = shipped.find("ag_gemm/serial").read_text(encoding="utf-8")
    path = tmp_path / "shaped.ficco"
    path.write_text(text.replace("engine = sm ", "engine = sm residency = 2 sms = 12 "), encoding="utf-8")
    plan = compile(path, ranks=2)
    (found,) = {s.launched for s in simulate(plan).spans if s.kind == "gemm"}
    assert found is not None
    # NOTE no more blocks than multiprocessors: two a multiprocessor might spread over more of them
    assert (found.residency, found.blocks) == (2, 12)
    assert 232448 // 3 < found.smem < 232448 // 2
    trace = simulate(plan)
    again = tracefile.from_json(tracefile.to_json(trace), "x.json")
    assert {s.launched for s in again.spans} == {s.launched for s in trace.spans} == {found, None}


# ---------------------------------------------------------------- inside launches


def streamed(late: float = 0.0, together: bool = False) -> Trace:
    """A streamed launch of four works, two of which wait: for 4 µs, and for 2 µs and what comes late. `together`: the
    last two are made as one."""

    def span(kind: Any, start: float, stop: float, ops: tuple[int, ...], label: str, waited: float = 0.0) -> TraceSpan:
        return TraceSpan(0, 1, kind, label, "mm", start, stop, "x.ficco:9", ops=ops, waited=waited)

    end = 36 + late
    last = [span("gemm", 26 + late, 31 + late, (7,), "mm  C3"), span("gemm", 31 + late, end, (8,), "mm  C4")]
    if together:
        last = [span("gemm", 26 + late, end, (7, 8), "mm  C3 in 2 parts")]
    spans = (
        span("launch", 3, end, (5, 6, 7, 8), "mm  C1 and 3 more works", 6 + late)._replace(within=1.5),
        span("gemm", 3, 10, (5,), "mm  C1"),
        span("wait", 9, 14, (6,), "waits for flag 2 of rank 1 stream dma", 4),
        span("gemm", 14, 24, (6,), "mm  C2"),
        span("wait", 22, 26 + late, last[0].ops, "waits for flag 3 of rank 1 stream dma", 2 + late),
        *last,
    )
    return Trace("streamed", "h200-switch", "virtual", 1, (Lane(1, 0, "compute", "sm"),), spans)


def test_works_that_share_the_multiprocessors_are_drawn_from_their_first_tile_to_their_last() -> None:
    """Pieces of 40 tiles on 66 clusters: a group takes tiles of several works in a round."""
    plan = ficco_rt.compile("ag_gemm/streamed", 4, M=8192, N=10240, K=8192, chunks=4, deep=(1,))
    works = launches(simulate(plan, plan.target))[0].works
    assert len(works) == 13
    rate = gemm_rate(plan.target.device, "bf16") * PIPELINE
    flops = [2 * 2560 * 8192 * rows for rows in (2048, *[512] * 12)]
    for work, amount in zip(works, flops, strict=True):
        assert amount / (work.ended - work.began) < rate
        assert (work.came, work.waited) == (work.began, 0.0)
    assert any(after.began < before.ended for before, after in pairwise(works))
    # the parts of one product stand one behind the other
    plan = ficco_rt.compile("ag_gemm/streamed", 2, M=2048, N=10240, K=8192, chunks=1, deep=(1, 1))
    *_, first, second = launches(simulate(plan, plan.target))[0].works
    assert first.ended <= second.began < second.ended


def test_a_launch_stands_above_its_works_in_pictures() -> None:
    """It is no work itself: nobody computes while a launch only waits."""
    trace = streamed()
    assert tracefile.from_json(tracefile.to_json(trace), "t.json") == trace
    assert stack(trace.spans)[0] == 0
    assert lane_use(trace) == {(0, 1): pytest.approx(27 / 36)}
    assert [use.compute for use in rank_uses(trace)] == [pytest.approx(27)]
    root = ET.fromstring(svg.draw(trace))
    assert len([r for r in root.iter(f"{SVG}rect") if r.get("class") == "launch"]) == 2  # one in the key
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    words = "blocks waited 6.00 µs, the mean over all blocks\nits works' times are within 1.50 µs"
    assert [words in title for title in titles] == [True] + [False] * 6
    data = payload(timeline_page(trace))
    assert data["whole"][0] == "launch, above its works"
    assert sorted((span[2], span[11]) for span in data["spans"])[:4] == [(-2, 6), (-1, 2), (-1, 4), (0, 0)]
    works = dataclasses.replace(trace, spans=trace.spans[1:])
    assert sketch(trace, Style(io.StringIO()), 40) == sketch(works, Style(io.StringIO()), 40)


def test_works_of_two_traces_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model's two works beside the measured one that is made of both."""
    ours, model = tmp_path / "ours.json", tmp_path / "model.json"
    ours.write_text(tracefile.to_json(streamed(late=10.0, together=True)), encoding="utf-8")
    model.write_text(tracefile.to_json(streamed()), encoding="utf-8")
    assert timeline(str(ours), None, works=True, against=str(model)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "streamed: 46.0 µs modelled for h200-switch",
        "beside streamed: 36.0 µs modelled for h200-switch",
        "",
        "rank 0 mm: waited 16.0 µs of 43.0 µs, longest 12.0 µs for flag 3 of rank 1 stream dma (mm C3 in 2 parts)",
        "  work              came  began  ended  waited  began'  ended'  waited'  worked, of theirs",
        "  mm C1              3.0    3.0   10.0     0.0     3.0    10.0      0.0               1.00",
        "  mm C2              9.0   14.0   24.0     4.0    14.0    24.0      4.0               1.00",
        "  mm C3 in 2 parts  22.0   36.0   46.0    12.0    26.0    36.0      2.0               1.00",
    ]
    assert summary(overlapped()) is None
    idle = [s._replace(waited=0.0) for s in streamed().spans if s.kind != "wait"]
    assert summary(dataclasses.replace(streamed(), spans=tuple(idle))) == "1 streamed launch, none of which waited"


def test_the_launch_that_waited_most_stands_for_the_others() -> None:
    def words(ranks: int) -> str | None:
        plan = ficco_rt.compile("ag_gemm/streamed", ranks, M=4096, N=512, K=4096)
        return summary(ficco_rt.simulate(plan))

    assert str(words(2)).endswith("; 1 other launch waited as long or less")
    assert str(words(4)).endswith("; 3 other launches waited as long or less")


def test_what_has_no_works_inside_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(tracefile.to_json(overlapped(2)), encoding="utf-8")
    with pytest.raises(UsageError, match=r"t\.json: tells of no works inside streamed launches"):
        timeline(str(path), None, works=True)
    with pytest.raises(UsageError, match="--works prints a table, --output draws a picture: take one of them"):
        timeline(str(path), "t.svg", works=True)
    with pytest.raises(UsageError, match="--against is for --works"):
        timeline(str(path), None, against=str(path))

"""Assembles a report page from its sections, its style and its script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template

from ... import __version__
from ...analysis.causes import critical_path
from ...report.drawing import LAUNCH, WAITING, WHOLE, about, plain, timeline
from ...report.wording import count, one_line, show_time
from ...trace.model import NO_WORK, Trace
from . import sections
from .page_run import PageRun, of_run

_DIGITS = 4  # of a microsecond


@dataclass(frozen=True, slots=True)
class Watched:
    """A page that is written again whenever a file is saved, and reloads itself. `wrong`: what the newest text is
    answered with; the runs are of the last one that was right."""

    file: str
    at: str  # time of day
    wrong: str | None


def page(runs: Sequence[PageRun], watched: Watched | None = None) -> str:
    """The page. The same runs give the same bytes. Only a watched page may have no run yet."""
    single = len(runs) == 1
    title = " · ".join(dict.fromkeys(run.schedule for run in runs)) or (watched.file if watched else "")
    made = []
    if watched is not None and watched.wrong is not None:  # the messages, above what was right before
        words = f"<pre class='bad'>{escape(plain(watched.wrong))}</pre>"
        made.append(_section("wrong", f"{watched.file} is wrong; what was right before stands below", words))
    made += _several(runs) if len(runs) > 1 else []
    for number, run in enumerate(runs):
        made += _run(run, number, single)
    drawn = [None if run.trace is None else lanes(run.trace) for run in runs]
    data = {"runs": drawn, "watched": watched is not None}
    # `<` would let a label of a trace end the script
    payload = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return Template(_part("report.html")).substitute(
        STYLE=_part("report.css"),
        SCRIPT=_part("timeline.js"),
        TITLE=escape(title),
        LENGTH=show_time(runs[0].time) if single else count(len(runs), "run") if runs else "wrong",
        ABOUT=escape(_about(runs) + (f" · watched, {watched.at}" if watched is not None else "")),
        VERSION=__version__,
        SECTIONS="\n".join(made),
        DATA=payload,
    )


def timeline_page(trace: Trace) -> str:
    """The page of a trace of which nothing else is known."""
    return page([of_run("", None, trace)])


def _several(runs: Sequence[PageRun]) -> list[str]:
    """Runs side by side, and their timelines below each other."""
    drawn = "".join(sections.timeline(run, number, single=False) for number, run in enumerate(runs))
    return [
        _section("compare", "Side by side", sections.comparison(runs)),
        _section("timelines", "Timelines", drawn),
    ]


def _run(run: PageRun, number: int, single: bool) -> list[str]:
    """The sections of one run; its letter stands before their titles where there are several runs."""
    letter = "" if single else f"{sections.letter(number)} · "
    top = f"{sections.cards(run)}{sections.verdicts(run)}"
    overview = f"{letter}{run.schedule}" if letter else "At a glance"
    parts = [
        ("glance", overview, top if run.facts is not None else ""),
        ("went", f"{letter}Where the time went", sections.went(run)),
        ("timeline", "Timeline", sections.timeline(run, number) if single else ""),
        ("stages", f"{letter}Stages", sections.stages(run)),
        ("model", f"{letter}Modelled against measured", sections.against_model(run)),
        ("why", f"{letter}What ran, and why", sections.why(run)),
    ]
    suffix = "" if single else f"-{number}"
    return [_section(f"{name}{suffix}", title, content) for name, title, content in parts if content]


def _section(name: str, title: str, content: str) -> str:
    return f'<section id="{name}"><h2>{escape(title)}</h2>{content}</section>'


def _about(runs: Sequence[PageRun]) -> str:
    if len(runs) != 1:
        return "; ".join(dict.fromkeys(f"{count(run.ranks, 'rank')}, {sections.whose(run)}" for run in runs))
    (run,) = runs
    if run.trace is not None:
        return about(run.trace)
    return f"{count(run.ranks, 'rank')} · {sections.whose(run)}"


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def lanes(trace: Trace) -> dict[str, object]:
    """The data of a timeline for `timeline.js`, which names the places of a span's list: spans in lanes, arrows between
    spans. The same trace gives the same."""
    drawn = timeline(trace, pointed=True)
    texts: dict[str, int] = {}

    def text(words: str) -> int:
        return texts.setdefault(words, len(texts))

    def record(number: int, lane: int, row: int) -> list[object]:
        span = drawn.trace.spans[number]
        times = [round(span.start, _DIGITS), round(span.stop - span.start, _DIGITS)]
        peer = -1 if span.peer is None else span.peer
        words = [text(one_line(span.label)), text(span.stage), text(span.place)]
        waited = round(span.waited, _DIGITS) if span.kind in NO_WORK else 0
        return [lane, row, drawn.stage_of[number], *times, *words, span.bytes, span.flops, peer, waited]

    found: list[dict[str, object]] = []
    records: list[list[object]] = []
    place: dict[int, int] = {}  # in `records`, of each span of the trace
    for band in drawn.bands:
        for lane in band.lanes:
            spans = drawn.trace.spans
            for number, row in sorted(lane.spans, key=lambda at: (spans[at[0]].start, spans[at[0]].stop)):
                place[number] = len(records)
                records.append(record(number, len(found), row))
            found.append(
                {"rank": band.rank, "name": lane.lane.name, "y": lane.top, "h": lane.height, "rows": lane.rows}
            )
    return {
        "duration": round(trace.duration, _DIGITS),
        "bands": [[band.rank, band.top, band.bottom] for band in drawn.bands],
        "lanes": found,
        "stages": [[c.name, c.colour] for c in drawn.stages],
        "waits": WAITING in drawn.stage_of,
        "whole": [WHOLE.name, WHOLE.colour] if LAUNCH in drawn.stage_of else None,
        "texts": list(texts),
        "spans": records,
        "path": [place[number] for number in critical_path(trace)],
        "arrows": [[place[arrow.before], place[arrow.after]] for arrow in trace.arrows],
    }

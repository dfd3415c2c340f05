"""The sections of a report page as plain HTML. They show all figures; the script draws the timelines only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ...analysis.account import Account, Spent, StageUse
from ...analysis.concurrency import Concurrent
from ...files.records import Params
from ...report.account_words import SERIAL, WORDS, moved_words, part_name
from ...report.job import within_roundings
from ...report.wording import count, join_words, show_bytes, show_flops, show_time, show_value, signed_time
from ..result import Error, Run
from .page_run import PageRun

_CHIP = {True: ("good", "✓"), False: ("bad", "✗"), None: ("open", "–")}


def letter(number: int) -> str:
    """The letter of a run where there are several: A, B, …, Z, A1, …"""
    more = number // 26
    return chr(ord("A") + number % 26) + (str(more) if more else "")


def whose(run: PageRun) -> str:
    """Whether the times are modelled or measured on a device, and for which machine."""
    return f"measured on {run.machine}" if run.measured else f"modelled for {run.machine}, not measured"


# ---------------------------------------------------------------- one run


def cards(run: PageRun) -> str:
    """The most important figures, large."""
    facts = run.facts
    made = [_card("time", show_time(run.time), _spread(run))]
    if facts is not None:
        if facts.share_of_ideal is not None:
            made.append(_card("of the ideal", _percent(facts.share_of_ideal), _ideal(facts)))
        if gain := _gain(run):
            made.append(_card("serial ÷ time", gain, _serial(facts)))
        if facts.concurrent is not None:
            made += _at_once(facts.concurrent)
    if run.account is not None:
        lost = [part for part in run.account.parts if part.name != "ideal" and part.time > 0]
        most = max(lost, key=lambda part: part.time, default=None)
        if most is not None:
            words = WORDS[run.account.side]
            made.append(_card("most of the rest", words[most.name][0], signed_time(most.time)))
    return f'<div class="cards">{"".join(made)}</div>'


def _at_once(found: Concurrent) -> list[str]:
    """Of a run that repeats a product and its collective."""
    each = f"{found.iterations} iterations of {show_time(1e3 * found.iteration)}"
    made = []
    if found.time_ratio is not None:
        made.append(_card("of sequential", f"{found.time_ratio:.3f}", each))
    if found.share_of_saving is not None and found.normalised_time is not None:
        ideal = f"{found.normalised_time:.3f} of the ideal"
        made.append(_card("of the ideal saving", _percent(found.share_of_saving), ideal))
    if found.overlap_rate is not None:
        made.append(_card("overlap rate", _percent(found.overlap_rate), "of the shorter side's time"))
    return made


def _card(name: str, figure: str, below: str) -> str:
    return f"<div><span>{escape(name)}</span><strong>{escape(figure)}</strong><small>{escape(below)}</small></div>"


def _spread(run: PageRun) -> str:
    if run.facts is None or run.facts.iters <= 1:
        return whose(run)
    least, most = show_time(1e3 * run.facts.time_ms_min), show_time(1e3 * run.facts.time_ms_max)
    return f"{whose(run)}; median of {run.facts.iters} runs, {least} to {most}"


def _ideal(facts: Run) -> str:
    side = "computing" if facts.compute_alone_ms >= facts.ideal_ms else "moving"
    by = f", by {facts.ideal_by}" if facts.ideal_by else ""
    return f"ideal {facts.yardsticks}: {show_time(1e3 * facts.ideal_ms)}, {side} alone{by}"


def _serial(facts: Run) -> str:
    of = f"as {facts.serial_by}" if facts.serial_by else SERIAL
    return f"serial {facts.yardsticks}, with no overlap: {show_time(1e3 * facts.serial_ms)}, {of}"


def verdicts(run: PageRun) -> str:
    """The results of the proof, of the plan's check and of the comparison of numbers."""
    facts = run.facts
    if facts is None:
        return ""
    unproven = join_words(facts.unproven)
    proof = "every output is what the file claims" if facts.proven else f"unproven: {unproven or 'nothing is claimed'}"
    made = [
        _verdict("Proof", True if facts.proven else None, proof),
        _verdict("Check", True, "no race, no deadlock in the plan"),
        _verdict("Numbers", *_numbers(facts)),
    ]
    made += [_verdict("Warning", None, f"{w.path}:{w.line}: {w.message}") for w in facts.warnings]
    return f'<ul class="verdicts">{"".join(made)}</ul>'


def _verdict(name: str, good: bool | None, words: str) -> str:
    css, sign = _CHIP[good]
    return f'<li class="{css}"><b>{sign} {escape(name)}</b> {escape(words)}</li>'


def _numbers(facts: Run) -> tuple[bool | None, str]:
    if facts.backend == "sim":
        return None, "not run: the model gives times alone"
    if facts.verified is None:
        return None, "not verified" if facts.allowance is None else within_roundings(facts.allowance)
    if not facts.verified:
        return False, facts.error.message if facts.error else "wrong"
    if facts.rel_err is None:
        return True, "integers equal; random data not run (--exact)"
    data = f"; data of one sign {_off(facts.one_signed)}" if facts.one_signed is not None else ""
    return True, f"integers equal{data}; random data {_off(facts)}"


def _off(found: Error | Run) -> str:
    return f"off by {_short(found.rel_err)} of {_short(found.tolerance)} allowed"


def _short(value: object) -> str:
    return f"{value:.1e}" if isinstance(value, float) else str(value)


def why(run: PageRun) -> str:
    """What ran, on what, and why."""
    facts = run.facts
    if facts is None:
        return ""
    backend = f"{facts.backend}{', as graphs' if facts.graph else ''}"
    rows = [
        ("schedule", f"{facts.schedule}{': ' if facts.title else ''}{facts.title}"),
        ("file", facts.path),
        ("why", "\n".join(facts.why)),
        ("parameters", _params_words(facts.params)),
        ("machine", f"{facts.machine}, {count(run.ranks, 'rank')}"),
        ("backend", f"{backend}: {facts.devices}" if facts.devices else backend),
        ("collectives", f"by {facts.collectives}" if facts.collectives else None),
        ("order", facts.order),
        ("seed", facts.seed),
        ("plan", f"{facts.plan_hash[:16]}"),
        ("ficco", facts.version),
    ]
    lines = [f"<dt>{name}</dt><dd>{escape(str(words))}</dd>" for name, words in rows if words not in (None, "")]
    return f'<dl class="why">{"".join(lines)}</dl>{_choice(facts)}'


def _params_words(params: Params) -> str:
    return ", ".join(f"{name} = {show_value(value)}" for name, value in params.items())


def _choice(facts: Run) -> str:
    """The candidates of a choice, the chosen one first."""
    choice = facts.choice
    if choice is None:
        return ""
    rows = []
    for entry in choice.candidates:
        shown = "unknown" if entry.predicted is None else show_time(entry.predicted)
        rows.append([entry.schedule, _params_words(entry.params or {}), shown])
    caption = f"The candidates for {choice.operation}, by {choice.by}: the first was chosen."
    listed = table(["schedule", "with", "predicted"], rows, {2})
    return f"<details><summary>{escape(caption)}</summary>{listed}</details>"


def went(run: PageRun) -> str:
    """The section on where the time went: a bar, and what its parts mean."""
    account = run.account
    if account is None:
        return ""
    words, time = WORDS[account.side], account.time or 1.0
    rows = []
    for part in account.parts:
        if part.name == "waves" and account.side == "moving":  # it is no part of moving
            continue
        name, meaning = _part(account, part), words[part.name][1]
        if part.time < 0:
            meaning = f"{account.side.capitalize()} took less time than the ideal."
        chip = f'<i class="part {part.name}"></i>{escape(name)}'
        shown = [signed_time(part.time), _percent(part.time / time), escape(meaning)]
        rows.append([chip, *shown])
    note = f"Rank {account.rank:g} ends last, and its time is told here, by {account.side}, which took it longer."
    if account.peer_bytes:
        note += f" Its {moved_words(account.peer_bytes)}, which counts as computing."
    if run.measured:
        note += " These times are of the run with timestamps, which takes a little longer than the timed runs."
    head = ["part", "time", "of the run", "means"]
    return f"{bar(account, account.time)}{table(head, rows, {1, 2}, escaped=True)}<p class='note'>{escape(note)}</p>"


def _part(account: Account, part: Spent) -> str:
    """What a part of an account is called."""
    return part_name(WORDS[account.side][part.name][0], part.time)


def bar(account: Account, full: float) -> str:
    """The parts of a run's time side by side; `full` microseconds are the whole width."""
    made = []
    faster = sum(min(0.0, part.time) for part in account.parts)
    for part in account.parts:
        time = part.time + (faster if part.name == "ideal" else 0.0)
        if time > 0:
            width = 100 * time / (full or 1.0)
            title = escape(f"{_part(account, part)}: {signed_time(part.time)}")
            label = f"<span>{title}</span>" if width > 14 else ""
            made.append(f'<i class="part {part.name}" style="width:{width:.3f}%" title="{title}">{label}</i>')
    told = escape(", ".join(f"{_part(account, p)} {signed_time(p.time)}" for p in account.parts))
    return f'<div class="bar" role="img" aria-label="{told}">{"".join(made)}</div>'


def stages(run: PageRun) -> str:
    """A table of the stages, beside the model's times where these were measured."""
    if not run.stages:
        return ""
    modelled = {s.stage: s for s in run.modelled.stages} if run.modelled is not None else {}
    head = ["stage", "does", "works", "from – to", "busy", "of the run", "on the path", "waited", "moves", "computes"]
    head += ["model's busy", "measured ÷ model"] if modelled else []
    rows = []
    for stage in run.stages:
        busy, ranks = stage.busy, stage.ranks or 1
        peer = f", {show_bytes(stage.peer_bytes)} of it between ranks" if stage.peer_bytes else ""
        row = [
            f"{escape(stage.stage)}<small>{escape(stage.place)}</small>",
            escape(stage.kind),
            f"{stage.works}",
            f"{show_time(stage.start)} – {show_time(stage.stop)}",
            show_time(busy),
            _percent(busy / run.time) if run.time else "",
            show_time(stage.path),
            show_time(stage.waited) if stage.waited else "",
            _rate(show_bytes(stage.bytes) + peer, stage.bytes / ranks / busy / 1e3 if busy else 0.0, "GB/s"),
            _rate(show_flops(stage.flops), stage.flops / ranks / busy / 1e6 if busy else 0.0, "TFLOP/s"),
        ]
        if modelled:
            row += _beside(busy, modelled.get(stage.stage))
        rows.append(row)
    note = "Busy: at least one work of the stage is under way, the mean over its ranks. Rates: one rank's while busy. "
    note += "On the path: of the critical path, the chain of works that set the run's time. "
    between = (run.trace.duration if run.trace is not None else run.time) - sum(s.path for s in run.stages)
    note += f"Between the works of the path are {show_time(max(0.0, between))}: launches, signals, collectives' waits."
    return f"{table(head, rows, set(range(2, 12)), escaped=True)}<p class='note'>{note}</p>"


def _rate(amount: str, rate: float, unit: str) -> str:
    shown = f"{rate:.0f}" if rate >= 99.5 else f"{rate:.3g}"
    return f"{amount}<small>{shown} {unit}</small>" if rate else ""


def _beside(busy: float, modelled: StageUse | None) -> list[str]:
    if modelled is None or not modelled.busy:
        return ["", ""]
    return [show_time(modelled.busy), f"{busy / modelled.busy:.2f}"]


def against_model(run: PageRun) -> str:
    """The account of a measured run beside the model's."""
    modelled = run.modelled.account if run.modelled is not None else None
    if run.modelled is None or run.account is None or modelled is None:
        return ""
    rows = [["time of the run", show_time(run.time), show_time(run.modelled.time)]]
    if modelled.side == run.account.side:
        rows += _parts([run.account, modelled])
    note = f"The ideal of the measured run is {run.facts.yardsticks if run.facts else 'modelled'}."
    return f"{table(['', 'measured', 'modelled'], rows, {1, 2})}<p class='note'>{note}</p>"


# ---------------------------------------------------------------- several runs


def comparison(runs: Sequence[PageRun]) -> str:
    """Runs side by side: a column each, and their times as bars of one scale."""
    full = max((run.account.time for run in runs if run.account is not None), default=0.0)
    bars = [
        f'<div class="run"><b>{letter(i)}</b>{bar(run.account, full)}<span>{show_time(run.time)}</span></div>'
        for i, run in enumerate(runs)
        if run.account is not None
    ]
    head = ["", *(f"{letter(i)} · {run.schedule}" for i, run in enumerate(runs))]
    first = runs[0].time
    told = [
        ["time", *(show_time(run.time) for run in runs)],
        ["A's time ÷ time", *(f"{first / run.time:.2f}×" if run.time else "" for run in runs)],
        ["of the ideal", *(_share(run) for run in runs)],
        ["serial ÷ time", *(_gain(run) for run in runs)],
        *_parts([run.account for run in runs]),
    ]
    given = [
        ["times are", *(whose(run) for run in runs)],
        ["ranks", *(str(run.ranks) for run in runs)],
        ["backend", *(run.facts.backend if run.facts else "" for run in runs)],
        *_params(runs),
        ["file", *(run.name for run in runs)],
        ["plan", *(run.facts.plan_hash[:16] if run.facts else "" for run in runs)],
    ]
    rows = [row for row in (*told, *given) if any(row[1:])]
    marked = {row[0] for row in given[:-2] if len(set(row[1:])) > 1}  # what was asked for, and differs
    columns = set(range(1, len(runs) + 1))
    note = f"<p class='note'>Serial is a run with no overlap: {SERIAL}.</p>" if any(map(_gain, runs)) else ""
    return f'<div class="bars">{"".join(bars)}</div>{table(head, rows, columns, marked=marked)}{note}'


def _share(run: PageRun) -> str:
    share = run.facts.share_of_ideal if run.facts else None
    return "" if share is None else _percent(share)


def _gain(run: PageRun) -> str:
    if run.facts is None or not run.facts.serial_ms or not run.time:
        return ""
    return f"{1e3 * run.facts.serial_ms / run.time:.2f}×"


def _parts(accounts: Sequence[Account | None]) -> list[list[str]]:
    """A row for each part of the accounts, which may go by different sides."""
    found = [
        {} if account is None else {_part(account, part): part.time for part in account.parts} for account in accounts
    ]
    names = dict.fromkeys(words[name][0] for name in WORDS["computing"] for words in WORDS.values())
    order = dict.fromkeys(part_name(name, sign) for name in names for sign in (1.0, -1.0))
    return [
        [name, *(signed_time(parts[name]) if name in parts else "" for parts in found)]
        for name in order
        if any(parts.get(name) for parts in found)
    ]


def _params(runs: Sequence[PageRun]) -> list[list[str]]:
    given: list[Params] = [run.facts.params if run.facts is not None else {} for run in runs]
    names = dict.fromkeys(name for params in given for name in params)
    return [[name, *(show_value(params[name]) if name in params else "" for params in given)] for name in names]


# ---------------------------------------------------------------- parts of all


def timeline(run: PageRun, number: int, *, single: bool = True) -> str:
    """The place where the script draws a run's trace, with the words for readers who cannot see it."""
    title = "" if single else f"<h3>{letter(number)} · {escape(run.schedule)}, {show_time(run.time)}</h3>"
    if run.trace is None:
        told = f"{escape(run.name)} holds no trace; <code>ficco-run --trace FILE.json</code> writes one."
        return f"{title}<p class='note'>{told}</p>"
    works = f"{len(run.trace.spans)} works and waits, {len(run.trace.arrows)} arrows, {show_time(run.trace.duration)}"
    told = escape(f"Timeline of {run.schedule}: {len(run.trace.lanes)} streams of {count(run.ranks, 'rank')}, {works}")
    return (
        f'<div class="timeline" data-run="{number}">{title}<div class="keys"></div>'
        f'<canvas tabindex="0" role="application" aria-label="{told}"></canvas></div>'
    )


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: set[int] | frozenset[int] = frozenset(),
    *,
    escaped: bool = False,
    marked: Iterable[str] = (),
) -> str:
    """A table; columns in `right` are flush right. `marked`: rows with these names are, by their first cell.
    `escaped`: cells are HTML already."""

    def cell(name: str, text: str, i: int, scope: str = "") -> str:
        return f"<{name}{scope}{' class=right' if i in right else ''}>{text if escaped else escape(text)}</{name}>"

    top = "".join(cell("th", text, i, " scope=col") for i, text in enumerate(head))
    body = ""
    for first, *others in rows:
        cells = cell("th", first, 0, " scope=row") + "".join(cell("td", text, i + 1) for i, text in enumerate(others))
        body += f"<tr{' class=differs' if first in marked else ''}>{cells}</tr>"
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if abs(share) >= 0.0995 else 1}f} %".replace("-", "−")

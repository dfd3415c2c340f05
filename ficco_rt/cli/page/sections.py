"""The sections of a report page as plain HTML: all figures stand here, and the script draws the timelines alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ...report.account_words import SERIAL, WORDS, moved_words, part_name
from ...report.job import within_roundings
from ...report.wording import join_words, show_bytes, show_flops, show_time, show_value, signed_time
from ...trace.model import Trace
from .page_run import Facts, PageRun

_CHIP = {True: ("good", "✓"), False: ("bad", "✗"), None: ("open", "–")}


def letter(number: int) -> str:
    """What the run of this number is called where there are several: A, B, …, Z, A1, …"""
    more = number // 26
    return chr(ord("A") + number % 26) + (str(more) if more else "")


def whose(run: PageRun) -> str:
    """Whether a model or a device gave the times, and of which machine."""
    return f"measured on {run.machine}" if run.measured else f"modelled for {run.machine}, not measured"


def ranks_of(run: PageRun) -> str:
    return "1 rank" if run.ranks == 1 else f"{run.ranks} ranks"


# ---------------------------------------------------------------- one run


def cards(run: PageRun) -> str:
    """The figures that are asked for first, large."""
    facts = run.facts
    made = [_card("time", show_time(run.time), _spread(run))]
    if facts is not None:
        if facts.get("share_of_ideal") is not None:
            made.append(_card("of the ideal", _percent(facts["share_of_ideal"]), _ideal(facts)))
        if facts["serial_ms"] and run.time:
            gain = 1e3 * facts["serial_ms"] / run.time
            made.append(_card("serial ÷ time", f"{gain:.2f}×", _serial(facts)))
        if facts.get("concurrent") is not None:
            made += _at_once(facts["concurrent"])
    if run.account is not None:
        lost = [part for part in run.account["parts"] if part["name"] != "ideal" and part["time_us"] > 0]
        most = max(lost, key=lambda part: float(part["time_us"]), default=None)
        if most is not None:
            words = WORDS[run.account["side"]]
            made.append(_card("most of the rest", words[most["name"]][0], signed_time(most["time_us"])))
    return f'<div class="cards">{"".join(made)}</div>'


def _at_once(found: Facts) -> list[str]:
    """Of a run that repeats a product and its collective."""
    each = f"{found['iterations']} iterations of {show_time(1e3 * found['iteration_ms'])}"
    made = []
    if found.get("time_ratio") is not None:
        made.append(_card("of sequential", f"{found['time_ratio']:.3f}", each))
    if found.get("share_of_saving") is not None and found.get("normalised_time") is not None:
        ideal = f"{found['normalised_time']:.3f} of the ideal"
        made.append(_card("of the ideal saving", _percent(found["share_of_saving"]), ideal))
    if found.get("overlap_rate") is not None:
        made.append(_card("overlap rate", _percent(found["overlap_rate"]), "of the shorter side's time"))
    return made


def _card(name: str, figure: str, below: str) -> str:
    return f"<div><span>{escape(name)}</span><strong>{escape(figure)}</strong><small>{escape(below)}</small></div>"


def _spread(run: PageRun) -> str:
    if run.facts is None or run.facts["iters"] <= 1:
        return whose(run)
    least, most = (show_time(1e3 * run.facts[name]) for name in ("time_ms_min", "time_ms_max"))
    return f"{whose(run)}; median of {run.facts['iters']} runs, {least} to {most}"


def _ideal(facts: Facts) -> str:
    side = "computing" if facts["compute_alone_ms"] >= facts["ideal_ms"] else "moving"
    by = f", by {facts['ideal_by']}" if facts.get("ideal_by") else ""
    return f"ideal {facts['yardsticks']}: {show_time(1e3 * facts['ideal_ms'])}, {side} alone{by}"


def _serial(facts: Facts) -> str:
    of = f"as {facts['serial_by']}" if facts.get("serial_by") else SERIAL
    return f"serial {facts['yardsticks']}, with no overlap: {show_time(1e3 * facts['serial_ms'])}, {of}"


def verdicts(run: PageRun) -> str:
    """What the proof, the check of the plan and the comparison of numbers have said."""
    facts = run.facts
    if facts is None:
        return ""
    proven = facts.get("proven") is True
    unproven = join_words(map(str, facts.get("unproven", [])))
    proof = "every output is what the file claims" if proven else f"unproven: {unproven or 'nothing is claimed'}"
    made = [
        _verdict("Proof", True if proven else None, proof),
        _verdict("Check", True, "no race, no deadlock in the plan"),
        _verdict("Numbers", *_numbers(facts)),
    ]
    for warning in facts.get("warnings", []):
        if isinstance(warning, Mapping):
            place = f"{warning.get('path')}:{warning.get('line')}"
            made.append(_verdict("Warning", None, f"{place}: {warning.get('message')}"))
    return f'<ul class="verdicts">{"".join(made)}</ul>'


def _verdict(name: str, good: bool | None, words: str) -> str:
    css, sign = _CHIP[good]
    return f'<li class="{css}"><b>{sign} {escape(name)}</b> {escape(words)}</li>'


def _numbers(facts: Facts) -> tuple[bool | None, str]:
    verified = facts.get("verified")
    if facts["backend"] == "sim":
        return None, "not run: the model gives times alone"
    allowance = facts.get("allowance")
    if not isinstance(verified, bool):
        return None, within_roundings(allowance) if isinstance(allowance, float) else "not verified"
    if not verified:
        error = facts.get("error")
        return False, str(error.get("message")) if isinstance(error, Mapping) else "wrong"
    if facts.get("rel_err") is None:
        return True, "integers equal; random data not run (--exact)"
    one_signed = facts.get("one_signed")
    data = f"; data of one sign {_off(one_signed)}" if isinstance(one_signed, Mapping) else ""
    return True, f"integers equal{data}; random data {_off(facts)}"


def _off(found: Facts) -> str:
    return f"off by {_short(found.get('rel_err'))} of {_short(found.get('tolerance'))} allowed"


def _short(value: object) -> str:
    return f"{value:.1e}" if isinstance(value, float) else str(value)


def why(run: PageRun) -> str:
    """What ran, on what, and why."""
    facts = run.facts
    if facts is None:
        return ""
    reasons = [str(reason) for reason in facts.get("why", [])]
    backend = f"{facts['backend']}{', as graphs' if facts.get('graph') else ''}"
    rows = [
        ("schedule", f"{facts['schedule']}{': ' if facts['title'] else ''}{facts['title']}"),
        ("file", facts["path"]),
        ("why", "\n".join(reasons)),
        ("parameters", ", ".join(f"{name} = {show_value(value)}" for name, value in facts["params"].items())),
        ("machine", f"{facts['machine']}, {ranks_of(run)}"),
        ("backend", f"{backend}: {facts['devices']}" if facts["devices"] else backend),
        ("collectives", f"by {facts['collectives']}" if facts.get("collectives") else None),
        ("order", facts.get("order")),
        ("seed", facts.get("seed")),
        ("plan", f"{facts['plan_hash'][:16]}"),
        ("ficco", facts["version"]),
    ]
    lines = [f"<dt>{name}</dt><dd>{escape(str(words))}</dd>" for name, words in rows if words not in (None, "")]
    return f'<dl class="why">{"".join(lines)}</dl>{_choice(facts)}'


def _choice(facts: Facts) -> str:
    """The candidates of a choice, the chosen one first."""
    choice = facts.get("choice")
    if not isinstance(choice, Mapping) or not isinstance(choice.get("candidates"), list):
        return ""
    rows = []
    for entry in choice["candidates"]:
        if isinstance(entry, Mapping) and isinstance(entry.get("params"), Mapping):
            params = ", ".join(f"{name} = {show_value(value)}" for name, value in entry["params"].items())
            time = entry.get("predicted_us")
            shown = show_time(time) if isinstance(time, int | float) else "unknown"
            rows.append([str(entry.get("schedule")), params, shown])
    caption = f"The candidates for {choice.get('operation')}, by {choice.get('by')}: the first was chosen."
    listed = table(["schedule", "with", "predicted"], rows, {2})
    return f"<details><summary>{escape(caption)}</summary>{listed}</details>"


def went(run: PageRun) -> str:
    """Where the time went: a bar, and what its parts mean."""
    account = run.account
    if account is None:
        return ""
    words, time = WORDS[account["side"]], account["time_us"] or 1.0
    rows = []
    for part in account["parts"]:
        if part["name"] == "waves" and account["side"] == "moving":  # it is no part of moving
            continue
        name, meaning = _part(account, part), words[part["name"]][1]
        if part["time_us"] < 0:
            meaning = f"{account['side'].capitalize()} took less time than the ideal."
        chip = f'<i class="part {part["name"]}"></i>{escape(name)}'
        shown = [signed_time(part["time_us"]), _percent(part["time_us"] / time), escape(meaning)]
        rows.append([chip, *shown])
    note = f"Rank {account['rank']:g} ends last, and its time is told here, by {account['side']}, which took it longer."
    if account.get("peer_bytes"):
        note += f" Its {moved_words(account['peer_bytes'])}, which counts as computing."
    if run.measured:
        note += " These times are of the run with timestamps, which takes a little longer than the timed runs."
    head = ["part", "time", "of the run", "means"]
    return f"{bar(run, account['time_us'])}{table(head, rows, {1, 2}, escaped=True)}<p class='note'>{escape(note)}</p>"


def _part(account: Facts, part: Facts) -> str:
    """What a part of an account is called."""
    return part_name(WORDS[account["side"]][part["name"]][0], part["time_us"])


def bar(run: PageRun, full: float) -> str:
    """The parts of a run's time side by side; `full` microseconds are the whole width."""
    account = run.account
    if account is None:
        return ""
    made = []
    faster = sum(min(0.0, part["time_us"]) for part in account["parts"])
    for part in account["parts"]:
        time = part["time_us"] + (faster if part["name"] == "ideal" else 0.0)
        if time > 0:
            width = 100 * time / (full or 1.0)
            title = escape(f"{_part(account, part)}: {signed_time(part['time_us'])}")
            label = f"<span>{title}</span>" if width > 14 else ""
            made.append(f'<i class="part {part["name"]}" style="width:{width:.3f}%" title="{title}">{label}</i>')
    told = escape(", ".join(f"{_part(account, p)} {signed_time(p['time_us'])}" for p in account["parts"]))
    return f'<div class="bar" role="img" aria-label="{told}">{"".join(made)}</div>'


def stages(run: PageRun) -> str:
    """A table of the stages, beside the model's times where these were measured."""
    if not run.stages:
        return ""
    modelled = {s["stage"]: s for s in run.modelled["stages"]} if run.modelled is not None else {}
    head = ["stage", "does", "works", "from – to", "busy", "of the run", "on the path", "waited", "moves", "computes"]
    head += ["model's busy", "measured ÷ model"] if modelled else []
    rows = []
    for stage in run.stages:
        busy, ranks = stage["busy_us"], stage["ranks"] or 1
        row = [
            f"{escape(stage['stage'])}<small>{escape(stage['place'])}</small>",
            escape(stage["kind"]),
            f"{stage['works']}",
            f"{show_time(stage['start_us'])} – {show_time(stage['stop_us'])}",
            show_time(busy),
            _percent(busy / run.time) if run.time else "",
            show_time(stage["path_us"]),
            show_time(stage["waited_us"]) if stage["waited_us"] else "",
            _rate(_moved(stage), stage["bytes"] / ranks / busy / 1e3 if busy else 0.0, "GB/s"),
            _rate(show_flops(stage["flops"]), stage["flops"] / ranks / busy / 1e6 if busy else 0.0, "TFLOP/s"),
        ]
        if modelled:
            row += _beside(busy, modelled.get(stage["stage"]))
        rows.append(row)
    note = "Busy: at least one work of the stage is under way, the mean over its ranks. Rates: one rank's while busy. "
    note += "On the path: of the critical path, the chain of works that set the run's time. "
    between = (run.trace.duration if run.trace is not None else run.time) - sum(s["path_us"] for s in run.stages)
    note += f"Between the works of the path are {show_time(max(0.0, between))}: launches, signals, collectives' waits."
    return f"{table(head, rows, set(range(2, 12)), escaped=True)}<p class='note'>{note}</p>"


def _moved(stage: Facts) -> str:
    """The bytes of a stage, with those that its launches move between ranks themselves."""
    peer = stage.get("peer_bytes", 0)
    return show_bytes(stage["bytes"]) + (f", {show_bytes(peer)} of it between ranks" if peer else "")


def _rate(amount: str, rate: float, unit: str) -> str:
    shown = f"{rate:.0f}" if rate >= 99.5 else f"{rate:.3g}"
    return f"{amount}<small>{shown} {unit}</small>" if rate else ""


def _beside(busy: float, modelled: Facts | None) -> list[str]:
    if modelled is None or not modelled["busy_us"]:
        return ["", ""]
    return [show_time(modelled["busy_us"]), f"{busy / modelled['busy_us']:.2f}"]


def against_model(run: PageRun) -> str:
    """The account of a measured run beside the model's."""
    if run.modelled is None or run.account is None or "account" not in run.modelled:
        return ""
    modelled = run.modelled["account"]
    rows = [["time of the run", show_time(run.time), show_time(run.modelled["time_us"])]]
    if modelled["side"] == run.account["side"]:
        rows += _parts([run.account, modelled])
    note = f"The ideal of the measured run is {run.facts['yardsticks'] if run.facts else 'modelled'}."
    return f"{table(['', 'measured', 'modelled'], rows, {1, 2})}<p class='note'>{note}</p>"


# ---------------------------------------------------------------- several runs


def comparison(runs: Sequence[PageRun]) -> str:
    """Runs side by side: a column each, and their times as bars of one scale."""
    full = max((run.account["time_us"] for run in runs if run.account is not None), default=0.0)
    bars = [
        f'<div class="run"><b>{letter(i)}</b>{bar(run, full)}<span>{show_time(run.time)}</span></div>'
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
        ["backend", *(str(run.facts["backend"]) if run.facts else "" for run in runs)],
        *_params(runs),
        ["file", *(run.name for run in runs)],
        ["plan", *(str(run.facts["plan_hash"])[:16] if run.facts else "" for run in runs)],
    ]
    rows = [row for row in (*told, *given) if any(row[1:])]
    marked = {row[0] for row in given[:-2] if len(set(row[1:])) > 1}  # what was asked for, and differs
    columns = set(range(1, len(runs) + 1))
    note = f"<p class='note'>Serial is a run with no overlap: {SERIAL}.</p>" if any(map(_gain, runs)) else ""
    return f'<div class="bars">{"".join(bars)}</div>{table(head, rows, columns, marked=marked)}{note}'


def _share(run: PageRun) -> str:
    share = run.facts.get("share_of_ideal") if run.facts else None
    return "" if share is None else _percent(share)


def _gain(run: PageRun) -> str:
    if run.facts is None or not run.facts["serial_ms"] or not run.time:
        return ""
    return f"{1e3 * run.facts['serial_ms'] / run.time:.2f}×"


def _parts(accounts: Sequence[Facts | None]) -> list[list[str]]:
    """A row for each part of the accounts, which may go by different sides."""
    found = [
        {} if account is None else {_part(account, part): part["time_us"] for part in account["parts"]}
        for account in accounts
    ]
    names = dict.fromkeys(words[name][0] for name in WORDS["computing"] for words in WORDS.values())
    order = dict.fromkeys(part_name(name, sign) for name in names for sign in (1.0, -1.0))
    return [
        [name, *(signed_time(parts[name]) if name in parts else "" for parts in found)]
        for name in order
        if any(parts.get(name) for parts in found)
    ]


def _params(runs: Sequence[PageRun]) -> list[list[str]]:
    given = [run.facts["params"] if run.facts is not None else {} for run in runs]
    names = dict.fromkeys(name for params in given for name in params)
    return [[name, *(show_value(params[name]) if name in params else "" for params in given)] for name in names]


# ---------------------------------------------------------------- parts of all


def timeline(run: PageRun, number: int, *, single: bool = True) -> str:
    """The place where the script draws a run's trace, with the words for readers who cannot see it."""
    title = "" if single else f"<h3>{letter(number)} · {escape(run.schedule)}, {show_time(run.time)}</h3>"
    if run.trace is None:
        told = f"{escape(run.name)} holds no trace; <code>ficco-run --trace FILE.json</code> writes one."
        return f"{title}<p class='note'>{told}</p>"
    told = escape(_told(run, run.trace))
    return (
        f'<div class="timeline" data-run="{number}">{title}<div class="keys"></div>'
        f'<canvas tabindex="0" role="application" aria-label="{told}"></canvas></div>'
    )


def _told(run: PageRun, trace: Trace) -> str:
    return (
        f"Timeline of {run.schedule}: {len(trace.lanes)} streams of {ranks_of(run)}, "
        f"{len(trace.spans)} works and waits, {len(trace.arrows)} arrows, {show_time(trace.duration)}"
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


def _percent(share: Any) -> str:
    if not isinstance(share, int | float):
        return ""
    return f"{100 * share:.{0 if abs(share) >= 0.0995 else 1}f} %".replace("-", "−")

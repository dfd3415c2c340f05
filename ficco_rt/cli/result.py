"""What a run has shown: for people, a line a fact, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..analysis.account import Account, account, rank_uses
from ..analysis.concurrency import Concurrent, overlap_rate
from ..driver.api import GPUS
from ..errors import NumbersError
from ..report.account_words import SERIAL, lost_words, moved_words, time_records
from ..report.inside_words import launch_records, summary
from ..report.job import Job, proof_words, short_words, within_roundings
from ..report.sources import diagnostic_record
from ..report.wording import count, join_words, show_params, show_time
from .choose import reasons
from .choose import record as choice_record
from .console import Style, table
from .messages import error_record

if TYPE_CHECKING:
    from ..exec.ideal import Yardsticks
    from ..exec.verify import Verification
    from ..trace.model import Trace


@dataclass(frozen=True, slots=True)
class Result:
    """What a run has shown. Times in microseconds; `times` are those of the timed runs on the trace's clock."""

    job: Job
    backend: str
    plan_hash: str
    seed: int
    trace: Trace
    times: tuple[float, ...]
    host: tuple[float, ...]
    yardsticks: Yardsticks
    collectives: str  # what makes them; nothing where the plan has none
    devices: str = ""
    graph: bool = False
    order: str | None = None
    verification: Verification | None = None
    processes: int = 1  # that the ranks were in
    modelled: Trace | None = None  # of a measured run: the same plan on the virtual clock

    @property
    def account(self) -> Account:
        """Where the time of the trace went."""
        yardsticks = self.yardsticks
        alone = yardsticks.compute_alone, yardsticks.communication_alone
        return account(self.trace, self.job.plan, self.job.machine, *alone)

    @property
    def time(self) -> float:
        return median(self.times)

    @property
    def exposed(self) -> float | None:
        """How much longer the timed runs took than computing alone, where that was measured. Else, of the trace:
        communication with no computation at the same time, on the rank that has most of it. None: launches that
        compute move data between ranks themselves, and no trace tells the two apart."""
        if self.yardsticks.measured:
            return max(0.0, self.time - self.yardsticks.compute_alone)
        return None if self.peer_bytes else self.exposed_copies

    @property
    def exposed_copies(self) -> float:
        """Of the trace: copies and collectives with no computation at the same time, on the rank with most of it."""
        return max((use.exposed for use in rank_uses(self.trace)), default=0.0)

    @property
    def peer_bytes(self) -> int:
        """What launches that compute move between ranks themselves, all ranks together."""
        return sum(use.peer_bytes for use in rank_uses(self.trace))

    @property
    def exposed_of(self) -> str:
        """Which runs `exposed` tells of."""
        if self.yardsticks.measured:
            return "timed runs"
        return "model" if self.trace.clock == "virtual" else "traced run"

    @property
    def share_of_ideal(self) -> float | None:
        return self.yardsticks.ideal / self.time if self.time else None

    @property
    def concurrent(self) -> Concurrent | None:
        """Of a run that repeats a product and its collective: what it has of making both at once."""
        y = self.yardsticks
        if not y.iterations:
            return None
        overlap = None if self.peer_bytes else overlap_rate(rank_uses(self.trace))
        return Concurrent(y.iterations, self.time, y.serial, y.compute_alone, y.collectives_alone, overlap)

    @property
    def error(self) -> NumbersError | None:
        v = self.verification
        if v is None or v.ok:
            return None
        if v.integers is False:
            return NumbersError(f"{v.worst} (on integers that nothing rounds, seed {self.seed})")
        data, of = "", v
        if v.one_signed is not None and not v.one_signed.ok:
            data, of = "on data of one sign: ", v.one_signed
        return NumbersError(
            f"{v.worst} ({data}relative error {of.rel_err:.2e}, tolerance {of.tolerance:.2e}, seed {self.seed})"
        )


def record(result: Result) -> dict[str, object]:
    """What --json prints."""
    job, plan, yardsticks = result.job, result.job.plan, result.yardsticks
    compared = result.verification  # None, too, where nothing is claimed: nothing was verified then
    if compared is not None and compared.rel_err is None:
        compared = None
    rounded = compared is not None and compared.alone != "exact"  # whether random data were compared
    facts: dict[str, object] = {
        "schedule": plan.schedule,
        "path": job.path,
        "title": job.title,
        "backend": result.backend,
        "devices": result.devices,
        "processes": result.processes,
        "collectives": result.collectives or None,
        "graph": result.graph,
        "machine": job.machine.name,
        "clock": result.trace.clock,
        "ranks": plan.ranks,
        "params": dict(plan.params),
        "given": {g.param: {"value": g.value, "rule": g.rule, "why": g.why} for g in job.given},
        "choice": None if job.choice is None else choice_record(job.choice),
        # neither right nor wrong: within roundings that may take too much
        "verified": None if compared is None or (compared.ok and not compared.correct) else compared.ok,
        "integers": compared.integers if compared else None,
        "proven": job.proven,
        "why": reasons(job),
        "warnings": [diagnostic_record(d) for d in job.warnings],
        "unproven": job.unproven,
        "rel_err": compared.rel_err if rounded and compared else None,
        "tolerance": compared.tolerance if rounded and compared else None,
        "one_signed": _one_signed(compared),
        "allowance": compared.allowance if compared else None,
        "short_sums": job.short_sums,
        "seed": result.seed,
        "order": result.order,
        "iters": len(result.times),
        "time_ms": result.time / 1e3,
        "time_ms_min": min(result.times) / 1e3,
        "time_ms_max": max(result.times) / 1e3,
        "serial_ms": yardsticks.serial / 1e3,
        "ideal_ms": yardsticks.ideal / 1e3,
        "compute_alone_ms": yardsticks.compute_alone / 1e3,
        "communication_alone_ms": yardsticks.communication_alone / 1e3,
        "yardsticks": "measured" if yardsticks.measured else "modelled",
        "yardsticks_of": yardsticks.of,
        "serial_by": yardsticks.serial_by or None,
        "ideal_by": yardsticks.ideal_by or None,
        "share_of_ideal": result.share_of_ideal,
        "exposed_ms": None if result.exposed is None else result.exposed / 1e3,
        "exposed_of": result.exposed_of,
        "concurrent": None if result.concurrent is None else result.concurrent.record(),
        **_times(result, result.trace, yardsticks),
        "modelled": _modelled(result),
        "launches": launch_records(result.trace),
        "host_us": median(result.host),
        "plan_hash": result.plan_hash,
        "version": __version__,
    }
    if result.error:
        facts["error"] = error_record(result.error)
    return facts


def _one_signed(found: Verification | None) -> dict[str, object] | None:
    if found is None or found.one_signed is None:
        return None
    return {"rel_err": found.one_signed.rel_err, "tolerance": found.one_signed.tolerance}


def _times(result: Result, trace: Trace, yardsticks: Yardsticks) -> dict[str, object]:
    job = result.job
    return time_records(trace, job.plan, job.machine, yardsticks.compute_alone, yardsticks.communication_alone)


def _modelled(result: Result) -> dict[str, object] | None:
    """What the model says of the run, beside what was measured; None where it was not asked, or is all there is."""
    from ..exec.ideal import ideal

    if result.modelled is None:
        return None
    yardsticks = ideal(result.job.plan, result.job.machine)
    return {"time_us": result.modelled.duration, **_times(result, result.modelled, yardsticks)}


def report(result: Result, style: Style) -> str:
    """The result for people: a line a fact, every modelled time named as such."""
    job, plan, machine = result.job, result.job.plan, result.job.machine
    title = f": {job.title}" if job.title else ""
    lines = [f"{style(plan.schedule, 'bold')}{title}"]
    if not job.proven:
        outputs = join_words(job.unproven) or "it makes"
        lines.append(style(f"UNPROVEN: nothing says what {outputs} must hold", "yellow"))
    modelled = result.trace.clock == "virtual"
    runs = f", median of {len(result.times)} runs" if len(result.times) > 1 else ""
    clock = f"modelled for {machine.name}, not measured" if modelled else f"measured on {machine.name}"
    proof = f", {proof_words(job)}" if job.graph is None and job.proven else ""
    rows = [
        *(("why" if i == 0 else "", reason) for i, reason in enumerate(reasons(job))),
        ("backend", _backend(result)),
        *([("collectives", f"by {result.collectives}")] if result.collectives else []),
        ("params", show_params(plan.params) or "none"),
        ("numbers", _numbers(result, style)),
        ("time", f"{style(show_time(result.time), 'bold')} {clock}{runs}"),
        ("serial", _serial(result)),
        ("ideal", _ideal(result)),
        *([("at once", _at_once(result, concurrent))] if (concurrent := result.concurrent) is not None else []),
        ("exposed", _exposed(result)),
        ("lost", lost_words(result.account)),
        *([("inside", inside)] if (inside := summary(result.trace)) is not None else []),
        *([("clocks", f"those of the GPUs agree to {show_time(within)}")] if (within := result.trace.within) else []),
        ("host", f"{show_time(median(result.host))} {_host(result)} on this machine's CPU"),
        ("plan", f"{result.plan_hash[:16]}{proof}"),
    ]
    lines.append(table(rows))
    return "\n".join(lines) + "\n"


def _backend(result: Result) -> str:
    machine = result.job.machine
    if result.backend in GPUS:
        how = "graphs" if result.graph else "streams"
        return (
            f"{result.backend}: {count(result.job.plan.ranks, 'rank')}{_processes(result)} on {result.devices}, {how}"
        )
    ranks = count(result.job.plan.ranks, "virtual GPU") + _processes(result)
    how = "no data moves" if result.backend == "sim" else "on numpy"
    return f"{result.backend}: {ranks}, {how}, as {machine.device.name} on a {_links(machine)}"


def _processes(result: Result) -> str:
    return f" in {result.processes} processes" if result.processes > 1 else ""


def _serial(result: Result) -> str:
    yardsticks = result.yardsticks
    how = f"for {SERIAL}"
    if yardsticks.measured:
        how = f"measured, as {yardsticks.serial_by}" if yardsticks.serial_by else "measured, computing, then moving"
        how += "" if yardsticks.serial_by else _by(yardsticks)
        how += f", {count(yardsticks.turns, 'run')} in turn with these"
    return f"{show_time(yardsticks.serial)} {how}{_gain(yardsticks.serial, result.time)}{_estimate(result)}"


def _ideal(result: Result) -> str:
    yardsticks, share = result.yardsticks, result.share_of_ideal
    computing, moving = map(show_time, (yardsticks.compute_alone, yardsticks.communication_alone))
    words = f"{show_time(yardsticks.ideal)} = max(computing {computing}, moving {moving}){_by(yardsticks)}"
    words += ", each measured alone" if yardsticks.measured else ""
    words += f", {100 * share:.0f} % of it reached" if share is not None else ""
    own = "; of this plan's own work: not all of its outputs are claimed" if yardsticks.of == "plan" else ""
    return f"{words}{_estimate(result)}{own}"


def _by(yardsticks: Yardsticks) -> str:
    """The way that the figures are of, where it is not the one that the claims say."""
    return f" by {yardsticks.ideal_by}" if yardsticks.ideal_by else ""


def _estimate(result: Result) -> str:
    """Beside a measured time a modelled one is named as such."""
    return " (modelled)" if result.trace.clock != "virtual" and not result.yardsticks.measured else ""


def _at_once(result: Result, found: Concurrent) -> str:
    """The figures of a run of iterations, by the iteration."""
    each = found.iterations
    parts = [f"{count(each, 'iteration')} of {show_time(found.time / each)}"]
    parts += [f"{found.time_ratio:.3f} of sequential"] if found.time_ratio is not None else []
    parts += [f"{found.normalised_time:.3f} of ideal"] if found.normalised_time is not None else []
    parts += [f"{100 * found.share_of_saving:.0f} % of the ideal saving"] if found.share_of_saving is not None else []
    parts += [f"overlap rate {100 * found.overlap:.0f} %"] if found.overlap is not None else []
    sides = f"product {show_time(found.products / each)}, collective {show_time(found.collectives / each)} alone"
    return f"{', '.join(parts)}; {sides}{_estimate(result)}"


def _exposed(result: Result) -> str:
    time = show_time(result.exposed_copies if result.exposed is None else result.exposed)
    if result.yardsticks.measured:
        return f"{time} more than computing alone"
    if result.exposed is None:
        copies = f"{time} of copies with no computing beside them, and more: " if result.exposed_copies else ""
        return f"{copies}not told apart, as {moved_words(result.peer_bytes)}"
    traced = ", in a run with timestamps" if result.exposed_of == "traced run" else ""
    return f"{time} of communication with no computing beside it{traced}"


def _host(result: Result) -> str:
    if result.backend in GPUS:
        return "to issue a run"
    return "of modelling" if result.backend == "sim" else "a run"


def _gain(serial: float, time: float) -> str:
    """What overlap has brought, or cost."""
    if not serial or not time:
        return ""
    times, word = (serial / time, "fast") if serial >= time else (time / serial, "slow")
    return f"; this is {times:.2f} times as {word}"


def _links(machine: Any) -> str:
    return f"{' and a '.join(links.kind for links in machine.tiers)} ({machine.name})"


def _numbers(result: Result, style: Style) -> str:
    found = result.verification
    if result.backend == "sim":
        return style("not run", "yellow") + ": sim models times alone"
    if found is None:
        return style("not verified", "yellow") + " (--no-verify)"
    words: Sequence[str]
    if found.rel_err is None:
        words = [style("not verified", "yellow"), "nothing is claimed; every element was written"]
    else:
        integers = "integers equal" if found.integers else "integers DIFFER"
        normal = f"random data off by {found.rel_err:.1e} of {found.tolerance:.1e} allowed"
        if found.alone == "exact":
            normal = "random data not run"
        elif not found.rel_err and not found.tolerance:
            normal = "random data equal"
        verdict = style("correct", "green") if found.ok else style("WRONG", "red")
        if found.ok and not found.correct:
            verdict = style(within_roundings(found.allowance), "yellow")
        one_signed = ""
        if (signed := found.one_signed) is not None:
            one_signed = f"data of one sign off by {signed.rel_err:.1e} of {signed.tolerance:.1e} allowed, "
        words = [verdict, f"{integers}, {one_signed}{normal}"]
    unproven = f"; {join_words(found.unproven)} unproven and not compared" if found.unproven else ""
    return ": ".join(words) + unproven + short_words(result.job)

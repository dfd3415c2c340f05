"""The results of a run: for people, one line a fact; or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from .. import __version__
from ..analysis.account import Account, StageUse, rank_uses
from ..analysis.concurrency import Concurrent, concurrent, overlap_rate
from ..driver.api import GPUS, DriverName
from ..errors import NumbersError
from ..files.records import LEFT_OUT, NEWER, Count, Micros, Params, Positive, filled
from ..report import account_words
from ..report.job import Job, proof_words, short_words, within_roundings
from ..report.sources import DiagnosticRecord, diagnostic_records
from ..report.wording import count, join_words, show_params, show_time
from ..trace.inside import LaunchInside
from ..trace.model import ClockKind
from .choose import ChoiceRecord, reasons
from .choose import record as choice_record
from .console import Style, table
from .messages import ErrorRecord, error_record

if TYPE_CHECKING:
    from ..exec.ideal import Yardsticks
    from ..exec.verify import Verification
    from ..trace.model import Trace


@dataclass(frozen=True, slots=True)
class Result:
    """What a run has shown. Times in microseconds; `times` are those of the timed runs on the trace's clock."""

    job: Job
    backend: DriverName | Literal["sim"]
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
    modelled: account_words.RunTimes | None = None  # of a measured run: the same plan on the virtual clock

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
        """From the trace: copies and collectives with no computation at the same time, on the rank with most of it."""
        return max((use.exposed for use in rank_uses(self.trace)), default=0.0)

    @property
    def peer_bytes(self) -> int:
        """What launches that compute move between ranks themselves, all ranks together."""
        return sum(use.peer_bytes for use in rank_uses(self.trace))

    @property
    def exposed_of(self) -> Literal["timed runs", "model", "traced run"]:
        """Which runs `exposed` tells of."""
        if self.yardsticks.measured:
            return "timed runs"
        return "model" if self.trace.clock == "virtual" else "traced run"

    @property
    def share_of_ideal(self) -> float | None:
        return self.yardsticks.ideal / self.time if self.time else None

    @property
    def concurrent(self) -> Concurrent | None:
        """For a run that repeats a product and its collective: what it gains by running both at once."""
        y = self.yardsticks
        if not y.iterations:
            return None
        overlap = None if self.peer_bytes else overlap_rate(rank_uses(self.trace))
        return concurrent(y.iterations, self.time, y.serial, y.compute_alone, y.collectives_alone, overlap)

    @property
    def error(self) -> NumbersError | None:
        v = self.verification
        if v is None or v.ok:
            return None
        if v.worst is not None and v.worst.wanted is None:
            return NumbersError(f"{v.worst} (seed {self.seed})")
        if v.integers is False:
            return NumbersError(f"{v.worst} (on integers that nothing rounds, seed {self.seed})")
        data, of = "", v
        if v.one_signed is not None and not v.one_signed.ok:
            data, of = "on data of one sign: ", v.one_signed
        return NumbersError(
            f"{v.worst} ({data}relative error {of.rel_err:.2e}, tolerance {of.tolerance:.2e}, seed {self.seed})"
        )


@dataclass(frozen=True, slots=True)
class GivenRecord:
    """A value that a rule gave to what was left open."""

    value: object = 0
    rule: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Error:
    """The error of a run, relative to the largest, and what its roundings add up to."""

    rel_err: float | None = None
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run, as `ficco-run --json` prints it and trace files hold it.

    path: Of the schedule or plan.
    title: The schedule's first comment; empty: none.
    devices: What ran it; empty: nothing did.
    processes: That the ranks were in.
    collectives: What makes them, and why; null: the plan has none.
    graph: Replayed as graphs.
    machine: Compiled for, and modelled on.
    clock: Times are modelled, or a device's.
    params: Params and types by name.
    given: Values that rules gave to what was left open.
    choice: For an operation: what was chosen; null: a schedule was named.
    verified: The numbers are right; null: not run, not compared, or within an allowance of more than 0.05.
    integers: Integers that nothing rounds were equal.
    proven: The proof speaks for all outputs.
    why: Why this schedule with these values, a sentence each.
    warnings: What is legal, and slow or coarse.
    unproven: Outputs that no claim speaks for.
    rel_err: Of random data, relative to the largest.
    tolerance: What the plan's own roundings add up to.
    one_signed: The run on data of one sign; null: none, as no partial sum is rounded, or not asked for.
    allowance: The share of a result that roundings may take on data of one sign; null: not run, or not compared.
    short_sums: Tensors whose partial sums may pass the end of their type (fp16: 65504) where the result does not.
    order: How the host backend stepped.
    iters: Timed runs.
    time_ms: The median of the timed runs, milliseconds.
    serial_ms: With no overlap: computing and moving, one after the other.
    ideal_ms: The longer of the next two.
    yardsticks: How serial and ideal were found.
    yardsticks_of: Of what they are: plan, where not all outputs are claimed.
    serial_by: The schedule that ran as serial.
    ideal_by: What the ideal's way sends in place of what the claims send. null: it is the claims' way.
    share_of_ideal: ideal ÷ time.
    exposed_ms: See exposed_of. null: GEMMs, sums or kernels move data between ranks themselves, and a trace does not
      tell their moving from their computing.
    exposed_of: timed runs: how much longer than computing alone. Otherwise: communication with no computing beside it.
    concurrent: null: the run does not repeat a product and its collective.
    stages: In the order of their first works.
    modelled: What the model says of a measured run, where --trace or --report asked; otherwise null.
    launches: Streamed launches, and what their works did.
    host_us: Of this machine's CPU for a run, or for modelling it.
    plan_hash: SHA-256 of the plan's content.
    version: Of ficco.
    error: Why the numbers are wrong.
    """

    schedule: str
    path: str
    title: str
    backend: Literal["sim", "host", "cuda", "hip"]
    devices: str
    processes: Positive = 1
    collectives: str | None = None
    graph: bool = False
    machine: str
    clock: ClockKind
    ranks: Count
    params: Params
    given: Mapping[str, GivenRecord]
    choice: ChoiceRecord | None = None
    verified: bool | None = None
    integers: bool | None = None
    proven: bool = False
    why: tuple[str, ...] = ()
    warnings: tuple[DiagnosticRecord, ...] = ()
    unproven: tuple[str, ...] = ()
    rel_err: float | None = None
    tolerance: float | None = None
    one_signed: Error | None = None
    allowance: float | None = None
    short_sums: tuple[str, ...] = ()
    seed: Count = NEWER
    order: str | None = None
    iters: Count
    time_ms: float
    time_ms_min: float
    time_ms_max: float
    serial_ms: float
    ideal_ms: float
    compute_alone_ms: float
    communication_alone_ms: float = 0.0
    yardsticks: Literal["measured", "modelled"]
    yardsticks_of: Literal["operation", "plan"] = "operation"
    serial_by: str | None = None
    ideal_by: str | None = None
    share_of_ideal: float | None = None
    exposed_ms: float | None = None
    exposed_of: Literal["timed runs", "model", "traced run"] = "model"
    concurrent: Concurrent | None = None
    account: Account = NEWER
    stages: tuple[StageUse, ...] = NEWER
    modelled: account_words.RunTimes | None = None
    launches: tuple[LaunchInside, ...] = ()
    host: Micros = 0.0
    plan_hash: str
    version: str
    error: ErrorRecord = LEFT_OUT


def record(result: Result) -> Run:
    """What --json prints."""
    job, plan, yardsticks = result.job, result.job.plan, result.yardsticks
    compared = result.verification  # None, too, where nothing is claimed: nothing was verified then
    if compared is not None and compared.rel_err is None:
        compared = None
    rounded = compared if compared is not None and compared.alone != "exact" else None  # random data were compared
    one_signed = compared.one_signed if compared is not None else None
    exposed, times = result.exposed, account_words.times_of(result.trace, plan, job.machine, yardsticks)
    return filled(
        Run,
        result,
        job,
        plan,
        collectives=result.collectives or None,
        machine=job.machine.name,
        clock=result.trace.clock,
        params=dict(plan.params),
        given={g.param: GivenRecord(g.value, g.rule, g.why) for g in job.given},
        choice=None if job.choice is None else choice_record(job.choice),
        # neither right nor wrong: within roundings that may take too much
        verified=None if compared is None or (compared.ok and not compared.correct) else compared.ok,
        integers=compared.integers if compared else None,
        why=reasons(job),
        warnings=diagnostic_records(job.warnings),
        rel_err=rounded.rel_err if rounded else None,
        tolerance=rounded.tolerance if rounded else None,
        one_signed=Error(one_signed.rel_err, one_signed.tolerance) if one_signed is not None else None,
        allowance=compared.allowance if compared else None,
        iters=len(result.times),
        time_ms=result.time / 1e3,
        time_ms_min=min(result.times) / 1e3,
        time_ms_max=max(result.times) / 1e3,
        serial_ms=yardsticks.serial / 1e3,
        ideal_ms=yardsticks.ideal / 1e3,
        compute_alone_ms=yardsticks.compute_alone / 1e3,
        communication_alone_ms=yardsticks.communication_alone / 1e3,
        yardsticks="measured" if yardsticks.measured else "modelled",
        yardsticks_of=yardsticks.of,
        serial_by=yardsticks.serial_by or None,
        ideal_by=yardsticks.ideal_by or None,
        exposed_ms=None if exposed is None else exposed / 1e3,
        account=times.account,
        stages=times.stages,
        launches=account_words.launch_records(result.trace),
        host=median(result.host),
        version=__version__,
        error=error_record(result.error) if result.error else LEFT_OUT,
    )


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
    host = "to issue a run" if result.backend in GPUS else "of modelling" if result.backend == "sim" else "a run"
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
        *([("at once", _at_once(result, at_once))] if (at_once := result.concurrent) is not None else []),
        ("exposed", _exposed(result)),
        ("lost", account_words.lost_words(account_words.account_of(result.trace, plan, machine, result.yardsticks))),
        *([("inside", inside)] if (inside := account_words.summary(result.trace)) is not None else []),
        *([("clocks", f"those of the GPUs agree to {show_time(within)}")] if (within := result.trace.within) else []),
        ("host", f"{show_time(median(result.host))} {host} on this machine's CPU"),
        ("plan", f"{result.plan_hash[:16]}{proof}"),
    ]
    lines.append(table(rows))
    return "\n".join(lines) + "\n"


def _backend(result: Result) -> str:
    """What ran, on what, and how."""
    machine, ranks = result.job.machine, result.job.plan.ranks
    together = f" in {result.processes} processes" if result.processes > 1 else ""
    if result.backend in GPUS:
        how = "graphs" if result.graph else "streams"
        return f"{result.backend}: {count(ranks, 'rank')}{together} on {result.devices}, {how}"
    how = "no data moves" if result.backend == "sim" else "on numpy"
    links = " and a ".join(links.kind for links in machine.tiers)
    stands_for = f"as {machine.device.name} on a {links} ({machine.name})"
    return f"{result.backend}: {count(ranks, 'virtual GPU')}{together}, {how}, {stands_for}"


def _serial(result: Result) -> str:
    yardsticks = result.yardsticks
    how = f"for {account_words.SERIAL}"
    if yardsticks.measured:
        as_ = f"as {yardsticks.serial_by}" if yardsticks.serial_by else f"one after the other{_by(yardsticks)}"
        how = f"measured, {as_}, {count(yardsticks.turns, 'run')} in turn with these"
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
    parts = [f"{count(found.iterations, 'iteration')} of {show_time(1e3 * found.iteration)}"]
    parts += [f"{found.time_ratio:.3f} of sequential"] if found.time_ratio is not None else []
    parts += [f"{found.normalised_time:.3f} of ideal"] if found.normalised_time is not None else []
    parts += [f"{100 * found.share_of_saving:.0f} % of the ideal saving"] if found.share_of_saving is not None else []
    parts += [f"overlap rate {100 * found.overlap_rate:.0f} %"] if found.overlap_rate is not None else []
    sides = f"product {show_time(1e3 * found.products)}, collective {show_time(1e3 * found.collectives)} alone"
    return f"{', '.join(parts)}; {sides}{_estimate(result)}"


def _exposed(result: Result) -> str:
    time = show_time(result.exposed_copies if result.exposed is None else result.exposed)
    if result.yardsticks.measured:
        return f"{time} more than computing alone"
    if result.exposed is None:
        copies = f"{time} of copies with no computing beside them, and more: " if result.exposed_copies else ""
        return f"{copies}not told apart, as {account_words.moved_words(result.peer_bytes)}"
    traced = ", in a run with timestamps" if result.exposed_of == "traced run" else ""
    return f"{time} of communication with no computing beside it{traced}"


def _gain(serial: float, time: float) -> str:
    """What overlap has brought, or cost."""
    if not serial or not time:
        return ""
    times, word = (serial / time, "fast") if serial >= time else (time / serial, "slow")
    return f"; this is {times:.2f} times as {word}"


def _numbers(result: Result, style: Style) -> str:
    found = result.verification
    if result.backend == "sim":
        return style("not run", "yellow") + ": sim models times alone"
    if found is None:
        return style("not verified", "yellow") + " (--no-verify)"
    words: Sequence[str]
    if found.rel_err is None:
        words = [style("not verified", "yellow"), "nothing is claimed; every element was written"]
    elif found.worst is not None and found.worst.wanted is None:
        words = [style("WRONG", "red"), f"not all of {found.worst.tensor} was written"]
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

"""Chooses a schedule for an operation, by rules, the model or measured times, and gives the reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from .. import compiler
from ..errors import ScheduleError, UsageError
from ..files.arguments import VENDOR, multiprocessors, plain, whole
from ..kernels.families import Timer, tuned
from ..machine.durations import vendor_gemm, vendor_source, was_measured
from ..machine.model import Machine
from ..machine.profiles import DEFAULT, AnyMachine, chosen
from ..machine.units import figure
from ..plan.ir import Plan
from . import heuristics, measurements, ranking
from .candidates import (
    Candidate,
    bound_sizes,
    by_kernel,
    by_messages,
    by_rules,
    leaving,
    own,
    shipped_operation,
    shown,
    streams_products,
    text_of,
    within_reach,
)
from .facts import facts
from .params import MEASURED
from .ranking import Question, Ranking

By: TypeAlias = Literal["rules", "model", "measured"]
BY: tuple[str, ...] = get_args(By)
NEXT = 4  # runners-up of the rules that are modelled
DRAW = 0.02  # of the time: the virtual clock's median error (docs/internals/model.md)
AHEAD = (
    0.05  # of the time: what the vendor's GEMM must gain on kernels of ours that were measured; its price may be off
)
LIBRARY = "docs/results/kernels.md, 'Our kernel or cuBLAS': 206 products on an H200"
COMMAND = 2.75  # µs of the host for a command of a run on streams (docs/results/bench.md, "Figures": 2.5 to 3)


@dataclass(frozen=True)
class Choice:
    """What was chosen for an operation of these sizes on a machine, and why.

    `plan` is compiled and proven when it is first asked for. So are `options` of a choice by rules modelled, and with
    them `predicted` and `mode`: the choice itself needs no model.
    """

    operation: str
    ranks: int
    machine: Machine
    by: By
    schedule: str
    params: Mapping[str, object]  # sizes, types and what was chosen: all that `compile` takes
    reasons: tuple[str, ...]  # sentences on the schedule and its parameters, the deciding one first
    sources: tuple[str, ...]  # what these rest on
    found: Callable[[], tuple[Candidate, ...]] = field(repr=False, compare=False)
    vendored: bool = False  # whether the vendor's library makes the products, if it is installed
    measured_mode: tuple[str, str] | None = None  # and words on it
    leave: int = 0  # multiprocessors that launches which wait leave to other libraries

    @cached_property
    def options(self) -> tuple[Candidate, ...]:
        """The choice and the runners-up, best first. Raises UsageError: by rules, the choice cannot be compiled."""
        return self.found()

    @property
    def runners_up(self) -> tuple[Candidate, ...]:
        """The options after the chosen one."""
        return self.options[1:]

    @property
    def predicted(self) -> float | None:
        """Microseconds: modelled on the virtual clock, or the median that was measured (`by` is "measured"). None: the
        plan is too large to be modelled beside a choice by rules."""
        return self.options[0].predicted

    @property
    def mode(self) -> Literal["graph", "streams"]:
        """The mode in which to run it."""
        return "graph" if self._how[0] == "graph" else "streams"

    @property
    def why(self) -> tuple[str, ...]:
        """Sentences, the deciding one first, that on the mode last."""
        return (*self.reasons, self._how[1])

    @cached_property
    def _how(self) -> tuple[str, str]:
        return self.measured_mode or mode(self.options[0].commands, self.predicted)

    @cached_property
    def plan(self) -> Plan:
        """The proven, checked plan. Raises ScheduleError where the schedule cannot have these sizes."""
        return leaving(compiler.compile_schedule(self.schedule, self.ranks, self.params, self.machine), self.leave)


def mode(commands: int, predicted: float | None) -> tuple[str, str]:
    """`graph` or `streams` for a run of so many commands over all ranks that takes so many microseconds, and why."""
    if predicted is None:
        return "graph", "a graph: a run has so many commands that on streams the host would be late"
    host = COMMAND * commands
    if host > predicted:
        return "graph", (
            f"a graph: on streams the host would take some {host:.0f} µs to issue a run, more than the run takes "
            f"({COMMAND} µs a command)"
        )
    return "streams", (
        f"streams: the host issues a run in some {host:.0f} µs, while the run before is under way, and streams are as "
        "fast as a graph within 1 %"
    )


def choose(
    operation: str,
    ranks: int,
    machine: AnyMachine | None = None,
    by: By | None = None,
    candidates: Iterable[object] | None = None,
    measured: measurements.Measurements | None = None,
    sizes: Mapping[str, object] | None = None,
    ranks_per_gpu: int = 1,
    vendor: bool = True,
    leave: int = 0,
    timer: Timer | None = None,
) -> Choice:
    """See `ficco_rt.choose`. `measured`: the measured times to use; by default the user's own (`measurements.place`).
    `timer`: of products that nothing runs beside, which our kernel or the vendor's may make; otherwise it is estimated.
    Ranks that share a GPU have measured times of their own; rules and the model assume that each rank has a GPU.
    Measured times are those of runs that leave no multiprocessors.

    Raises UsageError (no such operation, measure or machine; sizes that are missing; nothing measured), ScheduleError
    (sizes that the operation's tensors cannot have)."""
    if by is not None and by not in BY:
        raise UsageError(f"by is {', '.join(BY)}; given {str(by)[:40]!r}")
    asked = question(operation, ranks, machine, candidates, sizes, ranks_per_gpu, vendor, leave)
    asked = replace(asked, timer=timer)
    if by == "measured":
        return _by_measured(asked, measurements.stored() if measured is None else measured)
    return _by_rules(asked) if (by or default(asked)) == "rules" else _by_model(asked)


def question(
    operation: str,
    ranks: int,
    machine: AnyMachine | None = None,
    candidates: Iterable[object] | None = None,
    sizes: Mapping[str, object] | None = None,
    ranks_per_gpu: int = 1,
    vendor: bool = True,
    leave: int = 0,
) -> Question:
    """The question with its sizes bound. Raises UsageError, ScheduleError."""
    known = shipped_operation(operation)
    number = whole(ranks, "ranks")
    bound = bound_sizes(known, number, {name: plain(value) for name, value in (sizes or {}).items()})
    target = chosen(DEFAULT if machine is None else machine, number)
    dtype = str(next((bound[name] for name in known.types), "bf16"))
    found = facts(known.name, number, bound, target, dtype, multiprocessors(leave, "leave"))
    listed = None if candidates is None else own(candidates)
    if found is not None and listed is None and not within_reach(known, found):
        node, whole_nodes = found.node, found.nodes * found.node
        ways = f"no schedule of {known.name} sends messages; take the GPUs of one node"
        if by_messages(known):
            ways = f"schedules that send them take whole nodes; take {whole_nodes - node} or {whole_nodes} GPUs"
        raise UsageError(f"{found.nodes} nodes of {node} GPUs reach each other by messages alone, and {ways}")
    return Question(known, number, target, bound, found, listed, ranks_per_gpu, vendor, leave)


def default(asked: Question) -> By:
    """The default chooser: the rules; or the model, if the rules were not fitted to such a machine or product, or do
    not cover the request."""
    f = asked.facts
    if f is None or heuristics.unfitted(f) or (said := _ruled(asked)) is None:
        return "model"
    try:  # a schedule may take fewer sizes than its operation
        compiler.sizes(text_of(said.schedule), asked.ranks, {**asked.sizes, **dict(said.params)})
    except ScheduleError:
        return "model"
    return "rules"


def _answer(
    asked: Question,
    by: By,
    best: Candidate,
    found: Callable[[], tuple[Candidate, ...]],
    why: Iterable[str],
    sources: Iterable[str],
    measured_mode: tuple[str, str] | None = None,
) -> Choice:
    params = {**asked.sizes, **dict(best.params)}
    what = (asked.operation.name, asked.ranks, asked.machine, by, best.schedule, params)
    return Choice(
        *what, tuple(why), tuple(dict.fromkeys(sources)), found, _vendored(asked, best), measured_mode, asked.leave
    )


def _vendored(asked: Question, best: Candidate) -> bool:
    """Whether the vendor's library makes the products: it is asked for, or no GEMM of ours is made for the GPUs."""
    default = asked.vendor and not tuned(asked.machine.device.arch)
    return best.vendored or (default and not streams_products(best.schedule))


def _compared(asked: Question) -> tuple[str, ...]:
    """On what choices of this kind were not compared with measurements."""
    gpus = asked.ranks // asked.ranks_per_gpu
    device = asked.machine.device.name
    others = [
        f"of {asked.operation.name}" if asked.operation.name not in MEASURED else "",
        f"on {device}" if device != heuristics.DEVICE else "",
        f"on {gpus} GPUs" if gpus > heuristics.GPUS else "",
    ]
    told = ", none ".join(filter(None, others))
    known = f"choices of {' and '.join(MEASURED)} were compared with measurements on two H200"
    return (f"{known}, none {told}",) if told else ()


# ---------------------------------------------------------------- rules


def _by_rules(asked: Question) -> Choice:
    f = asked.facts
    if f is None:
        raise UsageError(f"no rules speak of {asked.operation.name}; take --by model, or by='model'")
    rule = heuristics.deciding(f)
    best = _ruled(asked)
    if best is None:
        raise UsageError(
            f"the rules say {asked.ruled}, which is not among the candidates; take --by model, or by='model'"
        )
    why = [f"rule '{rule.name}': {rule.why(f)}"]
    if apart := heuristics.unfitted(f):
        why.append(f"{apart}: {f'on {asked.machine.name}' if f.usual else 'for others'} take --by model, or by='model'")
    values = () if asked.own is not None else by_rules(f, best.schedule)[1]
    why += [f"{value.param} = {shown(value.value)}: {value.why}" for value in values]
    best, kernel, by = _with_kernel(asked, best)
    why += kernel
    sources = [*heuristics.cited(f, (rule, *values)), *by, *_compared(asked)]
    return _answer(asked, "rules", best, lambda: ranking.beside(asked, best, NEXT), why, sources)


def _with_kernel(asked: Question, best: Candidate) -> tuple[Candidate, list[str], list[str]]:
    """The candidate, with its products by the vendor's library if that is faster, or by the kernel of ours that was
    measured to be the fastest; why, and on what this rests."""
    found = ranking.alone(asked, best)
    kernel = None if found is None else VENDOR if found.library < found.ours else found.kernel
    if found is None or kernel is None:
        return best, [], []
    how = "were measured to take" if found.measured else "are estimated to take"
    why = (
        f"kernel = {kernel}: nothing runs beside a rank's products, which {how} {found.library:.4g} µs by the vendor's "
        f"library, {found.ours:.4g} by our kernels"
    )
    return by_kernel(best, kernel), [why], [] if found.measured else [LIBRARY]


def _ruled(asked: Question) -> Candidate | None:
    """What the rules say, if it is one of the candidates."""
    return next((c for c in asked.candidates() if c.schedule == asked.ruled), None)


# ---------------------------------------------------------------- the model


def _by_model(asked: Question) -> Choice:
    found = ranking.ranked(asked)
    best, beside = _worth_the_library(asked, found)
    fastest = best
    among = [o for o in found.ranked if best.vendored or not beside or not o.vendored]
    count, clock = len(among), f"the virtual clock of {asked.machine.name}"
    clock += " with our kernels" if len(among) < len(found.ranked) else ""
    why = [f"the fastest of {count} candidates on {clock}" if count > 1 else "the one candidate that there is"]
    f = asked.facts
    if f is not None and (apart := heuristics.unfitted(f)):
        why.append(f"{apart}; {asked.machine.name if f.usual else 'this one'} is chosen by the model")
    elif f is not None and asked.own is None and not best.vendored:
        rule, wanted, said = heuristics.deciding(f), asked.ruled, _ruled(asked)
        reason = f"(rule '{rule.name}': {rule.why(f)})"
        draws = [o for o in found.ranked if not o.vendored and o.time <= (1 + DRAW) * fastest.time]
        draws.sort(key=lambda o: o != said)  # first the rules' very values, then the fastest
        best = next((o for o in draws if o.schedule == wanted), fastest)
        if best is not fastest:
            behind = 100 * (best.time / fastest.time - 1)
            why = [f"{behind:.1f} % behind {fastest.label}, the fastest of {count} candidates on {clock}"]
            why.append(f"less than {100 * DRAW:.0f} % is a draw, and the rules say this schedule {reason}")
        elif best.schedule == wanted:
            why.append(f"the rules say the same schedule {reason}")
        else:
            why.append(f"the rules say {wanted} {reason}")
    taken, kernel, _ = _with_kernel(asked, best)
    if kernel:
        priced = replace(taken, predicted=best.predicted, commands=best.commands)
        best, beside = next((o for o in found.ranked if o == taken), priced), ""
    why += [*kernel, *([beside] if beside else [])]
    why += [f"{c.label} cannot be chosen: {refused}" for c, refused in found.refused]
    sources = [asked.machine.source]
    if beside or _vendored(asked, best):
        sources.append(f"the vendor's GEMM: {_library_source(asked.machine)}")
    options = (best, *(o for o in found.ranked if o is not best))
    return _answer(asked, "model", best, lambda: options, why, [*sources, *_compared(asked)])


def _library_source(machine: Machine) -> str:
    """Where the price of the vendor's GEMM is from."""
    if machine.device.vendor_gemm:
        return machine.source_of("device.vendor_gemm.reached") or machine.source
    if vendor_gemm(machine.device) is not None:
        return vendor_source(machine.device)
    return f"it has no price, so the machine's rate counts: {machine.source_of('device.gemm_rate') or machine.source}"


def _worth_the_library(asked: Question, found: Ranking) -> tuple[Candidate, str]:
    """The fastest, by the vendor's GEMM only if that gains more than prices may be off; and words on what it gains,
    where it would be the fastest."""
    first = found.ranked[0]
    ours = next((o for o in found.ranked if not o.vendored), first)
    if asked.own is not None or not first.vendored or ours is first:
        return first, ""
    gain, least = ours.time / first.time - 1, AHEAD if was_measured(asked.machine.device.arch) else DRAW
    if gain > least:
        return (
            first,
            f"with our kernels {ours.label}, the fastest of those, would take {100 * gain:.0f} % longer",
        )
    return ours, (
        f"{first.label} is modelled {100 * gain:.1f} % faster; the vendor's GEMM is taken if it gains more "
        f"than {100 * least:.0f} %, as prices may be off by as much; ficco tune measures both"
    )


# ---------------------------------------------------------------- measured times


def _by_measured(asked: Question, known: measurements.Measurements) -> Choice:
    where = measurements.measured_case(
        asked.operation.name, asked.ranks, asked.sizes, asked.machine, asked.ranks_per_gpu
    )
    # a file of times may come from anywhere: it names no schedule but those that are asked about
    times = tuple(t for t in known.of(where) if asked.knows(t.candidate))
    if not times:
        others = ", ".join(known.other_versions(where))
        older = f" by this version; there are times of version {others}" if others else ""
        raise UsageError(
            f"nothing was measured for {where.words}{older}; `ficco tune {asked.operation.name}` with these sizes on "
            "such GPUs measures it, FICCO_MEASURED names a file of measured times"
        )
    best = times[0]
    options: dict[Candidate, Candidate] = {}
    for t in times:  # from the fastest on: a candidate in its better mode
        options.setdefault(t.candidate, replace(t.candidate, predicted=t.median))
    why = [
        f"the fastest of {len(options)} that were measured on {best.driver}, {best.date[:10]}: median of {best.runs} "
        f"runs, {figure(best.least, 4)} to {figure(best.most, 4)} µs"
    ]
    other = next((t for t in times if t.candidate == best.candidate and t.mode != best.mode), None)
    mode = f"{best.mode}, as measured"
    if other is not None:
        mode += f": {figure(best.median, 4)} µs beside {figure(other.median, 4)}"
    kept = tuple(options.values())
    return _answer(asked, "measured", best.candidate, lambda: kept, why, [best.driver], (best.mode, mode))

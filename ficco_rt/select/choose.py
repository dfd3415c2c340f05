"""Which schedule for which work: rules, the model or measured times, in one answer with its reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from .. import compiler
from ..errors import UsageError
from ..files.arguments import KERNEL, VENDOR, plain, whole
from ..graph.bind import bind_params
from ..kernels.families import tuned
from ..machine.cost import vendor_source
from ..machine.model import Machine
from ..machine.profiles import DEFAULT, AnyMachine, chosen
from ..machine.units import figure
from ..plan.ir import Plan
from . import memory, ranking, rules
from .candidates import (
    Candidate,
    ShippedOperation,
    bound_sizes,
    by_rules,
    own,
    shipped_operation,
    shown,
    streams_products,
    text_of,
    within_reach,
)
from .commands import commands
from .estimates import estimate
from .facts import Facts, facts

By: TypeAlias = Literal["rules", "model", "measured"]
BY: tuple[str, ...] = get_args(By)
NEXT = 4  # runners-up that are told
DRAW = 0.02  # of the time: the virtual clock's median error (docs/internals/model.md)
CHECKED = 2  # GPUs on which choices were compared with measurements (docs/choose.md, "How good the choices are")
AHEAD = 0.05  # of the time: what the vendor's GEMM must gain to be taken; its price is less exact than that of ours


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate as it was ranked: microseconds by the choice's own measure; None where rules have no formula."""

    schedule: str
    params: tuple[tuple[str, object], ...]  # besides sizes
    predicted: float | None

    @property
    def label(self) -> str:
        """`ag_gemm/streamed chunks=4 deep=1:1:1:1`."""
        return Candidate(self.schedule, self.params).label


@dataclass(frozen=True)
class Choice:
    """What was chosen for an operation of these sizes on a machine, and why.

    `predicted` is in microseconds: by a closed formula (`by` is "rules"), on the virtual clock ("model"), or the median
    that was measured ("measured"). `plan` is compiled and proven when it is first asked for.
    """

    operation: str
    ranks: int
    machine: Machine
    by: By
    schedule: str
    params: Mapping[str, object]  # sizes, types and what was chosen: all that `compile` takes
    mode: Literal["graph", "streams"]
    predicted: float | None
    why: tuple[str, ...]  # sentences, the deciding one first
    sources: tuple[str, ...]  # what these rest on
    options: tuple[Option, ...]  # the choice and the runners-up, best first

    @property
    def runners_up(self) -> tuple[Option, ...]:
        """What comes next."""
        return self.options[1:]

    @property
    def vendored(self) -> bool:
        """Whether the vendor's library makes the products."""
        return self.params.get(KERNEL) == VENDOR

    @cached_property
    def plan(self) -> Plan:
        """The proven, checked plan. Raises ScheduleError where the schedule cannot have these sizes."""
        return compiler.compile_schedule(self.schedule, self.ranks, self.params, self.machine)


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked, with all sizes bound."""

    operation: ShippedOperation
    ranks: int
    machine: Machine
    sizes: Mapping[str, object]
    facts: Facts | None
    own: tuple[Candidate, ...] | None
    ranks_per_gpu: int = 1
    vendor: bool = True  # whether the vendor's library may make the products

    @property
    def default(self) -> By:
        """What chooses by default: the rules, or the model on machines that the rules were not fitted on, and on those
        for which no GEMM of ours is made, because rules count GEMMs at the machine's rate."""
        known = self.facts is not None and rules.fitted(self.facts) and tuned(self.machine.device.arch)
        return "rules" if known else "model"

    def candidates(self) -> tuple[Candidate, ...]:
        """The caller's own, or each shipped schedule with the values of the rules."""
        return self.own or tuple(by_rules(self.facts, name)[0] for name in within_reach(self.operation, self.facts))

    def knows(self, candidate: Candidate) -> bool:
        """Whether a candidate is one that is asked about."""
        if self.own is not None:
            return candidate in self.own
        return candidate.schedule in self.operation.schedules and (self.vendor or not candidate.vendored)

    def answer(
        self,
        by: By,
        options: Sequence[Option],
        mode: tuple[str, str],
        why: Iterable[str],
        sources: Iterable[str],
        told: int = NEXT,
    ) -> Choice:
        best = options[0]
        how, reason = mode
        gpus = self.ranks // self.ranks_per_gpu
        if by != "measured" and gpus > CHECKED:
            sources = [*sources, f"choices were compared with measurements on {CHECKED} GPUs, none on {gpus}"]
        return Choice(
            operation=self.operation.name,
            ranks=self.ranks,
            machine=self.machine,
            by=by,
            schedule=best.schedule,
            params={**self.sizes, **dict(best.params)},
            mode="graph" if how == "graph" else "streams",
            predicted=best.predicted,
            why=(*why, reason),
            sources=tuple(dict.fromkeys(sources)),
            options=tuple(options[: told + 1]),
        )


def choose(
    operation: str,
    ranks: int,
    machine: AnyMachine | None = None,
    by: By | None = None,
    candidates: Iterable[object] | None = None,
    measured: memory.Memory | None = None,
    sizes: Mapping[str, object] | None = None,
    ranks_per_gpu: int = 1,
    vendor: bool = True,
) -> Choice:
    """See `ficco_rt.choose`. `measured` are the times to go by; by default the user's own (`memory.place`). Ranks that
    share a GPU have measured times of their own; rules and the model take each rank to have a GPU.

    Raises UsageError (no such operation, measure or machine; sizes that are missing; nothing measured), ScheduleError
    (sizes that the operation's tensors cannot have)."""
    if by is not None and by not in BY:
        raise UsageError(f"by is {', '.join(BY)}; given {str(by)[:40]!r}")
    asked = question(operation, ranks, machine, candidates, sizes)
    asked = replace(asked, ranks_per_gpu=ranks_per_gpu, vendor=vendor)
    if by is None:
        by = asked.default
    if by == "rules":
        return _by_rules(asked)
    if by == "model":
        return _by_model(asked)
    return _by_measured(asked, memory.stored() if measured is None else measured)


def question(
    operation: str,
    ranks: int,
    machine: AnyMachine | None = None,
    candidates: Iterable[object] | None = None,
    sizes: Mapping[str, object] | None = None,
) -> _Question:
    """The question with its sizes bound. Raises UsageError, ScheduleError."""
    known = shipped_operation(operation)
    number = whole(ranks, "ranks")
    bound = bound_sizes(known, number, {name: plain(value) for name, value in (sizes or {}).items()})
    target = chosen(DEFAULT if machine is None else machine, number)
    dtype = str(next((bound[name] for name in known.types), "bf16"))
    found = facts(known.name, number, bound, target, dtype)
    return _Question(known, number, target, bound, found, None if candidates is None else own(candidates))


# ---------------------------------------------------------------- rules


def _by_rules(asked: _Question) -> Choice:
    f = asked.facts
    if f is None:
        raise UsageError(f"no rules speak of {asked.operation.name}; take --by model, or by='model'")
    priced = [Option(c.schedule, c.params, estimate(f, c.schedule, dict(c.params))) for c in asked.candidates()]
    known = sorted((o for o in priced if o.predicted is not None), key=lambda o: o.predicted or 0.0)
    rule = rules.deciding(f)
    wanted = f"{f.operation}/{rule.schedules[f.operation]}"
    why = [f"rule '{rule.name}': {rule.why(f)}"]
    best = next((o for o in known if o.schedule == wanted), None)
    if best is None:  # the caller's own candidates are without it
        if not known:
            raise UsageError(
                "the rules speak of shipped schedules alone, and none of the candidates is one; take --by model, or "
                "by='model'"
            )
        best = known[0]
        why = [f"{wanted}, which the rules would take, is not among the candidates; by closed formulas this is next"]
    fitted_on = rules.unfitted(f)
    if fitted_on:
        why.append(f"{fitted_on}, and not on {asked.machine.name}: take --by model, or by='model'")
    if not tuned(arch := asked.machine.device.arch):
        why.append(
            f"no GEMM of ours is made for {arch}, and rules count GEMMs at the machine's rate: take --by model, or "
            "by='model'"
        )
    values = () if asked.own is not None else by_rules(f, best.schedule)[1]
    why += [f"{value.param} = {shown(value.value)}: {value.why}" for value in values]
    sources = [rule.source, *(value.source for value in values)]
    options = [best, *(o for o in known if o is not best)]
    schedule, said = text_of(best.schedule), {**asked.sizes, **dict(best.params)}
    params = {p.name: said[p.name] for p in schedule.params if p.name in said}  # without what is said of queues
    issued = commands(f, best.schedule, bind_params(schedule, asked.ranks, params)[0])
    return asked.answer("rules", options, rules.mode(issued, best.predicted or 0.0), why, sources)


# ---------------------------------------------------------------- the model


def ranked(asked: _Question) -> ranking.Ranking:
    """The model's ranking, kept from before or made now."""
    key = ranking.Key(
        asked.operation.name,
        asked.ranks,
        tuple(asked.sizes.items()),
        ranking.machine_hash(asked.machine),
        ranking.version(),
        None if asked.own is None else ranking.own_texts(asked.own),
        asked.vendor,
    )
    found = ranking.kept(key)
    if found is None or not all(asked.knows(r.candidate) for r in found.ranked):
        listed = asked.own
        if listed is None:
            listed = ranking.shortlist(asked.operation, asked.facts)
        found = ranking.rank(asked.operation.name, listed, asked.ranks, asked.sizes, asked.machine)
        # on a switch the pieces that the closed formulas propose were compared with measurements
        if asked.own is None and asked.facts is not None and not rules.fitted(asked.facts):
            found = ranking.with_variations(found, asked.facts, asked.sizes, asked.machine)
        if asked.own is None and asked.vendor:
            found = ranking.with_vendor(found, asked.operation, asked.ranks, asked.sizes, asked.machine)
        ranking.keep(key, found)
    return found


def _by_model(asked: _Question) -> Choice:
    found = ranked(asked)
    best, beside = _worth_the_library(found) if asked.own is None else (found.ranked[0], "")
    fastest = best
    among = [r for r in found.ranked if best.candidate.vendored or not beside or not r.candidate.vendored]
    count, clock = len(among), f"the virtual clock of {asked.machine.name}"
    clock += " with our kernels" if len(among) < len(found.ranked) else ""
    why = [f"the fastest of {count} candidates on {clock}" if count > 1 else "the one candidate that there is"]
    fitted_on = "" if asked.facts is None else rules.unfitted(asked.facts)
    if fitted_on:
        why.append(f"{fitted_on}; {asked.machine.name} is chosen by the model")
    elif asked.own is None and asked.facts is not None and not best.candidate.vendored:
        rule = rules.deciding(asked.facts)
        wanted = f"{asked.operation.name}/{rule.schedules[asked.operation.name]}"
        reason = f"(rule '{rule.name}': {rule.why(asked.facts)})"
        ours = [r for r in found.ranked if not r.candidate.vendored]
        draws = [r for r in ours if r.predicted <= (1 + DRAW) * fastest.predicted]
        said = by_rules(asked.facts, wanted)[0]
        draws.sort(key=lambda r: r.candidate != said)  # first the rules' very values, then the fastest
        best = next((r for r in draws if r.candidate.schedule == wanted), fastest)
        if best is not fastest:
            behind = 100 * (best.predicted / fastest.predicted - 1)
            why = [f"{behind:.1f} % behind {fastest.candidate.label}, the fastest of {count} candidates on {clock}"]
            why.append(f"less than {100 * DRAW:.0f} % is a draw, and the rules say this schedule {reason}")
        elif best.candidate.schedule == wanted:
            why.append(f"the rules say the same schedule {reason}")
        else:
            why.append(f"the rules say {wanted} {reason}")
    if not tuned(arch := asked.machine.device.arch):
        why.append(_of_an_earlier_architecture(arch, [best, *found.ranked]))
    why += [beside] if beside else []
    why += [f"{c.label} cannot be chosen: {refused}" for c, refused in found.refused]
    ordered = [best, *(r for r in found.ranked if r is not best)]
    options = [Option(r.candidate.schedule, r.candidate.params, r.predicted) for r in ordered]
    mode = rules.mode(best.commands, best.predicted)
    sources = [asked.machine.source]
    if beside:
        device = asked.machine.device
        own = asked.machine.source_of("device.vendor_gemm.reached") or asked.machine.source
        sources.append(f"the vendor's GEMM: {own if device.vendor_gemm else vendor_source(device)}")
    return asked.answer("model", options, mode, why, sources, len(options))


def _of_an_earlier_architecture(arch: str, found: Sequence[ranking.Ranked]) -> str:
    """What times rest on where no GEMM of ours is made for the devices."""
    words = f"no GEMM of ours is made for {arch}: times are of our kernels for an earlier architecture"
    whole = next((r.candidate for r in found if not streams_products(r.candidate)), None)
    if whole is None or any(r.candidate.vendored for r in found):
        return words
    return (
        f"{words}. Where the vendor's library is installed, it makes the products of schedules that stream none, such "
        f"as {whole.label}; its GEMM has no price on this machine, and ficco tune measures it"
    )


def _worth_the_library(found: ranking.Ranking) -> tuple[ranking.Ranked, str]:
    """The fastest, by the vendor's GEMM only if that gains more than its price may be off; and words on what it gains,
    where it would be the fastest."""
    first = found.ranked[0]
    ours = next((r for r in found.ranked if not r.candidate.vendored), first)
    if not first.candidate.vendored or ours is first:
        return first, ""
    gain = ours.predicted / first.predicted - 1
    if gain > AHEAD:
        return (
            first,
            f"with our kernels {ours.candidate.label}, the fastest of those, would take {100 * gain:.0f} % longer",
        )
    return ours, (
        f"{first.candidate.label} is modelled {100 * gain:.1f} % faster; the vendor's GEMM is taken if it gains more "
        f"than {100 * AHEAD:.0f} %, as its price may be off by as much; ficco tune measures both"
    )


# ---------------------------------------------------------------- measured times


def _by_measured(asked: _Question, known: memory.Memory) -> Choice:
    where = memory.measured_case(asked.operation.name, asked.ranks, asked.sizes, asked.machine, asked.ranks_per_gpu)
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
    options: dict[Candidate, Option] = {}
    for t in times:  # from the fastest on: a candidate in its better mode
        options.setdefault(t.candidate, Option(t.candidate.schedule, t.candidate.params, t.median))
    why = [
        f"the fastest of {len(options)} that were measured on {best.driver}, {best.date[:10]}: median of {best.runs} "
        f"runs, {figure(best.least, 4)} to {figure(best.most, 4)} µs"
    ]
    other = next((t for t in times if t.candidate == best.candidate and t.mode != best.mode), None)
    mode = f"{best.mode}, as measured"
    if other is not None:
        mode += f": {figure(best.median, 4)} µs beside {figure(other.median, 4)}"
    return asked.answer("measured", list(options.values()), (best.mode, mode), why, [best.driver], len(options))

"""The candidates of a choice: the shipped schedules of an operation with sensible values of their open parameters, or
candidates of the caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from pathlib import Path

from ficco_dsl.nodes import Schedule, names_in

from .. import compiler
from ..errors import UsageError
from ..files import shipped
from ..files.arguments import FAST, KERNEL, VENDOR, near, plain
from ..plan.ir import Command, Launch, Plan
from .facts import Facts
from .params import MOST, SHARES, Given, given

BASELINE = shipped.BASELINE  # its params are the operation's sizes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule, by its name in the library or its path, with values for what it leaves open besides sizes. One that
    was ranked has microseconds, None where nothing was modelled, and the commands of its plan over all ranks; these do
    not count when candidates are compared."""

    schedule: str
    params: tuple[tuple[str, object], ...] = ()
    predicted: float | None = field(default=None, compare=False)
    commands: int = field(default=0, compare=False)

    @property
    def label(self) -> str:
        """`ag_gemm/streamed chunks=4 deep=1:1:1:1`."""
        return " ".join([self.schedule, *(f"{name}={shown(value)}" for name, value in self.params)])

    @property
    def vendored(self) -> bool:
        """Whether the vendor's library makes the products."""
        return (KERNEL, VENDOR) in self.params

    @property
    def time(self) -> float:
        """What is predicted, to be compared with others."""
        return inf if self.predicted is None else self.predicted


def by_kernel(candidate: Candidate, kernel: str = VENDOR) -> Candidate:
    """The candidate with its products by the vendor's library, or by a kernel of that name."""
    return Candidate(candidate.schedule, (*candidate.params, (KERNEL, kernel)))


@dataclass(frozen=True, slots=True)
class ShippedOperation:
    """What a claim is made for in several ways: its shipped schedules, and what its sizes are called."""

    name: str
    schedules: tuple[str, ...]
    sizes: tuple[str, ...]
    types: tuple[str, ...]
    layouts: tuple[str, ...]  # params that say how tensors are stored, and which there are; the text's values are usual


def shown(value: object) -> str:
    """A value of a parameter as `--set` takes it: `4`, `4:2:1`."""
    return ":".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


@cache
def shipped_operation(name: str) -> ShippedOperation:
    """The operation of that name. Raises UsageError that says which there are."""
    known = shipped.operations()
    if name not in known:
        raise UsageError(f"there is no operation '{name[:80]}'; there are {', '.join(known)}{near(name, known)}")
    baseline = f"{name}/{BASELINE}"
    schedule = text_of(baseline)
    declared = {param.name for param in schedule.params}
    conditions = (e for t in schedule.tensors for e in (t.transposed, t.condition) if e and not isinstance(e, bool))
    asked = {name for condition in conditions for name in names_in(condition)}
    sizes = tuple(p.name for p in schedule.params if declared.isdisjoint(names_in(p.value)) and p.name not in asked)
    layouts = tuple(p.name for p in schedule.params if p.name in asked)
    return ShippedOperation(name, known[name], sizes, tuple(t.name for t in schedule.types), layouts)


def bound_sizes(operation: ShippedOperation, ranks: int, sizes: Mapping[str, object]) -> dict[str, object]:
    """All sizes and types of an operation, and those layouts, and `fast`, that are not the usual ones. Raises
    UsageError (which are missing, which are unknown), ScheduleError (sizes that its tensors cannot have)."""
    missing = [name for name in operation.sizes if name not in sizes]
    if missing:
        example = " ".join(f"--set {name}=…" for name in missing)
        raise UsageError(f"{operation.name} needs a value of {', '.join(missing)}: {example}")
    wanted = {*operation.sizes, *operation.types}
    for name in sizes:
        if name not in {*wanted, *operation.layouts, FAST}:
            has = ", ".join([*operation.sizes, *operation.types, *operation.layouts])
            chosen = sorted(s for s in operation.schedules if name in open_params(s))
            hint = f"; {name} is chosen, and a schedule that is named takes it: {chosen[0]}" if chosen else ""
            raise UsageError(f"operation {operation.name} has no size '{name}'; it has {has}{hint}")
    baseline = text_of(f"{operation.name}/{BASELINE}")
    bound = compiler.sizes(baseline, ranks, sizes)
    usual = compiler.sizes(baseline, ranks, {name: sizes[name] for name in operation.sizes})
    wanted |= {name for name in operation.layouts if bound[name] != usual[name]}
    found = {name: value for name, value in bound.items() if name in wanted}
    return found | {FAST: sizes[FAST]} if sizes.get(FAST) else found


def text_of(schedule: str) -> Schedule:
    """The syntax tree of a schedule, by its name or its path."""
    return _shipped(schedule) if schedule in shipped.shipped() else compiler.load(schedule)


@cache
def _shipped(name: str) -> Schedule:
    """Parsed once in a process, as shipped schedules are looked for once."""
    return compiler.load(shipped.shipped()[name])


@cache
def open_params(schedule: str) -> tuple[str, ...]:
    """The params of a shipped schedule that its operation's baseline has not: those that are no sizes."""
    baseline = f"{schedule.rpartition('/')[0]}/{BASELINE}"
    sizes = {p.name for p in text_of(baseline).params} if baseline in shipped.shipped() else set()
    return tuple(p.name for p in text_of(schedule).params if p.name not in sizes)


def streams_products(schedule: str) -> bool:
    """Whether a stage of the schedule is streamed, which no library's kernel is."""
    return any(stage.streamed for stage in text_of(schedule).stages)


def leaving(plan: Plan, sms: int) -> Plan:
    """The plan, whose launches that wait for others leave so many multiprocessors. Raises UsageError: none remain."""
    assert plan.made_for is not None
    most = plan.made_for.device.sms - sms
    if most < 1:
        raise UsageError(f"leave = {sms}, but the device has {most + sms} multiprocessors ({plan.machine})")

    def narrower(command: Command) -> Command:
        if not (isinstance(command, Launch) and command.waits):
            return command
        attributes = command.attributes
        return replace(command, attributes=replace(attributes, sms=min(most, attributes.sms or most)))

    streams = (replace(s, commands=tuple(map(narrower, s.commands))) for s in plan.streams)
    return replace(plan, streams=tuple(streams)) if sms else plan


WITHOUT_MEMORY = ("gemm_ar/serial",)  # schedules that leave all that crosses ranks to vendor collectives


def within_reach(operation: ShippedOperation, f: Facts | None) -> tuple[str, ...]:
    """The schedules of an operation that fit a machine's nodes: on several nodes those that send messages, which take
    whole nodes; on one node the others, which are faster there."""
    if f is None:
        return operation.schedules
    sending = by_messages(operation)
    if f.nodes > 1:
        others = (s for s in operation.schedules if s in WITHOUT_MEMORY)
        return (*others,) if f.ranks % f.node else (*sending, *others)
    return tuple(s for s in operation.schedules if s not in sending)


def by_messages(operation: ShippedOperation) -> tuple[str, ...]:
    """The schedules of an operation that send messages between nodes, and take their size as a param."""
    return tuple(s for s in operation.schedules if "node" in open_params(s))


def by_rules(f: Facts | None, schedule: str) -> tuple[Candidate, tuple[Given, ...]]:
    """A shipped schedule with the values that rules give its parameters, and why. Others keep the text's."""
    found = [given(f, schedule, name) for name in open_params(schedule)] if f is not None else []
    values = tuple(value for value in found if value is not None)
    return Candidate(schedule, tuple((value.param, value.value) for value in values)), values


def _others(name: str, value: object) -> Iterable[object]:
    """Values that are worth trying beside the rules'. A parameter that has none keeps the rules'."""
    if name != "chunks":
        return SHARES.get(name, ())
    number = value if isinstance(value, int) else 1
    return (other for other in (2 * number, number // 2) if 1 <= other <= 2 * MOST)


def variations(candidate: Candidate) -> tuple[Candidate, ...]:
    """The candidate with one of its parameters changed."""
    params = candidate.params
    return tuple(
        Candidate(candidate.schedule, (*params[:i], (name, other), *params[i + 1 :]))
        for i, (name, value) in enumerate(params)
        for other in _others(name, value)
        if other != value
    )


def own(candidates: Iterable[object]) -> tuple[Candidate, ...]:
    """Candidates of the caller's: names or paths of schedules, or pairs of these and a mapping of parameters. Raises
    UsageError."""
    found: list[Candidate] = []
    for i, entry in enumerate(candidates):
        schedule, params = entry, {}
        if isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 2:
            schedule, params = entry
        if not isinstance(schedule, str | Path) or not isinstance(params, Mapping):
            raise UsageError(
                f"candidate {i + 1} is no schedule: a name or a path is needed, or a pair of one and its parameters, "
                f"such as ('ag_gemm/streamed', {{'chunks': 4}}); given {repr(entry)[:80]}"
            )
        path = shipped.find(str(schedule))
        name = shipped.shipped_name(path) or str(path)
        found.append(Candidate(name, tuple((str(n), plain(v)) for n, v in params.items())))
    if not found:
        raise UsageError("the list of candidates is empty: there is nothing to choose from")
    return tuple(dict.fromkeys(found))

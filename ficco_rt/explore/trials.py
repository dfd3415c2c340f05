"""The trials of a sweep: schedules of one operation, each with some values of its open parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product

from ficco_dsl.nodes import Schedule

from ..compiler import parsed
from ..errors import UsageError
from ..files import atomic, shipped
from ..files.arguments import near
from ..machine.model import Machine
from .scenarios import Scenario, Settings, Value

PARAMS: Mapping[str, tuple[Value, ...]] = {"chunks": (1, 2, 4, 8)}  # what is swept unless the caller says other values


@dataclass(frozen=True, slots=True)
class Trial:
    """A schedule with values for its params. `trusted`: a shipped one, which the tests prove."""

    schedule: str  # the library's name, or the file's
    text: bytes
    params: Settings
    trusted: bool

    def parsed(self) -> Schedule:
        """The syntax tree of the text. Raises ScheduleError: the text is no schedule."""
        name = self.schedule
        return parsed(self.text, name if name.endswith(shipped.SUFFIX) else f"schedules/{name}{shipped.SUFFIX}")

    def on(self, machine: Machine) -> Trial:
        """The trial with the machine's number of GPUs a node, if the schedule has such a param and the sweep leaves it
        open."""
        open_ = {p.name for p in self.parsed().params} - {name for name, _ in self.params}
        if not self.trusted or "node" not in open_:
            return self
        return replace(self, params=(*self.params, ("node", min(machine.node, machine.ranks))))


def baseline(operation: str) -> Trial:
    """The operation's serial schedule, which serial and ideal times are of. Raises UsageError: no such operation."""
    known = shipped.operations()
    if operation not in known:
        hint = near(operation, known, 2, 0.4)
        raise UsageError(f"there is no operation '{operation[:80]}'{hint}; there are {', '.join(known)}")
    return _shipped(operation, shipped.BASELINE)


def trials(
    operation: str, patterns: Sequence[str] = (), params: Mapping[str, Sequence[Value]] | None = None
) -> tuple[Trial, ...]:
    """The baseline, and the operation's schedules whose names match a pattern, such as `streamed` or `uniform_*`; a
    pattern that ends in .ficco is a file of the caller's own. Each is tried with all values of `params`, and of PARAMS
    besides, that it declares. Raises UsageError: what matches nothing, params that nothing declares."""
    first = baseline(operation)
    members = [n.rpartition("/")[2] for n in (e.name for e in shipped.entries()) if n.startswith(f"{operation}/")]
    found: dict[str, Trial] = {first.schedule: first}
    for pattern in patterns or ("*",):
        if pattern.endswith(shipped.SUFFIX):
            found.setdefault(pattern, Trial(pattern, atomic.read_bytes(shipped.find(pattern)), (), False))
            continue
        matched = [m for m in members if fnmatchcase(m, pattern.removeprefix(f"{operation}/"))]
        if not matched:
            raise UsageError(f"--schedules {pattern}: {operation} has no such schedule; it has {', '.join(members)}")
        found |= {c.schedule: c for c in (_shipped(operation, m) for m in matched)}
    given = dict(params or {})
    choices = {**PARAMS, **given}
    declared = {p.name for c in found.values() for p in c.parsed().params}
    unknown = next((name for name in given if name not in declared), None)
    if unknown is not None:
        raise UsageError(
            f"--param {unknown}: no schedule here has such a param; there are {', '.join(sorted(declared))}"
        )
    return tuple(
        replace(c, params=tuple(zip(names, values, strict=True)))
        for c in found.values()
        for names in ([p.name for p in c.parsed().params if p.name in choices],)
        for values in product(*(choices[name] for name in names))
    )


def asked_for(tried: Sequence[Trial]) -> frozenset[str]:
    """The schedules that a sweep is about: the caller's own files, where there are any; otherwise all but the baseline,
    which takes part unasked; the baseline, where it is alone."""
    own = [trial.schedule for trial in tried if not trial.trusted]
    others = [trial.schedule for trial in tried if trial.schedule.rpartition("/")[2] != shipped.BASELINE]
    return frozenset(own or others or (trial.schedule for trial in tried))


def _shipped(operation: str, name: str) -> Trial:
    full = f"{operation}/{name}"
    return Trial(full, atomic.read_bytes(shipped.find(full)), (), True)


def fitting(scenarios: Sequence[Scenario], tried: Sequence[Trial]) -> None:
    """Raises UsageError where a scenario sets what a schedule does not have, or what is swept besides."""
    of_schedule: dict[str, set[str]] = {}
    for trial in tried:
        schedule = trial.parsed()
        of_schedule[trial.schedule] = {p.name for p in schedule.params} | {t.name for t in schedule.types}
    swept = {name for trial in tried for name, _ in trial.params}
    for scenario in scenarios:
        for name in scenario.names:
            if name in swept:
                raise UsageError(f"scenario '{scenario.name}' sets {name}, which is swept; give its values by --param")
            without = next((s for s, declared in of_schedule.items() if name not in declared), None)
            if without is not None:
                has = ", ".join(sorted(of_schedule[without]))
                raise UsageError(f"scenario '{scenario.name}' sets {name}, which {without} does not have; it has {has}")

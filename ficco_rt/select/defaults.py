"""The values that rules give to parameters of a shipped schedule if the caller leaves them open.

This module runs before the compiler and is no part of it. The compiler compiles the text that it is given, and a
default in a text means what the language says: the same plan on every machine. A caller who names a shipped schedule,
however, wants a good one for the sizes and the machine. So `ficco_rt.compile` and the commands call this module for
parameters that the caller left open, and pass the values to the compiler as if the caller had given them. Schedules in
callers' own files keep their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ficco_dsl.nodes import Schedule

from .. import compiler
from ..errors import ScheduleError, UsageError
from ..files import shipped
from ..files.arguments import whole
from ..graph import ir as graph_ir
from ..machine.model import Machine
from ..machine.profiles import AnyMachine, chosen
from ..plan import ir as plan_ir
from .candidates import BASELINE, by_rules, text_of
from .facts import facts
from .operations import OPERATIONS
from .params import Given


def open_values(file: Path | str, ranks: int, params: Mapping[str, object], machine: Machine) -> tuple[Given, ...]:
    """Values for what `params` leave open, where `file` is a shipped schedule's and rules speak of it. Sizes that are
    left open are the text's own. What is wrong with `params` the compiler tells."""
    name = shipped.shipped_name(file)
    operation = name.rpartition("/")[0] if name is not None else ""
    if name is None or operation not in OPERATIONS or f"{operation}/{BASELINE}" not in shipped.shipped():
        return ()
    schedule = text_of(name)
    try:
        bound = compiler.sizes(schedule, ranks, params)
    except (ScheduleError, UsageError):
        return ()
    dtype = str(bound[schedule.types[0].name]) if schedule.types else "bf16"
    found = by_rules(facts(operation, ranks, bound, machine, dtype), name)[1]
    return tuple(value for value in found if value.param not in params)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A schedule and all that binds its sizes."""

    schedule: Schedule
    ranks: int
    machine: Machine
    params: Mapping[str, object]
    given: tuple[Given, ...]  # those of `params` that rules gave

    def graph(self) -> graph_ir.Graph:
        """Not proven yet."""
        return compiler.build(self.schedule, self.ranks, self.params)


def resolve(
    schedule: Schedule, file: Path | str | None, ranks: int, params: Mapping[str, object], machine: Machine
) -> Resolved:
    """What a caller asks for. A shipped schedule gets the rules' values where `params` leave something open; without
    its `file` nobody knows that it is one."""
    given = open_values(file, ranks, params, machine) if file is not None else ()
    return Resolved(schedule, ranks, machine, {**params, **{value.param: value.value for value in given}}, given)


def compile_named(
    name_or_path: str | Path, ranks: int, params: Mapping[str, object], machine: AnyMachine
) -> plan_ir.Plan:
    """A proven, checked plan; a shipped schedule gets the rules' values where `params` leave something open."""
    number = whole(ranks, "ranks")
    file, target = shipped.find(str(name_or_path)), chosen(machine, number)
    asked = resolve(compiler.load(file), file, number, params, target)
    return compiler.compiled(asked.schedule, number, asked.params, target)

"""What rules give a shipped schedule where the caller leaves its parameters open.

This stands before the compiler, not in it. The compiler compiles the text that it is given, and a default in a text
means what the language says: the same plan on every machine. Whoever names a shipped schedule, though, has asked for
a good one, for his sizes on his machine. So the front doors (`ficco_rt.compile`, the commands) ask here for what their
caller left open, and hand it to the compiler as if the caller had given it. A caller's own file is never asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .. import compiler
from ..errors import ScheduleError, UsageError
from ..files import shipped
from ..files.arguments import whole
from ..machine.model import Machine
from ..machine.profiles import AnyMachine, chosen
from ..plan import ir as plan_ir
from .candidates import BASELINE, by_rules, text_of
from .facts import SHAPES, facts
from .params import Given


def open_values(file: Path | str, ranks: int, params: Mapping[str, object], machine: Machine) -> tuple[Given, ...]:
    """Values for what `params` leave open, where `file` is a shipped schedule's and rules speak of it. Sizes that are
    left open are the text's own. What is wrong with `params` the compiler tells."""
    name = shipped.shipped_name(file)
    operation = name.rpartition("/")[0] if name is not None else ""
    if name is None or operation not in SHAPES or f"{operation}/{BASELINE}" not in shipped.shipped():
        return ()
    schedule = text_of(name)
    try:
        bound = compiler.sizes(schedule, ranks, params)
    except (ScheduleError, UsageError):
        return ()
    dtype = str(bound[schedule.types[0].name]) if schedule.types else "bf16"
    found = by_rules(facts(operation, ranks, bound, machine, dtype), name)[1]
    return tuple(value for value in found if value.param not in params)


def compile_named(
    name_or_path: str | Path, ranks: int, params: Mapping[str, object], machine: AnyMachine
) -> plan_ir.Plan:
    """A proven, checked plan; a shipped schedule gets the rules' values where `params` leave something open."""
    number = whole(ranks, "ranks")
    found = open_values(shipped.find(str(name_or_path)), number, params, chosen(machine, number))
    given = {**params, **{value.param: value.value for value in found}}
    return compiler.compile_schedule(name_or_path, number, given, machine)

"""What `ficco_rt.choose` says for a scenario."""

from __future__ import annotations

from ficco_rt.errors import ScheduleError, UsageError
from ficco_rt.machine.model import Machine
from ficco_rt.select.choose import By, choose

from .scenarios import Scenario
from .variants import Variant, variants

BY: tuple[By, ...] = ("rules", "model")
ONESHOT = 256  # rows up to which the schedule `oneshot` is tried beside what is chosen


def variant(by: By, scenario: Scenario, ranks: int, machine: Machine) -> Variant | None:
    """The choice by `rules` or `model`, which knows the sizes alone, with our kernels; None where it finds nothing."""
    sizes = {"M": scenario.m, "N": scenario.n, "K": scenario.k, "T": "bf16"}
    try:
        answer = choose(scenario.operation, ranks, machine, by=by, sizes=sizes, vendor=False)
    except (ScheduleError, UsageError):
        return None
    left = ((name, value) for name, value in answer.params.items() if name not in sizes)
    return Variant(answer.schedule, tuple((n, list(v) if isinstance(v, tuple) else v) for n, v in left))


def picked(scenario: Scenario, machine: Machine) -> tuple[Variant, ...]:
    """What is chosen for the sizes by the rules and by the model, and what is made for few rows."""
    found = [variant(by, scenario, machine.ranks, machine) for by in BY]
    if scenario.m <= ONESHOT:
        found.append(Variant(f"{scenario.operation}/oneshot", ()))
    distinct = {one.label: one for one in found if one is not None}
    return tuple(distinct.values()) or variants(scenario.operation, 1)

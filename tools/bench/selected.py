"""What `ficco_rt.choose` says for a scenario."""

from __future__ import annotations

from collections.abc import Iterable

from ficco_rt.errors import ScheduleError, UsageError
from ficco_rt.files.arguments import KERNEL, VENDOR
from ficco_rt.machine.model import Machine
from ficco_rt.select.choose import By, choose

from .scenarios import Scenario
from .variants import Variant, variants

BY: tuple[By, ...] = ("rules", "model")
NEAR = 0.02  # of the time: what the vendor's GEMM may be behind to be tried
ONESHOT = 256  # rows up to which the schedule `oneshot` is tried beside what is chosen


def variant(by: By, scenario: Scenario, ranks: int, machine: Machine) -> Variant | None:
    """The choice by `rules` or `model`, which knows the sizes alone, with our kernels; None where it finds nothing."""
    sizes = scenario.sizes
    try:
        answer = choose(scenario.operation, ranks, machine, by=by, sizes=sizes, vendor=False)
    except (ScheduleError, UsageError):
        return None
    return _variant(answer.schedule, ((name, value) for name, value in answer.params.items() if name not in sizes))


def by_vendor(scenario: Scenario, machine: Machine) -> Variant | None:
    """What the model finds best with the vendor's GEMM; None where that is more than `NEAR` behind the model's best, or
    nowhere."""
    try:
        answer = choose(scenario.operation, machine.ranks, machine, by="model", sizes=scenario.sizes)
    except (ScheduleError, UsageError):
        return None
    times = [option.predicted for option in answer.options if option.predicted is not None]
    for option in answer.options:
        if (KERNEL, VENDOR) in option.params and (option.predicted or 0.0) <= (1 + NEAR) * min(times):
            return _variant(option.schedule, option.params)
    return None


def _variant(schedule: str, params: Iterable[tuple[str, object]]) -> Variant:
    return Variant(schedule, tuple((n, list(v) if isinstance(v, tuple) else v) for n, v in params))


def picked(scenario: Scenario, machine: Machine) -> tuple[Variant, ...]:
    """What is chosen for the sizes by the rules and by the model, what is as good with the vendor's GEMM, and what is
    made for few rows."""
    found = [*(variant(by, scenario, machine.ranks, machine) for by in BY), by_vendor(scenario, machine)]
    if scenario.m <= ONESHOT:
        found.append(Variant(f"{scenario.operation}/oneshot", ()))
    distinct = {one.label: one for one in found if one is not None}
    return tuple(distinct.values()) or variants(scenario.operation, 1)

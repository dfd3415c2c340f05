"""Ways to choose a variant of a case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from ficco_rt.machine.profiles import scaled
from ficco_rt.select.choose import By
from tools.bench import selected
from tools.bench.variants import Variant

from .cases import Case

FEW = 4  # of the model's best, that are measured

Chooser: TypeAlias = Callable[[Case], Variant | None]


def choosers(machine: str) -> Mapping[str, Chooser]:
    """By their names in the table."""
    found: dict[str, Chooser] = {"model": modelled_best, f"measured, of the model's {FEW}": measured_of_few}
    return found | {f"choose by {by}": partial(_selected, by, machine) for by in selected.BY}


def modelled_best(case: Case) -> Variant:
    """The variant that takes least on the virtual clock, of those that were measured."""
    return min(case.variants, key=lambda v: v.modelled).variant


def measured_of_few(case: Case) -> Variant:
    """The fastest of the few that take least on the virtual clock."""
    few = sorted(case.variants, key=lambda v: v.modelled)[:FEW]
    return min(few, key=lambda v: v.measured).variant


def _selected(by: By, machine: str, case: Case) -> Variant | None:
    return selected.variant(by, case.scenario, case.ranks, scaled(machine, case.ranks))

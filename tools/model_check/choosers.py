"""Ways to choose a variant of a case. What `ficco_rt.select` offers joins where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TypeAlias

from ficco_rt.machine.profiles import profile

from .cases import Case

FEW = 4  # of the model's best, that are measured
SELECT = "ficco_rt.select.choose"


@dataclass(frozen=True, slots=True)
class Pick:
    """A schedule and what it leaves open."""

    schedule: str
    params: tuple[tuple[str, object], ...]


Chooser: TypeAlias = Callable[[Case], Pick | None]


def choosers(machine: str) -> Mapping[str, Chooser]:
    """By their names in the table."""
    found: dict[str, Chooser] = {"model": modelled_best, f"measured, of the model's {FEW}": measured_of_few}
    if find_spec("ficco_rt.select") is not None and find_spec(SELECT) is not None:
        found |= {f"choose by {by}": partial(_selected, by, machine) for by in ("rules", "model")}
    return found


def modelled_best(case: Case) -> Pick:
    """The variant that takes least on the virtual clock, of those that were measured."""
    best = min(case.variants, key=lambda v: v.modelled)
    return Pick(best.variant.schedule, best.variant.parameters)


def measured_of_few(case: Case) -> Pick:
    """The fastest of the few that take least on the virtual clock."""
    few = sorted(case.variants, key=lambda v: v.modelled)[:FEW]
    best = min(few, key=lambda v: v.measured)
    return Pick(best.variant.schedule, best.variant.parameters)


def _selected(by: str, machine: str, case: Case) -> Pick:
    """What ficco_rt would choose, which knows nothing of the case but its sizes."""
    s = case.scenario
    sizes = {"M": s.m, "N": s.n, "K": s.k, "T": "bf16"}
    answer = import_module(SELECT).choose(s.operation, case.ranks, profile(machine, case.ranks), by=by, sizes=sizes)
    params = {name: _plain(value) for name, value in answer.params.items() if name not in sizes}
    return Pick(answer.schedule, tuple(params.items()))


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value

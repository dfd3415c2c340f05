"""What a campaign measures: scenarios × ranks, and of each the variants that are worth it, compiled."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from ficco_rt.errors import DeviceError, ScheduleError, UsageError
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan
from ficco_rt.select.choose import By
from ficco_rt.sim.simulate import simulate

from . import selected
from .kept import Measurement
from .ours import plan_for
from .scenarios import Scenario
from .stats import tolerance
from .variants import Variant
from .workers import Turn

GPUS = 2
HOPELESS = 1.6  # times the best on the virtual clock: not measured; a p90 error of the model is 1.2
LEAST_ROWS = 64  # of a piece: half a tile
LEAST_DEPTH = 512  # of a piece of K


@dataclass(frozen=True, slots=True)
class Item:
    """A scenario on so many ranks."""

    scenario: Scenario
    ranks: int

    @property
    def on_two(self) -> bool:
        return self.ranks > GPUS

    @property
    def label(self) -> str:
        return f"{self.scenario.label} ({self.ranks})"

    @property
    def key(self) -> str:
        s = self.scenario
        return f"{s.operation} {s.m} {s.n} {s.k} {self.ranks}"

    def row(self, schedule: str, params: tuple[tuple[str, object], ...], mode: str) -> Measurement:
        return Measurement(self.scenario, self.ranks, self.on_two, schedule, params, mode)


class Gpus(Protocol):
    """What measures, as `ours.Ours` does."""

    machine: Machine

    def begin(self, scenario: Scenario) -> Mapping[str, str | None]: ...

    def add(self, variant: Variant, make: Callable[[], Plan]) -> Mapping[str, str | None]: ...

    def data(self, seed: int) -> None: ...

    def check(self, key: str) -> float | None: ...

    def turn(self, key: str, warmup: int, singles: int, loop: int) -> Turn: ...

    def keep(self, keys: Sequence[str]) -> None: ...


def items(scenarios: Sequence[Scenario], ranks: Sequence[int], share: tuple[int, int], seed: int) -> list[Item]:
    """The work of a share, in its order: the same for the same seed."""
    whole = [Item(s, r) for s in scenarios for r in ranks if s.misfit(r) is None]
    random.Random(seed).shuffle(whole)
    part, parts = share
    return whole[part - 1 :: parts]


def sensible(scenario: Scenario, ranks: int, variant: Variant) -> bool:
    """Whether the pieces are not too fine for the sizes, and the schedule not one for other sizes."""
    name, rows = variant.schedule.rpartition("/")[2], scenario.m // ranks
    if name == "oneshot":
        return scenario.m <= 2048
    if name == "hierarchical":
        return False  # for several nodes; a campaign's GPUs are in one
    depth = scenario.k if scenario.gathers else scenario.k // ranks
    for parameter, value in variant.parameters:
        if isinstance(value, int):
            cut, least = (depth, LEAST_DEPTH) if name == "uniform_fused_2d" else (rows, LEAST_ROWS)
            if value > 1 and cut // value < least:
                return False
        elif isinstance(value, list):
            cut, least = (depth, LEAST_DEPTH) if parameter == "deep" else (rows, LEAST_ROWS)
            if cut * min(value) // sum(value) < least:
                return False
    return True


@dataclass(frozen=True, slots=True)
class Prepared:
    """A variant with its plan and what the virtual clock says of it; or why there is none. `chosen`: ficco_rt would
    choose it for the sizes."""

    variant: Variant
    plan: Plan | None = None
    modelled: float = 0.0
    failed: str | None = None
    chosen: bool = False


def prepare(item: Item, machine: Machine, variant: Variant) -> Prepared:
    """In a process beside."""
    try:
        plan = plan_for(variant, item.scenario, machine, GPUS)
    except (ScheduleError, UsageError) as error:
        return Prepared(variant, failed=str(error).splitlines()[0])
    return Prepared(variant, plan, simulate(plan, machine).duration)


def prepare_choice(item: Item, machine: Machine, by: By) -> Prepared | None:
    """Of what ficco_rt would choose, in a process beside."""
    chosen = selected.variant(by, item.scenario, item.ranks, machine)
    return None if chosen is None else replace(prepare(item, machine, chosen), chosen=True)


def worth_it(found: Sequence[Prepared]) -> list[Prepared]:
    """What is measured, the most promising first. Always `serial`, as what the others are compared with, and what
    would be chosen, as it is what users get."""
    priced = sorted((p for p in found if p.plan is not None), key=lambda p: p.modelled)
    if not priced:
        return []
    most = HOPELESS * priced[0].modelled
    return [p for p in priced if p.modelled <= most or p.chosen or p.variant.schedule.endswith("/serial")]


def wrong(item: Item, gpus: Gpus, key: str, variant: Variant) -> str | None:
    """What is wrong with the result, where there is one to compare with."""
    error = gpus.check(key)
    most = tolerance(item.ranks, variant.pieces, item.scenario.k)
    return None if error is None or error <= most else f"relative error {error:.2e}, tolerance {most:.2e}"


@contextmanager
def begun(gpus: Gpus, item: Item, seed: int) -> Iterator[None]:
    """Inside, an item's operands are on the GPUs; afterwards they are free."""
    gpus.begin(item.scenario)
    try:
        gpus.data(seed)
        yield
    except DeviceError:
        with suppress(DeviceError):  # the first error is the one to tell
            gpus.keep(())
        raise
    gpus.keep(())

"""Kept measurements as cases: what was measured in one place, each variant with what the model says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import ficco_rt
from ficco_rt import compiler
from ficco_rt.errors import ScheduleError, UsageError
from ficco_rt.machine.profiles import scaled
from tools.bench import families, kept, made_by
from tools.bench.kept import Measurement
from tools.bench.scenarios import Scenario
from tools.bench.variants import Variant

Place: TypeAlias = tuple[object, ...]
Bound: TypeAlias = tuple[tuple[str, object], ...]
OTHERS = "with other kernels than are chosen today"


@dataclass(frozen=True, slots=True)
class Question:
    """What the model is asked: a variant of a scenario, for so many ranks."""

    scenario: Scenario
    ranks: int
    variant: Variant


@dataclass(frozen=True, slots=True)
class Timed:
    """A variant: microseconds measured, in the better of its modes, and modelled; all its parameters, as bound."""

    variant: Variant
    mode: str | None
    measured: float
    modelled: float
    bound: Bound = ()

    @property
    def error(self) -> float:
        return self.modelled / self.measured - 1


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario on so many ranks as one file has it. `split`: may anything be fitted to it?"""

    file: str
    scenario: Scenario
    ranks: int
    on_two: bool
    split: str
    variants: tuple[Timed, ...]

    @property
    def label(self) -> str:
        return label(self.scenario, self.ranks, self.on_two)

    @property
    def best(self) -> float:
        return min(v.measured for v in self.variants)

    def loss(self, variant: Timed) -> float:
        """How much longer it takes than the best that was measured."""
        return variant.measured / self.best - 1


def label(scenario: Scenario, ranks: int, on_two: bool) -> str:
    """Of a case, for people."""
    return f"{scenario.label} ({ranks} on two)" if on_two else f"{scenario.label} ({ranks})"


def cases(files: Sequence[Path], only: Sequence[str], machine: str, jobs: int) -> tuple[list[Case], list[str]]:
    """The cases of the files whose label contains one of `only` (all, if there are none), and notes on rows that the
    model cannot price. Raises UsageError."""
    rows: dict[tuple[str, Place], dict[Variant, Measurement]] = {}
    for path in files:
        for row in kept.read(path).rows:
            told = label(row.scenario, row.ranks, row.on_two)
            if row.ours and row.single is not None and (not only or any(text in told for text in only)):
                found = rows.setdefault((path.name, row.place), {})
                key = Variant(row.schedule, tuple((n, _hashable(v)) for n, v in row.params))
                other = found.get(key)
                if other is None or (other.single is not None and row.single.median < other.single.median):
                    found[key] = row
    asked = {
        (place, key): Question(row.scenario, row.ranks, row.variant)
        for (_, place), found in rows.items()
        for key, row in found.items()
    }
    times = dict(zip(asked, modelled(list(asked.values()), machine, jobs), strict=True))
    splits = families.splits()
    made, notes, others = [], [], Counter[str]()
    for (file, place), found in rows.items():
        timed = []
        for key, row in found.items():
            time = times[place, key]
            assert row.single is not None
            if isinstance(time, str):
                notes.append(f"{file}: {row.scenario.label}, {row.label}: {time}")
            elif row.kernels and row.kernels != time.kernels:
                others[file] += 1
            else:
                timed.append(Timed(row.variant, row.mode, row.single.median, time.modelled, time.bound))
        timed = _one_each(timed)
        first = next(iter(found.values()))
        s = first.scenario
        split = splits.get((s.operation, s.m, s.n, s.k), "fitted")  # to public scenarios the kernels are tuned
        if timed:
            made.append(Case(file, s, first.ranks, first.on_two, split, tuple(timed)))
    notes += [f"{file}: {n} variants were measured {OTHERS}, and are left out" for file, n in others.items()]
    return made, notes


def _one_each(timed: Sequence[Timed]) -> list[Timed]:
    """A parameter that is left open and the same value said make one plan, which was measured twice: as one variant,
    with the mean of both times."""
    same: dict[tuple[str, Bound], list[Timed]] = {}
    for one in timed:
        same.setdefault((one.variant.schedule, one.bound), []).append(one)
    return [replace(those[0], measured=fmean(t.measured for t in those)) for those in same.values()]


def _hashable(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Answer:
    """Microseconds on the virtual clock, all parameters, and the kernels that would make it today."""

    modelled: float
    bound: Bound
    kernels: str


def modelled(questions: Sequence[Question], machine: str, jobs: int) -> list[Answer | str]:
    """Answers, or why there are none."""
    scaled(machine, 2)  # a wrong name is told once
    one = partial(_modelled, machine)
    if jobs == 1:
        return list(map(one, questions))
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        return list(pool.map(one, questions, chunksize=8))


def _modelled(machine: str, question: Question) -> Answer | str:
    variant, ranks = question.variant, question.ranks
    target = scaled(machine, ranks)
    try:
        graph = compiler.build(compiler.load(variant.schedule), ranks, variant.arguments(question.scenario))
        plan = compiler.plan_of(graph, target, trusted=True)
    except (ScheduleError, UsageError) as error:
        return str(error).splitlines()[0]
    return Answer(ficco_rt.simulate(plan, target).duration, plan.params, made_by.kernels(plan, target))


def bound(variant: Variant, scenario: Scenario, ranks: int) -> Bound | None:
    """All parameters of a variant, those of which it says nothing too; None: it cannot have these sizes."""
    try:
        return compiler.build(compiler.load(variant.schedule), ranks, variant.arguments(scenario)).params
    except (ScheduleError, UsageError):
        return None


@dataclass(frozen=True, slots=True)
class Pair:
    """What was measured on two GPUs that stood for the ranks, and on as many GPUs; microseconds."""

    case: str
    what: str
    on_two: float
    whole: float


def on_two_pairs(files: Sequence[Path]) -> list[Pair]:
    """Everything that was measured both ways, in the order of the files. Screenings count where there is nothing
    else."""
    rows = [row for path in files for row in kept.read(path).rows if row.single is not None and row.mode is not None]
    whole: dict[tuple[object, ...], Measurement] = {}
    for row in sorted((r for r in rows if not r.on_two), key=lambda r: r.screening):
        whole.setdefault(row.key, row)
    found = []
    for row in rows:
        other = whole.get(replace(row, on_two=False).key) if row.on_two else None
        if other is not None and row.single is not None and other.single is not None:
            place = label(row.scenario, row.ranks, False)
            found.append(Pair(place, row.label, row.single.median, other.single.median))
    return found


def split_of(found: Sequence[Case]) -> Mapping[str, list[Case]]:
    """The cases by what may be fitted to them; `all` at the end where there is more than one kind."""
    kinds = {kind: [c for c in found if c.split == kind] for kind in ("fitted", "unseen")}
    parts = {kind: members for kind, members in kinds.items() if members}
    return parts | {"all": list(found)} if len(parts) > 1 else parts

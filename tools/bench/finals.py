"""`python -m tools.bench campaign --again ROUNDS`: what a campaign found to be fastest, measured once more, in turn.

The few runs of a campaign follow each other, and variants of one case may have been measured on different days: the
least of their medians is partly luck. So of each case the runs that are near the best, and those of what would be
chosen, are made ready together, and each round has one single run of each, in an order of its own. The new times take
the place of the old ones; a case whose rounds are not all done keeps its old times. `finals` among the settings of the
file are the cases that have been measured so.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import dataclass, replace

from ficco_rt.plan.ir import Plan

from . import made_by, selected
from .candidates import Gpus, Item, Prepared, begun, prepare, prepare_choice, wrong
from .kept import Figure, Measurement
from .stats import slowest, spread
from .variants import Variant

NEAR = 1.03  # times the best: measured again
MOST = 16  # runs of a case, without those of what would be chosen
AHEAD = 3  # cases that are compiled while one is measured
TURN = 0.005  # seconds of a single run, with all that prepares it
READY = 0.3  # seconds until a variant is loaded and checked

Compiled = tuple[list[Measurement], list[Future[Prepared]]]


@dataclass(slots=True)
class Finals:
    """`rows` of a campaign, changed in place. `finished`: the items that are done; `save` is called after each, with
    its new rows."""

    gpus: Mapping[int, Gpus]
    rows: list[Measurement]
    finished: dict[str, None]
    save: Callable[[Sequence[Measurement]], None]
    until: float
    rounds: int
    clock: Callable[[], float] = time.monotonic
    rest: float = 0.1  # seconds after a run, at most: it rests for as long as the run took
    seed: int = 1

    def run(self, work: Sequence[Item], pool: Pool) -> None:
        """Measure until all is done, or the time is over."""
        left = [item for item in work if item.key not in self.finished and self._measured(item)]
        chosen: dict[int, list[Future[Prepared | None]]] = {}
        compiled: dict[int, Compiled] = {}
        for i, item in enumerate(left):
            for j in range(i, min(i + 2 * AHEAD, len(left))):
                if j not in chosen and j not in compiled:
                    machine = self.gpus[left[j].ranks].machine
                    chosen[j] = [pool.submit(prepare_choice, left[j], machine, by) for by in selected.BY]
            for j in range(i, min(i + AHEAD, len(left))):
                if j not in compiled:
                    compiled[j] = self._submit(left[j], [f.result() for f in chosen.pop(j)], pool)
            rows, plans = compiled.pop(i)
            prepared = [future.result() for future in plans]
            if self.clock() + self._needs(rows) > self.until:
                return
            self._item(item, rows, prepared)

    def _measured(self, item: Item) -> list[Measurement]:
        place = item.row("", (), "").place
        found = [row for row in self.rows if row.place == place and row.ours and row.single is not None]
        return sorted(found, key=_median)

    def _submit(self, item: Item, chosen: Sequence[Prepared | None], pool: Pool) -> Compiled:
        """The runs of the finals, and their plans in the making."""
        found = self._measured(item)
        least = _median(found[0])
        runs = [row for row in found if _median(row) <= NEAR * least][:MOST]
        for one in chosen:
            if one is not None:
                same = [row for row in found if row.variant == one.variant]
                runs += [row for row in same[:1] if row not in runs]
        distinct = {row.variant.label: row.variant for row in runs}
        machine = self.gpus[item.ranks].machine
        return runs, [pool.submit(prepare, item, machine, variant) for variant in distinct.values()]

    def _needs(self, rows: Sequence[Measurement]) -> float:
        """Seconds, about."""
        return sum(READY + self.rounds * (TURN + 2e-6 * _median(row)) for row in rows)

    def _item(self, item: Item, rows: Sequence[Measurement], prepared: Sequence[Prepared]) -> None:
        gpus = self.gpus[item.ranks]
        with begun(gpus, item, self.seed):
            told: dict[str, str | None] = {}
            for one in prepared:
                if one.plan is not None:
                    told |= self._ready(item, gpus, one.variant, one.plan, rows)
            here = {f"{row.variant.label} {row.mode}": row for row in rows}
            times = self._times(item, gpus, [key for key in here if told.get(key, "no plan") is None])
        new = {here[key].key: replace(here[key], single=Figure.of(spread(found))) for key, found in times.items()}
        self.rows[:] = [new.get(row.key, row) for row in self.rows]
        self.finished[item.key] = None
        self.save(list(new.values()))

    def _ready(
        self, item: Item, gpus: Gpus, variant: Variant, plan: Plan, rows: Sequence[Measurement]
    ) -> dict[str, str | None]:
        """By run of the variant: why it is not measured, or None."""
        made = made_by.kernels(plan, gpus.machine)
        mine = [row for row in rows if row.variant == variant]
        if any(row.kernels and row.kernels != made for row in mine):
            return {}  # its times are of other kernels: they are left as they are
        told = dict(gpus.add(variant, lambda: plan))
        for row in mine:
            key = f"{variant.label} {row.mode}"
            told[key] = told[key] or wrong(item, gpus, key, variant)
        return told

    def _times(self, item: Item, gpus: Gpus, keys: Sequence[str]) -> dict[str, list[float]]:
        """Microseconds of a single run in each round."""
        order, times = random.Random(f"{self.seed} {item.key}"), {key: list[float]() for key in keys}
        for _ in range(self.rounds):
            for key in order.sample(keys, len(keys)):
                (time_of_run,) = slowest(gpus.turn(key, 0, 1, 0).singles)
                times[key].append(time_of_run)
                time.sleep(min(self.rest, time_of_run * 1e-6))
        return times


def _median(row: Measurement) -> float:
    assert row.single is not None
    return row.single.median

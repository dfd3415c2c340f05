"""`python -m tools.bench campaign`: as many measurements as fit into a time, of many scenarios, on two GPUs.

For data that models and choices are held against, not for claims: a few single runs a row, no peers, no rounds. The
work is scenarios × ranks, in an order that the seed shuffles, so that whatever a run gets done is a fair sample. Each
variant is compiled, and priced on the virtual clock, in processes beside the one that drives the GPUs; variants that
make no sense for the sizes (`sensible`), and those that the model finds hopeless, are not measured. The others come in
the order of the model, on streams, each with a few single runs; what is slow after two of them gets no more. What is
near the best so far is measured as a graph, too. The file is written after every variant. A run that is given the file
of an earlier one goes on from there: `finished` among its settings are scenarios of which nothing is left.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

from ficco_rt.errors import DeviceError, ScheduleError, UsageError, exit_code
from ficco_rt.files import REPORT, check_outputs
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan
from ficco_rt.select.choose import By
from ficco_rt.sim.simulate import simulate

from . import families, kept, made_by, selected
from .executors import ask_for_connections
from .gpus import find_gpus
from .kept import Figure, Kept, Measurement
from .measure import COPIES, GEMM
from .ours import Ours, plan_for
from .scenarios import DEFAULT_FILE, Scenario, load
from .stats import slowest, spread, tolerance
from .variants import Variant, variants
from .workers import Turn

GPUS = 2
FIRST, MORE = 2, 3  # single runs of every variant, and more of those that are not slow
SLOW = 1.3  # times the best so far: gets no more runs
CLOSE = 1.1  # times the best so far: measured as a graph, too
HOPELESS = 1.6  # times the best on the virtual clock: not measured; a p90 error of the model is 1.2
LEAST_ROWS = 64  # of a piece: half a tile
LEAST_DEPTH = 512  # of a piece of K
SPARE = 3.0  # seconds that are left when the last variant begins
REST = 0.1  # seconds of rest after a variant, at most: it rests for as long as its runs took
RUNS = 10  # of a row, with warm-up and check

DESCRIPTION = """\
As many single-run measurements of our schedules as fit into a time, on two GPUs: two ranks, and ranks of R on two.

    python -m tools.bench campaign --json data.json --seconds 480
    python -m tools.bench campaign --json data.json --seconds 480 --share 2/4    # the second of four shares

A file that is there is gone on with. Exit codes: 0, 2 wrong arguments, 3 no PyTorch, no GPUs or a device failed,
130 interrupted; what is measured by then is in the file."""


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


# ---------------------------------------------------------------- what is measured


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
    depth = scenario.k if scenario.operation == "ag_gemm" else scenario.k // ranks
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


# ---------------------------------------------------------------- measuring


@dataclass(slots=True)
class Campaign:
    """A run. `gpus` by ranks; `rows` are those that need not be measured, `finished` the items of which nothing is
    left; `save` is called when there is more of either."""

    gpus: Mapping[int, Gpus]
    rows: list[Measurement]
    finished: dict[str, None]
    save: Callable[[Sequence[Measurement]], None]
    until: float
    clock: Callable[[], float] = time.monotonic
    rest: float = REST
    seed: int = 1
    best: float = field(default=float("inf"), init=False)  # of the item
    done: set[tuple[object, ...]] = field(default_factory=set, init=False)  # keys of the rows

    def run(self, work: Sequence[Item], pool: Pool) -> None:
        """Measure until all is done or the time is over. The variants of the next two items are compiled while one is
        measured."""
        self.done = {row.key for row in self.rows}
        left = [item for item in work if item.key not in self.finished]
        ahead: dict[int, list[Future[Prepared] | Future[Prepared | None]]] = {}
        for i, item in enumerate(left):
            for j in range(i, min(i + 3, len(left))):
                if j not in ahead:
                    ahead[j] = self._submit(left[j], pool)
            if not self._left():
                return
            done = [prepared for future in ahead.pop(i) if (prepared := future.result()) is not None]
            self._item(item, list({self._row(item, prepared).key: prepared for prepared in done}.values()))

    def _submit(self, item: Item, pool: Pool) -> list[Future[Prepared] | Future[Prepared | None]]:
        """Also what is measured: the model's best of all says what is hopeless."""
        machine = self.gpus[item.ranks].machine
        wanted = (v for v in variants(item.scenario.operation) if sensible(item.scenario, item.ranks, v))
        return [
            *(pool.submit(prepare, item, machine, variant) for variant in wanted),
            *(pool.submit(prepare_choice, item, machine, by) for by in selected.BY),
        ]

    def _left(self) -> bool:
        return self.clock() < self.until - SPARE

    def _item(self, item: Item, found: Sequence[Prepared]) -> None:
        """All of an item, or as much as there is time for."""
        failed = [(self._row(item, p), p.failed) for p in found if p.failed is not None]
        self._keep([(row, why) for row, why in failed if row.key not in self.done])
        here = [r for r in self.rows if r.place == item.row("", (), "").place and r.ours and r.single is not None]
        self.best = min((r.single.median for r in here if r.single is not None), default=float("inf"))
        left = [p for p in worth_it(found) if self._row(item, p).key not in self.done]
        gpus = self.gpus[item.ranks]
        gpus.begin(item.scenario)
        try:
            gpus.data(self.seed)
            for limit in (GEMM, COPIES):
                row = item.row(limit, (), "calls")
                if row.key not in self.done:
                    self._keep([(row, self._figure(gpus, limit, False))])
            for prepared in left:
                if not self._left():
                    return
                self._variant(item, gpus, prepared)
        except DeviceError:
            with suppress(DeviceError):  # the first error is the one to tell
                gpus.keep(())
            raise
        gpus.keep(())
        self.finished[item.key] = None
        self.save(())

    def _row(self, item: Item, prepared: Prepared) -> Measurement:
        return item.row(prepared.variant.schedule, prepared.variant.parameters, "streams")

    def _variant(self, item: Item, gpus: Gpus, prepared: Prepared) -> None:
        variant, plan = prepared.variant, prepared.plan
        assert plan is not None
        told, made = gpus.add(variant, lambda: plan), made_by.kernels(plan, gpus.machine)
        rows: list[tuple[Measurement, Figure | str]] = []
        for mode in ("streams", "graph"):
            row, key = (
                replace(item.row(variant.schedule, variant.parameters, mode), kernels=made),
                f"{variant.label} {mode}",
            )
            try:
                why = told[key] or self._wrong(item, gpus, key, variant)
                figure = why or self._figure(gpus, key, True)
            except DeviceError as error:
                self._keep([*rows, (row, str(error).splitlines()[0])])
                raise  # what else runs in this process may fail as well
            rows.append((row, figure))
            if isinstance(figure, str) or figure.median > CLOSE * self.best:
                break
        self._keep(rows)
        gpus.keep((GEMM, COPIES))
        load = sum(figure.median for _, figure in rows if isinstance(figure, Figure)) * RUNS * 1e-6
        time.sleep(min(self.rest, load))

    def _wrong(self, item: Item, gpus: Gpus, key: str, variant: Variant) -> str | None:
        """What is wrong with the result, where there is one to compare with."""
        error = gpus.check(key)
        most = tolerance(item.ranks, variant.pieces, item.scenario.k)
        return None if error is None or error <= most else f"relative error {error:.2e}, tolerance {most:.2e}"

    def _figure(self, gpus: Gpus, key: str, competes: bool) -> Figure:
        """Of a few single runs. Yardsticks do not compete."""
        times = slowest(gpus.turn(key, 1, FIRST, 0).singles)
        if not competes or min(times) <= SLOW * self.best:
            times += slowest(gpus.turn(key, 0, MORE, 0).singles)
        found = spread(times)
        if competes:
            self.best = min(self.best, found.median)
        return Figure(found.median, found.p10, found.p90, found.samples)

    def _keep(self, rows: Sequence[tuple[Measurement, Figure | str | None]]) -> None:
        """New rows, each with its figure, or why it has none."""
        made = [replace(row, failed=told) if isinstance(told, str) else replace(row, single=told) for row, told in rows]
        self.rows += made
        self.done.update(row.key for row in made)
        if made:
            self.save(made)


# ---------------------------------------------------------------- the command line


def main(arguments: Sequence[str]) -> int:
    """The process's exit code."""
    options = parse(arguments)
    try:
        return campaign(options)
    except (UsageError, DeviceError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench campaign",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--json", type=Path, required=True, metavar="FILE", help="where measurements are kept; gone on with, if there")
    add("--seconds", type=float, default=480.0, metavar="S", help="time, from start to end (480)")
    add("--ranks", default="2,4,8", metavar="R,…", help="2, and ranks of R on two (2,4,8)")
    add("--share", default="1/1", metavar="I/N", help="of N shares of the scenarios, the I-th (1/1)")
    add("--scenarios", type=Path, action="append", metavar="FILE", help="default: scenarios_wide.json, scenarios.json")
    add("--only", action="append", default=[], metavar="TEXT", help="scenarios whose name contains TEXT; repeatable")
    add("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2), metavar="N", help="processes that compile")
    add("--seed", type=int, default=1, metavar="N", help="of the order, and of the operands (1)")
    return parser.parse_args(arguments, argparse.Namespace(said=("campaign", *arguments)))


def campaign(options: argparse.Namespace) -> int:
    """Measure and keep. Raises UsageError, DeviceError."""
    begun = time.monotonic()
    ranks, share = _ranks(options.ranks), _share(options.share)
    check_outputs([(REPORT, options.json)], options.scenarios or [])
    before = kept.read(options.json) if options.json.exists() else None
    work = items(_scenarios(options), ranks, share, options.seed)
    if not work:
        raise UsageError("there is no scenario to measure")
    ask_for_connections()
    find_gpus(GPUS)
    context = get_context("spawn")
    with ProcessPoolExecutor(max(1, options.jobs), context) as pool:
        gpus = {r: Ours(r, None, GPUS) for r in ranks}
        about = _about(gpus[ranks[0]].about(), options, before)
        rows = [*before.rows] if before is not None else []
        finished = before.settings.get("finished", []) if before is not None else []
        done = dict.fromkeys(map(str, finished)) if isinstance(finished, list) else {}
        count = len(rows)

        def save(new: Sequence[Measurement]) -> None:
            settings = {"seed": options.seed, "singles": FIRST + MORE, "finished": list(done)}
            kept.write(options.json, Kept(about, tuple(rows), settings))
            for row in new:
                told = row.failed or (f"{row.single.median:.1f} µs" if row.single is not None else "")
                seconds = time.monotonic() - begun
                print(f"[{seconds:4.0f} s] {row.scenario.label} ({row.ranks}) {row.label}: {told}", flush=True)

        run = Campaign(gpus, rows, done, save, begun + options.seconds, seed=options.seed)
        try:
            run.run(work, pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    ended = sum(item.key in done for item in work)
    print(f"{len(rows) - count} rows in {time.monotonic() - begun:.0f} s; {ended} of {len(work)} are done")
    return 0


def _about(found: Mapping[str, str], options: argparse.Namespace, before: Kept | None) -> dict[str, str]:
    """What was measured with. Raises UsageError: the file is of other GPUs."""
    about = {
        "source": "run",
        "date": date.today().isoformat(),
        "command": kept.command(options.said),
        **found,
        "numbers": "compared with a reference at two ranks; of ranks on two only that all of C is written",
    }
    if before is None:
        return about
    for name in ("gpus", "ficco_rt"):
        if before.about.get(name) != about[name]:
            raise UsageError(
                f"{options.json}: is of {name} {before.about.get(name)}, here it is {about[name]}; give another file"
            )
    dates = dict.fromkeys([*before.about["date"].split(", "), about["date"]])
    return {**about, "date": ", ".join(dates)}


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    files: Sequence[Path] = options.scenarios or (families.FILE, DEFAULT_FILE)
    found = {(s.operation, s.m, s.n, s.k): s for path in files for s in load(path)[0]}
    return [s for s in found.values() if not options.only or any(text in s.label for text in options.only)]


def _numbers(text: str, separator: str) -> Iterator[int]:
    for part in text.split(separator):
        yield int(part) if part.isascii() and part.isdigit() else -1


def _ranks(text: str) -> tuple[int, ...]:
    found = tuple(_numbers(text, ","))
    if min(found) < 2:
        raise UsageError(f"--ranks {text}: wanted whole numbers from 2, such as 2,4,8")
    return tuple(dict.fromkeys(found))


def _share(text: str) -> tuple[int, int]:
    found = tuple(_numbers(text, "/"))
    if len(found) != 2 or not 1 <= found[0] <= found[1]:
        raise UsageError(f"--share {text}: wanted I/N, such as 1/4, the first of four shares")
    return found[0], found[1]

"""`python -m tools.bench campaign`: as many measurements as fit into a time, of many scenarios, on two GPUs.

For data that models and choices are held against, not for claims: a few single runs a row, no peers, no rounds. The
work is scenarios × ranks, in an order that the seed shuffles, so that whatever a run gets done is a fair sample. Each
variant is compiled, and priced on the virtual clock, in processes beside the one that drives the GPUs; variants that
make no sense for the sizes (`sensible`), and those that the model finds hopeless, are not measured. The others come in
the order of the model, on streams, each with a few single runs; what is slow after two of them gets no more. What is
near the best so far is measured as a graph, too. The file is written after every variant. A run that is given the file
of an earlier one goes on from there: `finished` among its settings are scenarios of which nothing is left. With
`--again` it measures what is near the best once more, in turn (`finals`).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date
from multiprocessing import get_context
from pathlib import Path

from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.files.atomic import REPORT, check_outputs

from . import families, kept, made_by, selected
from .candidates import GPUS, Gpus, Item, Prepared, begun, items, prepare, prepare_choice, sensible, worth_it, wrong
from .executors import ask_for_connections
from .finals import Finals
from .gpus import ended, find_gpus
from .kept import Figure, Kept, Measurement
from .measure import COPIES, GEMM
from .ours import Ours
from .scenarios import DEFAULT_FILE, Scenario, load
from .stats import slowest, spread
from .variants import variants

FIRST, MORE = 2, 3  # single runs of every variant, and more of those that are not slow
SLOW = 1.3  # times the best so far: gets no more runs
CLOSE = 1.1  # times the best so far: measured as a graph, too
SPARE = 3.0  # seconds that are left when the last variant begins
REST = 0.1  # seconds of rest after a variant, at most: it rests for as long as its runs took
RUNS = 10  # of a row, with warm-up and check

DESCRIPTION = """\
As many single-run measurements of our schedules as fit into a time, on two GPUs: two ranks, and ranks of R on two.

    python -m tools.bench campaign --json data.json --seconds 480
    python -m tools.bench campaign --json data.json --seconds 480 --share 2/4    # the second of four shares
    python -m tools.bench campaign --json data.json --seconds 480 --again 12     # the fastest of each case once more

A file that is there is gone on with. Exit codes: 0, 2 wrong arguments, 3 no PyTorch, no GPUs or a device failed,
130 interrupted; what is measured by then is in the file."""


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
        with begun(gpus, item, self.seed):
            for limit in (GEMM, COPIES):
                row = item.row(limit, (), "calls")
                if row.key not in self.done:
                    self._keep([(row, self._figure(gpus, limit, False))])
            for prepared in left:
                if not self._left():
                    return
                self._variant(item, gpus, prepared)
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
                why = told[key] or wrong(item, gpus, key, variant)
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

    def _figure(self, gpus: Gpus, key: str, competes: bool) -> Figure:
        """Of a few single runs. Yardsticks do not compete."""
        times = slowest(gpus.turn(key, 1, FIRST, 0).singles)
        if not competes or min(times) <= SLOW * self.best:
            times += slowest(gpus.turn(key, 0, MORE, 0).singles)
        figure = Figure.of(spread(times))
        if competes:
            self.best = min(self.best, figure.median)
        return figure

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
    return ended("bench", lambda: campaign(options))


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
    add("--again", type=int, metavar="ROUNDS", help="measure what is near the best of the file once more, in turn")
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
    if options.again is not None and (options.again < 1 or before is None):
        what = "wanted a whole number from 1" if before is not None else f"{options.json}: there is no such file"
        raise UsageError(f"--again {options.again}: {what}")
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
        done = dict.fromkeys(map(str, _list(before, "finished")))
        finals = dict.fromkeys(map(str, _list(before, "finals")))
        count = 0

        def save(new: Sequence[Measurement]) -> None:
            nonlocal count
            count += len(new)
            settings = {"seed": options.seed, "singles": FIRST + MORE, "finished": list(done), "finals": list(finals)}
            kept.write(options.json, Kept(about, tuple(rows), settings))
            for row in new:
                told = row.failed or (f"{row.single.median:.1f} µs" if row.single is not None else "")
                seconds = time.monotonic() - begun
                print(f"[{seconds:4.0f} s] {row.scenario.label} ({row.ranks}) {row.label}: {told}", flush=True)

        until = begun + options.seconds
        run: Campaign | Finals = Campaign(gpus, rows, done, save, until, seed=options.seed)
        if options.again is not None:
            run = Finals(gpus, rows, finals, save, until, options.again, seed=options.seed)
        try:
            run.run(work, pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    over = sum(item.key in run.finished for item in work)
    print(f"{count} rows in {time.monotonic() - begun:.0f} s; {over} of {len(work)} are done")
    return 0


def _list(before: Kept | None, setting: str) -> list[object]:
    found = before.settings.get(setting) if before is not None else None
    return found if isinstance(found, list) else []


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

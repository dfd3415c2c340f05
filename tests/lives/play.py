"""One process's part of a life, and what it finds wrong.

All that runs is compared: a run that raised no error must be right in every element, by integers with which nothing
rounds. Outputs hold PATTERN from before a run's call; until the call nobody may have written them. NOTE the stand-in's
device memory is memory of the process, so that looking at it takes no call of the driver.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from ficco_rt.driver.gpu import collectives, issue_order, runs, watchdog
from ficco_rt.process.group import Group
from tests.lives.life import OWN, Event, Life, Op, Report
from tests.lives.seats import LONG, PATTERN, CallError, Errors, Place, Seat, plan, settings, wanted
from tests.lives.striking import calm, strike, waited
from tests.mock import standin
from tests.pipes import Pipes

RETRY = 5.0  # of a run after the life
OPENING = 1.5  # and of exchanges that a process may not come to
ANSWER = 2.0  # after its limit a call must have come back
MARGIN = 4.0  # on a busy machine
# The driver's own patience, shorter: most lives would only sleep.
SHORT = ((runs, "DRAIN", 0.3), (watchdog, "ANSWER", 0.5), (watchdog, "HEALTH", 0.03), (collectives, "SETTLE", 0.5),
         (issue_order, "LEAST", 0.5))  # fmt: skip
PHASE, ENDED = 0, 1  # of a process on the page: which part of its life it is in, and whether it has ended
OPS = 8  # from where on the page has what a process has called
ROW = 128  # entries a process


# ---------------------------------------------------------------- a process


class Player:
    """Process `place` of a life. `page`: what the processes of the life say, a row each."""

    def __init__(self, life: Life, place: int, pipes: Sequence[Connection | None], page: Any, folder: Path) -> None:
        self.life, self.place, self.page = life, place, page
        self.mine, self.pipes = page[place], pipes
        self.report = Report()
        self.home: Place | None = None
        self.seats: list[Seat] = []
        self.forked: list[int] = []
        self.struck = False  # the event has come
        self._filled: Op | None = None  # whose tensors a late process has filled before it waited
        self.lasted = 0.0  # seconds that a call may take
        self._groups = 0
        self._came: dict[object, bytes] = {}
        self.log: Callable[[str], None] = lambda text: None
        tempfile.tempdir = str(folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if life.driver != "host":
            self.gpus = standin.of(life.driver)
            self.gpus.reset(f"{settings(life.keys[0])}; seed {life.seed + place}; {life.settings}")
            if life.library and life.processes > 1:
                self.gpus.set("apart 1")
        if not life.patient:
            for module, name, seconds in SHORT:
                assert hasattr(module, name), name
                setattr(module, name, seconds)

    def object(self, kind: str, text: str) -> None:
        self.log(f"{kind}: {text}")
        self.report.objections.append((kind, text))

    def group(self) -> Group | None:
        """A group of its own for each attempt."""
        self._groups += 1
        if self.life.processes == 1:
            return None
        return Group(Pipes(self.place, self.pipes, str(self._groups), self._came))

    # ---- the life

    def play(self) -> Report:
        life, event = self.life, self.life.event
        group = self.group()
        error = ""
        for number, op in enumerate(life.ops):
            self.log(f"{number} {op}")
            try:
                if number == event.op:
                    self._arm(event)
                if number == event.op and event.kind == "leave" and self.place == event.place:
                    error = "left"
                    break
                self._do(number, op, group)
            except Errors as caught:
                error = f"{type(caught).__name__}: {caught}"
            except CallError as caught:
                error = str(caught)
            except KeyboardInterrupt:
                error = "KeyboardInterrupt"
            if error:
                self._told(number, op, error)
                break
        self._quiet()
        if error or not self._right_everywhere():
            self._again(error)
        self._end(bool(error))
        return self.report

    def _told(self, number: int, op: Op, error: str) -> None:
        """An error tells of all runs of its executor that have not been seen to end."""
        self.report.told.append(f"at {number}, {op.do}: {error}")
        self.log(self.report.told[-1])
        for seat in self._together(self.seats[op.seat]) if op.seat < len(self.seats) else ():
            self.report.ends |= {seat.pending.pop()[0]: "told" for _ in list(seat.pending)}
        if op.issues:
            self.report.ends[number] = "told"

    def _together(self, seat: Seat) -> list[Seat]:
        return seat.place.together(seat)

    def _arm(self, event: Event) -> None:
        """From here on the time limits are short; what goes wrong does so in one process."""
        self.struck = event.kind not in ("none", "part")
        if event.kind != "none":
            self.lasted = self.life.limit
            for seat in self.seats:
                seat.limit(self.life.limit)
        if self.place != event.place:
            return
        n, more = event.call, event.more
        told = {
            "stop": f"stop {n}", "slow": f"delay {n} {int(more)}", "kill": f"kill {n}", "interrupt": f"interrupt {n}",
            "pause": f"pause {n}", "fail": f"fail * {n} {int(more)}", "lose": f"lose {n} {int(more)}",
            "library": f"lose_collective {n} {int(more)}",
        }.get(event.kind, "")  # fmt: skip
        if told and self.life.driver == "host":
            strike(event)
        elif told:
            self.gpus.set(told)
        if event.kind == "exit":
            raise SystemExit(0)
        if event.kind == "fork":
            self._fork(int(more))
        if event.kind == "late":
            self._late(self.life.ops[event.op], more * self.life.limit)

    def _late(self, op: Op, seconds: float) -> None:
        """What the run is to write holds the pattern while the others wait for it (`_called`)."""
        if op.issues:
            seat = self.seats[op.seat]
            if op.tensors in seat.views and seat.fresh(op):
                seat.fill(op)
                self._filled = op
        time.sleep(seconds)

    def _do(self, number: int, op: Op, group: Group | None) -> None:
        if op.do == "open":
            brief = self.struck or number == self.life.event.op
            wait = OPENING if brief or self.life.event.op < len(self.life.seats) else LONG
            with self._timed(wait, "open"):
                if self.home is None or not self.life.workspace:
                    self.home = Place(self.life, group, wait)
                self.seats.append(self.home.open(self.life.keys[op.seat]))
                self.seats[-1].tensors(OWN)
            if self.struck:
                self.seats[-1].limit(self.life.limit)
            return
        seat = self.seats[op.seat]
        if op.do == "sync":
            self._sync(seat)
        elif op.do == "poison":
            self._sync(seat)
            with self._timed(self.lasted or LONG, "poison"):
                seat.executor.poison()
        elif op.do == "close":
            self._sync(seat)
            with self._timed(self.lasted or LONG, "close"):
                seat.close(self._hung)
        elif op.do == "leave":
            with self._timed(self.lasted or LONG, "close"):
                seat.place.close()
                self._close()
        elif op.do == "capture":
            self._sync(seat)
            with self._timed(self.lasted or LONG, "capture"):
                seat.tensors(op.tensors)
                seat.capture(op)
        else:
            self._run(number, seat, op)

    def _run(self, number: int, seat: Seat, op: Op) -> None:
        busy = [(other.data, other.rows) for _, other in seat.pending if other.tensors == op.tensors]
        alone = op.do == "run" and not self.life.workspace
        if alone or any(given != (op.data, op.rows) for given in busy):
            self._sync(seat)
        with self._timed(self.lasted or LONG, "bind"):
            seat.tensors(op.tensors)
        fresh = seat.fresh(op)
        if fresh and op is not self._filled:
            seat.fill(op)
        check = partial(self._untouched, number, seat, op) if fresh else lambda rank: None
        part = self.life.event.kind == "part" and number == self.life.event.op
        with self._timed(self.lasted or LONG, op.do):
            if op.do == "replay":
                self.mine[OPS + number] = 1
                seat.pending.append((number, op))
                seat.replay(op.order[: len(op.order) // 2] if part else op.order, check)
                self.struck = self.struck or part
                return
            for rank in seat.executor.ranks:
                check(rank)
            self.mine[OPS + number] = 1
            seat.pending.append((number, op))
            seat.call(op)
        if op.do == "run":
            self._confirmed(seat)

    def _sync(self, seat: Seat) -> None:
        if any(other.pending for other in self._together(seat)):
            with self._timed(self.lasted or LONG, "synchronize"):
                seat.executor.synchronize()
            self._confirmed(seat)

    def _confirmed(self, seat: Seat) -> None:
        """No error: all that was pending must be right, and every process must have called it."""
        for other in self._together(seat):
            if other.pending:
                other.settle()
            pending, other.pending = other.pending, []
            for number, op in pending:
                wrong = other.wrong(op)
                self.report.ends[number] = "WRONG" if wrong else "right"
                if wrong:
                    self.object("WRONG", f"operation {number}, {self.life.seats[op.seat]}: {wrong}")
                absent = [p for p in range(self.life.processes) if not self.page[p][OPS + number]]
                if absent:
                    self.object("UNTOLD", f"operation {number} has ended well, and process {absent} has not called it")

    def _right_everywhere(self) -> bool:
        return all(self.report.ends.get(n) == "right" for n, op in enumerate(self.life.ops) if op.issues)

    # ---- memory

    def _untouched(self, number: int, seat: Seat, op: Op, rank: int) -> None:
        """What a rank's run is to write, nobody has written before its call."""
        for tensor in seat.plan.tensors:
            if tensor.kind == "output" and tensor.shapes[rank]:
                view = seat.views[op.tensors][tensor.name, rank]
                count = int((view.view(np.uint8) != PATTERN).any(-1).sum()) if view.size else 0
                if count:
                    self.object(
                        "WROTE",
                        f"operation {number}: {count} rows of {tensor.name}@{rank} were written before its call",
                    )

    # ---- afterwards

    def _quiet(self) -> None:
        """What the process has under way ends, right or with an error; a part of a caller's graphs too, of which the
        rest was not replayed."""
        for seat in self.seats:
            if seat.executor._closed:
                continue
            try:
                with self._timed(self.lasted or LONG, "synchronize"):
                    seat.executor.synchronize()
                self._confirmed(seat)
            except (*Errors, CallError, KeyboardInterrupt) as error:
                self.report.told.append(f"quiet: {type(error).__name__}: {error}")
                self.report.ends |= {number: "told" for number, _ in seat.pending}
                seat.pending.clear()

    def _again(self, error: str) -> None:
        """In one process the same executors once more, or new ones; in a group new ones, if all live. Not on a lost
        device."""
        life = self.life
        if life.event.kind == "lose":
            return
        self._calm()
        if life.processes > 1:
            self._close()
            if life.driver == "host" or not self._all_live():
                return
            self._anew()
            return
        for number, seat in enumerate(self.seats):
            if seat.executor._closed:
                continue
            try:
                seat.limit(RETRY)
                self._once_more(seat, 10 + number)
            except (*Errors, CallError) as told:
                self.report.again += f" same: {str(told)[:300]}"
                self._close()
                self._anew()
                return
        self.report.again += " same: right"

    def _anew(self) -> None:
        if life_lost(self.report):
            return
        try:
            with self._timed(RETRY, "open again"):
                self.seats.append(seat := Place(self.life, self.group(), RETRY).open(self.life.keys[0]))
            self._once_more(seat, 20)
            self.report.again += " new: right"
        except (*Errors, CallError) as told:
            self.report.again += f" new: {str(told)[:300]}"

    def _once_more(self, seat: Seat, number: int) -> None:
        manner = "fifo" if self.life.driver == "host" else "streams"
        op = Op("run", 0, manner, number % 4, rows=number + 1 if seat.key.rows else 0)
        with self._timed(RETRY, "retry"):
            seat.tensors(OWN)
            seat.executor.poison()
            seat.fill(op)
            seat.call(op)
        wrong = seat.wrong(op)
        if wrong:
            self.object("WRONG", f"the retry after {self.report.told[:1]}: {wrong}")

    def _calm(self) -> None:
        if self.life.driver == "host":
            calm()
        else:
            self.gpus.calm()

    def _close(self) -> None:
        closes = [partial(seat.close, self._hung) for seat in self.seats]
        closes += [place.close for place in dict.fromkeys(seat.place for seat in self.seats)]
        for close in closes:
            try:
                with self._timed(max(self.lasted, 0.3), "close"):
                    close()
            except Exception as error:  # noqa: BLE001  of a device that is lost: closing tells
                self.log(f"closing: {error}")

    def _hung(self) -> bool:
        """Whether nothing can be freed: a device is lost, or something of the process runs that does not end."""
        return self.life.event.kind == "lose" or any(seat._gpus.blocked for seat in self.seats)

    def _all_live(self) -> bool:
        """Whether every process has come here."""
        self.mine[PHASE] = 1
        until = time.monotonic() + LONG
        while time.monotonic() < until:
            if any(row[ENDED] for row in self.page):
                return False
            if all(row[PHASE] for row in self.page):
                return True
            time.sleep(1e-3)
        return False

    def _end(self, failed: bool) -> None:
        """Everything is given back."""
        event = self.life.event.kind
        self._close()
        self._reap()
        if self.life.driver == "host":
            return
        # communicators of a run that was given up may keep calls; a stream may stop when all was seen to be right
        waits = ("ncclCommAbort blocks", "ncclCommDestroy blocks") if failed else ()
        waits += ("cuMemFree blocks", "hipFree blocks") if event == "stop" and self._right_everywhere() else ()
        found = [line for line in self.gpus.violations().splitlines() if not line.startswith(waits)]
        if found:
            self.object("VIOLATION", "; ".join(found[:3]))
        if not failed and event in ("none", "late") and self.gpus.live():
            self.object("LEFT", str(self.gpus.live()))

    # ---- forks

    def _fork(self, what: int) -> None:
        child = os.fork()
        if child:
            self.forked.append(child)
            return
        code = 0
        for seat in self.seats if what == 0 else ():
            with suppress(*Errors, CallError):
                seat.limit(0.5)
                manner = "fifo" if self.life.driver == "host" else "streams"
                op = Op("run", 0, manner, 1, rows=seat.key.rows)
                if self.life.processes == 1:  # else the memory is the parent's, too
                    seat.fill(op)
                seat.call(op)
                code = 3 if seat.wrong(op) else 4 if self.life.processes > 1 else code
        if what == 1:
            self.home = None
            self.seats.clear()
            gc.collect()
        if what == 2:
            raise SystemExit(0)
        os._exit(code)

    def _reap(self) -> None:
        for child in self.forked:
            until = time.monotonic() + 20
            while (found := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
                time.sleep(2e-3)
            if found[0] == 0:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                self.object("HUNG", "a forked child does not end")
            elif found[1]:
                said = {3: "runs, with wrong numbers", 4: "runs for its parent"}
                code = os.waitstatus_to_exitcode(found[1])
                self.object("WRONG" if code in said else "CRASH", f"a forked child {said.get(code, f'ends by {code}')}")

    # ---- time

    @contextmanager
    def _timed(self, limit: float, what: str) -> Iterator[None]:
        """A call comes back within its limit, and what the answer to a failure may take; time in which the machine had
        no processor for this process does not count."""
        begun, queued = time.monotonic(), waited()
        try:
            yield
        finally:
            took = time.monotonic() - begun - (waited() - queued)
            self.report.slowest = max(self.report.slowest, took - limit)
            if took > limit + ANSWER + MARGIN:
                self.object("HUNG", f"{what} took {took:.1f} s, with a limit of {limit:g} s")


def life_lost(report: Report) -> bool:
    """Whether an error has said that the process cannot use its GPUs any more."""
    text = f"{report.told} {report.again}"
    return "this process can use them no more" in text or "in a new process" in text


def prepare(life: Life) -> None:
    """What the process that forks lives makes for all of them."""
    for key in life.plans:
        plan(key)
        for data in range(4):
            if not key.rows:
                wanted(key, data)

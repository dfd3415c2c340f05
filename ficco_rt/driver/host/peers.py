"""The host driver's connection to other processes, which step the other ranks of the plan.

Processes share only memory: tensors that ranks of other processes read or write, and words. A word holds the number of
the last run in which it was raised, so no run needs to reset it.

A run begins when all processes have entered it, and ends when all have ended it. Until then nobody reads or writes what
lies in another process, and the callers' tensors may change. So a run of one process never overlaps the next run of
another.

NOTE words are written after the data that they announce, and read before it. x86-64 keeps that order by itself; other
processors keep it in practice, as there are thousands of instructions between the two.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import prod

import numpy as np

from ...errors import DeviceError, LeftError, UsageError, cause_words
from ...plan.ir import CollectiveCall, Launch, Plan, Signal
from ...process.group import Group, processes
from ...types import numpy_dtype
from ..api import Array
from .deadlock import at, describe_waits
from .segment import Segment
from .tasks import HostJob, HostSignal, HostStream

# The words of a process: the last run that it has entered, ended, failed in; whether it has closed, or left; where it
# stands in the plan; how many words it has raised; how many it knew of when nothing could run; how long it has worked.
ENTERED, ENDED, FAILED, CLOSED, STREAM, POSITION, WORK, RAISED, IDLE, BEAT = range(10)
OWN = 16  # words a process
MESSAGE = 4096  # bytes a process
_ALIGNED = 64
_BUSY, _DONE = -2, -1  # of IDLE
_LEFT = 2  # of CLOSED: because of an error, which its message has
_NAP, _LONGEST, _SHARE = 0.0001, 0.005, 1 / 8  # as of `group`
_LOOK = 0.05  # seconds between two looks at who still lives
_BEATS = 0.5  # seconds between two beats


class Peers:
    """See the module. `timeout`: seconds for which no process moves at all, before a run is given up."""

    def __init__(self, plan: Plan, group: Group, timeout: float | None) -> None:
        self._plan = plan
        self._timeout = timeout
        self.place, self.size = group.rank, group.size
        self._others = [place for place in range(group.size) if place != group.rank]
        self.process = processes(plan.ranks, group.size)
        self.ranks = tuple(rank for rank, process in enumerate(self.process) if process == group.rank)
        self.crossing = self._crossing()
        self.touched = self._touched()
        self._layout(group, timeout)
        self._run = 0  # the number of the run
        self._incoming: list[HostSignal] = []  # what others are still to raise
        self._awaited = np.empty(0, np.int64)  # their words
        self._looked = 0.0
        self._moved = time.monotonic()
        self._seen = b""
        self._working = threading.Event()  # a job is being done
        self._over = threading.Event()
        beat = threading.Thread(target=_beat, args=(self._mine, self._working, self._over), name="ficco beat")
        beat.daemon = True
        beat.start()

    # ---- what crosses, by the plan alone

    def _crossing(self) -> dict[Signal | tuple[str, int, int], tuple[int, int, str]]:
        """What one process raises and another waits for: its word, the process that raises it, and who there does."""
        raised: dict[Signal, tuple[int, str]] = {}
        awaited: dict[Signal, set[int]] = {}
        found: dict[Signal | tuple[str, int, int], tuple[int, int, str]] = {}
        for stream, command in self._plan.commands():
            process = self.process[stream.rank]
            who = f"rank {stream.rank} stream {stream.name} of process {process}"
            for signal in command.signals:
                verb = "records" if signal.kind == "event" else "raises"
                raised[signal] = process, f"{who} {verb} ({at(command.origin)})"
            for signal in command.waits:
                awaited.setdefault(signal, set()).add(process)
            if isinstance(command, CollectiveCall):
                for part in ("call", "read"):
                    found.setdefault((part, command.group, stream.rank), (len(found), process, who))
        for signal, (process, who) in raised.items():
            if awaited.get(signal, set()) - {process}:
                found[signal] = len(found), process, who
        return found

    def _touched(self) -> tuple[tuple[str, int], ...]:
        """Tensors of ranks that other processes read or write."""
        found: dict[tuple[str, int], None] = {}
        for stream, command in self._plan.commands():
            if isinstance(command, CollectiveCall):  # every rank looks at all calls, at empty ones too
                regions = [command.src, command.dst]
            else:
                regions = [access.region for access in command.accesses()]
                regions = [region for region in regions if self.process[region.rank] != self.process[stream.rank]]
            found |= {(region.tensor, region.rank): None for region in regions}
        return tuple(found)

    def _layout(self, group: Group, timeout: float | None) -> None:
        words = OWN * group.size + len(self.crossing)
        messages = _up(8 * words)
        end = messages + MESSAGE * group.size
        places: dict[tuple[str, int], tuple[int, int]] = {}
        for name, rank in self.touched:
            tensor = self._plan.tensor(name)
            size = prod(tensor.shapes[rank]) * numpy_dtype(tensor.dtype).itemsize
            places[name, rank] = end, size
            end = _up(end + size)
        self._segment = Segment(group, end, timeout)
        memory = self._segment.memory
        both = memory[: 8 * words].view(np.int64)
        self._status, self._words = both[: OWN * group.size].reshape(group.size, OWN), both[OWN * group.size :]
        self._mine = self._status[self.place]
        self._messages = memory[messages : messages + MESSAGE * group.size].reshape(group.size, MESSAGE)
        self.areas: dict[tuple[str, int], Array] = {}  # where the processes have what several of them use
        for (name, rank), (start, size) in places.items():
            tensor = self._plan.tensor(name)
            area = memory[start : start + size].view(numpy_dtype(tensor.dtype))
            self.areas[name, rank] = area.reshape(tensor.shapes[rank])

    # ---- a run

    def enter(self, signals: list[HostSignal]) -> None:
        """Begin the next run together. `signals`: those that others raise."""
        self._run += 1
        self._incoming = signals
        self._awaited = np.array([signal.word for signal in signals], np.int64)
        self._mine[[STREAM, IDLE]] = -1, _BUSY
        self._mine[ENTERED] = self._run
        self._until(lambda: all(self._status[p][ENTERED] >= self._run for p in self._others))

    def end(self) -> None:
        """Ends this process's part of the run; returns when the others have ended theirs."""
        self._mine[IDLE] = _DONE
        self._mine[ENDED] = self._run
        self._until(lambda: all(self._status[p][ENDED] >= self._run for p in self._others))

    def fail(self, error: BaseException) -> None:
        """Tell the others that this process gives the run up."""
        self._say(f"process {self.place} has given up run {self._run}", error)
        self._mine[FAILED] = self._run

    def leave(self, error: BaseException) -> None:
        """Tell the others that this process begins no further run."""
        if self._mine[FAILED] <= self._mine[ENDED]:  # else they hear of it by the run that it has failed in
            self._say(f"process {self.place} has left after run {self._mine[ENDED]}", error)
        self._mine[CLOSED] = _LEFT

    def _say(self, what: str, error: BaseException) -> None:
        """What others have told of another process is passed on as it is."""
        text = str(error) if isinstance(error, LeftError) else f"{what}: {cause_words(error)}"
        data = np.frombuffer(text.encode()[: MESSAGE - 1] + b"\0", np.uint8)
        self._messages[self.place][: len(data)] = data

    def _said(self, place: int) -> str:
        return bytes(self._messages[place]).partition(b"\0")[0].decode(errors="replace")

    def at(self, job: HostJob) -> None:
        """This process is about to do a job."""
        self._mine[STREAM] = job.task.stream.plan.id
        self._mine[POSITION] = job.task.position
        self._mine[WORK] = job.index
        self._working.set()

    def tell(self, word: int) -> None:
        self._words[word] = self._run
        self._mine[RAISED] += 1

    def heard(self) -> list[HostSignal]:
        """The signals that others have raised since the last call."""
        up = self._words[self._awaited] >= self._run
        if not up.any():
            return []
        self._mine[IDLE] = _BUSY
        found = [signal for signal, told in zip(self._incoming, up, strict=True) if told]
        self._incoming = [signal for signal, told in zip(self._incoming, up, strict=True) if not told]
        self._awaited = self._awaited[~up]
        return found

    def wait(self, stuck: list[HostStream]) -> bool:
        """Waits when nothing can run here. Returns when others have raised a signal; False if nobody can raise one any
        more."""
        over = False

        def something() -> bool:
            nonlocal over
            known = self._raised()
            if (self._words[self._awaited] >= self._run).any():
                return True
            self._mine[IDLE] = known
            # each has looked in vain since the last word was raised: nobody will raise another
            idle = [self._status[p][ENDED] >= self._run or self._status[p][IDLE] == known for p in self._others]
            over = all(idle) and self._raised() == known
            return over

        self._until(something, stuck)
        return not over

    def close(self) -> None:
        self._over.set()
        self._mine[CLOSED] = self._mine[CLOSED] or 1
        self._segment.close()

    def _raised(self) -> int:
        return int(self._status[:, RAISED].sum())

    # ---- waiting for others

    def _until(self, done: Callable[[], bool], stuck: list[HostStream] | None = None) -> None:
        """Return when `done`. DeviceError: another process has ended or has failed, or nobody moves any more."""
        self._working.clear()
        begun = self._moved = time.monotonic()
        while not done():
            for place in self._others:
                if self._status[place][FAILED] == self._run:
                    raise LeftError(self._said(place))
            now = time.monotonic()
            if now - self._looked > _LOOK:
                self._looked = now
                if done():  # what one does last, it does before it ends
                    return
                self._look(now, stuck)
            time.sleep(min(max(_NAP, (now - begun) * _SHARE), _LONGEST))

    def _look(self, now: float, stuck: list[HostStream] | None) -> None:
        for place in self._others:
            ended = self._segment.ended(place)  # NOTE first: what a process does last, it does before it ends
            if self._status[place][FAILED] == self._run:
                raise LeftError(self._said(place))
            if self._status[place][CLOSED] and self._status[place][ENDED] < self._run:
                if self._status[place][CLOSED] == _LEFT:
                    raise LeftError(self._said(place))
                raise UsageError(
                    f"process {self.place} begins run {self._run} of {self._plan.schedule}, and process {place} has "
                    f"closed its executor after run {self._status[place][ENDED]}: all processes make the same runs"
                )
            if ended and self._status[place][ENDED] < self._run:
                raise DeviceError(f"process {place} has ended: it {self._last(place)}")
        moved = self._status.tobytes()
        if moved != self._seen:
            self._seen, self._moved = moved, now
        elif self._timeout is not None and now - self._moved > self._timeout:
            raise DeviceError(self._late(stuck))

    def _late(self, stuck: list[HostStream] | None) -> str:
        lines = [f"no process has moved for {self._timeout:g} s (timeout) in run {self._run} of {self._plan.schedule}"]
        lines += describe_waits(stuck) if stuck else []
        lines += [
            f"process {place} {self._last(place)}" for place in self._others if self._status[place][ENDED] < self._run
        ]
        return "\n".join(lines)

    def _last(self, place: int) -> str:
        """What a process has done last."""
        status = self._status[place]
        if status[ENTERED] < self._run:
            before = f"the last that it began was run {status[ENTERED]}" if status[ENTERED] else "it has begun none yet"
            return f"has not begun run {self._run}; {before}"
        if status[STREAM] < 0:
            return f"has begun run {self._run} and has done nothing of it"
        stream = next(s for s in self._plan.streams if s.id == status[STREAM])
        command = stream.commands[int(status[POSITION])]
        place_of = command.origin
        if isinstance(command, Launch):
            work = int(status[WORK])
            what, place_of = f"work {work} of stage '{command.stage_of(work)}'", command.works[work].origin
        elif isinstance(command, CollectiveCall):
            what = f"{command.kind}, collective {command.group}"
        else:
            what = "a copy"
        where = f"rank {stream.rank} stream {stream.name}"
        return f"was last at {what} ({at(place_of)}) on {where} in run {self._run}"


def _beat(mine: Array, working: threading.Event, over: threading.Event) -> None:
    """Show the others that a long job goes on: it does, as long as this process uses its processor."""
    while not over.wait(_BEATS):
        if working.is_set():
            mine[BEAT] = int(time.process_time() * 100)


def _up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED

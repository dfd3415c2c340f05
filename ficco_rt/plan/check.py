"""The check of a final plan, from the plan alone: well-formed, no deadlock, no race, every `after` kept.

First the streams are run in the abstract, which finds a deadlock or an order in which everything can
happen. Then the commands are taken in that order with vector clocks: an access is in order if it knows
the end of the last write of every element (and a write also the ends of the reads since). If each access
is in order, every run of the plan has the same outcome; if not, two conflicting accesses are named.
Last, plans with streamed launches are run once more, as on a device where such a launch keeps everything
out of its rank's multiprocessors that it may keep out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal, TypeAlias

from ficco_dsl.diagnostics import Diagnostic, Note, Span

from ..errors import PlanError
from ..geometry.region import describe
from ..graph import ir as graph_ir
from ..graph.budget import CHECKED_CLOCKS, Budget
from ..graph.kinds import kind_of
from .clock import Clock, start
from .ir import CollectiveCall, CopyAsync, Launch, Plan, Signal, Stream, Work
from .ledger import Ledger, Race, Toucher, Unwritten
from .rules import RULES

MOST_MISTAKES = 20


def check(plan: Plan) -> list[Happening]:
    """An order in which everything can happen: every run computes what it computes in this one. Raises PlanError with
    every mistake found (at most 20), naming the schedule's lines."""
    for rule in RULES:
        mistakes = tuple(rule(plan))
        if mistakes:
            raise PlanError(mistakes[:MOST_MISTAKES])
    order = walk(plan)
    races = _Races(plan)
    races.run(order)
    if races.mistakes.found:
        raise PlanError(tuple(list(races.mistakes.found.values())[:MOST_MISTAKES]))
    if races.holders:
        _Walk(plan, races.holders).run()
    return order


def walk(plan: Plan) -> list[Happening]:
    """An order in which everything in the plan can happen. Raises PlanError on a deadlock."""
    return _Walk(plan, {}).run()


# ---------------------------------------------------------------- liveness


Happening: TypeAlias = tuple[int, int, int]  # stream, command, and of a launch the work; -1 for other commands


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """What a stream waits for without a signal: the multiprocessors of a rank, or a collective's other callers."""

    what: Literal["processors", "collective"]
    number: int


@dataclass(frozen=True, slots=True)
class _Holder:
    """A streamed launch that may keep others out of its rank's multiprocessors. `start` is what it knows at its
    start: what is done by then cannot be kept out."""

    stream: int
    command: int
    start: Clock


def _by_stream(holders: Iterable[_Holder]) -> list[deque[_Holder]]:
    found: dict[int, deque[_Holder]] = {}
    for holder in sorted(holders, key=lambda holder: holder.command):
        found.setdefault(holder.stream, deque()).append(holder)
    return list(found.values())


class _Walk:
    """Runs the streams in the abstract, in any order. Works of a launch are taken one by one in their order, as
    on a device with room for one only: if this comes to an end, so does every device."""

    def __init__(self, plan: Plan, holders: dict[int, list[_Holder]]) -> None:
        self.plan = plan
        # by rank, and there by stream: those that are not over, in the stream's order
        self.holders: dict[int, list[deque[_Holder]]] = {rank: _by_stream(some) for rank, some in holders.items()}
        self.at = [0] * len(plan.streams)
        self.entries = [0] * len(plan.streams)
        self.works = [0] * len(plan.streams)  # works done of the launch at hand
        self.raised: set[Signal] = set()
        self.arrived: dict[int, set[int]] = {}
        self.sleepers: dict[Signal | _Obstacle, list[int]] = {}
        self.order: list[Happening] = []

    def run(self) -> list[Happening]:
        """An order in which everything can happen. Raises PlanError on a deadlock."""
        ready = deque(range(len(self.plan.streams)))
        while ready:
            s = ready.popleft()
            commands = self.plan.streams[s].commands
            while self.at[s] < len(commands):
                blocked = self._step(self.plan.streams[s], ready)
                if blocked is not None:
                    self.sleepers.setdefault(blocked, []).append(s)
                    break
        stuck = [s for s in self.plan.streams if self.at[s.id] < len(s.commands)]
        if stuck:
            raise PlanError(self._deadlock(stuck))
        return self.order

    def _step(self, stream: Stream, ready: deque[int]) -> Signal | _Obstacle | None:
        """Do the next command, or say what it waits for."""
        s = stream.id
        command = stream.commands[self.at[s]]
        match command:
            case Launch():
                blocked = self._launch(stream, command, ready)
                if blocked is not None:
                    return blocked
            case CollectiveCall():
                if self._kept_out(stream) is not None:
                    return _Obstacle("processors", stream.rank)
                here = self.arrived.setdefault(command.group, set())
                if s not in here:
                    here.add(s)
                    if len(here) == self.plan.ranks:
                        self._wake(_Obstacle("collective", command.group), ready)
                if len(here) < self.plan.ranks:
                    return _Obstacle("collective", command.group)
            case _:
                for signal in command.waits:
                    if signal not in self.raised:
                        return signal
                for signal in command.signals:
                    self._raise(signal, ready)
        if not isinstance(command, Launch):  # a launch's works have been noted one by one
            self.order.append((s, self.at[s], -1))
        self.at[s] += 1
        self.entries[s] += isinstance(command, CopyAsync | Launch | CollectiveCall)
        return None

    def _kept_out(self, stream: Stream) -> _Holder | None:
        """The streamed launch, not over yet, that may keep the stream's next command from starting."""
        for holders in self.holders.get(stream.rank, ()):
            while holders and self.at[holders[0].stream] > holders[0].command:
                holders.popleft()
            # those behind the first know all that it knows at their start
            first = holders[0] if holders and holders[0].stream != stream.id else None
            if first is not None and first.start.done[stream.id] <= self.entries[stream.id]:
                return first
        return None

    def _launch(self, stream: Stream, launch: Launch, ready: deque[int]) -> Signal | _Obstacle | None:
        s, rank = stream.id, stream.rank
        if self.works[s] == 0 and self._kept_out(stream) is not None:
            return _Obstacle("processors", rank)
        while self.works[s] < len(launch.works):
            work = launch.works[self.works[s]]
            for f in work.waits:
                flag = Signal("flag", f)
                if flag not in self.raised:
                    return flag
            for f in work.signals:
                self._raise(Signal("flag", f), ready)
            self.order.append((s, self.at[s], self.works[s]))
            self.works[s] += 1
        self.works[s] = 0
        if launch.streamed:
            self._wake(_Obstacle("processors", rank), ready)
        return None

    def _raise(self, signal: Signal, ready: deque[int]) -> None:
        self.raised.add(signal)
        self._wake(signal, ready)

    def _wake(self, what: Signal | _Obstacle, ready: deque[int]) -> None:
        ready.extend(self.sleepers.pop(what, ()))

    # -- naming a deadlock

    def _deadlock(self, stuck: list[Stream]) -> tuple[Diagnostic, ...]:
        givers: dict[Signal | _Obstacle, tuple[Stream, int]] = {
            signal: (stream, i)
            for stream in self.plan.streams
            for i, command in enumerate(stream.commands)
            for signal in command.signals
        }
        waits = {s: what for what, sleepers in self.sleepers.items() for s in sleepers}
        out = []
        for stream in stuck:
            what = waits[stream.id]
            name = str(what)
            notes = []
            if what in givers:
                giver, i = givers[what]
                text = f"rank {giver.rank} stream {giver.name} gives it here"
                if giver.id == stream.id:
                    text += ", later on the same stream"
                notes.append(Note(text, _origin(giver, i)))
            elif what == _Obstacle("processors", stream.rank):
                name = f"the multiprocessors of rank {stream.rank}"
                holder = self._kept_out(stream)
                assert holder is not None
                other = self.plan.streams[holder.stream]
                notes.append(
                    Note(
                        f"the streamed launch on {other.name} may hold them, itself waiting; order the two with "
                        "'after', or leave room with 'sms'",
                        _origin(other, holder.command),
                    )
                )
            elif isinstance(what, _Obstacle):
                name = f"collective {what.number}"
                absent = set(range(self.plan.ranks)) - {self.plan.streams[s].rank for s in self.arrived[what.number]}
                notes.append(Note(f"ranks {sorted(absent)} have not come to it"))
            out.append(
                Diagnostic(
                    self._origin_of_wait(stream),
                    f"deadlock: rank {stream.rank} stream {stream.name} waits for {name}",
                    tuple(notes),
                )
            )
        return tuple(out[:MOST_MISTAKES])

    def _origin_of_wait(self, stream: Stream) -> Span:
        command = stream.commands[self.at[stream.id]]
        if isinstance(command, Launch):
            return command.works[self.works[stream.id]].origin
        return command.origin


def _origin(stream: Stream, i: int) -> Span:
    return stream.commands[i].origin


# ---------------------------------------------------------------- races


class _Mistakes:
    """What is found, once for each pair of places. The ledger tells it here and not to `_Races`, which holds the
    ledger: a circle of two large objects lives until Python searches all of its memory for circles."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.found: dict[tuple[Span, Span], Diagnostic] = {}

    def race(self, race: Race | Unwritten) -> None:
        assert isinstance(race, Race)
        key = (race.earlier.origin, race.later.origin)
        if key not in self.found:
            where = f"{race.region.tensor}@{race.region.rank} {describe(race.box)}"
            later, earlier = self._who(race.later), self._who(race.earlier)
            self.found[key] = Diagnostic(
                race.later.origin,
                f"race on {where}: {later} {race.does} them, {earlier} {race.did} them, and nothing orders the two",
                (Note(f"the other access: {earlier} {race.did} here", race.earlier.origin),),
            )

    def not_after(self, me: Toucher, earlier: Toucher | None, origin: Span) -> None:
        """An `after`, written at `origin`, that nothing in the plan keeps."""
        place = "" if earlier is None else f" at {earlier.origin.line}"
        text = f"'after' is not kept: {self._who(me)} does not wait for the stage{place}"
        self.found.setdefault((origin, origin), Diagnostic(origin, text))

    def _who(self, access: Toucher) -> str:
        stream = self.plan.streams[access.stream]
        return f"{access.what} on rank {stream.rank} stream {stream.name}"


class _Races:
    """Vector clocks over the plan's commands, in a runnable order."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.mistakes = _Mistakes(plan)
        clock = start(len(plan.streams))
        self.clocks: list[Clock] = [clock] * len(plan.streams)
        self.length = [0] * len(plan.streams)  # entries (commands that touch memory) so far
        self.told: dict[Signal, Clock] = {}  # what those that wait for a signal then know
        self.bits = 0
        self.holders: dict[int, list[_Holder]] = {}
        self.bases: dict[int, Clock] = {}  # what the launch at hand on a stream knew at its start
        self.called: set[int] = set()
        self.groups: dict[int, list[tuple[Stream, CollectiveCall]]] = {}  # a collective's calls, with their streams
        for stream, command in plan.commands():
            if isinstance(command, CollectiveCall):
                self.groups.setdefault(command.group, []).append((stream, command))
        shapes = {t.name: t.shapes for t in plan.tensors}
        written = (region for part in plan.parts() for region in part.writes)
        self.ledger = Ledger(shapes, written, self.mistakes.race)
        self.memory = Budget(CHECKED_CLOCKS, PlanError)
        self.ends = {o.before for o in plan.orders}
        self.finished: dict[int, Toucher] = {}
        self.follows: dict[int, list[tuple[int, Span]]] = {}
        for o in plan.orders:
            self.follows.setdefault(o.after, []).append((o.before, o.origin))

    def run(self, order: list[Happening]) -> None:
        for s, i, work in order:
            command = self.plan.streams[s].commands[i]
            match command:
                case CopyAsync():
                    self.length[s] += 1
                    for t in command.transfers:
                        me = Toucher(s, self.length[s], -1, t.origin, "copy")
                        self._order(t.op, self.clocks[s], me)
                        self.ledger.read(t.src, self.clocks[s], me)
                        self.ledger.write(t.dst, self.clocks[s], me)
                case Launch():
                    if work == 0:
                        self._begin(s, i, command)
                    self._work(s, command, command.works[work])
                case CollectiveCall():
                    self._collective(s, command)
                case _:
                    for signal in command.waits:
                        self.clocks[s] = self.clocks[s].join(self.told[signal])
                    for signal in command.signals:
                        self.told[signal] = self.clocks[s].at(s, self.length[s])
                        self._remember(command.origin)

    def _remember(self, origin: Span) -> None:
        """Pay for the clocks that are kept."""
        kept = len(self.clocks) + len(self.told)
        self.memory.foresee(kept * (len(self.clocks) + self.bits // 32), origin)

    def _begin(self, s: int, i: int, launch: Launch) -> None:
        if launch.streamed and launch.attributes.sms is None:
            holders = self.holders.setdefault(self.plan.streams[s].rank, [])
            holders.append(_Holder(s, i, self.clocks[s]))
        self.length[s] += 1
        self.bases[s] = self.clocks[s]

    def _work(self, s: int, launch: Launch, work: Work) -> None:
        """One work: it knows what the launch knew at its start and what its own flags tell, nothing of the works
        before it. The stream knows the end of all."""
        clock = self.bases[s]
        for f in work.waits:
            clock = clock.join(self.told[Signal("flag", f)])
        bit = -1
        if launch.streamed:
            bit, self.bits = self.bits, self.bits + 1
        me = Toucher(s, self.length[s], bit, work.origin, _name(launch, work))
        self._order(work.op, clock, me)
        for region in work.reads:
            self.ledger.read(region, clock, me)
        for region in work.writes:
            self.ledger.write(region, clock, me)
        if work.signals:
            done = clock.at(s, self.length[s] - 1).with_work(bit)
            for f in work.signals:
                self.told[Signal("flag", f)] = done
            self._remember(work.origin)
        self.clocks[s] = self.clocks[s].join(clock)

    def _collective(self, s: int, call: CollectiveCall) -> None:
        # The walk lets every call of a group begin before any is done, so the first one done sees all beginnings.
        group = self.groups[call.group]
        if call.group not in self.called:
            begun = {stream.rank: self.clocks[stream.id].at(stream.id, self.length[stream.id]) for stream, _ in group}
            together = reduce(Clock.join, begun.values())
            for stream, other in group:
                self.clocks[stream.id] = together
                if call.kind == "send_recv":
                    told = graph_ir.heard(other, stream.rank, self.plan.ranks)
                    self.clocks[stream.id] = reduce(Clock.join, [begun[rank] for rank in told])
                self.length[stream.id] += 1
            self.called.add(call.group)
        me = Toucher(s, self.length[s], -1, call.origin, call.kind)
        self._order(call.op, self.clocks[s], me)
        for region in call.reads:
            self.ledger.read(region, self.clocks[s], me)
        for region in call.writes:
            self.ledger.write(region, self.clocks[s], me)

    def _order(self, op: int, clock: Clock, me: Toucher) -> None:
        if op in self.ends:
            self.finished[op] = me
        for before, origin in self.follows.get(op, ()):
            other = self.finished.get(before)
            if other is None or not other.known(clock, me):
                self.mistakes.not_after(me, other, origin)


def _name(launch: Launch, work: Work) -> str:
    if isinstance(work.body, graph_ir.KernelCall):
        return f"kernel {launch.kernel}"
    return kind_of(work.body).word

"""Checks a final plan from the plan alone: it is well-formed, has no deadlock and no race, and keeps every `after`.

First the check executes the streams in the abstract, which finds either a deadlock or an order in which everything can
happen. Then it follows the commands in that order with vector clocks: an access is ordered if it knows the end of the
last write of every element (and a write also the ends of the reads since). If all accesses are ordered, every run of
the plan has the same result; if not, the check names two conflicting accesses. Last, plans with streamed launches are
executed once more, as on a device where such a launch keeps all other work off its rank's multiprocessors that it can
keep off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ficco_dsl.diagnostics import Diagnostic, Note, Span

from ..errors import PlanError
from ..geometry.region import describe
from ..graph import ir as graph_ir
from ..graph.kinds import kind_of
from .clock import Clock
from .ir import CollectiveCall, Command, CopyAsync, Launch, Plan, Signal, Stream, Transfer, Work
from .ledger import Ledger, Race, Toucher, Unwritten
from .plan_rules import RULES
from .walk import MOST_MISTAKES, PASSES, TOUCHES, Call, Clocks, Holder, Node, Obstacle, Part, Walk

Happening: TypeAlias = tuple[int, int, int]  # stream, command, and of a launch the work; -1 for other commands


def check(plan: Plan) -> list[Happening]:
    """An order in which everything can happen: every run computes what it computes in this one. Raises PlanError with
    every mistake found (at most 20), naming the schedule's lines."""
    for rule in RULES:
        mistakes = tuple(rule(plan))
        if mistakes:
            raise PlanError(mistakes[:MOST_MISTAKES])
    queues = _queues(plan)
    order = _Walk(plan, queues).run()
    races = _Races(plan)
    races.run(order)
    if races.mistakes.found:
        raise PlanError(tuple(list(races.mistakes.found.values())[:MOST_MISTAKES]))
    if races.holders:
        _Walk(plan, queues, sorted(races.holders, key=lambda holder: holder.node.position)).run()
    return _happenings(order)


def walk(plan: Plan) -> list[Happening]:
    """An order in which everything in the plan can happen. Raises PlanError on a deadlock."""
    return _happenings(_Walk(plan, _queues(plan)).run())


@dataclass(slots=True, eq=False, kw_only=True)
class _Node(Node):
    command: Command


def _happenings(order: Iterable[tuple[_Node, int]]) -> list[Happening]:
    """NOTE a call of a collective happens when it ends."""
    return [
        (node.queue, node.position - 1, number if isinstance(node.command, Launch) else -1)
        for node, number in order
        if number or node.call is None
    ]


# ---------------------------------------------------------------- the streams


def _queues(plan: Plan) -> list[list[_Node]]:
    """The streams, for the walker."""
    return [
        [_node(plan, stream, position, command) for position, command in enumerate(stream.commands, 1)]
        for stream in plan.streams
    ]


def _node(plan: Plan, stream: Stream, position: int, command: Command) -> _Node:
    """Works of a launch are parts of it; a call of a collective has a begin and an end."""
    node = _Node(stream.id, position, command.origin, TOUCHES, command=command)
    match command:
        case CopyAsync():
            pass
        case Launch(streamed=streamed):
            node.parts = [
                Part(_flags(work.waits), _flags(work.signals), apart=streamed, single=streamed)
                for work in command.works
            ]
            node.needs, node.holds = 1, int(streamed and command.attributes.sms is None)
        case CollectiveCall():
            told = graph_ir.heard(command, stream.rank, plan.ranks)
            node.parts, node.needs = PASSES + TOUCHES, 1
            node.call = Call(command.group, stream.rank, plan.ranks, told)
        case _:
            node.parts = (Part(command.waits, command.signals, touches=False),)
    return node


def _flags(flags: Sequence[int]) -> tuple[Signal, ...]:
    return tuple(Signal("flag", f) for f in flags)


class _Walk(Walk[_Node]):
    """Of multiprocessors a rank has one: whoever needs or holds some takes all."""

    def __init__(self, plan: Plan, queues: list[list[_Node]], holders: Iterable[Holder[_Node]] = ()) -> None:
        super().__init__(queues, [stream.rank for stream in plan.streams], holders=holders)
        self.plan = plan

    def deadlocks(self, stuck: list[_Node]) -> Iterator[Diagnostic]:
        givers: dict[object, tuple[Stream, Span]] = {
            signal: (stream, command.origin) for stream, command in self.plan.commands() for signal in command.signals
        }
        for node in stuck:
            stream, what = self.plan.streams[node.queue], self.blocked[node.queue]
            command, name = node.command, str(what)
            notes = []
            if what in givers:
                giver, origin = givers[what]
                text = f"rank {giver.rank} stream {giver.name} gives it here"
                if giver.id == stream.id:
                    text += ", later on the same stream"
                notes.append(Note(text, origin))
            elif what == Obstacle("processors", stream.rank):
                name = f"the multiprocessors of rank {stream.rank}"
                holder = self.keepers(node)[0].node
                text = (
                    f"the streamed launch on {self.plan.streams[holder.queue].name} may hold them, itself waiting; "
                    "order the two with 'after', or leave room with 'sms'"
                )
                notes.append(Note(text, holder.place))
            elif node.call is not None:
                name = f"collective {node.call.group}"
                absent = set(range(self.plan.ranks)) - self.begun[node.call.group]
                notes.append(Note(f"ranks {sorted(absent)} have not come to it"))
            yield Diagnostic(
                command.works[self.done[node.queue]].origin if isinstance(command, Launch) else node.place,
                f"deadlock: rank {stream.rank} stream {stream.name} waits for {name}",
                tuple(notes),
            )


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


class _Races(Clocks[_Node]):
    """Accesses of the plan's commands, and what an `after` asks for."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(len(plan.streams))
        self.plan = plan
        self.mistakes = _Mistakes(plan)
        shapes = {t.name: t.shapes for t in plan.tensors}
        written = (region for part in plan.parts() for region in part.writes)
        self.ledger = Ledger(shapes, written, self.mistakes.race)
        self.ends = {o.before for o in plan.orders}
        self.finished: dict[int, Toucher] = {}
        self.follows: dict[int, list[tuple[int, Span]]] = {}
        for o in plan.orders:
            self.follows.setdefault(o.after, []).append((o.before, o.origin))

    def toucher(self, node: _Node, number: int, bit: int) -> Toucher:
        command, origin, what = node.command, node.place, "copy"
        if isinstance(command, Launch):
            work = command.works[number]
            call = isinstance(work.body, graph_ir.KernelCall)
            origin, what = work.origin, f"kernel {command.kernel}" if call else kind_of(work.body).word
        elif isinstance(command, CollectiveCall):
            what = command.kind
        return Toucher(node.queue, node.position, bit, origin, what)

    def touch(self, node: _Node, number: int, clock: Clock, me: Toucher, before: Clock) -> None:
        command = node.command
        if isinstance(command, Launch):
            self._access(command.works[number], clock, me)
            return
        for i, part in enumerate(command.parts):
            mine = Toucher(node.queue, node.position, -1, part.origin, me.what) if i else me
            self._access(part, clock, mine)

    def _access(self, part: Transfer | Work | CollectiveCall, clock: Clock, me: Toucher) -> None:
        if part.op in self.ends:
            self.finished[part.op] = me
        for before, origin in self.follows.get(part.op, ()):
            other = self.finished.get(before)
            if other is None or not other.known(clock, me):
                self.mistakes.not_after(me, other, origin)
        for region in part.reads:
            self.ledger.read(region, clock, me)
        for region in part.writes:
            self.ledger.write(region, clock, me)

"""Hosts that give runs to the devices: sequences of runs drawn by a seed, and what callers may do around them.

All processes make the same runs in the same order, of one plan or of several that share a workspace. A run is the
executor's own, or stands among callers' streams, of two sets of these; or some runs are a replay of callers' graphs.
Between them a host may wait, as the driver does, for what completes its devices' runs, and then touches all tensors of
its ranks at once. Callers write inputs, spoil outputs and read them on their streams, and order what they do on several
streams themselves.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np

from ficco_rt.device.ir import (
    GRAPHS,
    Action,
    AwaitEvent,
    CallCollective,
    DevicePlan,
    EventKind,
    EventName,
    LaunchGraph,
    Manner,
    Mode,
    RecordEvent,
    StreamName,
)
from ficco_rt.device.sharing import all_sets, buffer_set
from tests.interpreter.machine import (
    Cell,
    Machine,
    Moment,
    Process,
    Queue,
    Run,
    SharedStream,
    Thread,
)
from tests.interpreter.mutants import Mutant
from tests.interpreter.programs import Harm, Numbers, Place, Program, WrongNumbers

VERSIONS = 3  # of the inputs, which follow one another


# Kinds of events that all plans of a workspace share by name (`driver/gpu/resources.py`).
OF_DEVICES: tuple[EventKind, ...] = (
    "start", "begin", "end", "completion", "captured", "open", "embedded", "begun", "replayed", "caller",
)  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """A run of plan `of`. `fresh`: its inputs are new. `reads`: callers read its outputs behind it."""

    of: int
    version: int
    fresh: bool
    reads: bool


@dataclass(frozen=True)
class Step:
    """A run, or a replay of a graph of runs. `callers`: which set of callers' streams; 0: none. `synced`: all processes
    wait for what was before. `loose`: callers, who touch nothing between the two runs, do not order their streams
    behind those of the run before."""

    kind: Literal["own", "called", "replay"]
    mode: Mode
    callers: int
    timed: bool
    synced: bool
    turns: tuple[Turn, ...]
    loose: bool = False


@dataclass(frozen=True)
class Member:
    """A plan of a workspace: its device plan of each mode, which one its runs mostly are of, and what it computes.
    `made`: the mutant among them."""

    programs: dict[Mode, Program]
    inputs: Inputs
    mode: Mode
    made: Mutant | None = None

    @property
    def plan(self) -> DevicePlan:
        """That of the mode."""
        return self.programs[self.mode].plan

    @cached_property
    def streams(self) -> dict[StreamName, object]:
        """The streams of its device plans, which are those of other plans, too: the first ones of each priority."""
        found: dict[StreamName, object] = {}
        taken: Counter[object] = Counter()
        for stream in (s for program in self.programs.values() for s in program.plan.streams):
            alike = stream.device, stream.priority
            if stream.name not in found and stream.name.kind == "control":
                found[stream.name] = stream.name
            elif stream.name not in found:
                found[stream.name] = SharedStream(*alike, taken[alike])
                taken[alike] += 1
        return found

    @cached_property
    def device_of_event(self) -> dict[EventName, int]:
        plans = (program.plan for program in self.programs.values())
        return {a.event: p.device_of.get(a.stream, 0) for p in plans for a in p.actions if isinstance(a, RecordEvent)}


class Events:
    """The events of a plan in a process, as the workspace has them."""

    def __init__(self, member: Member) -> None:
        self.device_of = member.device_of_event
        self.found: dict[EventName, object] = {}
        self.taken: Counter[object] = Counter()

    def __call__(self, event: EventName) -> object:
        if event.kind in OF_DEVICES or event not in self.device_of:
            return event
        if event not in self.found:
            alike = self.device_of[event], event.timing
            self.found[event] = (*alike, self.taken[alike])
            self.taken[alike] += 1
        return self.found[event]


class Protocol:
    """What the hosts know of the protocol between runs (`device.sharing`): runs of a plan of several sets use them in
    turn, by the order of all runs; those of graphs others, by places in a graph. The first may follow any replay."""

    @staticmethod
    def of_run(plan: DevicePlan, issued: int) -> int:
        return buffer_set(plan.sets, issued, embedded=False)

    @staticmethod
    def of_replay(plan: DevicePlan, place: int) -> int:
        return buffer_set(plan.sets, place, embedded=True)

    @staticmethod
    def replayed(place: int) -> Manner:
        return Manner(True, behind=True, timed=False, others=True, replays=place == 0)

    @staticmethod
    def slots(plan: DevicePlan, tensor: str) -> list[object]:
        """The kinds of slots in which scratch lies, one of each set: plans share those of a kind."""
        if tensor in plan.private:
            return ["private"] * all_sets(plan.sets, plan.features)
        return [*range(all_sets(plan.sets, plan.features))] if plan.sets > 1 else ["large"]


def script(rng: random.Random, members: Sequence[Member]) -> list[Step]:
    """Most runs are of a member's mode, and of the mutant; sometimes some are of others. Many are of the kind that the
    mutant concerns."""
    return _Script(rng, members).steps()


class _Script:
    def __init__(self, rng: random.Random, members: Sequence[Member]) -> None:
        self.rng, self.members = rng, members
        self.mutant = next((i for i, member in enumerate(members) if member.made is not None), -1)
        self.versions: dict[int, int] = {}
        self.apart: set[int] = (
            set()
        )  # whose tensors callers may not touch next: nothing orders them behind the last run

    def steps(self) -> list[Step]:
        rng, members = self.rng, self.members
        made = members[self.mutant].made if self.mutant >= 0 else None
        section = made.section if made is not None else ""
        beside = made is not None and made.replays
        mode = members[max(self.mutant, 0)].mode
        count = rng.choice((2, 3, 3, 4, 4) if beside else (2, 3, 3, 4)) + rng.choice((0, 1, 2)) * (len(members) > 1)
        often = (
            (0.0, 0.5) if section.startswith("own") else (0.7, 1.0) if section.startswith("called") else (0.0, 0.5, 1.0)
        )
        called, mixed = rng.choice(often), rng.random() < 0.5
        embeds = all("embedded" in member.programs for member in members)
        replays = embeds and (mode == "embedded" or rng.random() < (0.9 if beside else 0.25))
        syncs = rng.choice((0.1, 0.5, 0.9))
        found: list[Step] = []
        for _ in range(count):
            of = self._member()
            taken = self._mode(of, mixed=mixed)
            callers = rng.choice((1, 1, 1, 2)) if rng.random() < called else 0
            kind: Literal["own", "called", "replay"] = "called" if callers else "own"
            if taken == "embedded" or (replays and rng.random() < 0.4):
                kind, taken, callers = "replay", "embedded", rng.choice((1, 1, 2))
            synced = not found or rng.random() < syncs or (kind == "replay" and found[-1].kind == "own")
            loose = kind == "called" and not synced and rng.random() < 0.4
            more = rng.choice((0, 0, 1, 2)) if kind == "replay" else 0
            turns = [self._turn(one, kind, synced, loose) for one in (of, *(self._member() for _ in range(more)))]
            found.append(Step(kind, taken, callers, rng.random() < 0.3, synced, tuple(turns), loose))
        for i, step in enumerate(found):
            turns = [replace(t, reads=t.reads and self._may_read(t, found[i + 1 :])) for t in step.turns]
            found[i] = replace(step, turns=tuple(turns))
        return found

    def _member(self) -> int:
        many = len(self.members) > 1
        if many and self.mutant >= 0 and self.rng.random() < 0.5:
            return self.mutant
        return self.rng.randrange(len(self.members)) if many else 0

    def _mode(self, of: int, *, mixed: bool) -> Mode:
        member, rng = self.members[of], self.rng
        others: list[Mode] = [m for m in member.programs if m not in (member.mode, "embedded")]
        return rng.choice(others) if mixed and others and rng.random() < 0.4 else member.mode

    def _turn(self, of: int, kind: str, synced: bool, loose: bool) -> Turn:
        """NOTE a member's first run finds tensors that nobody has touched."""
        if synced:
            self.apart.clear()
        fresh = of not in self.versions or (not loose and (synced or (kind != "own" and of not in self.apart)))
        if fresh:
            self.versions[of] = (self.versions.get(of, 0) + 1) % VERSIONS
        if loose:
            self.apart |= set(range(len(self.members)))
        self.apart.discard(of)
        if kind == "own":
            self.apart.add(of)
        return Turn(of, self.versions[of], fresh, self.rng.random() < 0.8)

    @staticmethod
    def _may_read(turn: Turn, later: Sequence[Step]) -> bool:
        """Whether something orders the callers' reads behind a turn before what writes its outputs again."""
        for step in later:
            if step.loose or (step.kind == "own" and not step.synced and step.turns[0].of == turn.of):
                return False
            if step.synced:
                return True
        return True


@dataclass
class _Host(Process):
    """A process and what it knows of its runs. `of`: by member, the same process with that member's events."""

    running: bool = False
    replays: bool = False
    issued: int = 0
    before: tuple[int, Mode, int] | None = None
    tails: dict[int, tuple[object, Moment]] = field(default_factory=dict)  # by rank: the stream and its end so far
    reads: bool = False
    of: list[Process] = field(default_factory=list)


class Inputs:
    """The numbers that callers give, and what must come out."""

    def __init__(self, plan: DevicePlan) -> None:
        self.plan = plan
        self.given: dict[int, dict[Place, Numbers]] = {}
        self.wanted: dict[int, dict[Place, Numbers]] = {}
        self.bound: dict[int, dict[str, list[Place]]] = {}
        for rank in range(len(plan.placement.devices)):
            self.bound[rank] = {
                kind: [(t.name, rank) for t in plan.tensors if t.kind == kind] for kind in ("input", "output")
            }

    def of(self, version: int) -> dict[Place, Numbers]:
        if version not in self.given:
            rng = np.random.default_rng(version)
            self.given[version] = {
                (t.name, rank): rng.integers(0, 2**64, shape, np.uint64)
                for t in self.plan.tensors
                if t.kind == "input"
                for rank, shape in enumerate(t.shapes)
            }
        return self.given[version]


class Trial:
    """Several runs of the plans of a workspace in one random order."""

    def __init__(self, members: Sequence[Member], seed: object, steps: Sequence[Step] | None = None) -> None:
        self.rng = rng = random.Random(str(seed))
        self.members = members
        self.placement = members[0].programs["streams"].plan.placement
        self.steps = steps if steps is not None else script(rng, members)
        special = {
            name
            for member in members
            for stream in (member.made.streams if member.made is not None else ())
            for name in (stream, member.streams.get(stream))
        }
        self.machine = Machine(rng, len(self.placement.devices), frozenset(special))
        self.calls: dict[Any, Any] = {}
        self.memory = self._memory()
        places = [{place for program in member.programs.values() for place in program.places} for member in members]
        self.semaphores = [
            [{place: Cell() for place in of} for _ in range(all_sets(member.plan.sets, member.plan.features))]
            for member, of in zip(members, places, strict=True)
        ]
        self.hosts = [self._process(p) for p in dict.fromkeys(self.placement.processes or (0,))]

    def _process(self, number: int) -> _Host:
        host = _Host(number, tuple(d for d in self.placement.ordinals if self.placement.process(d) == number))
        host.of = [Process(number, host.devices, host.records, Events(member)) for member in self.members]
        return host

    def _memory(self) -> list[list[dict[Place, Numbers]]]:
        """By member and set. Any scratch of a plan may be the same memory as any of another that lies in such slots."""
        rng, fill = self.rng, np.random.default_rng(self.rng.getrandbits(32))
        scratch = [[t for t in member.inputs.plan.tensors if t.kind == "scratch"] for member in self.members]
        number = max(map(len, scratch))
        size = max((prod(shape) for of in scratch for t in of for shape in t.shapes), default=0)
        slots: dict[tuple[object, int], Numbers] = {}
        found: list[list[dict[Place, Numbers]]] = []
        for member, mine in zip(self.members, scratch, strict=True):
            own = {
                (t.name, rank): fill.integers(0, 2**64, shape, np.uint64)
                for t in member.inputs.plan.tensors
                if t.kind != "scratch"
                for rank, shape in enumerate(t.shapes)
            }
            found.append([dict(own) for _ in range(all_sets(member.plan.sets, member.plan.features))])
            for rank in range(len(self.placement.devices)):
                for tensor, slot in zip(mine, rng.sample(range(number), len(mine)), strict=True):
                    shape = tensor.shapes[rank]
                    for kind, memory in zip(Protocol.slots(member.plan, tensor.name), found[-1], strict=True):
                        if (kind, rank) not in slots:
                            slots[kind, rank] = fill.integers(0, 2**64, (number, size), np.uint64)
                        memory[tensor.name, rank] = slots[kind, rank][slot, : prod(shape)].reshape(shape)
        return found

    def go(self) -> None:
        """Raises Harm."""
        for host in self.hosts:
            self.machine.hosts += 1
            self.machine.start(self._host(host), ("host", host.number))
        self.machine.go()
        for member, sets in zip(self.members, self.semaphores, strict=True):
            counting = {place for program in member.programs.values() for place in program.counting}
            for place, cell in (item for semaphores in sets for item in semaphores.items()):
                if cell.value and place not in counting:
                    raise Harm(f"the semaphore at {place} stays up")

    # ---- what a host does

    def _host(self, host: _Host) -> Thread:
        rng = self.rng
        versions: dict[int, int] = {}  # by member: of its last run
        for number, step in enumerate(self.steps):
            yield None
            if number and (step.synced or rng.random() < 0.15):
                yield from self._sync(host)
                yield from self._looks(host, versions)
            if step.kind == "own" and step.turns[0].fresh:
                yield from self._callers_end(host)
                for rank in self._ranks(host):
                    yield from self._put(rank, step.turns[0])
            yield None
            if step.kind == "replay":
                yield from self._replay(host, number, step)
            else:
                self._run(host, number, step)
            host.reads = host.reads or (step.kind != "own" and any(turn.reads for turn in step.turns))
            versions |= {turn.of: turn.version for turn in step.turns}
        yield from self._sync(host)
        yield from self._looks(host, versions)
        self.machine.hosts -= 1

    def _ranks(self, host: _Host) -> list[int]:
        return [rank for rank, device in enumerate(self.placement.devices) if device in host.devices]

    def _sync(self, host: _Host) -> Thread:
        """As the driver waits for a run."""
        for device in host.devices:
            kinds = ("completion", "replayed") if host.replays else ("completion",)
            for kind in kinds:
                moment = host.records.get(EventName(kind, device))  # type: ignore[arg-type]
                while moment is not None and not moment.come:
                    yield moment
        host.running = False

    def _looks(self, host: _Host, versions: dict[int, int]) -> Thread:
        for of, version in list(versions.items()):
            for rank in self._ranks(host):
                yield from self._get(rank, Turn(of, version, fresh=False, reads=True), "the host")

    def _callers_end(self, host: _Host) -> Thread:
        """Callers wait for what they have put on their own streams."""
        if host.reads:
            for _, moment in host.tails.values():
                while not moment.come:
                    yield moment
        host.reads = False

    def _put(self, rank: int, turn: Turn) -> Thread:
        """The rank's inputs are written and its outputs spoiled."""
        inputs, memory = self.members[turn.of].inputs, self.memory[turn.of][0]
        given, bound = inputs.of(turn.version), inputs.bound[rank]
        garbage = self.machine.garbage()
        for place in (*bound["input"], *bound["output"]):
            memory[place][...] = garbage
        yield None
        for place in bound["input"]:
            if not (memory[place] == garbage).all():
                raise Harm(f"something writes {place[0]}@{rank} while its caller does")
            memory[place][...] = given[place]
        for place in bound["output"]:
            if not (memory[place] == garbage).all():
                raise Harm(f"something writes {place[0]}@{rank} outside of a run")

    def _get(self, rank: int, turn: Turn, who: str) -> Thread:
        inputs, memory = self.members[turn.of].inputs, self.memory[turn.of][0]
        wanted = inputs.wanted.get(turn.version, {})
        for place in inputs.bound[rank]["output"] if wanted else ():
            if not np.array_equal(memory[place], wanted[place]):
                raise WrongNumbers(f"{who} of rank {rank} reads wrong numbers in {place[0]}", turn.of)
        yield None

    # ---- runs

    def _new(self, step: Step, number: int, place: int, which: int) -> Run:
        """The run of a step's turn at this place, in a set."""
        of = step.turns[place].of
        program = self.members[of].programs[step.mode]
        return Run(program, 8 * number + place, self.memory[of][which], self.semaphores[of][which], self.calls)

    def _caller(self, rank: int, callers: int) -> tuple[object, Queue]:
        name = ("caller", rank, callers)
        return name, self.machine.stream(name)

    def _behind_tail(self, host: _Host, rank: int, callers: int) -> Queue:
        """A caller's stream, behind what the caller has put on another."""
        name, queue = self._caller(rank, callers)
        if rank in host.tails and host.tails[rank][0] != name:
            self.machine.push(queue, "await", host.tails[rank][1])
        return queue

    def _run(self, host: _Host, number: int, step: Step) -> None:
        machine, callers, (turn,) = self.machine, step.callers, step.turns
        run = self._new(step, number, 0, Protocol.of_run(self.members[turn.of].plan, host.issued))
        streams = self.members[turn.of].streams
        made = turn.of, step.mode, callers
        timed = step.mode == "traced" or step.timed or not callers
        others = host.before != made and not (callers and host.before and self._at_its_end(host.before, made))
        manner = Manner(bool(callers), host.running or host.replays, timed, others, host.replays)
        for rank in self._ranks(host) if callers else ():
            queue = self._caller(rank, callers)[1] if step.loose else self._behind_tail(host, rank, callers)
            if turn.fresh:
                machine.push(queue, self._put, rank, turn)
        for name, action in part_of(run.program, host, manner):
            queue = self._caller(name.number, callers)[1] if name.kind == "caller" else machine.stream(streams[name])
            machine.issue(queue, host.of[turn.of], run, action)
        for rank in self._ranks(host) if callers else ():
            tail, queue = self._caller(rank, callers)
            if turn.reads:
                machine.push(queue, self._get, rank, turn, "the caller")
            moment = Moment()
            machine.push(queue, "record", moment)
            host.tails[rank] = tail, moment
        host.issued += 1
        host.running, host.before = True, made

    def _at_its_end(self, before: tuple[int, Mode, int], made: tuple[int, Mode, int]) -> bool:
        """Whether the callers' streams on which a run would wait for the one before are those on which that ends."""
        (of, mode, its), (mine, own, callers) = before, made
        begin = self.members[mine].programs[own].plan.called.prologue
        end = self.members[of].programs[mode].plan.called.epilogue
        waits = [a for a in begin if isinstance(a, AwaitEvent) and a.when == "behind others"]
        ends = [(a.stream, a.event) for a in end if isinstance(a, RecordEvent)]
        return its == callers and all(a.stream.kind == "caller" and (a.stream, a.event) in ends for a in waits)

    def _replay(self, host: _Host, number: int, step: Step) -> Thread:
        if not host.replays:  # captured now
            yield from self._sync(host)
            host.replays = True
        runs = [
            self._new(step, number, i, Protocol.of_replay(self.members[turn.of].plan, i))
            for i, turn in enumerate(step.turns)
        ]
        for device in self.rng.sample(host.devices, len(host.devices)):
            first, *rest = self.placement.ranks(device)
            name, queue = self._caller(first, step.callers)
            for rank in (first, *rest):
                if rank in host.tails and host.tails[rank][0] != name:
                    self.machine.push(queue, "await", host.tails[rank][1])
            outside: list[dict[int, dict[object, Moment]]] = []
            for run in runs:
                outside.append({})
                for action in (*run.program.plan.called.prologue, *run.program.plan.called.epilogue):
                    if isinstance(action, LaunchGraph) and run.program.device(action.stream) == device:
                        outside[-1][action.device] = {EventName("replayed", action.device): Moment()}
                        host.records.update(outside[-1][action.device])
            self.machine.push(queue, self._callers_graph, host, runs, device, step, outside)
            moment = Moment()
            self.machine.push(queue, "record", moment)
            for rank in (first, *rest):
                host.tails[rank] = name, moment
            yield None

    def _callers_graph(self, host: _Host, runs: Sequence[Run], device: int, step: Step, outside: Any) -> Thread:
        """What the callers of a device have captured: their own work around the device's graphs of the runs."""
        machine, ranks = self.machine, self.placement.ranks(device)
        queues = {StreamName("caller", rank): Queue() for rank in ranks}
        local = Process(host.number, (device,))
        for place, (run, turn, events) in enumerate(zip(runs, step.turns, outside, strict=True)):
            manner = Protocol.replayed(place)
            for rank in ranks if turn.fresh else ():
                machine.push(queues[StreamName("caller", rank)], self._put, rank, turn)
            for action in (*run.program.plan.called.prologue, *run.program.plan.called.epilogue):
                if run.program.device(action.stream) != device:
                    continue
                if action.stream not in queues:
                    raise Harm(f"{action.stream} takes no part in the callers' graph")
                if not manner.takes(action.when):
                    continue
                if isinstance(action, LaunchGraph):
                    if action.device not in host.devices:
                        raise Harm("a process launches another one's graph")
                    queue = queues[action.stream]
                    machine.push(queue, machine._graph, local, run, action.device)
                    continue
                if isinstance(action, RecordEvent) and action.event in events.get(device, {}):
                    machine.push(queues[action.stream], "record", events[device][action.event])
                    continue
                machine.issue(queues[action.stream], local, run, action)
            for rank in ranks if turn.reads else ():
                machine.push(queues[StreamName("caller", rank)], self._get, rank, turn, "the caller")
        yield from machine.carried_out(queues)


def part_of(program: Program, host: Process, manner: Manner) -> Sequence[tuple[StreamName, Action]]:
    """What a process issues of a run."""
    kept = program.__dict__.setdefault("parts", {})
    key = host.devices, manner
    if key not in kept:
        plan = program.plan
        run_ends = plan.called if manner.called else plan.own
        begins = {a.event: a.stream for a in run_ends.prologue if isinstance(a, RecordEvent)}
        on = {s.name: begins.get(EventName("begin", s.device), s.name) for s in plan.streams if s.inline}
        on = on if manner.called else {}

        def mine(actions: Iterable[Action], *, with_ends: bool) -> list[tuple[StreamName, Action]]:
            return [
                (on.get(a.stream, a.stream), a)
                for a in actions
                if program.device(a.stream) in host.devices
                and (manner.called or a.stream.kind != "caller")
                and (not with_ends or isinstance(a, CallCollective) or manner.takes(a.when))
            ]

        body = [] if plan.mode in GRAPHS else mine(plan.body, with_ends=False)
        kept[key] = [*mine(run_ends.prologue, with_ends=True), *body, *mine(run_ends.epilogue, with_ends=True)]
    found: list[tuple[StreamName, Action]] = kept[key]
    return found


def learn(member: Member) -> None:
    """What must come out of each version of the inputs: one undamaged run alone."""
    inputs = member.inputs
    for version in range(VERSIONS):
        turn = Turn(0, version, fresh=True, reads=False)
        trial = Trial([member], f"learn {version}", [Step("own", "streams", 0, True, True, (turn,))])
        trial.go()
        outputs = [place for rank in inputs.bound.values() for place in rank["output"]]
        inputs.wanted[version] = {place: trial.memory[0][0][place].copy() for place in outputs}

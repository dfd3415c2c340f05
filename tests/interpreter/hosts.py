"""Hosts that give runs to the devices: sequences of runs drawn by a seed, and what callers may do around them.

All processes make the same runs in the same order. A run is the executor's own, or stands among callers' streams, of
two sets of these, or is a replay of callers' graphs. Between them a host may wait, as the driver does, for what
completes its devices' runs, and then touches all tensors of its ranks at once. Callers write inputs, spoil outputs and
read them on their streams, and order what they do on several streams themselves.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ficco_rt.device.ir import (
    GRAPHS,
    Action,
    CallCollective,
    DevicePlan,
    EventName,
    LaunchGraph,
    Manner,
    Mode,
    StreamName,
)
from tests.interpreter.machine import (
    Cell,
    Machine,
    Moment,
    Process,
    Queue,
    Run,
    Thread,
)
from tests.interpreter.mutants import Mutant
from tests.interpreter.programs import Harm, Numbers, Place, Program, WrongNumbers

VERSIONS = 3  # of the inputs, which follow one another


@dataclass(frozen=True)
class Step:
    """A run. `callers`: which set of callers' streams; 0: none. `fresh`: the inputs are new. `synced`: all processes
    wait for the run before. `reads`: callers read the outputs behind it. `loose`: callers, who touch nothing between
    the two runs, do not order their streams behind those of the run before."""

    kind: Literal["own", "called", "replay"]
    mode: Mode
    callers: int
    timed: bool
    fresh: bool
    synced: bool
    version: int
    reads: bool
    loose: bool = False


def script(
    rng: random.Random, mode: Mode, others: Sequence[Mode], embeds: bool, made_for: Mutant | None = None
) -> list[Step]:
    """Most runs are of `mode`; sometimes some are of others. Many are of the kind that the mutant concerns."""
    section = made_for.section if made_for is not None else ""
    mixed = bool(others) and rng.random() < 0.5
    steps: list[Step] = []
    version = 0
    beside = made_for is not None and made_for.replays
    count = rng.choice((3, 4, 4) if beside else (2, 3, 3, 4))
    often = (0.0, 0.5) if section.startswith("own") else (0.7, 1.0) if section.startswith("called") else (0.0, 0.5, 1.0)
    called = rng.choice(often)
    replays = embeds and (mode == "embedded" or rng.random() < (0.9 if beside else 0.25))
    syncs = rng.choice((0.1, 0.5, 0.9))
    before: Step | None = None
    for _ in range(count):
        made: Mode = rng.choice(others) if mixed and rng.random() < 0.4 else mode
        callers = rng.choice((1, 1, 1, 2)) if rng.random() < called else 0
        kind: Literal["own", "called", "replay"] = "called" if callers else "own"
        if made == "embedded" or (replays and rng.random() < 0.4):
            kind, made, callers = "replay", "embedded", rng.choice((1, 1, 2))
        synced = before is None or rng.random() < syncs or (kind == "replay" and before.kind == "own")
        loose = kind == "called" and not synced and rng.random() < 0.4
        fresh = not loose and (synced or (before is not None and before.kind != "own" and kind != "own"))
        if fresh:
            version = (version + 1) % VERSIONS
        before = Step(kind, made, callers, rng.random() < 0.3, fresh, synced, version, rng.random() < 0.8, loose)
        steps.append(before)
    for i, after in enumerate(steps[1:]):
        if (after.kind == "own" and not after.synced) or after.loose:  # what would order the callers' reads before it?
            steps[i] = replace(steps[i], reads=False)
    return steps


@dataclass
class _Host(Process):
    """A process and what it knows of its runs."""

    running: bool = False
    replays: bool = False
    issued: int = 0
    before: tuple[Mode, int] | None = None
    tails: dict[int, tuple[object, Moment]] = field(default_factory=dict)  # by rank: the stream and its end so far
    reads: bool = False


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
    """Several runs in one random order. `programs`: the device plan of each mode."""

    def __init__(
        self,
        programs: dict[Mode, Program],
        inputs: Inputs,
        seed: object,
        steps: Sequence[Step] | None = None,
        mode: Mode = "streams",
        made: Mutant | None = None,
    ) -> None:
        self.rng = rng = random.Random(str(seed))
        self.programs, self.inputs = programs, inputs
        self.mode = mode
        any_plan = programs[mode].plan
        self.placement = any_plan.placement
        others: list[Mode] = [m for m in programs if m not in (mode, "embedded")]
        self.steps = steps if steps is not None else script(rng, mode, others, "embedded" in programs, made)
        special = made.streams if made is not None else frozenset()
        self.machine = Machine(rng, len(self.placement.devices), special)
        self.calls: dict[Any, Any] = {}
        self.sets = programs["streams" if mode == "embedded" else mode].plan.sets
        count = self.sets + 1 if self.sets > 1 else 1
        self.memory = self._memory(count)
        places = {place for program in programs.values() for place in program.places}
        self.semaphores = [{place: Cell() for place in places} for _ in range(count)]
        processes = dict.fromkeys(self.placement.processes or (0,))
        self.hosts = [
            _Host(p, tuple(d for d in self.placement.ordinals if self.placement.process(d) == p)) for p in processes
        ]

    def _memory(self, count: int) -> list[dict[Place, Numbers]]:
        fill = np.random.default_rng(self.rng.getrandbits(32))
        sets: list[dict[Place, Numbers]] = [{} for _ in range(count)]
        for tensor in self.inputs.plan.tensors:
            for rank, shape in enumerate(tensor.shapes):
                for number in range(count):
                    if tensor.kind == "scratch" or number == 0:
                        sets[number][tensor.name, rank] = fill.integers(0, 2**64, shape, np.uint64)
                    else:
                        sets[number][tensor.name, rank] = sets[0][tensor.name, rank]
        return sets

    def go(self) -> None:
        """Raises Harm."""
        for host in self.hosts:
            self.machine.hosts += 1
            self.machine.start(self._host(host), ("host", host.number))
        self.machine.go()
        counting = {place for program in self.programs.values() for place in program.counting}
        for semaphores in self.semaphores:
            for place, cell in semaphores.items():
                if cell.value and place not in counting:
                    raise Harm(f"the semaphore at {place} stays up")

    # ---- what a host does

    def _host(self, host: _Host) -> Thread:
        rng = self.rng
        for number, step in enumerate(self.steps):
            yield None
            if number and (step.synced or rng.random() < 0.15):
                yield from self._sync(host)
                yield from self._looks(host, self.steps[number - 1].version)
            if step.kind == "own" and step.fresh:
                yield from self._callers_end(host)
                for rank in self._ranks(host):
                    yield from self._put(rank, step.version)
            yield None
            if step.kind == "replay":
                yield from self._replay(host, number, step)
            else:
                self._run(host, number, step)
            host.reads = step.reads and step.kind != "own"
        yield from self._sync(host)
        yield from self._looks(host, self.steps[-1].version)
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

    def _looks(self, host: _Host, version: int) -> Thread:
        for rank in self._ranks(host):
            yield from self._get(rank, version, "the host")

    def _callers_end(self, host: _Host) -> Thread:
        """Callers wait for what they have put on their own streams."""
        if host.reads:
            for _, moment in host.tails.values():
                while not moment.come:
                    yield moment

    def _put(self, rank: int, version: int) -> Thread:
        """The rank's inputs are written and its outputs spoiled."""
        memory, given = self.memory[0], self.inputs.of(version)
        garbage = self.machine.garbage()
        for place in (*self.inputs.bound[rank]["input"], *self.inputs.bound[rank]["output"]):
            memory[place][...] = garbage
        yield None
        for place in self.inputs.bound[rank]["input"]:
            if not (memory[place] == garbage).all():
                raise Harm(f"something writes {place[0]}@{rank} while its caller does")
            memory[place][...] = given[place]
        for place in self.inputs.bound[rank]["output"]:
            if not (memory[place] == garbage).all():
                raise Harm(f"something writes {place[0]}@{rank} outside of a run")

    def _get(self, rank: int, version: int, who: str) -> Thread:
        wanted = self.inputs.wanted.get(version, {})
        for place in self.inputs.bound[rank]["output"] if wanted else ():
            if not np.array_equal(self.memory[0][place], wanted[place]):
                raise WrongNumbers(f"{who} of rank {rank} reads wrong numbers in {place[0]}")
        yield None

    # ---- runs

    def _new(self, program: Program, number: int, which: int) -> Run:
        return Run(program, number, self.memory[which], self.semaphores[which], self.calls)

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
        machine, program = self.machine, self.programs[step.mode]
        callers = step.callers
        run = self._new(program, number, host.issued % self.sets)
        timed = step.mode == "traced" or step.timed or not callers
        behind = host.running or host.replays
        others = host.before != (step.mode, callers)
        for rank in self._ranks(host) if callers else ():
            queue = self._caller(rank, callers)[1] if step.loose else self._behind_tail(host, rank, callers)
            if step.fresh:
                machine.push(queue, self._put, rank, step.version)
        for name, action in part_of(program, host, bool(callers), behind, timed, others, host.replays):
            queue = self._caller(name.number, callers)[1] if name.kind == "caller" else machine.stream(name)
            machine.issue(queue, host, run, action)
        for rank in self._ranks(host) if callers else ():
            self._ends_with(host, rank, *self._caller(rank, callers), step)
        host.issued += 1
        host.running, host.before = True, (step.mode, callers)

    def _ends_with(self, host: _Host, rank: int, name: object, queue: Queue, step: Step) -> None:
        if step.reads:
            self.machine.push(queue, self._get, rank, step.version, "the caller")
        moment = Moment()
        self.machine.push(queue, "record", moment)
        host.tails[rank] = name, moment

    def _replay(self, host: _Host, number: int, step: Step) -> Thread:
        if not host.replays:  # captured now
            yield from self._sync(host)
            host.replays = True
        program = self.programs["embedded"]
        run = self._new(program, number, self.sets if self.sets > 1 else 0)
        for device in self.rng.sample(host.devices, len(host.devices)):
            first, *rest = self.placement.ranks(device)
            name, queue = self._caller(first, step.callers)
            for rank in (first, *rest):
                if rank in host.tails and host.tails[rank][0] != name:
                    self.machine.push(queue, "await", host.tails[rank][1])
            outside: dict[int, dict[EventName, Moment]] = {}
            for action in (*program.plan.called.prologue, *program.plan.called.epilogue):
                if isinstance(action, LaunchGraph) and program.device(action.stream) == device:
                    outside[action.device] = {EventName("replayed", action.device): Moment()}
                    host.records.update(outside[action.device])
            self.machine.push(queue, self._callers_graph, host, run, device, step, outside)
            moment = Moment()
            self.machine.push(queue, "record", moment)
            for rank in (first, *rest):
                host.tails[rank] = name, moment
            yield None

    def _callers_graph(self, host: _Host, run: Run, device: int, step: Step, outside: Any) -> Thread:
        """What the callers of a device have captured: their own work around the device's graph."""
        machine, plan = self.machine, run.program.plan
        ranks = self.placement.ranks(device)
        queues = {StreamName("caller", rank): Queue() for rank in ranks}
        local = Process(host.number, (device,))
        for rank in ranks if step.fresh else ():
            yield from self._put(rank, step.version)
        for action in (*plan.called.prologue, *plan.called.epilogue):
            if run.program.device(action.stream) != device:
                continue
            if action.stream not in queues:
                raise Harm(f"{action.stream} takes no part in the callers' graph")
            if not Manner(True, behind=True, timed=False, others=True, replays=True).takes(action.when):
                continue
            if isinstance(action, LaunchGraph):
                if action.device not in host.devices:
                    raise Harm("a process launches another one's graph")
                machine.push(queues[action.stream], machine._graph, local, run, action.device, outside[action.device])
                continue
            machine.issue(queues[action.stream], local, run, action)
        for rank in ranks if step.reads else ():
            machine.push(queues[StreamName("caller", rank)], self._get, rank, step.version, "the caller")
        yield from machine.carried_out(queues)


def part_of(
    program: Program, host: Process, called: bool, behind: bool, timed: bool, others: bool, replays: bool
) -> Sequence[tuple[StreamName, Action]]:
    """What a process issues of a run."""
    kept = program.__dict__.setdefault("parts", {})
    key = (host.devices, called, behind, timed, others, replays)
    if key not in kept:
        plan = program.plan
        run_ends = plan.called if called else plan.own
        manner = Manner(called, behind, timed, others, replays)

        def mine(actions: Iterable[Action], *, with_ends: bool) -> list[tuple[StreamName, Action]]:
            return [
                (a.stream, a)
                for a in actions
                if program.device(a.stream) in host.devices
                and (called or a.stream.kind != "caller")
                and (not with_ends or isinstance(a, CallCollective) or manner.takes(a.when))
            ]

        body = [] if plan.mode in GRAPHS else mine(plan.body, with_ends=False)
        kept[key] = [*mine(run_ends.prologue, with_ends=True), *body, *mine(run_ends.epilogue, with_ends=True)]
    found: list[tuple[StreamName, Action]] = kept[key]
    return found


def learn(programs: dict[Mode, Program], inputs: Inputs) -> None:
    """What must come out of each version of the inputs: one undamaged run alone."""
    for version in range(VERSIONS):
        step = Step("own", "streams", 0, True, True, True, version, False)
        trial = Trial(programs, inputs, f"learn {version}", [step], "streams")
        trial.go()
        outputs = [place for rank in inputs.bound.values() for place in rank["output"]]
        inputs.wanted[version] = {place: trial.memory[0][place].copy() for place in outputs}

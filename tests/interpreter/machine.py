"""Devices that carry out device plans in random order, on small tensors of 64-bit numbers.

It knows the meaning of device plans (`ficco_rt.device.ir`) and nothing of how they are checked. Sums and products
modulo 2**64 are exact in every order, so a wrong semaphore, a stale element or an element read too early shows as a
wrong number. Whatever takes time has a begin and an end: what an action writes holds garbage meanwhile, and if what it
reads changes meanwhile, it writes garbage.

Everything that happens one after another is a generator, a *thread*: streams, blocks of kernels, members of a batch,
hosts. It yields None where others may come between, or that for which it waits.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ficco_rt.device.ir import (
    Action,
    AwaitEvent,
    Barrier,
    CallCollective,
    CopyMemory,
    EventName,
    LaunchGraph,
    LaunchKernel,
    Move,
    RecordEvent,
    ResetSemaphores,
    StreamMemOps,
    StreamName,
)
from ficco_rt.graph.ir import Priority
from tests.interpreter.programs import (
    Harm,
    Numbers,
    Part,
    Place,
    Program,
    Task,
    evaluated,
)

Thread: TypeAlias = Iterator[Any]


class Waited:
    """What threads wait for."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: list[_Running] = []


class Moment(Waited):
    """Comes once: a record of an event, the end of a kernel, of a graph, of a collective's calls."""

    __slots__ = ("come",)

    def __init__(self) -> None:
        super().__init__()
        self.come = False


class Cell(Waited):
    """A semaphore in memory, and in which run it was signalled."""

    __slots__ = ("run", "value")

    def __init__(self) -> None:
        super().__init__()
        self.value, self.run = 0, -1


class Queue(Waited):
    """A stream: what was issued and has not begun. `whole`: nothing more will be issued."""

    __slots__ = ("items", "whole")

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[Any, ...]] = []
        self.whole = False


class SharedStream(NamedTuple):
    """A stream that plans of a workspace share."""

    device: int
    priority: Priority
    number: int


class _Running:
    __slots__ = ("group", "key", "thread")

    def __init__(self, thread: Thread, group: object, key: float) -> None:
        self.thread, self.group, self.key = thread, group, key


class Order:
    """In which order threads go on: by chance, by priorities that change now and then, or with some held back for as
    long as anything else can go on. `group` of a thread: what is held back together. `special`: streams that are held
    back more often, or all but they are."""

    def __init__(self, rng: random.Random, special: frozenset[object] = frozenset()) -> None:
        self.rng, self.special = rng, special
        ways = ("chance", "priorities", "held", "held") if not special else ("chance", "held", "held", "late", "early")
        self.way = rng.choice(ways)
        self.share = rng.choice((0.1, 0.25, 0.5))
        self.keys: dict[object, float] = {}
        self.held: dict[object, bool] = {}

    def key(self, group: object) -> float:
        if self.way == "priorities":
            return self.rng.random()
        if self.way == "held":
            if group not in self.held:
                self.held[group] = self.rng.random() < self.share
            return 1.0 if self.held[group] else 0.0
        if self.way == "late":
            return float(group in self.special)
        if self.way == "early":
            return float(isinstance(group, StreamName | SharedStream) and group not in self.special)
        return 0.0

    def pick(self, ready: Sequence[_Running]) -> int:
        rng, n = self.rng, len(ready)
        if n == 1:
            return 0
        if self.way == "chance":
            return int(rng.random() * n)
        if self.way == "priorities":
            i = max(range(n), key=lambda i: ready[i].key)
            if rng.random() < 0.03:
                ready[i].key = rng.random()
            return i
        i = int(rng.random() * n)
        if ready[i].key == 0.0:
            return i
        free = [j for j in range(n) if ready[j].key == 0.0]
        if free:
            return rng.choice(free)
        if self.way == "held" and rng.random() < 0.02:  # others are held back now
            self.held.clear()
            for one in ready:
                one.key = self.key(one.group)
        return i


# ---------------------------------------------------------------- parts of tensors


@dataclass
class Run:
    """A run on a process: its number, and its memory."""

    program: Program
    number: int
    memory: dict[Place, Numbers]
    semaphores: dict[tuple[int, int], Cell]
    calls: dict[tuple[int, int, int], _Collective]
    arrived: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))

    def cell(self, semaphore: int) -> Cell:
        return self.semaphores[self.program.place(semaphore)]


class _Collective(Moment):
    """A call of all ranks: which have begun, and what they send."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[int, Numbers] = {}


@dataclass
class Process:
    """What a process knows: the last record of each event. `event`: what an event of its plan is there."""

    number: int
    devices: tuple[int, ...]
    records: dict[object, Moment] = field(default_factory=dict)
    event: Callable[[EventName], object] = field(default=lambda event: event)


class Machine:
    """All devices. Processes issue actions to it; `go` lets everything run in random order."""

    def __init__(self, rng: random.Random, ranks: int, special: frozenset[object] = frozenset()) -> None:
        self.rng, self.ranks = rng, ranks
        self.order = Order(rng, special)
        self.ready: list[_Running] = []
        self.streams: dict[object, Queue] = {}
        self.pending = 0  # issued, not ended
        self.hosts = 0  # that have not ended
        self.garbage_seed = 0

    # ---- threads

    def start(self, thread: Thread, group: object) -> None:
        self.ready.append(_Running(thread, group, self.order.key(group)))

    def wake(self, what: Waited) -> None:
        if what.waiters:
            self.ready += what.waiters
            what.waiters = []

    def come(self, moment: Moment) -> None:
        moment.come = True
        self.wake(moment)

    def go(self) -> None:
        """Until everything has ended. Raises Harm."""
        ready, pick = self.ready, self.order.pick
        while ready:
            i = pick(ready)
            one = ready[i]
            try:
                what = next(one.thread)
            except StopIteration:
                ready[i] = ready[-1]  # others were put behind it at most
                ready.pop()
                continue
            if what is not None:
                ready[i] = ready[-1]  # others were put behind it at most
                ready.pop()
                what.waiters.append(one)
        if self.pending or self.hosts:
            raise Harm("it does not end")

    def garbage(self) -> np.uint64:
        self.garbage_seed += 1
        return np.uint64((self.garbage_seed * 0x9E3779B97F4A7C15 + 0x1234567) & (2**64 - 1))

    # ---- streams

    def stream(self, name: object, group: object = None) -> Queue:
        if name not in self.streams:
            queue = self.streams[name] = Queue()
            self.start(self._stream(queue, group or name), group or name)
        return self.streams[name]

    def push(self, queue: Queue, *item: Any) -> None:
        self.pending += 1
        queue.items.append(item)
        self.wake(queue)

    def _stream(self, queue: Queue, group: object) -> Thread:
        kernel: Moment | None = None
        items = queue.items
        at = 0
        while True:
            while at == len(items):
                if queue.whole:
                    return
                del items[:at]
                at = 0
                yield queue
            kind, *rest = items[at]
            at += 1
            if kind == "kernel":
                run, number = rest
                early = run.program.plan.launches[number].early
                if not early and kernel is not None:
                    while not kernel.come:
                        yield kernel
                    kernel = None
                yield None
                now = Moment()
                self._kernel(run, number, kernel if early else None, now, group)
                kernel = now
                continue
            if kernel is not None:
                while not kernel.come:
                    yield kernel
                kernel = None
            yield None
            if kind == "record":
                self.come(rest[0])
            elif kind == "await":
                moment = rest[0]
                while not moment.come:
                    yield moment
            else:
                yield from kind(*rest)
            self.pending -= 1

    # ---- semaphores

    def signal(self, run: Run, semaphore: int) -> None:
        cell = run.cell(semaphore)
        if cell.value:
            raise Harm(f"semaphore {semaphore} is signalled, and it is up")
        cell.value, cell.run = 1, run.number
        self.wake(cell)

    def await_semaphore(self, run: Run, semaphore: int) -> Thread:
        cell = run.cell(semaphore)
        while not cell.value:
            yield cell
        if cell.run != run.number:
            raise Harm(f"semaphore {semaphore} is up at a wait of another run than the one that has signalled it")

    def _changes(self, run: Run, action: StreamMemOps) -> Thread:
        for change in action.changes:
            if change.signals:
                self.signal(run, change.semaphore)
            else:
                yield from self.await_semaphore(run, change.semaphore)
                if change.acquires:
                    run.cell(change.semaphore).value = 0
            yield None

    def _reset(self, run: Run, action: ResetSemaphores) -> Thread:
        device = run.program.device(action.stream)
        for index in range(action.first, action.first + action.count):
            if (device, index) not in run.semaphores:
                raise Harm(f"there is no semaphore at {index} of device {device}")
            run.semaphores[device, index].value = 0
        yield None

    def _barrier(self, run: Run, action: Barrier) -> Thread:
        own = run.cell(action.runs)
        for step in action.steps:
            for semaphore in step.semaphores:
                cell = run.cell(semaphore)
                if step.does == "count":
                    cell.value += 1
                elif step.does == "signal":
                    cell.value = own.value
                    self.wake(cell)
                elif step.does == "reset":
                    cell.value = 0
                else:
                    while cell.value < own.value:
                        yield cell
                yield None

    # ---- copies

    def _copies(self, run: Run, action: CopyMemory) -> Thread:
        members: list[Thread] = [self._copied_signal(run, semaphore) for semaphore in action.semaphores]
        members += [self._move(run, move, action.batch) for move in action.moves]
        if not action.batch:
            for member in members:
                yield from member
            return
        ends = []
        for member in members:
            end = Moment()
            ends.append(end)
            self.start(self._member(member, end), object())
        for end in ends:
            while not end.come:
                yield end

    def _member(self, thread: Thread, end: Moment) -> Thread:
        yield None
        yield from thread
        self.come(end)

    def _copied_signal(self, run: Run, semaphore: int) -> Thread:
        self.signal(run, semaphore)
        yield None

    def _move(self, run: Run, move: Move, batch: bool) -> Thread:
        dst, src, stable = run.program.move(move, batch)  # type: ignore[misc]
        memory = run.memory
        value = src.read(memory)
        garbage = self.garbage()
        dst.spoil(memory, garbage)
        yield None
        well = dst.holds(memory, garbage) and (not stable or np.array_equal(src.read(memory), value))
        dst.write(memory, value if well else value + garbage)
        yield None

    # ---- kernels

    def _kernel(self, run: Run, number: int, before: Moment | None, end: Moment, group: object) -> None:
        _, tasks, resets = run.program.launch(number)
        at_once = self.rng.choice((1, 2, len(tasks)))
        left = list(range(len(tasks)))
        left.reverse()
        blocks = min(at_once, len(tasks))
        running = [blocks]
        for _ in range(blocks):
            self.start(self._block(run, tasks, resets, left, running, before, end), group)

    def _block(
        self,
        run: Run,
        tasks: Sequence[Task],
        resets: Sequence[int],
        left: list[int],
        running: list[int],
        before: Moment | None,
        end: Moment,
    ) -> Thread:
        yield None
        while left:
            yield from self._task(run, tasks[left.pop()], before)
        running[0] -= 1
        if running[0]:
            return
        while before is not None and not before.come:
            yield before
        for semaphore in resets:
            run.cell(semaphore).value = 0
        self.pending -= 1
        self.come(end)

    def _task(self, run: Run, task: Task, before: Moment | None) -> Thread:
        memory = run.memory
        values: list[Numbers] = []
        for waits, reads, registers, stable, early, body in task.steps:
            taken: dict[int, Numbers] = {}
            if before is not None and not before.come:
                taken = {i: part.read(memory) for i, part in enumerate(reads) if early[i]}
                while not before.come:
                    yield before
            for semaphore in waits:
                yield from self.await_semaphore(run, semaphore)
            yield None
            operands = []
            for i, part in enumerate(reads):
                operands.append(values[0] if registers[i] else taken[i] if i in taken else part.read(memory))
            values = evaluated(body, operands)
            yield None
            for i, part in enumerate(reads):
                if stable[i] and not registers[i] and not np.array_equal(part.read(memory), operands[i]):
                    values = [value + self.garbage() for value in values]
        garbage = self.garbage()
        for part in task.outs:
            part.spoil(memory, garbage)
        yield None
        for part, value in zip(task.outs, values, strict=True):
            part.write(memory, value if part.holds(memory, garbage) else value + garbage)
        yield None
        for semaphore in task.signals:
            self.signal(run, semaphore)

    # ---- collectives

    def _collective(self, run: Run, action: CallCollective, call: tuple[int, int, int], rank: int) -> Thread:
        memory, shapes = run.memory, run.program.shapes
        src = Part(action.src, shapes) if action.reads else None
        dst = Part(action.dst, shapes) if action.writes else None
        group = run.calls.setdefault(call, _Collective())
        if rank in group.sent:
            raise Harm("a rank calls a collective twice")
        sent = src.read(memory) if src is not None else np.zeros((0,), np.uint64)
        garbage = self.garbage()
        if dst is not None:
            dst.spoil(memory, garbage)
        group.sent[rank] = sent
        self.wake(group)
        hears = range(self.ranks) if action.kind != "send_recv" else (action.by,) if dst is not None else ()
        for other in hears:
            while other not in group.sent:
                yield group
        yield None
        stable = src is None or (dst is not None and src.barrier_peers(dst)) or np.array_equal(src.read(memory), sent)
        if dst is not None:
            value = _received(action, rank, group.sent, self.ranks)
            if value.size != prod(dst.shape):
                raise Harm(f"a collective's call of {value.size} elements into {action.dst}")
            well = stable and dst.holds(memory, garbage)
            dst.write(memory, value.reshape(dst.shape) if well else value.reshape(dst.shape) + garbage)
        if not stable:
            raise Harm(f"what {action.src} sends changes meanwhile")
        yield None

    # ---- issuing

    def issue(
        self, queue: Queue, process: Process, run: Run, action: Action, local: dict[object, Moment] | None = None
    ) -> None:
        """One action, on its stream. `local`: the events of a graph."""
        records = process.records if local is None else local
        match action:
            case RecordEvent(event=event):
                moment = records[process.event(event)] = Moment()
                self.push(queue, "record", moment)
            case AwaitEvent(event=event):
                name = process.event(event)
                if name in records:
                    self.push(queue, "await", records[name])
            case LaunchKernel(launch=launch):
                run.program.launch(launch)
                self.push(queue, "kernel", run, launch)
            case StreamMemOps():
                for change in action.changes:
                    run.program.place(change.semaphore)
                self.push(queue, self._changes, run, action)
            case CopyMemory():
                for move in action.moves:
                    run.program.move(move, action.batch)
                self.push(queue, self._copies, run, action)
            case ResetSemaphores():
                self.push(queue, self._reset, run, action)
            case Barrier():
                for step in action.steps:
                    for semaphore in step.semaphores:
                        run.program.place(semaphore)
                self.push(queue, self._barrier, run, action)
            case CallCollective(communicator=communicator):
                rank = run.program.collectives[id(action)]
                count = run.arrived[communicator, rank]
                run.arrived[communicator, rank] += 1
                self.push(queue, self._collective, run, action, (run.number, communicator, count), rank)
            case LaunchGraph(device=device):
                self.push(queue, self._graph, process, run, device)

    def _graph(self, process: Process, run: Run, device: int) -> Thread:
        """A device's part of the body, captured: streams of their own, with events of their own."""
        events: dict[object, Moment] = {}
        queues: dict[StreamName, Queue] = {}
        for action in graph_of(run.program, device):
            if action.stream not in queues:
                queues[action.stream] = Queue()
            self.issue(queues[action.stream], process, run, action, events)
        yield from self.carried_out(queues)

    def carried_out(self, queues: dict[StreamName, Queue]) -> Thread:
        ends = []
        for name, queue in queues.items():
            end = Moment()
            ends.append(end)
            self.push(queue, "record", end)
            queue.whole = True
            self.start(self._stream(queue, name), name)
        for end in ends:
            while not end.come:
                yield end


def graph_of(program: Program, device: int) -> Sequence[Action]:
    """What is captured into a device's graph. Raises Harm if it cannot be: a stream takes part behind an event that
    was captured, and joins the control stream in the end."""
    kept = program.__dict__.setdefault("graphs", {})
    if device in kept:
        found: Sequence[Action] = kept[device]
        return found
    mine = [a for a in program.plan.body if program.device(a.stream) == device]
    control = StreamName("control", device)
    inside = {control}
    clock: dict[StreamName, int] = defaultdict(int)
    seen: dict[StreamName, dict[StreamName, int]] = defaultdict(dict)
    at: dict[EventName, dict[StreamName, int]] = {}
    for action in mine:
        name = action.stream
        if isinstance(action, AwaitEvent):
            if action.event not in at:
                raise Harm(f"the capture of device {device} waits for {action.event}, which it has not recorded")
            inside.add(name)
            for other, count in at[action.event].items():
                seen[name][other] = max(seen[name].get(other, 0), count)
        elif name not in inside:
            raise Harm(f"{name} takes no part in the capture of device {device}")
        clock[name] += 1
        seen[name][name] = clock[name]
        if isinstance(action, RecordEvent):
            at[action.event] = dict(seen[name])
        if isinstance(action, CopyMemory) and action.batch:
            raise Harm("a batch of copies in a graph")
    for name in inside - {control}:
        if seen[control].get(name, 0) < clock[name]:
            raise Harm(f"{name} does not join the capture of device {device}")
    kept[device] = mine
    return mine


def _received(action: CallCollective, rank: int, sent: dict[int, Numbers], ranks: int) -> Numbers:
    every = [sent[r].ravel() for r in sorted(sent)]
    match action.kind:
        case "send_recv":
            return sent[action.by].ravel()
        case "all_gather":
            return np.concatenate(every)
    if len({value.size for value in every}) > 1:
        raise Harm("a collective of calls of different sizes")
    size = every[0].size // ranks
    match action.kind:
        case "all_reduce":
            return np.asarray(np.sum(every, axis=0, dtype=np.uint64))
        case "reduce_scatter":
            return np.asarray(np.sum(every, axis=0, dtype=np.uint64))[rank * size : (rank + 1) * size]
        case _:
            return np.concatenate([value[rank * size : (rank + 1) * size] for value in every])

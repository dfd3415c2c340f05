"""Finds races in runs of a device plan: conflicting accesses to a tensor or a semaphore that nothing orders."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from ficco_dsl.diagnostics import Diagnostic, Note, Span

from ..geometry.region import Region, describe, whole
from ..plan.clock import Clock, start
from ..plan.ledger import POINT, Ledger, Race, Toucher, Unwritten
from ..plan.walk import Clocks, Signal
from .ir import Barrier, CallCollective, CopyMemory, DeviceLaunch, LaunchKernel
from .sequence import Footprint, Group, Node, RunSequence
from .sharing import all_sets


class Races(Clocks[Node]):
    """Checks accesses to memory, and treats semaphores like memory."""

    def __init__(self, runs: RunSequence) -> None:
        super().__init__(len(runs.queues))
        self.runs, self.plan = runs, runs.plan
        self.mistakes: dict[tuple[Span, Span, str], Diagnostic] = {}
        self.reset: dict[int, Toucher] = {}  # who has reset a semaphore last
        scratch = {t.name for t in self.plan.tensors if t.kind == "scratch"} - set(self.plan.private)
        self.scratch = scratch if self.plan.sets > 1 else set()  # of which each set has its own
        self.later: dict[tuple[int, int], Region] = {}  # by id of a region, and set
        sets = range(all_sets(self.plan.sets, self.plan.features))
        semaphores = len(sets) * len(self.plan.semaphores)
        shapes = {_in_set(t.name, i): t.shapes for t in self.plan.tensors for i in sets}
        self.semaphores = [_WORD.on(semaphore) for semaphore in range(semaphores)]
        self.names: dict[tuple[int, str], str] = {}  # by queue and cause
        self.whole = {
            (name, rank): whole(name, rank, shape)
            for name, of_ranks in shapes.items()
            for rank, shape in enumerate(of_ranks)
        }
        self.bound = {
            rank: [whole(t.name, rank, t.shapes[rank]) for t in self.plan.tensors if t.kind != "scratch"]
            for rank in range(len(self.plan.placement.devices))
        }
        written = chain(
            (self._region(region, i) for _, part in self.plan.parts for region in part.writes for i in sets),
            chain.from_iterable(self.bound.values()),
        )
        made = {_in_set(t.name, i) for t in self.plan.tensors if t.kind != "input" for i in sets}
        self.ledger = Ledger(shapes, written, self._tell, made)

    def _region(self, region: Region, buffer_set: int) -> Region:
        """Of scratch, the region in a set."""
        if not buffer_set or region.tensor not in self.scratch:
            return region
        known = self.later.get((id(region), buffer_set))
        if known is None:
            known = self.later[id(region), buffer_set] = replace(region, tensor=_in_set(region.tensor, buffer_set))
        return known

    def _read(self, node: Node, region: Region, clock: Clock, me: Toucher) -> None:
        self.ledger.read(self._region(region, node.buffer_set), clock, me)

    def _write(self, node: Node, region: Region, clock: Clock, me: Toucher) -> None:
        self.ledger.write(self._region(region, node.buffer_set), clock, me)

    def begin(self, node: Node) -> None:
        if node.begins:  # a graph knows nothing of what its streams did before
            self.clocks[node.queue] = start(len(self.clocks))
        super().begin(node)
        if isinstance(node.action, LaunchKernel):
            memory = _MEMORY.on(self.plan.launches[node.action.launch].stream)
            self.ledger.write_point(memory, self.clocks[node.queue], self._me(node, -1))

    def toucher(self, node: Node, number: int, bit: int) -> Toucher:
        match node.action:
            case None if node.uses is not None:
                return Toucher(node.queue, node.position, -1, node.place, f"the caller of rank {node.uses}", run=-1)
            case None:
                who = node.touches.who if node.touches is not None else ""
                return Toucher(node.queue, node.position, -1, node.place, who, node.run)
            case LaunchKernel(launch=launch) if number < len(self.runs.groups[launch]):
                return self._me(node, bit, self.runs.groups[launch][number].works[0].origin)
            case CallCollective(op=op):
                return self._me(node, bit, order=(op, 1))
            case _:
                return self._me(node, bit)

    def touch(self, node: Node, number: int, clock: Clock, me: Toucher, before: Clock) -> None:
        match node.action:
            case None if node.uses is not None:
                for region in self.bound[node.uses]:
                    self.ledger.write(region, clock, me)
            case None if node.touches is not None:
                self._touch(node, node.touches, clock, me)
            case Barrier(runs=runs, steps=steps):
                # NOTE semaphores that tell of runs cannot race: one device alone signals such a semaphore, always to a
                # higher count, and whoever waits takes any count from its own on
                self.ledger.read_point(self.semaphores[self.runs.semaphore(node.buffer_set, runs)], clock, me)
                for semaphore in steps[number].semaphores if steps[number].does == "count" else ():
                    self.ledger.write_point(self.semaphores[self.runs.semaphore(node.buffer_set, semaphore)], clock, me)
            case CopyMemory(moves=moves):
                for move in moves:
                    mine = self._me(node, -1, move.origin, (move.op, 1))
                    self._read(node, move.src, clock, mine)
                    self._write(node, move.dst, clock, mine)
            case LaunchKernel(launch=launch) if number < len(self.runs.groups[launch]):
                self._work(node, self.plan.launches[launch], self.runs.groups[launch][number], clock, me, before)
            case CallCollective() as call:  # from its begin on
                for region in call.reads:
                    self._read(node, region, clock, me)
                for region in call.writes:
                    self._write(node, region, clock, me)

    def _work(self, node: Node, launch: DeviceLaunch, group: Group, clock: Clock, me: Toucher, before: Clock) -> None:
        for i, work in enumerate(group.works):
            mine = self._me(node, me.bit, work.origin, (work.op, 0))
            early = launch.early_reads(work)
            # sums stay in registers: the first work reads what it adds to, the last one writes
            for region in work.reads:
                if i == 0 or region not in work.writes:
                    self._read(node, region, before if region in early else clock, mine)
            for region in work.writes if i == len(group.works) - 1 else ():
                self._write(node, region, clock, mine)

    def _touch(self, node: Node, touches: Footprint, clock: Clock, me: Toucher) -> None:
        """Nothing says which elements, nor in which order."""
        buffer_set = node.buffer_set
        for tensor, rank in touches.tensors:
            name = _in_set(tensor, buffer_set) if tensor in self.scratch else tensor
            if (name, rank) in self.whole:
                self.ledger.touch(self.whole[name, rank], clock, me, last=touches.last)
        for semaphore in touches.semaphores:
            number = self.runs.semaphore(node.buffer_set, semaphore)
            self.ledger.touch_point(self.semaphores[number], clock, me, last=touches.last)
            if not touches.last and self.plan.semaphores[semaphore].device == self.runs.devices[node.queue]:
                self.reset[number] = me
        for stream in {self.plan.launches[launch].stream for launch in touches.launches}:
            self.ledger.touch_point(_MEMORY.on(stream), clock, me)
        for number in touches.of_others:
            self.ledger.touch_point(_OTHERS.on(number), clock, me)

    # ---- semaphores

    def see(self, signal: Signal, clock: Clock, me: Toucher, before: Clock) -> Clock:
        """A waiter that is not ordered after a semaphore's reset may see the value that the previous run left."""
        tells = super().see(signal, clock, me, before)
        if isinstance(signal, int):
            down = self.reset.get(signal)
            if down is not None and not down.known(before, me):
                self._tell(Race("race", self.semaphores[signal], POINT, down, "resets", me, "awaits"))
            self.ledger.read_point(self.semaphores[signal], tells, me)
        return tells

    def give(self, signal: Signal, clock: Clock, me: Toucher) -> None:
        if isinstance(signal, int):
            self.ledger.write_point(self.semaphores[signal], clock, me)

    def drop(self, signal: Signal, clock: Clock, me: Toucher) -> None:
        assert isinstance(signal, int)
        self.ledger.write_point(self.semaphores[signal], clock, me)
        self.reset[signal] = me

    def _me(self, node: Node, bit: int, origin: Span | None = None, order: tuple[int, int] = (0, 0)) -> Toucher:
        assert node.action is not None
        text = node.action.cause.text
        who = self.names.get((node.queue, text))
        if who is None:
            who = self.names[node.queue, text] = f"{text} ({self.runs.names[node.queue][0]})"
        return Toucher(node.queue, node.position, bit, origin or node.place, who, node.run, order)

    def _tell(self, found: Race | Unwritten) -> None:
        named, rank = found.region.tensor, found.region.rank
        where = f"{named}@{rank} {describe(found.box)}"
        if named == _WORD.tensor:
            named = where = self.runs.purpose(rank)
        elif named == _MEMORY.tensor:
            named = where = f"the partial sums of stream {rank}"
        elif named == _OTHERS.tensor:
            named = where = "what other runs share"
        if isinstance(found, Unwritten):
            message = f"{found.reader.what} reads {where}, which nothing has written in the run"
            key = (found.reader.origin, found.reader.origin, named)
            self.mistakes.setdefault(key, Diagnostic(found.reader.origin, message))
            return
        earlier, later = found.earlier, found.later
        key = (earlier.origin, later.origin, named)
        if found.kind == "race":
            message = f"race on {where}: {later.what} {found.does} it, {earlier.what} {found.did} it, "
            message += "and nothing orders the two"
        else:
            message = f"{earlier.what} {found.did} {where} before {later.what} {found.does} it; the schedule has them "
            message += "the other way round"
        note = Note(f"the other access: {earlier.what} {found.did} here", earlier.origin)
        self.mistakes.setdefault(key, Diagnostic(later.origin, message, (note,)))


# NOTE tensors of the ledger, a semaphore, a stream or a set a rank: no schedule has a tensor with a space in its name
_WORD = whole("a semaphore", 0, (1,))
_MEMORY = whole("a stream", 0, (1,))  # partial sums, a library's workspace; counters of the launches, too
_OTHERS = whole("a set", 0, (1,))


def _in_set(tensor: str, buffer_set: int) -> str:
    """The ledger's name of a tensor in a set."""
    return f"{tensor} of set {buffer_set}" if buffer_set else tensor

"""Races in runs of a device plan: accesses, of a word as of a tensor, that nothing orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from ficco_dsl.diagnostics import Diagnostic, Note, Span

from ..errors import PlanError
from ..geometry.region import Region, describe, whole
from ..graph.budget import CHECKED_CLOCKS, Budget
from ..graph.ir import Gemm, heard
from ..plan.clock import Clock, start
from ..plan.ir import Work
from ..plan.ledger import POINT, Ledger, Race, Toucher, Unwritten
from .ir import (
    CallCollective,
    ChangeWords,
    CopyMemory,
    DeviceLaunch,
    LaunchKernel,
    Meet,
    ResetWords,
)
from .rules import writes
from .sequence import Footprint, Holder, Node, RunSequence


class Races:
    """Vector clocks over the nodes, in an order that can happen."""

    def __init__(self, runs: RunSequence) -> None:
        self.runs, self.plan = runs, runs.plan
        self.mistakes: dict[tuple[Span, Span, str], Diagnostic] = {}
        self.holders: list[Holder] = []
        self.nothing = start(len(runs.queues))
        self.clocks: list[Clock] = [self.nothing] * len(runs.queues)
        self.raised: dict[int, Clock] = {}  # what a word that is up tells
        self.reset: dict[int, Toucher] = {}  # who has reset a word last
        self.counts: Counter[int] = Counter()  # by word that counts them
        self.told: dict[tuple[int, int], Clock] = {}  # what a word tells that has come to a count of runs
        self.bits = 0
        self.base: dict[int, Clock] = {}  # of the launch at hand on a queue
        self.called: dict[tuple[int, int], dict[int, Clock]] = {}  # of a run and collective: what ranks knew
        self.memory = Budget(CHECKED_CLOCKS, PlanError)
        self.scratch = {t.name for t in self.plan.tensors if t.kind == "scratch"} if self.plan.sets > 1 else set()
        self.later: dict[tuple[int, int], Region] = {}  # by id of a region, and set
        words, sets = self.plan.sets * len(self.plan.words), range(self.plan.sets)
        shapes = {_in_set(t.name, i): t.shapes for t in self.plan.tensors for i in sets}
        self.words = [_WORD.on(word) for word in range(words)]
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
            (self._region(region, i) for region in writes(self.plan) for i in sets),
            chain.from_iterable(self.bound.values()),
        )
        made = {_in_set(t.name, i) for t in self.plan.tensors if t.kind != "input" for i in sets}
        self.ledger = Ledger(shapes, written, self._tell, made)

    def _region(self, region: Region, turn: int) -> Region:
        """Of scratch, the region in a set."""
        if not turn or region.tensor not in self.scratch:
            return region
        known = self.later.get((id(region), turn))
        if known is None:
            known = self.later[id(region), turn] = replace(region, tensor=_in_set(region.tensor, turn))
        return known

    def _read(self, node: Node, region: Region, clock: Clock, me: Toucher) -> None:
        self.ledger.read(self._region(region, self.runs.turn(node)), clock, me)

    def _write(self, node: Node, region: Region, clock: Clock, me: Toucher) -> None:
        self.ledger.write(self._region(region, self.runs.turn(node)), clock, me)

    def run(self, order: Sequence[tuple[Node, int]]) -> None:
        for node, part in order:
            q = node.queue
            if node.begins:
                assert node.awaits is not None
                assert node.awaits.clock is not None
                self.clocks[q] = node.awaits.clock
            elif node.awaits is not None:
                assert node.awaits.clock is not None
                self.clocks[q] = self.clocks[q].join(node.awaits.clock)
            self._do(node, part)
            if node.awaited:
                node.clock = self.clocks[q].at(q, node.position)
                self.memory.spend(len(self.clocks) + self.bits // 32, node.place)

    def _do(self, node: Node, part: int) -> None:
        q, action = node.queue, node.action
        match action:
            case None if node.uses is not None:
                me = Toucher(q, node.position, -1, node.place, f"the caller of rank {node.uses}", run=-1)
                for region in self.bound[node.uses]:
                    self.ledger.write(region, self.clocks[q], me)
            case None if node.touches is not None:
                self._touch(node, node.touches)
            case ChangeWords(changes=changes):
                change = changes[part]
                word = self.runs.word(node, change.word)
                bit, self.bits = self.bits, self.bits + 1
                me = self._me(node, bit)
                if change.raises:  # NOTE it tells of the changes before it in the call, and not of those behind it
                    tells = self.clocks[q].at(q, node.position - 1).with_work(bit)
                    self._raise(word, self.clocks[q], me, tells)
                else:
                    self.clocks[q] = self._see(word, self.clocks[q], me, self.clocks[q])
                if change.takes:
                    self._down(word, self.clocks[q], me)
                self.clocks[q] = self.clocks[q].with_work(bit)
            case Meet():
                self._meet(node, action, part)
            case CopyMemory(moves=moves, words=words):
                for number in words:  # they tell what stood before them, and nothing of the copies in the same batch
                    bit, self.bits = self.bits, self.bits + 1
                    tells = self.clocks[q].at(q, node.position - 1).with_work(bit)
                    self._raise(self.runs.word(node, number), self.clocks[q], self._me(node, bit), tells)
                for move in moves:
                    me = self._me(node, -1, move.origin, (move.op, 1))
                    self._read(node, move.src, self.clocks[q], me)
                    self._write(node, move.dst, self.clocks[q], me)
            case ResetWords():
                me = self._me(node, -1)
                for word in self.runs.reset(node, action):
                    self._down(word, self.clocks[q], me)
            case LaunchKernel(launch=number):
                self._work(node, number, part)
            case CallCollective():
                self._call(node, action, part)

    def _touch(self, node: Node, touches: Footprint) -> None:
        """Nothing says which elements, nor in which order."""
        clock, turn = self.clocks[node.queue], self.runs.turn(node)
        me = Toucher(node.queue, node.position, -1, node.place, touches.who, node.run)
        for tensor, rank in touches.tensors:
            name = _in_set(tensor, turn) if tensor in self.scratch else tensor
            if (name, rank) in self.whole:
                self.ledger.touch(self.whole[name, rank], clock, me, last=touches.last)
        for word in touches.words:
            number = self.runs.word(node, word)
            self.ledger.touch_point(self._word(number), clock, me, last=touches.last)
            if not touches.last and self.plan.words[word].device == self.runs.devices[node.queue]:
                self.reset[number] = me
        for launch in touches.launches:
            self.ledger.touch_point(self._memory(launch, turn), clock, me)

    def _word(self, word: int) -> Region:
        return self.words[word]

    def _memory(self, launch: int, turn: int) -> Region:
        return _MEMORY.on(launch + turn * len(self.plan.launches))

    def _meet(self, node: Node, meet: Meet, part: int) -> None:
        """One step. It knows those before it. NOTE words that tell of runs cannot race: one device alone raises such a
        word, always to a higher count, and whoever waits takes any count from its own on. It knows what stood before
        the raise to its own count; a higher one tells more."""
        q, step = node.queue, meet.steps[part]
        if part == 0:
            self.holders.append(Holder(node, 1, self.clocks[q]))
        bit, self.bits = self.bits, self.bits + 1
        me = self._me(node, bit)
        tells = self.clocks[q].at(q, node.position - 1).with_work(bit)
        runs = self.runs.word(node, meet.runs)
        self.ledger.read_point(self._word(runs), self.clocks[q], me)
        for word in (self.runs.word(node, number) for number in step.words):
            if step.does == "raise":
                self.told[word, self.counts[runs]] = tells
                self.memory.spend(len(self.clocks) + self.bits // 32, me.origin)
            elif step.does == "count":
                self.ledger.write_point(self._word(word), self.clocks[q], me)
                self.counts[word] += 1
            elif step.does == "reset":
                self._down(word, self.clocks[q], me)
            else:
                self.clocks[q] = self.clocks[q].join(self.told[word, self.counts[runs]])
        self.clocks[q] = self.clocks[q].with_work(bit)

    def _call(self, node: Node, call: CallCollective, part: int) -> None:
        """It touches its own rank's memory from its begin on. Its end knows what those ranks knew when they began that
        it has heard of."""
        q, key = node.queue, (node.run, call.group)
        rank = call.dst.rank
        if part:
            for other in heard(call, rank, len(self.plan.placement.devices)):
                self.clocks[q] = self.clocks[q].join(self.called[key][other])
            return
        self.holders.append(Holder(node, self.plan.communicators[call.communicator].blocks, self.clocks[q]))
        me = self._me(node, -1, order=(call.op, 1))
        for region in call.reads:
            self._read(node, region, self.clocks[q], me)
        for region in call.writes:
            self._write(node, region, self.clocks[q], me)
        self.called.setdefault(key, {})[rank] = self.clocks[q].at(q, node.position - 1)

    def _work(self, node: Node, number: int, part: int) -> None:
        """One group of works. It knows what the launch knew at its start and what its own words say, but nothing of
        earlier works of the launch. The stream knows the end of all."""
        q, launch, groups = node.queue, self.plan.launches[number], self.runs.groups[number]
        if part == 0:
            self.base[q] = self.clocks[q]
            self.ledger.write_point(self._memory(number, self.runs.turn(node)), self.clocks[q], self._me(node, -1))
            if launch.spins:
                self.holders.append(Holder(node, launch.sms, self.clocks[q]))
        group = groups[part]
        bit, self.bits = self.bits, self.bits + 1
        me = self._me(node, bit, group.works[0].origin)
        base = clock = self.base[q]
        for word in self.runs.words(node, group.waits):
            clock = self._see(word, clock, me, base)
        for i, work in enumerate(group.works):
            mine = self._me(node, bit, work.origin, (work.op, 0))
            early = _before_waits(launch, work)
            # sums stay in registers: the first work reads what it adds to, the last one writes
            for region in work.reads:
                if i == 0 or region not in work.writes:
                    self._read(node, region, base if region in early else clock, mine)
            for region in work.writes if i == len(group.works) - 1 else ():
                self._write(node, region, clock, mine)
        done = clock.at(q, node.position - 1).with_work(bit)
        for word in self.runs.words(node, group.signals):
            self._raise(word, clock, me, done)
        self.clocks[q] = self.clocks[q].join(clock).with_work(bit)
        if part == len(groups) - 1:
            for word in self.runs.words(node, launch.config.resets):
                self._down(word, self.clocks[q], self._me(node, -1))

    # ---- words

    def _raise(self, word: int, clock: Clock, me: Toucher, tells: Clock) -> None:
        self.ledger.write_point(self._word(word), clock, me)
        self.raised[word] = tells
        self.memory.spend(len(self.clocks) + self.bits // 32, me.origin)

    def _down(self, word: int, clock: Clock, me: Toucher) -> None:
        self.ledger.write_point(self._word(word), clock, me)
        self.reset[word] = me

    def _see(self, word: int, clock: Clock, me: Toucher, before: Clock) -> Clock:
        """The clock of who has seen the word up. Who knows nothing of its reset may see what the run before left up."""
        down = self.reset.get(word)
        if down is not None and not down.known(before, me):
            self._tell(Race("race", self._word(word), POINT, down, "resets", me, "awaits"))
        tells = clock.join(self.raised[word])
        self.ledger.read_point(self._word(word), tells, me)
        return tells

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
            turn, number = divmod(rank, len(self.plan.launches))
            named = where = f"the memory of launch {number}" + (f" of set {turn}" if turn else "")
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


def _before_waits(launch: DeviceLaunch, work: Work) -> tuple[Region, ...]:
    """What a work reads before the words that it waits for are up: read-only operands."""
    if not isinstance(work.body, Gemm):
        return ()
    left, right = launch.config.read_only
    return (*((work.body.left,) if left else ()), *((work.body.right,) if right else ()))


# NOTE tensors of the ledger, a word or a launch a rank: no schedule has a tensor with a space in its name
_WORD = whole("a word", 0, (1,))
_MEMORY = whole("a launch", 0, (1,))  # counters, partial sums, a library's workspace: nothing else is there


def _in_set(tensor: str, turn: int) -> str:
    """The ledger's name of a tensor in a set."""
    return f"{tensor} of set {turn}" if turn else tensor

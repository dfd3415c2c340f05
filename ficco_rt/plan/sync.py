"""Pass: turns dependencies into as few waits as possible, each in the cheapest form that enforces it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from ..graph import ir
from ..graph.budget import CLOCKS, COPIED, WAITS, Budget
from .clock import Clock, start
from .draft import Draft, LaunchKey, Need, Signals
from .ir import Order


@dataclass(frozen=True, slots=True)
class _Stamp:
    """The end of an op. A point knows that end if it knows `position` entries of `stream` or, for a work, `bit`."""

    clock: Clock  # what its start knew
    stream: int
    position: int
    bit: int = -1

    def known_to(self, clock: Clock) -> bool:
        return clock.done[self.stream] >= self.position or (self.bit >= 0 and clock.works >> self.bit & 1 == 1)

    def before(self, position: int, whole: bool) -> bool:
        """Does the end at a position of the same stream, of a whole entry or of a work, imply the end of this?"""
        return self.position < position or (self.position == position and whole and self.bit >= 0)

    def joined_to(self, clock: Clock) -> Clock:
        """`clock`, knowing the end of this."""
        met = clock.join(self.clock)
        if self.bit < 0:
            return met.at(self.stream, max(self.position, int(met.done[self.stream])))
        return met.at(self.stream, max(self.position - 1, int(met.done[self.stream]))).with_work(self.bit)


@dataclass(slots=True)
class _Launch:
    """A streamed stage on one rank: one launch, one entry of its stream."""

    position: int
    base: Clock  # what all its works know from the start
    end: Clock


def synchronise(draft: Draft) -> Draft:
    """Choose the waits. Afterwards stream order, an event or a flag enforces every dependency. Every wait is needed:
    without it some conflicting pair, or an `after` of the text, would have no order. Events and flags have numbers.

    Flags carry what works of streamed launches wait for or signal; events carry everything else. A streamed launch
    holds multiprocessors of its rank while it waits. So an op that needs multiprocessors of the same rank must end
    before the launch begins, if the launch may wait for it.
    """
    return _Synchroniser(draft).run()


FOREVER = 2**30  # more users than an op can have: a stamp with this count is never dropped


class _Synchroniser:
    def __init__(self, draft: Draft) -> None:
        self.draft, self.graph = draft, draft.graph
        engines = {q.name: q.engine for q in self.graph.queues}
        self.engine = [engines[key.queue] for key in draft.streams]
        self.clocks: list[Clock] = [start(len(draft.streams))] * len(draft.streams)
        self.length = [0] * len(draft.streams)
        self.stamps: dict[int, _Stamp] = {}
        self.choices = Budget(WAITS)
        self.memory, self.copied = Budget(CLOCKS), Budget(COPIED)
        self.launches: dict[LaunchKey, _Launch] = {}
        self.works = 0
        self.needs: dict[int, tuple[Need, ...]] = {}
        self.orders: list[Order] = []
        self.users = [0] * len(self.graph.ops)  # ops that may still ask for an op's stamp
        for deps in self.graph.deps:
            for d in deps:
                self.users[d.before] += 1
        self.ends: dict[tuple[int, int], list[int]] = {}  # stage, rank → the last op on each of its streams
        self.wanted_ends = {s for stage in self.graph.stages for s in stage.after}
        self.members: dict[LaunchKey, list[int]] = {}
        # rank → stream → first op of its last streamed launch that holds multiprocessors
        self.holding: dict[int, dict[int, int]] = {}
        self.latest: dict[int, int] = {}  # stream → its latest op that a streamed launch waits for, directly or not
        self.roomy: set[LaunchKey] = set()  # streamed stages that leave multiprocessors free while they wait
        last: dict[tuple[int, int, int], int] = {}
        for i in draft.order:
            where = self.graph.ops[i].where
            if where.stage in self.wanted_ends:
                last[where.stage, where.rank, draft.stream_of[i]] = i
            key = draft.launch_of[i]
            if key is not None:
                self.members.setdefault(key, []).append(i)
        for key, works in self.members.items():
            said = self.graph.ops[works[0]].where.resources.sms is not None
            copies = all(isinstance(self.graph.ops[v].body, ir.Copy) for v in works)  # they take half at most
            if said or copies or key in draft.shares:
                self.roomy.add(key)
        for (stage, rank, _), i in last.items():
            self.ends.setdefault((stage, rank), []).append(i)
            self.users[i] += FOREVER
        self.awaited = self._awaited() if self.members else set()
        for i in self.awaited:
            self.users[i] += FOREVER

    def run(self) -> Draft:
        ops = self.graph.ops
        for group in ir.by_call(self.draft.order, lambda v: ops[v].body):
            v = group[0]
            if isinstance(ops[v].body, ir.Collective):
                self._collective(group)
            elif (key := self.draft.launch_of[v]) is not None:
                self._work(v, key)
            else:
                self._single(v)
        return _numbered(replace(self.draft, orders=tuple(self.orders)), self.needs)

    def _awaited(self) -> set[int]:
        """Ops on multiprocessors that works of streamed launches wait for, directly or through other ops: because of
        data, because the text says `after`, or because one follows the other in a stream."""
        ops, graph, stream_of = self.graph.ops, self.graph, self.draft.stream_of
        groups: dict[int, list[int]] = {}
        ahead: dict[int, int] = {}  # the op before it in its stream
        last: dict[int, int] = {}
        for i in self.draft.order:
            if isinstance(call := ops[i].body, ir.Collective):
                groups.setdefault(call.group, []).append(i)
            if stream_of[i] in last:
                ahead[i] = last[stream_of[i]]
            last[stream_of[i]] = i

        def behind(u: int) -> Iterator[int]:
            op = ops[u]
            yield from (d.before for d in graph.deps[u])
            if u in ahead:
                yield ahead[u]
            if isinstance(op.body, ir.Collective):
                yield from groups[op.body.group]
            for stage in graph.stages[op.where.stage].after:
                yield from self.ends.get((stage, op.where.rank), ())

        todo = [u for works in self.members.values() for v in works for u in behind(v)]
        seen: set[int] = set()
        while todo:
            u = todo.pop()
            if u not in seen:
                seen.add(u)
                todo.extend(behind(u))
        return {u for u in seen if self.engine[stream_of[u]] != "copy"}

    # -- what an op follows

    def _before(self, v: int) -> list[int]:
        """Ops that v follows by data."""
        return [d.before for d in self.graph.deps[v]]

    def _after(self, v: int) -> list[int]:
        """Ops that v follows because the text says `after`: the last of that stage on each stream of the rank."""
        where = self.graph.ops[v].where
        found = []
        for stage in self.graph.stages[where.stage].after:
            for u in self.ends.get((stage, where.rank), ()):
                found.append(u)
                self.orders.append(Order(u, v, where.origin))
        self.choices.spend(len(self.graph.stages[where.stage].after) + len(found), where.origin)
        return found

    def _release(self, v: int) -> None:
        """Forget stamps that nobody will ask for: clocks are large."""
        for d in self.graph.deps[v]:
            self.users[d.before] -= 1
            if not self.users[d.before]:
                self.stamps.pop(d.before, None)

    def _keep(self, v: int, stamp: _Stamp) -> None:
        if self.users[v]:
            self.stamps[v] = stamp
            entries = len(self.clocks) + self.works // 32
            self.memory.foresee((len(self.stamps) + len(self.clocks)) * entries, self.graph.ops[v].where.origin)
            self.copied.spend(entries, self.graph.ops[v].where.origin)
        if v in self.awaited:
            self.latest[self.draft.stream_of[v]] = v

    def _end_of(self, u: int) -> _Stamp:
        """The stamp of an `after`: of a streamed stage the launch's end."""
        key = self.draft.launch_of[u]
        if key is None:
            return self.stamps[u]
        launch = self.launches[key]
        return _Stamp(launch.end, self.draft.stream_of[u], launch.position)

    # -- entries

    def _single(self, v: int) -> None:
        s = self.draft.stream_of[v]
        self.clocks[s] = clock = self._begun(v, s)
        self.length[s] += 1
        self._keep(v, _Stamp(clock, s, self.length[s]))
        self._release(v)

    def _begun(self, v: int, s: int) -> Clock:
        """What v, an op by itself, knows at its start on stream s."""
        candidates = {u: self.stamps[u] for u in self._before(v) if self.draft.stream_of[u] != s}
        ends = {u: self._end_of(u) for u in self._after(v) if self.draft.stream_of[u] != s}
        return self._wait(v, self.clocks[s], candidates, ends)

    def _wait(
        self, v: int, clock: Clock, candidates: dict[int, _Stamp], ends: dict[int, _Stamp], launch: bool = False
    ) -> Clock:
        """Choose the waits of v (or of its launch) and add what they tell to the clock."""
        origin = self.graph.ops[v].where.origin
        self.choices.spend(len(candidates) + len(ends), origin)
        candidates = {u: stamp for u, stamp in candidates.items() if not stamp.known_to(clock)}
        candidates |= {u: stamp for u, stamp in ends.items() if not stamp.known_to(clock)}
        if not candidates:
            return clock
        into_work = not launch and self.draft.launch_of[v] is not None
        chosen = []
        if len(candidates) > 1:
            self.copied.spend(len(candidates) * (len(self.clocks) + self.works // 32), origin)
        for u in _irredundant(candidates):
            stamp = candidates[u]
            self.copied.spend(2 * len(self.clocks) + self.works // 32, origin)
            chosen.append(Need(u, flag=into_work or stamp.bit >= 0, launch=launch))
            clock = stamp.joined_to(clock)
        self.needs[v] = (*self.needs.get(v, ()), *chosen)
        return clock

    def _collective(self, group: Sequence[int]) -> None:
        """The end of each call knows everything that the starts knew that it has heard of: of a collective those of all
        ranks, which begin together."""
        begun: dict[int, Clock] = {}
        for v in group:
            s = self.draft.stream_of[v]
            begun[self.graph.ops[v].where.rank] = self._begun(v, s).at(s, self.length[s])
        together = reduce(Clock.join, begun.values())
        for v in group:
            s, call = self.draft.stream_of[v], self.graph.ops[v].body
            assert isinstance(call, ir.Collective)
            rank = self.graph.ops[v].where.rank
            met = together
            if call.kind == "send_recv":
                met = reduce(Clock.join, [begun[other] for other in ir.heard(call, rank, self.graph.ranks)])
            self.length[s] += 1
            self.clocks[s] = met
            self._keep(v, _Stamp(met, s, self.length[s]))
            self._release(v)

    def _work(self, v: int, key: LaunchKey) -> None:
        s = self.draft.stream_of[v]
        if key not in self.launches:
            self._open(key, v)
        launch = self.launches[key]
        candidates = {}
        for u in self._before(v):
            stamp = self.stamps[u]
            if self.draft.stream_of[u] == s and stamp.position < launch.position:
                continue  # the stream's order
            if self._same_processors(u, key.rank) and self.draft.stream_of[u] != s and not self._beside(u, key):
                continue  # waited for before the launch
            candidates[u] = stamp
        clock = self._wait(v, launch.base, candidates, {})
        self._keep(v, _Stamp(clock, s, launch.position, self.works))
        self.works += 1
        launch.end = launch.end.join(clock)
        self.clocks[s] = launch.end
        self._release(v)

    def _beside(self, u: int, key: LaunchKey) -> bool:
        """Whether u is a work of a streamed launch that runs while launch `key` waits. Such launches leave each other
        room."""
        return key in self.roomy and self.draft.launch_of[u] in self.roomy

    def _same_processors(self, u: int, rank: int) -> bool:
        s = self.draft.stream_of[u]
        return self.draft.streams[s].rank == rank and self.engine[s] != "copy"

    def _open(self, key: LaunchKey, first: int) -> None:
        """Begin a streamed launch: wait first for ops that its works need and that use multiprocessors of the same
        rank."""
        s, rank = self.draft.stream_of[first], key.rank
        candidates: dict[int, _Stamp] = {}
        ends: dict[int, _Stamp] = {}
        self.choices.spend(len(self.latest) + len(self.members[key]), self.graph.ops[first].where.origin)
        if key not in self.roomy:
            others = [u for t, u in self.latest.items() if t != s and self.draft.streams[t].rank == rank]
            # two spinning launches could each hold the multiprocessors that the other needs to begin
            holding = self.holding.setdefault(rank, {})
            others += [u for t, u in holding.items() if t != s]
            ends = {u: self._end_of(u) for u in others}
            holding[s] = first
        for v in self.members[key]:
            for u in self._before(v):
                if self.draft.stream_of[u] != s and self._same_processors(u, rank) and not self._beside(u, key):
                    candidates[u] = self.stamps[u]
            ends |= {u: self._end_of(u) for u in self._after(v) if self.draft.stream_of[u] != s}
        base = self._wait(first, self.clocks[s], candidates, ends, launch=True)
        self.clocks[s] = base
        self.length[s] += 1
        self.launches[key] = _Launch(self.length[s], base, base)


def _irredundant(candidates: dict[int, _Stamp]) -> list[int]:
    """The candidates whose end no other candidate's end implies, in op order."""
    latest: dict[int, int] = {}  # of several ends on one stream the last implies the others
    works = []
    for u, stamp in candidates.items():
        if stamp.bit >= 0:
            works.append(u)
        elif stamp.stream not in latest or candidates[latest[stamp.stream]].position < stamp.position:
            latest[stamp.stream] = u
    left = sorted([*latest.values(), *works])
    if len(left) == 1:
        return left
    # NOTE no candidate knows its own end at its start. So an end that some start knows is implied by another candidate.
    known = candidates[left[0]].clock
    last: dict[int, tuple[int, bool]] = {}  # by stream, the furthest position, and whether it is a whole entry's end
    for u in left:
        stamp = candidates[u]
        known = known.join(stamp.clock)
        last[stamp.stream] = max(last.get(stamp.stream, (-1, False)), (stamp.position, stamp.bit < 0))
    return [u for u in left if not (candidates[u].known_to(known) or candidates[u].before(*last[candidates[u].stream]))]


def _numbered(draft: Draft, needs: Mapping[int, tuple[Need, ...]]) -> Draft:
    """The draft with these needs. Signals have their numbers in the order of the ops that raise them, alike in every
    run. The choice of kernels depends on what works wait for, so that the numbers are assigned before it."""
    awaited: set[int] = set()  # ops whose event is waited for
    waiters: dict[int, dict[int, LaunchKey | None]] = defaultdict(dict)  # op, rank → the one launch that waits
    for v, befores in needs.items():
        rank = draft.graph.ops[v].where.rank
        for need in befores:
            if need.flag:
                by = None if need.launch else draft.launch_of[v]  # None: a stream, or several launches
                others = waiters[need.before]
                others[rank] = by if others.get(rank, by) == by else None
            else:
                awaited.add(need.before)
    events: dict[int, int] = {}
    flags: dict[int, dict[int, int]] = {}
    homes: list[int] = []
    private: list[int] = []
    for u in draft.order:
        if u in awaited:
            events[u] = len(events)
        if u in waiters:
            flags[u] = {}
            for rank in sorted(waiters[u]):
                flags[u][rank] = len(homes)
                if waiters[u][rank] is not None:
                    private.append(len(homes))
                homes.append(rank)
    return replace(draft, needs=needs, signals=Signals(events, flags, tuple(homes), frozenset(private)))

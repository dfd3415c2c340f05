"""Finds dependencies of a draft that no stream order and no wait enforces, by a search that shares no code with
`sync`."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from ..graph import ir
from ..graph.budget import SEARCHED, Budget
from .draft import Draft, LaunchKey, Need


def uncarried(draft: Draft) -> Iterator[tuple[int, int]]:
    """Pairs of ops: the second depends on the first, and may start before the first has ended.

    Stream order carries most dependencies, or a direct wait: a wait of the second op, or of an op before it on its
    stream, for the first op or for one behind that on its stream. A search decides the others.
    """
    return _Carriers(draft).uncarried()


class _Carriers:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.budget = Budget(SEARCHED)
        self.stream_of, self.launch_of = draft.stream_of, draft.launch_of
        ops = draft.graph.ops
        self.place = [0] * len(ops)  # op → where it stands in the order
        self.entry = [0] * len(ops)  # op → its stream's entry; works of a launch have the same
        self.ends: list[list[list[int]]] = [[] for _ in draft.streams]  # stream, entry → its ops
        self.groups: dict[int, list[int]] = {}  # a collective's calls
        begun: dict[LaunchKey, int] = {}
        for at, v in enumerate(draft.order):
            entries, key = self.ends[self.stream_of[v]], self.launch_of[v]
            if key is None or key not in begun:
                entries.append([])
            number = len(entries) - 1 if key is None else begun.setdefault(key, len(entries) - 1)
            entries[number].append(v)
            self.place[v], self.entry[v] = at, number
            if isinstance(call := ops[v].body, ir.Collective):
                self.groups.setdefault(call.group, []).append(v)
        self.at_launch: dict[LaunchKey, list[Need]] = {}  # what a launch waits for as a whole
        self.own: dict[int, list[Need]] = {}  # what else an op waits for
        for v, needs in draft.needs.items():
            key = self.launch_of[v]
            self.own[v] = [need for need in needs if not need.launch]
            if key is not None and (whole := [need for need in needs if need.launch]):
                self.at_launch.setdefault(key, []).extend(whole)

    def uncarried(self) -> Iterator[tuple[int, int]]:
        stream_of, entry, deps = self.stream_of, self.entry, self.draft.graph.deps
        # of each stream: how many entries of other streams its own waits have shown to be over
        heard: list[defaultdict[int, int]] = [defaultdict(int) for _ in self.draft.streams]
        for v in self.draft.order:
            s, known = stream_of[v], heard[stream_of[v]]
            mine: dict[int, int] = {}  # what a work hears, those beside it do not
            waits = self._waits(v)
            for need in waits:
                u = need.before
                t, over = stream_of[u], entry[u] + (not need.flag or self.launch_of[u] is None)
                into = known if need.launch or self.launch_of[v] is None else mine
                into[t] = max(into.get(t, 0), over)
            left = {
                u
                for u in (d.before for d in deps[v])
                if (stream_of[u] != s or entry[u] >= entry[v])
                and max(known[stream_of[u]], mine.get(stream_of[u], 0)) <= entry[u]
            }
            left.difference_update(need.before for need in waits)
            if left:
                yield from ((u, v) for u in sorted(self._unreached(left, v)))

    def _waits(self, v: int) -> list[Need]:
        """What v waits for, itself or with its launch."""
        waits, key = self.own.get(v, []), self.launch_of[v]
        return waits if key is None or key not in self.at_launch else [*waits, *self.at_launch[key]]

    def _unreached(self, wanted: set[int], v: int) -> set[int]:
        """The ops that v does not know to be over: searched for backwards from v, the nearest first."""
        first = min(self.place[u] for u in wanted)  # nothing before it counts
        seen = {v}
        todo = deque(self._before(v))
        origin = self.draft.graph.ops[v].where.origin
        while todo and wanted:
            w = todo.popleft()
            if w not in seen and self.place[w] >= first:
                seen.add(w)
                wanted.discard(w)
                known = len(todo)
                todo += self._before(w)
                self.budget.spend(1 + len(todo) - known, origin)
        return wanted

    def _begun(self, v: int) -> Sequence[int]:
        """The ops whose start is known at the end of v."""
        op, ops = self.draft.graph.ops[v], self.draft.graph.ops
        if not isinstance(op.body, ir.Collective):
            return (v,)
        told = ir.heard(op.body, op.where.rank, self.draft.graph.ranks)
        return [u for u in self.groups[op.body.group] if ops[u].where.rank in told]

    def _before(self, v: int) -> Iterator[int]:
        """What is over when v starts; a call of a collective goes on when the calls that it has heard of have
        started."""
        for u in self._begun(v):
            entries, at = self.ends[self.stream_of[u]], self.entry[u]
            if at:
                yield from entries[at - 1]
            for need in self._waits(u):
                # an event is recorded behind the whole launch
                w = need.before
                yield from (w,) if need.flag else self.ends[self.stream_of[w]][self.entry[w]]

"""Numbers events and flags. Numbers are assigned once, before kernels are chosen, because the choice depends on what
works wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from .draft import Draft, LaunchKey, Need, Signals


def numbered(draft: Draft, needs: Mapping[int, tuple[Need, ...]]) -> Draft:
    """The draft with these needs. Signals have their numbers in the order of the ops that raise them, alike in every
    run."""
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

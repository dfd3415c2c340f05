"""Numbers for events and flags. They are given once, before kernels are chosen: what works wait for decides how."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from .draft import Draft, FlagKey, LaunchKey, Need, Signals, launch_of


def numbered(draft: Draft, needs: Mapping[int, tuple[Need, ...]]) -> Draft:
    """The draft with these needs. Signals have their numbers in the order of the ops that raise them, alike in every
    run."""
    events: set[int] = set()
    homes: dict[int, set[int]] = defaultdict(set)  # op → ranks that wait for a flag of it
    waiting: dict[FlagKey, set[LaunchKey | None]] = defaultdict(set)  # the launches that do; None: a stream
    for v, befores in needs.items():
        op = draft.graph.ops[v]
        for need in befores:
            if not need.flag:
                events.add(need.before)
                continue
            inside = draft.graph.stages[op.where.stage].streamed and not need.launch
            waiting[FlagKey(need.before, op.where.rank)].add(launch_of(draft, op) if inside else None)
            homes[need.before].add(op.where.rank)
    number_of_event: dict[int, int] = {}
    flags: dict[FlagKey, int] = {}
    raised: dict[int, tuple[int, ...]] = {}
    for u in draft.order:
        if u in events:
            number_of_event[u] = len(number_of_event)
        if u in homes:
            keys = [FlagKey(u, rank) for rank in sorted(homes[u])]
            raised[u] = tuple(range(len(flags), len(flags) + len(keys)))
            flags.update(zip(keys, raised[u], strict=True))
    private = frozenset(flags[key] for key, by in waiting.items() if len(by) == 1 and None not in by)
    signals = Signals(number_of_event, flags, raised, tuple(key.rank for key in flags), private)
    return replace(draft, needs=needs, signals=signals)

"""The words of a device plan: which there are, where they lie, and who resets them.

The layout is the same in every mode, so that one set of words serves all runs of an executor. On each device those that
the completion of a run resets come first, in one piece: flags, then semaphores, those of every mode before those of
graphs; then those that whoever waits for them resets; then those that tell of runs. The latch is the last of all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from ficco_dsl.diagnostics import Diagnostic, Span

from ..errors import PlanError
from ..graph.budget import WORDS, Budget
from ..plan.ir import CollectiveCall, Launch, Plan, Record, WaitEvent, WaitFlag
from .collectives import calls_of, meets
from .early_begin import Opening
from .ir import EventName, Mode, Placement, Word

_USES = ("always", "graph", "embedded", "traced", "embedded or traced")
_GROUPS = {"completion": 0, "kernel": 1, "behind": 1, "taken": 1, "never": 2}


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a plan on a placement."""

    table: tuple[Word, ...]
    flags: tuple[int, ...]  # flag → word; -1: it has none
    places: Mapping[int, range]  # device → its words in the table, without the latch
    counts: Mapping[int, int]  # device → its count of runs, where it has one
    latch: int | None  # the last word; none where the first device shares no events with some other one

    def listed(self, *, latched: bool) -> tuple[Word, ...]:
        """The words of a device plan, with the latch or without."""
        return self.table if latched or self.latch is None else self.table[: self.latch]

    def reset(self, device: int, mode: Mode) -> tuple[int, int]:
        """The first and the number of a device's words that the completion of a run resets."""
        words = (self.table[i] for i in self.places[device])
        mine = [w.index for w in words if w.reset == "completion" and w.used_in(mode)]
        return min(mine, default=0), len(mine)

    def semaphores(self, mode: Mode) -> Semaphores:
        """Those of a mode."""
        found: dict[EventName, dict[int, int]] = {}
        for number, word in enumerate(self.table):
            if word.point is not None and word.used_in(mode):
                found.setdefault(word.point, {})[word.device] = number
        return Semaphores(found)


class Semaphores:
    """The words that stand for points where no event leads."""

    def __init__(self, words: Mapping[EventName, Mapping[int, int]]) -> None:
        self._words = words  # point → device that waits for it → word

    def raised(self, point: EventName) -> list[int]:
        """The words that are raised at a point."""
        return list(self._words.get(point, {}).values()) if self._words else []

    def awaited(self, point: EventName, device: int) -> int | None:
        """The word by which a device waits for a point; None: an event leads there."""
        return self._words.get(point, {}).get(device) if self._words else None


def private_flags(plan: Plan) -> frozenset[int]:
    """The flags that one launch, and nothing else, waits for: that launch resets them."""
    if not plan.flag_homes:
        return frozenset()
    commands = [command for stream in plan.streams for command in stream.commands]
    awaited = ({signal.number for signal in c.waits} for c in commands if isinstance(c, Launch))
    launches = Counter(flag for flags in awaited for flag in flags)
    streams = {c.flag for c in commands if isinstance(c, WaitFlag)}
    return frozenset(flag for flag, count in launches.items() if count == 1) - streams


def words_of(
    plan: Plan,
    placement: Placement,
    by_kernel: frozenset[int],
    unraised: frozenset[int],
    touched: Sequence[frozenset[int]],
    *,
    opening: Opening | None = None,
    sets: int = 1,
    meetings: bool = True,
) -> Words:
    """`by_kernel`: private flags that the launch's kernel itself resets; its stream resets the other private ones.
    `unraised`: flags between works that a kernel makes as one; they have no word. `touched`: by stream of the plan,
    the ranks whose inputs and outputs its commands touch. `opening`: who waits for whose begin, in place of the end
    (`opening`). `sets`: with two, runs do not tell their ends (`double`). `meetings`: ranks meet before and behind
    collectives, as these are copies and sums."""
    private = private_flags(plan)
    wanted: dict[int, list[Word]] = defaultdict(list)  # by device
    for flag, rank in enumerate(plan.flag_homes):
        device = placement.devices[rank]
        if flag in private and flag not in unraised:
            wanted[device].append(Word(device, -1, flag, None, "kernel" if flag in by_kernel else "behind"))
        elif flag not in unraised:
            wanted[device].append(Word(device, -1, flag, None, "completion"))
    budget = Budget(WORDS, PlanError)
    budget.spend(2 * len(placement.ordinals) ** 2, plan.origin)
    for word in chain(
        _semaphores(plan, placement, budget, meetings), _meetings(plan, placement, touched, opening, sets)
    ):
        wanted[word.device].append(word)
    table: list[Word] = []
    flags = [-1] * len(plan.flag_homes)
    places: dict[int, range] = {}
    counts: dict[int, int] = {}
    for device in placement.ordinals:
        places[device] = range(len(table), len(table) + len(wanted[device]))
        for index, word in enumerate(sorted(wanted[device], key=_place)):
            if word.flag is not None:
                flags[word.flag] = len(table)
            if word.counts_runs:
                counts[device] = len(table)
            table.append(Word(device, index, word.flag, word.point, word.reset, word.used))
    first, *_ = placement.ordinals
    latch = None
    if not placement.others(first):
        latch = len(table)
        table.append(Word(first, len(wanted[first]), None, None, "completion", "latched"))
    return Words(tuple(table), tuple(flags), places, counts, latch)


def _place(word: Word) -> tuple[int, int]:
    """Where among its device's words a word lies."""
    return _GROUPS[word.reset], _USES.index(word.used)


def _semaphores(plan: Plan, placement: Placement, budget: Budget, meetings: bool) -> Iterator[Word]:
    """A word on each device that waits for a point of another device where no event leads. A graph belongs to one
    device, so no event leads out of it; and no event leads to another process."""
    points: dict[EventName | int, tuple[int, Span]] = {}  # or an event of the plan: the device that comes to it
    awaited: dict[EventName | int, set[int]] = defaultdict(set)  # the devices that wait for it
    calls = calls_of(plan) if meetings else {}
    for stream in plan.streams:
        owner = placement.devices[stream.rank]
        for command in stream.commands:
            if isinstance(command, Record):
                points[command.event] = owner, command.origin
            elif isinstance(command, WaitEvent):
                awaited[command.event].add(owner)
            elif meetings and isinstance(command, CollectiveCall):
                group = command.group
                for behind in (False, True):
                    points[EventName("meet", group, stream.rank, behind)] = owner, command.origin
                    for other in meets(calls[group], stream.rank, behind=behind):
                        awaited[EventName("meet", group, other, behind)].add(owner)
    for at, (owner, origin) in points.items():
        others = awaited[at] - {owner}
        budget.spend(len(others), origin)
        point = EventName("plan", at) if isinstance(at, int) else at
        for device in sorted(others):
            if placement.node(device) != placement.node(owner):
                text = f"device {device} waits for {point} of device {owner} on another node, where no word leads"
                raise PlanError((Diagnostic(origin, text),))
            used: Literal["always", "graph"] = "always" if device in placement.others(owner) else "graph"
            yield Word(device, -1, None, point, "completion", used)


def _meetings(
    plan: Plan, placement: Placement, touched: Sequence[frozenset[int]], opening: Opening | None, sets: int
) -> Iterator[Word]:
    """By these words each two devices that share no events know each other's end of a run, with two sets only of those
    in callers' graphs; or, with an opening, a device those others that are ready for what it sends. And a device knows
    the begin of those whose callers' tensors it touches; in traced runs, of all others."""
    touches: dict[int, set[int]] = defaultdict(set)  # device → the devices whose callers' tensors it touches
    for stream, ranks in zip(plan.streams, touched, strict=True):
        touches[placement.devices[stream.rank]] |= {placement.devices[rank] for rank in ranks}
    entries = {device: EventName("entry", device) for device in placement.ordinals}
    exits = {device: EventName("exit", device) for device in placement.ordinals}
    for device in placement.ordinals:
        used: Literal["always", "embedded", "embedded or traced"]
        away = placement.others(device)
        for other in placement.near(device):
            used = "always" if other in away else "embedded"
            if other in touches[device]:
                yield Word(device, -1, None, entries[other], "never", used)
            elif other in away:
                yield Word(device, -1, None, entries[other], "never", "traced")
            if opening is None:
                yield Word(device, -1, None, exits[other], "never", used if sets == 1 else "embedded")
            elif opening.waits(device, other):
                yield Word(device, -1, None, EventName("ready", other), "taken", used)
        if placement.near(device):
            used = "always" if apart(placement, device, "streams") else "embedded"
            if sets > 1:
                used = "embedded or traced"
            yield Word(device, -1, None, None, "never", used if opening is None else "traced")


def apart(placement: Placement, device: int, mode: Mode) -> Sequence[int]:
    """The devices whose begin and end of a run no event can tell to a device: a graph in a caller's graph may be
    replayed before the others are, and another process has events of its own. Those of other nodes are not among them:
    a device has nothing in common with these but messages, which find each other by their order."""
    near = placement.near(device)
    return near if mode == "embedded" else [other for other in near if other in placement.others(device)]

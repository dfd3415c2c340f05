"""Several nodes: which ranks are on one, and that nothing but messages leads from one to another.

A process is on one machine, and so on one node. The machine that a plan was made for says how many ranks a node has.
Devices of different nodes share neither events nor words, and none touches another's memory: the calls of the vendor's
library alone reach the other node. Each of these calls reads and writes memory of its own rank, and the calls of a
communicator find each other by their order. So a run begins and ends on each node by itself. No device of a node is
ahead by a message that its partner has not come to: the message ends when both sides have begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import lcm

from ficco_dsl.diagnostics import Diagnostic, Span

from ..geometry.region import Region
from .ir import PLACELESS, ChangeWords, CopyMemory, DevicePlan, Meet


def nodes_of(processes: Sequence[int], node: int) -> tuple[int, ...]:
    """The node of each rank, where `node` consecutive ranks are one; none, if all are. `processes`: of each rank, each
    of equally many consecutive ones. Nodes of which one process has ranks count as one."""
    if not processes or node < 1:
        return ()
    size = lcm(node, processes.count(processes[0]))
    return tuple(rank // size for rank in range(len(processes))) if size < len(processes) else ()


def nodes_share_messages_alone(plan: DevicePlan) -> Iterator[Diagnostic]:
    """Every rank is on a node, and a process on one. No device raises a word of another node or touches its memory."""
    placement = plan.placement
    if not placement.nodes:
        return
    if len(placement.nodes) != len(placement.devices) or len(placement.processes) != len(placement.devices):
        yield Diagnostic(
            PLACELESS, f"{len(placement.devices)} ranks, and the nodes of {len(placement.nodes)} of them in processes"
        )
        return
    for process in dict.fromkeys(placement.processes):
        found = sorted({n for p, n in zip(placement.processes, placement.nodes, strict=True) if p == process})
        if len(found) > 1:
            yield Diagnostic(PLACELESS, f"process {process} is on the nodes {' and '.join(map(str, found))}")
    devices = {stream.name: stream.device for stream in plan.streams}
    of_flags = {word.flag: i for i, word in enumerate(plan.words) if word.flag is not None}

    def away(
        device: int, words: Iterable[int], regions: Iterable[Region], place: Span, who: str
    ) -> Iterator[Diagnostic]:
        mine = placement.node(device)
        for word in words:
            if placement.node(plan.words[word].device) != mine:
                yield Diagnostic(place, f"{who}: it raises word {word} on another node")
        for region in regions:
            if placement.nodes[region.rank] != mine:
                yield Diagnostic(place, f"{who}: it touches {region.tensor}@{region.rank} on another node")

    streams = {name.number: device for name, device in devices.items() if name.kind == "plan"}
    for launch in plan.launches:
        for work in launch.works:
            words = [of_flags[flag] for flag in work.signals if flag in of_flags]
            regions = (*work.reads, *work.writes)
            yield from away(streams[launch.stream], words, regions, work.origin, launch.config.entry)
    for action in plan.actions:
        place, who, device = action.cause.origin or PLACELESS, action.cause.text, devices[action.stream]
        match action:
            case CopyMemory(moves=moves, words=raised):
                sides = [region for move in moves for region in (move.dst, move.src)]
                yield from away(device, raised, sides, place, who)
            case ChangeWords(changes=changes):
                yield from away(device, [c.word for c in changes if c.raises], (), place, who)
            case Meet(steps=steps):
                raised = tuple(word for step in steps if step.does == "raise" for word in step.words)
                yield from away(device, raised, (), place, who)

"""Plans on several nodes: which ranks are on which node, and the check that nothing but messages crosses nodes.

A process is on one machine, and so on one node. The machine that a plan was made for says how many ranks a node has.
Devices of different nodes share neither events nor semaphores, and none accesses another's memory: only calls of the
vendor's library reach the other node. Each of these calls reads and writes memory of its own rank, and the calls of a
communicator are matched by their order. So a run begins and ends on each node independently. No device can complete a
message before its partner on the other node has reached it: a message ends only after both sides have begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import lcm

from ficco_dsl.diagnostics import Diagnostic, Span

from ..geometry.region import Region
from .ir import PLACELESS, DevicePlan, StreamName


def nodes_of(processes: Sequence[int], node: int) -> tuple[int, ...]:
    """The node of each rank, with `node` consecutive ranks a node; empty if all ranks are on one. `processes` has each
    rank's process; each process has equally many consecutive ranks. Nodes of one process count as one node."""
    if not processes or node < 1:
        return ()
    size = lcm(node, processes.count(processes[0]))
    return tuple(rank // size for rank in range(len(processes))) if size < len(processes) else ()


def nodes_share_messages_alone(plan: DevicePlan) -> Iterator[Diagnostic]:
    """Every rank is on a node, and all ranks of a process on the same. No device signals a semaphore of another node or
    touches its memory."""
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
    devices, of_flags = plan.device_of, plan.semaphore_of

    def away(
        device: int, semaphores: Iterable[int], regions: Iterable[Region], place: Span, who: str
    ) -> Iterator[Diagnostic]:
        mine = placement.node(device)
        for semaphore in semaphores:
            if placement.node(plan.semaphores[semaphore].device) != mine:
                yield Diagnostic(place, f"{who}: it signals semaphore {semaphore} on another node")
        for region in regions:
            if placement.nodes[region.rank] != mine:
                yield Diagnostic(place, f"{who}: it touches {region.tensor}@{region.rank} on another node")

    for launch in plan.launches:
        device = devices[StreamName("plan", launch.stream)]
        for work in launch.works:
            semaphores = [of_flags[flag] for flag in work.signals if flag in of_flags]
            yield from away(device, semaphores, (*work.reads, *work.writes), work.origin, launch.config.entry)
    for action in plan.actions:
        sides = [region for part in action.parts for region in (*part.writes, *part.reads)]
        yield from away(devices[action.stream], action.signals, sides, action.origin, action.cause.text)

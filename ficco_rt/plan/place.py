"""Pass: every op gets a stream."""

from __future__ import annotations

from dataclasses import replace

from ..graph import ir
from ..machine.model import Machine
from .draft import Draft, StreamKey


def place(draft: Draft) -> Draft:
    """One stream a rank and queue. Where links are separate (mesh, ring), a copy queue has one a link."""
    graph, machine = draft.graph, draft.machine
    engines = {q.name: q.engine for q in graph.queues}
    queue_order = {q.name: i for i, q in enumerate(graph.queues)}
    keys = []
    for op in graph.ops:
        queue = graph.stages[op.where.stage].queue
        link = _link(op, machine) if engines[queue] == "copy" else -1
        keys.append(StreamKey(op.where.rank, queue, link))
    used = sorted(set(keys), key=lambda k: (k.rank, queue_order[k.queue], k.link))
    number = {key: i for i, key in enumerate(used)}
    return replace(draft, streams=tuple(used), stream_of=tuple(number[k] for k in keys))


def _link(op: ir.Op, machine: Machine) -> int:
    """The peer whose link a copy takes; -1 where one port serves several peers. Ports of different tiers share one
    stream: the order of the text keeps senders from meeting at a port, and a stream for each tier would lose that
    order."""
    copy, rank = op.body, op.where.rank
    if not isinstance(copy, ir.Copy):
        return -1
    peer = copy.dst.rank if copy.dst.rank != rank else copy.src.rank
    links = machine.between(rank, peer)
    if links.kind == "switch":
        return -1
    if links.kind == "mesh" or peer == rank:
        return peer
    # ring: the neighbour in the shorter direction, or the first rank of the neighbour that shares a port
    port = machine.ports(rank, peer)[0]
    return port.b * links.ranks_a_port

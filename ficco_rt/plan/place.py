"""Pass: assigns a stream to every op."""

from __future__ import annotations

from dataclasses import replace

from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from ..graph import ir
from ..machine.model import Machine
from .draft import Draft, StreamKey
from .reach import WAY_OUT, beyond

MOST_MISTAKES = 20


def place(draft: Draft) -> Draft:
    """One stream a rank and queue. Where links are separate (mesh, ring), a copy queue has one a link. Raises
    ScheduleError for ops on memory that the rank does not reach."""
    graph, machine = draft.graph, draft.machine
    if machine.node < graph.ranks:
        _within_reach(graph, machine)
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


def _within_reach(graph: ir.Graph, machine: Machine) -> None:
    mistakes: dict[Span, Diagnostic] = {}
    for op in graph.ops:
        message = beyond(machine, op.where.rank, op.reads, op.writes)
        if message is not None:
            stage = graph.stages[op.where.stage].label
            told = Diagnostic(op.where.origin, f"in stage '{stage}' {message}", (), WAY_OUT)
            mistakes.setdefault(op.where.origin, told)
    if mistakes:
        raise ScheduleError(tuple(mistakes.values())[:MOST_MISTAKES])


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

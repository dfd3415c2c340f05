"""Pass: the order of transfers. Text order stays, unless a queue says `order = auto`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..graph import ir
from .draft import Draft


def order_transfers(draft: Draft) -> Draft:
    """With `order = auto` on a switch, copies of one phase go out in rounds in which no rank sends to two or
    receives from two: a port that two share gives each half."""
    graph = draft.graph
    order: list[int] = []
    for block in phases(graph):
        first = graph.ops[block[0]]
        auto = first.where.resources.order == "auto" and draft.machine.links.kind == "switch"
        if auto and all(isinstance(graph.ops[i], ir.Copy) for i in block):
            order.extend(_rounds(graph, block))
        else:
            order.extend(block)
    return replace(draft, order=tuple(order))


def phases(graph: ir.Graph) -> Iterator[list[int]]:
    """Runs of ops of one phase of one stage, as they stand in the graph."""
    block: list[int] = []
    for i, op in enumerate(graph.ops):
        if block:
            last = graph.ops[block[-1]].where
            if (last.stage, last.phase) != (op.where.stage, op.where.phase):
                yield block
                block = []
        block.append(i)
    if block:
        yield block


def _rounds(graph: ir.Graph, block: Sequence[int]) -> Iterator[int]:
    """Each round every rank issues at most one copy, over ports that the round has not used yet."""
    ranks = graph.ranks
    inside = set(block)
    pending: dict[int, list[tuple[int, int, int]]] = {r: [] for r in range(ranks)}  # occurrence, distance, op
    seen: dict[tuple[int, int], int] = {}
    for i in block:
        op = graph.ops[i]
        assert isinstance(op, ir.Copy)
        rank, peer = op.where.rank, op.dst.rank if op.dst.rank != op.where.rank else op.src.rank
        occurrence = seen.get((rank, peer), 0)
        seen[rank, peer] = occurrence + 1
        pending[rank].append((occurrence, (peer - rank - 1) % ranks, i))
    for queue in pending.values():
        queue.sort()
    done: set[int] = set()
    while any(pending.values()):
        sending: set[int] = set()
        receiving: set[int] = set()
        taken: list[int] = []
        for rank in range(ranks):
            for entry in pending[rank]:
                op = graph.ops[entry[2]]
                assert isinstance(op, ir.Copy)
                if any(d.before in inside and d.before not in done for d in graph.deps[entry[2]]):
                    continue
                src, dst = op.src.rank, op.dst.rank
                if src != dst and (src in sending or dst in receiving):
                    continue
                if src != dst:
                    sending.add(src)
                    receiving.add(dst)
                pending[rank].remove(entry)
                taken.append(entry[2])
                break
        done.update(taken)
        yield from taken

"""Pass: orders transfers. They keep the order of the text, unless a queue says `order = auto`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..graph import ir
from ..graph.budget import ROUNDS, Budget
from .draft import Draft


def order_transfers(draft: Draft) -> Draft:
    """With `order = auto` on a switch, copies of one phase go out in rounds in which no rank sends to two or
    receives from two: a port that two share gives each half."""
    graph, budget = draft.graph, Budget(ROUNDS)
    order: list[int] = []
    for block in phases(graph):
        first = graph.ops[block[0]]
        auto = first.where.resources.order == "auto" and any(links.kind == "switch" for links in draft.machine.tiers)
        if auto and all(isinstance(graph.ops[i].body, ir.Copy) for i in block):
            order.extend(_rounds(graph, block, budget))
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


def _rounds(graph: ir.Graph, block: Sequence[int], budget: Budget) -> Iterator[int]:
    """Each round every rank issues at most one copy, over ports that the round has not used yet: of those that it
    has for its peers next, the one for which it has waited longest, then the nearest."""
    ranks = graph.ranks
    inside = set(block)
    queues: list[dict[int, deque[int]]] = [{} for _ in range(ranks)]  # rank → peer → copies in the text's order
    for i in block:
        rank, copy = graph.ops[i].where.rank, graph.ops[i].body
        assert isinstance(copy, ir.Copy)
        peer = copy.dst.rank if copy.dst.rank != rank else copy.src.rank
        queues[rank].setdefault(peer, deque()).append(i)
    sent: dict[tuple[int, int], int] = {}
    done: set[int] = set()
    busy = [rank for rank in range(ranks) if queues[rank]]
    while busy:
        origin = graph.ops[block[0]].where.origin
        sending: set[int] = set()
        receiving: set[int] = set()
        taken: list[int] = []
        for rank in busy:
            budget.spend(2 + len(queues[rank]), origin)
            for peer in sorted(queues[rank], key=lambda p: (sent.get((rank, p), 0), (p - rank - 1) % ranks)):
                i = queues[rank][peer][0]
                copy = graph.ops[i].body
                assert isinstance(copy, ir.Copy)
                if any(d.before in inside and d.before not in done for d in graph.deps[i]):
                    continue
                src, dst = copy.src.rank, copy.dst.rank
                if src != dst and (src in sending or dst in receiving):
                    continue
                if src != dst:
                    sending.add(src)
                    receiving.add(dst)
                queues[rank][peer].popleft()
                if not queues[rank][peer]:
                    del queues[rank][peer]
                sent[rank, peer] = sent.get((rank, peer), 0) + 1
                taken.append(i)
                break
        done.update(taken)
        busy = [rank for rank in busy if queues[rank]]
        yield from taken

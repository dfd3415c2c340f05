"""Prints a graph as stable text, for reading."""

from __future__ import annotations

from collections.abc import Iterator

from . import ir
from .kinds import kind_of


def to_text(graph: ir.Graph) -> str:
    """One line an op, under its stage, with the ops that it follows."""
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: ir.Graph) -> Iterator[str]:
    yield f"graph {graph.schedule}: {graph.ranks} ranks, {len(graph.ops)} ops"
    stage = -1
    for i, op in enumerate(graph.ops):
        if op.where.stage != stage:
            stage = op.where.stage
            s = graph.stages[stage]
            yield f"stage {s.label} on {s.queue}{' streamed' if s.streamed else ''}"
        follows = ", ".join(str(d.before) for d in graph.deps[i])
        after = f"  after {follows}" if follows else ""
        yield f"  {i} rank {op.where.rank}: {body_text(op.body)}{after}  :{op.where.origin.line}"


def body_text(body: ir.Body) -> str:
    """What is done, with its exact regions."""
    return kind_of(body).text(body)

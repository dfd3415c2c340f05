"""A graph as stable text, for reading."""

from __future__ import annotations

from collections.abc import Iterator

from . import ir


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
        yield f"  {i} rank {op.where.rank}: {op_text(op)}{after}  :{op.where.origin.line}"


def op_text(op: ir.Op) -> str:
    """An op with its exact regions."""
    match op:
        case ir.Copy():
            return f"copy {op.dst} <- {op.src}"
        case ir.Gemm():
            t = {True: ".T", False: ""}
            sign = "+=" if op.accumulate else "="
            product = f"{op.left}{t[op.left_transposed]} * {op.right}{t[op.right_transposed]}"
            terms = f" + sum({', '.join(map(str, op.terms))})" if op.terms else ""
            return f"gemm {op.out} {sign} {product}{terms}"
        case ir.Reduce():
            return f"reduce {op.out} = sum({', '.join(map(str, op.terms))})"
        case ir.Collective():
            return f"{op.kind} {op.dst} <- {op.src}"
        case ir.Launch():
            return f"launch {op.kernel}({', '.join(str(a.value) for a in op.arguments)})"

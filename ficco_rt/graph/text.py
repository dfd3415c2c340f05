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
        yield f"  {i} rank {op.where.rank}: {body_text(op.body)}{after}  :{op.where.origin.line}"


def body_text(body: ir.Body) -> str:
    """What is done, with its exact regions."""
    match body:
        case ir.Copy():
            return f"copy {body.dst} <- {body.src}"
        case ir.Gemm():
            t = {True: ".T", False: ""}
            sign = "+=" if body.accumulate else "="
            product = f"{body.left}{t[body.left_transposed]} * {body.right}{t[body.right_transposed]}"
            addends = f" + sum({', '.join(map(str, body.addends))})" if body.addends else ""
            return f"gemm {body.out} {sign} {product}{addends}"
        case ir.Reduce():
            return f"reduce {body.out} = sum({', '.join(map(str, body.terms))})"
        case ir.Collective():
            if body.kind == "send_recv":
                return f"send {body.src} to {body.to}, receive {body.dst} from {body.by}"
            return f"{body.kind} {body.dst} <- {body.src}"
        case ir.KernelCall():
            return f"launch {body.kernel}({', '.join(str(a.value) for a in body.arguments)})"

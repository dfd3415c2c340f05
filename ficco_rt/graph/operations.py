"""Statements that move or compute, each as a function that makes an op of a rank's scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ficco_dsl import nodes as n

from ..geometry.region import Region
from . import ir
from .evaluate import Mistake, Scope, compile_expr, copied, number
from .evaluate import describe as describe_value
from .references import Reference

Where: TypeAlias = Callable[[Scope], ir.Where]
Make: TypeAlias = Callable[[Scope], ir.Op]


def sent_and_received(group: int, copies: Sequence[ir.Op]) -> list[ir.Op]:
    """One copy of each rank, by rank, as calls of the vendor's library. Raises Mistake unless each rank sends to one
    rank and receives from one."""
    sent: dict[int, ir.Op] = {}
    received: dict[int, ir.Op] = {}
    for op in copies:
        assert isinstance(op.body, ir.Copy)
        for ends, rank, does in ((sent, op.body.src.rank, "sends"), (received, op.body.dst.rank, "receives")):
            other = ends.setdefault(rank, op)
            if other is not op:
                raise Mistake(
                    op.where.origin,
                    f"rank {rank} {does} twice at once, by the copies of rank {other.where.rank} and of rank "
                    f"{op.where.rank}; in each turn of copies by NCCL a rank sends to one rank and receives from one",
                    "let rank and peer keep their distance: @ (rank + s) % ranks in a loop over s",
                )
    calls = []
    for op in copies:
        rank = op.where.rank
        out, back = sent[rank].body, received[rank].body
        assert isinstance(out, ir.Copy)
        assert isinstance(back, ir.Copy)
        body = ir.Collective("send_recv", group, back.dst, out.src, out.dst.rank, back.src.rank)
        calls.append(ir.Op(op.where, body))
    return calls


class Operations:
    """Compiles statements for one build. A compiled statement serves every rank and every turn of a loop."""

    def __init__(self, tensors: Mapping[str, ir.Tensor], kernels: Mapping[str, n.KernelDecl]) -> None:
        self._tensors, self._kernels = tensors, kernels

    def maker(self, s: n.Copy | n.Gemm | n.Reduce | n.Launch, where: Where) -> Make:
        """A function that makes the op of `s` in a scope. `where` gives the place of the op."""
        match s:
            case n.Copy():
                dst, src = Reference(s.dst, self._tensors), Reference(s.src, self._tensors)
                return lambda scope: ir.Op(where(scope), ir.Copy(dst.one(scope), src.one(scope)))
            case n.Gemm():
                out, left, right = (Reference(r, self._tensors) for r in (s.out, s.left, s.right))
                added = self._terms(s.terms)
                turned = left.transposed, right.transposed

                def gemm(scope: Scope) -> ir.Op:
                    where_now = where(scope)
                    operands = out.one(scope), left.one(scope), right.one(scope)
                    return ir.Op(where_now, ir.Gemm(*operands, *turned, s.accumulate, added(scope)))

                return gemm
            case n.Reduce():
                target, terms = Reference(s.out, self._tensors), self._terms(s.terms)
                return lambda scope: ir.Op(where(scope), ir.Reduce(target.one(scope), terms(scope)))
            case n.Launch():
                return self._launch(s, where)

    def _terms(self, refs: Sequence[n.RegionRef]) -> Callable[[Scope], tuple[Region, ...]]:
        """The terms of a sum. A set in a reference makes one term for each member."""
        references = [Reference(r, self._tensors) for r in refs]
        return lambda scope: tuple(region for r in references for region in r.each(scope))

    def _launch(self, s: n.Launch, where: Where) -> Make:
        decl = self._kernels[s.kernel]
        values: list[Callable[[Scope], Region | int]] = []
        for a in s.arguments:
            if isinstance(a, n.RegionRef):
                values.append(Reference(a, self._tensors).one)
            else:
                values.append(number(compile_expr(a), a.span))
        shape = {
            a.name: (compile_expr(a.value), a.span)
            for a in decl.attributes
            if not isinstance(a.value, str | n.Multiprocessors)
        }

        def make(scope: Scope) -> ir.Op:
            arguments = tuple(ir.Argument(p.name, p.mode, v(scope)) for p, v in zip(decl.params, values, strict=True))
            inner = copied(scope, s.span)
            for a in arguments:
                inner[a.name] = a.value
                if isinstance(a.value, Region):
                    dims = a.value.shape or (1,)
                    inner["rows", a.name] = dims[-2] if len(dims) > 1 else dims[0]
                    inner["cols", a.name] = dims[-1]

            def sizes(name: str) -> tuple[int, ...]:
                if name not in shape:
                    return (1,)
                f, span = shape[name]
                v = f(inner)
                sized = v if isinstance(v, tuple) else (v,)
                if not 1 <= len(sized) <= 3 or not all(type(x) is int for x in sized):
                    raise Mistake(span, f"{name} is one to three numbers, this is {describe_value(v)}")
                return sized

            smem = sizes("smem")[0] if "smem" in shape else 0
            here = where(scope)
            here = replace(here, resources=replace(here.resources, smem=smem))
            return ir.Op(here, ir.KernelCall(s.kernel, arguments, sizes("grid"), sizes("block")))

        return make

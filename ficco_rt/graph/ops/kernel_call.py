"""`launch`: a kernel of the user's, into which the proof cannot see."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod

from ficco_dsl import nodes as n
from ficco_dsl import verbs
from ficco_dsl.diagnostics import Span

from ...geometry.region import Box, Region, overlap, summary
from .. import ir
from ..evaluate import Mistake, Scope, compile_expr, copied, describe, number
from ..symbolic import Algebra, Pieces
from .kind import Make, Named, Names, Noises, OpKind, Read, Tensors


class KernelCallKind(OpKind[ir.KernelCall]):
    body, node = ir.KernelCall, verbs.Launch
    word = noun = "launch"
    alike = False
    span, side = "kernel", "computes"
    stored = "KernelWork"

    def maker(self, s: verbs.Launch, names: Names) -> Make:
        decl = names.kernels[s.kernel]
        values: list[Callable[[Scope], Region | int]] = []
        for a in s.arguments:
            values.append(names.one(a) if isinstance(a, n.RegionRef) else number(compile_expr(a), a.span))
        shape = {
            a.name: (compile_expr(a.value), a.span)
            for a in decl.attributes
            if not isinstance(a.value, str | n.Multiprocessors)
        }

        def make(scope: Scope, where: ir.Where) -> ir.Op:
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
                    raise Mistake(span, f"{name} is one to three numbers, this is {describe(v)}")
                return sized

            smem = sizes("smem")[0] if "smem" in shape else 0
            where = replace(where, resources=replace(where.resources, smem=smem))
            return ir.Op(where, ir.KernelCall(s.kernel, arguments, sizes("grid"), sizes("block")))

        return make

    def check_layout(self, s: verbs.Launch, names: Names) -> None:
        names.straight(f"launch {s.kernel}", (ref for ref in s.arguments if isinstance(ref, n.RegionRef)))

    def fits(self, call: ir.KernelCall, rank: int, tensors: Tensors) -> str | None:
        """A user kernel works on its own rank, on single pieces, on distinct outputs, with a grid that exists. No text
        can make the first two mistakes: stored plans can."""
        if not (1 <= len(call.grid) <= 3 and 1 <= len(call.block) <= 3):
            return f"kernel '{call.kernel}' has no grid or block of one to three sizes"
        if any((a.mode == "int") != isinstance(a.value, int) for a in call.arguments):
            return f"kernel '{call.kernel}' has an argument that is a number and a region"
        if any(r.rank != rank for r in (*call.reads, *call.writes)):
            return f"launch {call.kernel}: a kernel works on its own rank's memory"
        for i, a in enumerate(call.writes):
            if any(overlap(a, b) for b in call.writes[i + 1 :]):
                return f"launch {call.kernel}: two of the regions that it writes overlap"
        for argument in call.arguments:
            region = argument.value
            if isinstance(region, Region) and len(region.boxes) != 1:
                return (
                    f"launch {call.kernel}: {argument.name} is a set of {len(region.boxes)} pieces of "
                    f"{region.tensor}; a kernel gets the address of one piece: launch it for each, or copy them "
                    "together first"
                )
        if any(not 1 <= g < 2**31 for g in call.grid):
            return f"launch {call.kernel}: grid = {list(call.grid)}; every number of it is 1 to 2147483647"
        threads = prod(call.block)
        if any(b < 1 for b in call.block) or threads > 1024:
            return f"launch {call.kernel}: block = {list(call.block)} has {threads} threads; a block has 1 to 1024"
        return None

    def text(self, call: ir.KernelCall) -> str:
        arguments = ", ".join(f"{a.mode} {a.value}" if a.mode != "int" else str(a.value) for a in call.arguments)
        return f"kernel {call.kernel}({arguments}) grid {call.grid} block {call.block}"

    def values(self, call: ir.KernelCall, algebra: Algebra, read: Read) -> Iterable[Pieces]:
        for region in call.reads:
            read(region)
        opaque = algebra.opaque(f"kernel '{call.kernel}'")
        return [[(Box((0,) * len(region.shape), region.shape), opaque)] for region in call.writes]

    def noise(self, call: ir.KernelCall, noises: Noises, origin: Span) -> None:
        for region in call.writes:  # nothing is claimed of it
            noises.forget(region)

    def label(self, call: ir.KernelCall, rank: int | None, part: Named = summary) -> str:
        return call.kernel

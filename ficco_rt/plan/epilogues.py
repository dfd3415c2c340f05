"""Cuts off what a product's kernel does not add or apply: the product is stored in fp32, and a sum makes the result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from ..geometry.region import Region, overlap
from ..graph import ir
from ..graph.budget import WORKS, Budget
from ..graph.kinds import kind_of
from ..graph.link import link
from ..kernels.families import fitting, tuned
from ..kernels.family import Family, GemmRequest
from ..kernels.vendor_gemm import VENDOR
from ..kernels.works import Work, kernel_work, symbolic
from ..machine.durations import gemm_rate
from ..machine.model import Machine
from ..types import TYPES


def cut_epilogues(graph: ir.Graph, machine: Machine) -> ir.Graph:
    """The graph with a `gemm` to fp32 scratch and a `reduce` in place of a product, where the vendor's library takes
    the product but not its terms or its function; or where these keep a faster kernel away (the library's, where no
    GEMM of ours is made for the device), and the sum takes less time than that costs. The sum stands behind its
    product; those of a streamed stage, in a stage behind that. A streamed stage whose results other ops touch stays as
    it is: they would wait for the whole stage."""
    ours = tuned(machine.device.arch)
    results = {op.body.out.tensor for op in graph.ops if isinstance(op.body, ir.Gemm) and _extra(op, op.body, ours)}
    if not results:
        return graph
    cutter = _Cutter(graph, machine, results)
    cut = {number for ops in _launches(graph) for number in cutter.cut(ops)}
    return cutter.made(cut) if cut else graph


def _extra(op: ir.Op, body: ir.Gemm, ours: bool) -> bool:
    """Whether a product may have what its kernel does not take. `ours`: a GEMM of ours is made for the device."""
    return bool(body.function or (body.addends and (op.where.resources.kernel == "vendor" or not ours)))


def _launches(graph: ir.Graph) -> Iterator[list[int]]:
    """Products of one launch."""
    streamed: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, op in enumerate(graph.ops):
        if isinstance(op.body, ir.Gemm) and graph.stages[op.where.stage].streamed:
            streamed[op.where.stage, op.where.rank].append(number)
        elif isinstance(op.body, ir.Gemm):
            yield [number]
    yield from streamed.values()


class _Cutter:
    def __init__(self, graph: ir.Graph, machine: Machine, results: Collection[str]) -> None:
        self.graph, self.machine = graph, machine
        self.tensors = {t.name: t for t in graph.tensors}
        self.scratch = {name: self._named(t) for name, t in self.tensors.items() if name in results}
        self.tensors |= {t.name: t for t in self.scratch.values()}
        self.look = symbolic(self.tensors.values())
        self.budget, self.ours = Budget(WORKS), tuned(machine.device.arch)

    def _named(self, result: ir.Tensor) -> ir.Tensor:
        name = f"{result.name}_sum"
        while name in self.tensors:
            name += "_"
        dtype = TYPES[result.dtype].accumulator
        return replace(result, name=name, kind="scratch", dtype=dtype, unproven=False)

    def _parts(self, number: int) -> tuple[ir.Gemm, ir.Reduce]:
        body = cast("ir.Gemm", self.graph.ops[number].body)
        stored = Region(self.scratch[body.out.tensor].name, body.out.rank, body.out.axes)
        product = replace(body, out=stored, addends=(), function=None, factor=None)
        return product, ir.Reduce(body.out, (stored, *body.addends), body.function, body.factor)

    def cut(self, ops: Sequence[int]) -> Sequence[int]:
        """Those of a launch's products that are to be cut."""
        bodies = {number: cast("ir.Gemm", self.graph.ops[number].body) for number in ops}
        some = [number for number in ops if _extra(self.graph.ops[number], bodies[number], self.ours)]
        if not some or any(bodies[number].stored_afar for number in some):
            return ()
        where = self.graph.ops[ops[0]].where
        self.budget.spend(len(ops), where.origin)
        if where.resources.kernel == "vendor":
            refused = [VENDOR.fits(GemmRequest(self._works(made))) for made in self._ways(ops, some)]
            return some if refused[0] is not None and refused[1] is None else ()
        for chosen in ([number for number in some if bodies[number].factor], some):
            if chosen and self._faster(ops, chosen) and self._behind(chosen):
                return chosen
        return ()

    def _ways(self, ops: Sequence[int], some: Collection[int]) -> tuple[list[ir.Gemm], list[ir.Gemm]]:
        """A launch's products, and the same with some of them cut."""
        whole = [cast("ir.Gemm", self.graph.ops[number].body) for number in ops]
        cut = [self._parts(number)[0] if number in some else body for number, body in zip(ops, whole, strict=True)]
        return whole, cut

    def _works(self, bodies: Sequence[ir.Gemm]) -> tuple[Work, ...]:
        return tuple(kernel_work(body, self.look) for body in bodies)

    def _faster(self, ops: Sequence[int], some: Collection[int]) -> bool:
        """Whether a launch without these functions, and their sums behind it, take less time."""
        device, (whole, parts) = self.machine.device, self._ways(ops, some)
        streamed = self.graph.stages[self.graph.ops[ops[0]].where.stage].streamed
        families: list[Family[Any]] = []
        for bodies in (whole, parts):
            request = GemmRequest(self._works(bodies), streamed=streamed)
            library = not self.ours and VENDOR.fits(request) is None
            families.append(VENDOR if library else fitting(request, device.arch))
        if families[0] is families[1]:
            return False
        dtype = self.tensors[whole[0].left.tensor].dtype
        before, after = (1 / family.reached(device, dtype) for family in families)
        gained = sum(body.flops for body in whole) / gemm_rate(device, dtype) * (before - after)
        return gained > sum(device.launch_time + self._time(number) for number in some)

    def _time(self, number: int) -> float:
        """µs of a sum."""
        op, total = self.graph.ops[number], self._parts(number)[1]

        def size(region: Region) -> int:
            return region.elements * TYPES[self.tensors[region.tensor].dtype].bytes

        return kind_of(total).time(total, self.machine, op.where.rank, size, None)

    def _behind(self, some: Collection[int]) -> bool:
        """Whether sums may stand behind their stage: it is not streamed, and they stand in it; or no other op touches
        their results, and none of the stage writes what they read."""
        stage = self.graph.ops[next(iter(some))].where.stage
        if not self.graph.stages[stage].streamed:
            return True
        totals = [self._parts(number)[1] for number in some]
        results, read = [total.out for total in totals], [r for total in totals for r in total.reads[1:]]

        def touches(mine: Sequence[Region], theirs: Sequence[Region]) -> bool:
            return any(overlap(a, b) for a in mine for b in theirs)

        return not any(
            touches(op.reads, results)
            or (touches(op.writes, results) and number not in some)
            or (touches(op.writes, read) and op.where.stage == stage)
            for number, op in enumerate(self.graph.ops)
        )

    def made(self, cut: Collection[int]) -> ir.Graph:
        """The graph in which these products are cut."""
        graph = self.graph
        streamed = {graph.ops[n].where.stage for n in cut if graph.stages[graph.ops[n].where.stage].streamed}
        place = [number + sum(s < number for s in streamed) for number in range(len(graph.stages))]
        stages: list[ir.Stage] = []
        for number, stage in enumerate(graph.stages):
            after = [place[a] + own for a in stage.after for own in range(1 + (a in streamed))]
            stages.append(replace(stage, after=tuple(after)))
            if number in streamed:
                stages.append(replace(stage, name=f"{stage.name}_sums", streamed=False, after=()))
        ops: list[ir.Op] = []
        for number, op in enumerate(graph.ops):
            where = replace(op.where, stage=place[op.where.stage])
            if number not in cut:
                ops.append(replace(op, where=where))
                continue
            product, total = self._parts(number)
            ops.append(ir.Op(where, product))
            if op.where.stage in streamed:
                where = replace(where, stage=where.stage + 1, phase=0)
            resources = replace(where.resources, smem=None, residency=None, kernel=None)
            ops.append(ir.Op(replace(where, resources=resources), total))
        ops.sort(key=lambda op: (op.where.stage, op.where.phase, op.where.rank))
        used = {region.tensor for op in ops for region in op.writes}
        tensors = (*graph.tensors, *(t for t in self.scratch.values() if t.name in used))
        deps = link(ops, {t.name: t for t in tensors}, stages)
        return replace(graph, tensors=tensors, stages=tuple(stages), ops=tuple(ops), deps=deps)

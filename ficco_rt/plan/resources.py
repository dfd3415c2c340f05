"""Pass: kernels are chosen and the text's resources become launch attributes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from ..graph import ir
from ..kernels import mfma, sm80, sm90, tiles
from ..kernels.catalogue import COPY, REDUCE, GemmConfig, GemmRequest, Limits, choose_gemm, copy_sms, out_of_limits
from ..machine.cost import gemm_time, store_time, transfer_time
from ..machine.model import Device
from ..region import Region
from ..types import TYPES
from .draft import Draft, LaunchChoice, launch_of
from .ir import LaunchAttributes
from .join import joined
from .products import Products
from .room import rest

Refusal: TypeAlias = Callable[[Sequence[tiles.Work], str, str, bool, bool], str | None]  # a kernel's, of works


def limits_of(device: Device) -> Limits:
    return Limits(
        sms=device.sms,
        smem_per_sm=device.smem_per_sm,
        smem_per_block=device.smem_per_block,
        smem_reserved=device.smem_reserved,
        max_residency=device.max_residency,
        max_threads=device.warp * device.max_warps,
    )


def solve_resources(draft: Draft) -> Draft:
    """Every launch has its works, a kernel, and shared memory that gives the residency asked for."""
    solver = _Solver(draft)
    draft = replace(draft, joined=joined(draft, solver.choose))
    for ops in _launches(draft):
        found = solver.choose(ops)
        if isinstance(found, str):
            origin = draft.graph.ops[ops[0]].where.origin
            message = f"{found} ({draft.machine.device.name})"
            solver.mistakes.setdefault(origin, Diagnostic(origin, message))
        else:
            solver.choices.update(dict.fromkeys(ops, found))
    if solver.mistakes:
        raise ScheduleError(tuple(sorted(solver.mistakes.values(), key=lambda d: (d.span.line, d.span.column))))
    return replace(draft, choices=solver.choices)


def _launches(draft: Draft) -> Iterator[list[int]]:
    """The ops of each kernel launch: one, or those of a streamed one. Of copies several may go out as one."""
    streamed: dict[tuple[int, int], list[int]] = {}
    on_sms = {q.name for q in draft.graph.queues if q.engine == "sm"}
    for i in draft.order:
        op = draft.graph.ops[i]
        if draft.graph.stages[op.where.stage].streamed:
            streamed.setdefault(launch_of(draft, op), []).append(i)
        elif draft.graph.stages[op.where.stage].queue in on_sms:
            yield [i]
    yield from streamed.values()


class _Solver:
    def __init__(self, draft: Draft) -> None:
        self.graph, self.machine, self.device = draft.graph, draft.machine, draft.machine.device
        self.limits = limits_of(self.device)
        self.tensors = {t.name: t for t in self.graph.tensors}
        self.works = Products(self.graph)
        self.queues = {q.name: q.resources.priority for q in self.graph.queues}
        engines = {q.name: q.engine for q in self.graph.queues}
        self.arriving: dict[tuple[int, str], float] = defaultdict(float)  # by rank and tensor, from other ranks
        for op in self.graph.ops:
            if isinstance(copy := op.body, ir.Copy) and copy.src.rank != copy.dst.rank:
                size = copy.dst.elements * TYPES[self.tensors[copy.dst.tensor].dtype].bytes
                if engines[self.graph.stages[op.where.stage].queue] == "sm":
                    sms = op.where.resources.sms or copy_sms(self.limits.sms)
                    time = store_time(draft.machine, copy.src.rank, copy.dst.rank, size, sms)
                else:
                    time = transfer_time(draft.machine, copy.src.rank, copy.dst.rank, size)
                self.arriving[copy.dst.rank, copy.dst.tensor] += time
        self.rest = rest(draft)
        self.made: dict[int, tiles.Work | None] = {}  # by the product's identity
        self.known: dict[tuple[object, ...], GemmConfig | str] = {}
        self.chosen: dict[GemmRequest, GemmConfig | str] = {}  # parts of other places may ask for the same
        self.choices: dict[int, LaunchChoice] = {}
        self.mistakes: dict[Span, Diagnostic] = {}

    def choose(self, ops: list[int]) -> LaunchChoice | str:
        """The kernel and attributes of one launch, or why there are none."""
        op = self.graph.ops[ops[0]]
        asked = op.where.resources
        queue = self.graph.stages[op.where.stage].queue
        priority = asked.priority if asked.priority != self.queues[queue] else None
        refusal = out_of_limits(asked.sms, asked.residency, asked.smem, self.limits)
        if refusal is not None:
            return refusal
        asked = replace(asked, sms=self.rest.get((op.where.stage, op.where.rank), asked.sms))
        bodies = [self.graph.ops[i].body for i in ops]
        gemms = [g for g in bodies if isinstance(g, ir.Gemm)]
        if gemms:
            config = self._gemm(op.where, gemms, asked, alone=len(gemms) == len(ops))
            if isinstance(config, str):
                return config
            attributes = LaunchAttributes(config.smem, config.residency, config.sms, priority)
            return LaunchChoice(config.kernel, config.tile[:2], attributes)
        if all(isinstance(body, ir.Copy) for body in bodies):
            sms = asked.sms or copy_sms(self.limits.sms)
            return LaunchChoice(COPY, (1, 1), LaunchAttributes(0, asked.residency, sms, priority))
        if isinstance(op.body, ir.KernelCall):
            attributes = LaunchAttributes(asked.smem or 0, asked.residency, asked.sms, priority)
            return LaunchChoice(op.body.kernel, (1, 1), attributes)
        return LaunchChoice(REDUCE, (1, 1), LaunchAttributes(0, asked.residency, asked.sms, priority))

    def _gemm(self, where: ir.Where, gemms: list[ir.Gemm], asked: ir.Resources, alone: bool) -> GemmConfig | str:
        # ranks take the same parts of equal tensors: the graph holds each part's axes once
        key: tuple[object, ...] = (asked, alone)
        for g in gemms:
            shapes = tuple(self.tensors[r.tensor].shapes[r.rank] for r in (g.left, g.right, g.out))
            key += (g.left.tensor, g.right.tensor, g.out.tensor, shapes, g.left_transposed, g.right_transposed)
            key += (id(g.left.axes), id(g.right.axes), id(g.out.axes))
            key += (g.out.rank != where.rank, *((a.tensor, id(a.axes)) for a in g.addends))
        if key not in self.known:
            request = self._request(where, gemms, asked, alone)
            if request not in self.chosen:
                self.chosen[request] = choose_gemm(request, self.limits)
            self.known[key] = self.chosen[request]
        return self.known[key]

    def _request(self, where: ir.Where, gemms: list[ir.Gemm], asked: ir.Resources, alone: bool) -> GemmRequest:
        first = gemms[0]
        dtype, out_dtype = (self.tensors[r.tensor].dtype for r in (first.left, first.out))
        turned = (first.left_transposed, first.right_transposed)
        works = [self._work(where.rank, g) for g in gemms]
        fast = [w for w in works if w is not None]
        alike = all(
            (g.left_transposed, g.right_transposed, self.tensors[g.left.tensor].dtype, self.tensors[g.out.tensor].dtype)
            == (*turned, dtype, out_dtype)
            for g in gemms
        )
        reason: str | None = None
        if not alone:
            reason = "the launch holds sums or copies as well"
        elif not alike:
            reason = "works differ in types or layout"
        elif len(fast) < len(works):
            reason = "an operand's columns are not side by side"
        arch = self.device.arch

        def refused(serves: bool, refusal: Refusal, of: Sequence[tiles.Work]) -> str | None:
            if not serves:
                return f"it does not run on {arch}"
            return reason or refusal(of, dtype, out_dtype, *turned)

        merged = [] if reason else tiles.in_registers(fast, turned)
        not_sm90 = refused(arch == sm90.ARCH, sm90.refusal, merged)
        taken = not_sm90 is None and asked.smem is None and asked.residency is None
        rows = [g.out.axes[g.out.kept[0]].segments for g in gemms]
        depth = first.left.shape[0 if first.left_transposed else 1]
        phases: tuple[sm90.Phase, ...] = ()
        streamed = self.graph.stages[where.stage].streamed
        if not_sm90 is None:
            rows, depth = [w.out_rows for w in merged], tiles.depth_of(merged, turned)
            if streamed and (arrival := self._arrival(where, gemms)):
                phases = sm90.phases(merged, depth, arrival)
        return GemmRequest(
            arch=arch,
            dtype=dtype,
            smem=asked.smem,
            residency=asked.residency,
            sms=asked.sms,
            rows=tuple(s.size for segments in rows for s in segments),
            columns=tuple(s.size for s in first.out.axes[first.out.kept[1]].segments),
            phases=phases,
            depth=depth,
            right_transposed=first.right_transposed,
            terms=max(len(g.addends) for g in gemms),
            paced=self._paced(where.rank, gemms, out_dtype, streamed),
            not_sm90=not_sm90,
            not_sm80="the Hopper kernel takes it" if taken else refused(sm80.serves(arch), sm80.refusal, fast),
            not_mfma=refused(arch in mfma.ARCHS, mfma.refusal, fast),
        )

    def _paced(self, rank: int, gemms: Sequence[ir.Gemm], out_dtype: str, streamed: bool) -> bool | None:
        """Stores at peers are; those of a streamed stage end too late for whom they are signalled."""
        if out_dtype == "fp32":
            return False
        return True if any(g.out.rank != rank for g in gemms) else False if streamed else None

    def _work(self, rank: int, g: ir.Gemm) -> tiles.Work | None:
        """The product as a tuned kernel takes it. One that reads what comes from other ranks waits, for itself; if only
        what it adds comes from there, for that."""

        def comes(*regions: Region) -> bool:
            return any((rank, r.tensor) in self.arriving for r in regions)

        if id(g) not in self.made:
            flag = (1 + len(self.made),)
            waits = comes(g.left, g.right) or (g.accumulate and comes(g.out))
            self.made[id(g)] = self.works.work(g, flag * waits, flag * (not waits and comes(*g.addends)))
        return self.made[id(g)]

    def _arrival(self, where: ir.Where, gemms: list[ir.Gemm]) -> float:
        """Microseconds until the last piece from another rank has come that these read, one copy after another, from
        the launch's start: earlier products of the rank's queue are made while copies run."""
        tensors = {r.tensor for g in gemms for r in g.reads}
        arrival = sum(self.arriving.get((where.rank, tensor), 0.0) for tensor in tensors)
        return max(0.0, arrival - self._busy(where)) if arrival else 0.0

    def _busy(self, where: ir.Where) -> float:
        """Microseconds of the products that the rank makes on the queue before the stage."""
        stages = self.graph.stages
        queue = stages[where.stage].queue
        return sum(self.products[where.rank, s] for s in range(where.stage) if stages[s].queue == queue)

    @cached_property
    def products(self) -> Mapping[tuple[int, int], float]:
        """Microseconds of the products of a rank and stage, one after another."""
        times: dict[tuple[int, int], float] = defaultdict(float)
        for op in self.graph.ops:
            if isinstance(g := op.body, ir.Gemm):
                m, n = g.out.shape
                k = g.left.shape[0 if g.left_transposed else 1]
                time = gemm_time(self.machine, m, n, k, self.tensors[g.left.tensor].dtype, op.where.resources.sms)
                times[op.where.rank, op.where.stage] += time
        return times

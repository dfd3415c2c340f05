"""Pass: kernels are chosen and the text's resources become launch attributes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from ..graph import ir
from ..kernels.catalogue import COPY, REDUCE, copy_sms
from ..kernels.families import choose
from ..kernels.family import Chosen, GemmRequest
from ..kernels.occupancy import Limits, out_of_limits
from ..kernels.works import Work
from ..machine.cost import gemm_time, store_time, transfer_time
from ..types import TYPES
from .draft import Draft, LaunchChoice, launch_of
from .ir import LaunchAttributes
from .join import joined
from .kernel_works import kernel_work, symbolic
from .room import rest


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
        self.limits = Limits.of(self.device)
        self.tensors = {t.name: t for t in self.graph.tensors}
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
        self.look = symbolic(self.graph.tensors, lambda r: (r.rank, r.tensor) in self.arriving)
        self.made: dict[int, Work] = {}  # by the op's identity
        self.known: dict[tuple[object, ...], Chosen | str] = {}
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
        works = [self.graph.ops[i] for i in ops]
        if any(isinstance(w.body, ir.Gemm) for w in works):
            config = self._gemm(works, asked)
            if isinstance(config, str):
                return config
            attributes = LaunchAttributes(config.smem, config.residency, config.sms, priority)
            return LaunchChoice(config.kernel, config.tile[:2], attributes)
        smem = (op.where.resources.smem or 0) if isinstance(op.body, ir.KernelCall) else 0
        if smem > self.limits.smem_per_block:
            return f"smem = {smem} bytes, but a block has at most {self.limits.smem_per_block}"
        if all(isinstance(w.body, ir.Copy) for w in works):
            sms = asked.sms or copy_sms(self.limits.sms)
            return LaunchChoice(COPY, (1, 1), LaunchAttributes(smem, asked.residency, sms, priority))
        kernel = op.body.kernel if isinstance(op.body, ir.KernelCall) else REDUCE
        return LaunchChoice(kernel, (1, 1), LaunchAttributes(smem, asked.residency, asked.sms, priority))

    def _gemm(self, ops: Sequence[ir.Op], asked: ir.Resources) -> Chosen | str:
        """The kernel of a launch that holds products."""
        # ranks take the same parts of equal tensors: the graph holds each part's axes once
        gemms = [(op.where, op.body) for op in ops if isinstance(op.body, ir.Gemm)]
        key: tuple[object, ...] = (asked, len(gemms) == len(ops))
        for where, g in gemms:
            shapes = tuple(self.tensors[r.tensor].shapes[r.rank] for r in (g.left, g.right, g.out))
            key += (g.left.tensor, g.right.tensor, g.out.tensor, shapes, g.left_transposed, g.right_transposed)
            key += (id(g.left.axes), id(g.right.axes), id(g.out.axes))
            key += (g.out.rank != where.rank, *((t.tensor, id(t.axes)) for t in g.addends))
        if key not in self.known:
            where = gemms[0][0]
            streamed = self.graph.stages[where.stage].streamed
            request = GemmRequest(
                works=tuple(map(self._work, ops)),
                smem=asked.smem,
                residency=asked.residency,
                sms=asked.sms,
                streamed=streamed,
                arrival=self._arrival(where, [g for _, g in gemms]) if streamed else 0.0,
            )
            self.known[key] = choose(request, self.limits)
        return self.known[key]

    def _work(self, op: ir.Op) -> Work:
        """A product that reads what comes from other ranks waits, for itself."""
        assert not isinstance(op.body, ir.Collective)
        if id(op) not in self.made:
            waits = isinstance(op.body, ir.Gemm) and any((op.where.rank, r.tensor) in self.arriving for r in op.reads)
            self.made[id(op)] = kernel_work(op.body, self.look, (1 + len(self.made),) if waits else ())
        return self.made[id(op)]

    def _arrival(self, where: ir.Where, gemms: Sequence[ir.Gemm]) -> float:
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

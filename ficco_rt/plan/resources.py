"""Pass: kernels are chosen and the text's resources become launch attributes."""

from __future__ import annotations

from dataclasses import replace

from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from ..graph import ir
from ..kernels.catalogue import REDUCE, GemmConfig, GemmRequest, Limits, choose_gemm, out_of_limits
from ..machine.model import Device
from .draft import Draft, LaunchChoice
from .ir import LaunchAttributes


def limits_of(device: Device) -> Limits:
    return Limits(device.sms, device.smem_per_sm, device.smem_per_block, device.smem_reserved, device.max_residency)


def solve_resources(draft: Draft) -> Draft:
    """Every launch has a kernel, and shared memory that gives the residency asked for."""
    solver = _Solver(draft)
    for i, op in enumerate(draft.graph.ops):
        if isinstance(op, ir.Gemm | ir.Reduce | ir.Launch):
            choice = solver.choose(op)
            if isinstance(choice, str):
                origin = op.where.origin
                message = f"{choice} ({draft.machine.device.name})"
                solver.mistakes.setdefault(origin, Diagnostic(origin, message))
            else:
                solver.choices[i] = choice
    if solver.mistakes:
        raise ScheduleError(tuple(sorted(solver.mistakes.values(), key=lambda d: (d.span.line, d.span.column))))
    return replace(draft, choices=solver.choices)


class _Solver:
    def __init__(self, draft: Draft) -> None:
        self.graph, self.device = draft.graph, draft.machine.device
        self.limits = limits_of(self.device)
        self.dtypes = {t.name: t.dtype for t in self.graph.tensors}
        self.queues = {q.name: q.resources.priority for q in self.graph.queues}
        self.known: dict[tuple[str, ir.Resources], GemmConfig | str] = {}
        self.choices: dict[int, LaunchChoice] = {}
        self.mistakes: dict[Span, Diagnostic] = {}

    def choose(self, op: ir.Gemm | ir.Reduce | ir.Launch) -> LaunchChoice | str:
        """The op's kernel and attributes, or why there are none."""
        asked = op.where.resources
        queue = self.graph.stages[op.where.stage].queue
        priority = asked.priority if asked.priority != self.queues[queue] else None
        refusal = out_of_limits(asked.sms, asked.residency, asked.smem, self.limits)
        if refusal is not None:
            return refusal
        if isinstance(op, ir.Gemm):
            config = self._gemm(self.dtypes[op.left.tensor], asked)
            if isinstance(config, str):
                return config
            attributes = LaunchAttributes(config.smem, config.residency, config.sms, priority)
            return LaunchChoice(config.kernel, config.tile[:2], attributes)
        smem = op.smem if isinstance(op, ir.Launch) else 0
        if smem > self.limits.smem_per_block:
            return f"smem = {smem} bytes, but a block has at most {self.limits.smem_per_block}"
        kernel = op.kernel if isinstance(op, ir.Launch) else REDUCE
        return LaunchChoice(kernel, (1, 1), LaunchAttributes(smem, asked.residency, asked.sms, priority))

    def _gemm(self, dtype: str, asked: ir.Resources) -> GemmConfig | str:
        key = (dtype, asked)
        if key not in self.known:
            request = GemmRequest(self.device.arch, dtype, asked.smem, asked.residency, asked.sms)
            self.known[key] = choose_gemm(request, self.limits)
        return self.known[key]

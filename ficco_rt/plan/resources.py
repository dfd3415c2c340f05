"""Pass: kernels are chosen and the text's resources become launch attributes."""

from __future__ import annotations

from dataclasses import replace

from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from ..graph import ir
from ..kernels.catalogue import REDUCE, GemmConfig, GemmRequest, Limits, choose_gemm
from ..machine.model import Device
from .draft import Draft, LaunchChoice
from .ir import LaunchAttributes


def limits_of(device: Device) -> Limits:
    return Limits(device.sms, device.smem_per_sm, device.smem_per_block, device.smem_reserved, device.max_residency)


def solve_resources(draft: Draft) -> Draft:
    """Every launch has a kernel, and shared memory that gives the residency asked for."""
    device = draft.machine.device
    limits = limits_of(device)
    dtypes = {t.name: t.dtype for t in draft.graph.tensors}
    known: dict[tuple[str, ir.Resources], GemmConfig | str] = {}
    choices: dict[int, LaunchChoice] = {}
    mistakes: dict[Span, Diagnostic] = {}
    for i, op in enumerate(draft.graph.ops):
        asked = op.where.resources
        match op:
            case ir.Gemm():
                key = (dtypes[op.left.tensor], asked)
                if key not in known:
                    request = GemmRequest(device.arch, key[0], asked.smem, asked.residency, asked.sms)
                    known[key] = choose_gemm(request, limits)
                config = known[key]
                if isinstance(config, str):
                    mistakes[op.where.origin] = Diagnostic(op.where.origin, f"{config} ({device.name})")
                    continue
                attributes = LaunchAttributes(config.smem, config.residency, config.sms)
                choices[i] = LaunchChoice(config.kernel, config.tile[:2], attributes)
            case ir.Reduce():
                choices[i] = LaunchChoice(REDUCE, (1, 1), LaunchAttributes(0, asked.residency, asked.sms))
            case ir.Launch():
                if op.smem > device.smem_per_block:
                    mistakes[op.where.origin] = Diagnostic(
                        op.where.origin,
                        f"launch {op.kernel}: smem = {op.smem} bytes, but a block has at most "
                        f"{device.smem_per_block} ({device.name})",
                    )
                choices[i] = LaunchChoice(op.kernel, (1, 1), LaunchAttributes(op.smem, asked.residency, asked.sms))
    if mistakes:
        raise ScheduleError(tuple(sorted(mistakes.values(), key=lambda d: (d.span.line, d.span.column))))
    return replace(draft, choices=choices)

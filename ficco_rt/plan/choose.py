"""Pass: every launch gets a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from ..graph import ir
from ..kernels.catalogue import COPY, REDUCE, GemmConfig, GemmRequest, Limits, choose_gemm, out_of_limits
from ..machine.model import Device
from .arrivals import Arrivals
from .draft import Draft, KernelChoice, LaunchKey, launches, waits_of
from .requests import Flags, Requests


def limits_of(device: Device) -> Limits:
    return Limits(
        sms=device.sms,
        smem_per_sm=device.smem_per_sm,
        smem_per_block=device.smem_per_block,
        smem_reserved=device.smem_reserved,
        max_residency=device.max_residency,
        max_threads=device.warp * device.max_warps,
    )


def choose_kernels(draft: Draft) -> Draft:
    """Every launch has a kernel that takes its works, with the flags that they wait for, and runs with what the text
    asks of the device. Raises ScheduleError where no kernel does."""
    chooser = _Chooser(draft)
    kernels: dict[int, KernelChoice] = {}
    mistakes: dict[Span, Diagnostic] = {}
    for ops in launches(draft):
        found = chooser.choose(ops)
        if not isinstance(found, str):
            kernels.update(dict.fromkeys(ops, found))
            continue
        firsts = {where.stage: where.origin for where in (draft.graph.ops[i].where for i in reversed(ops))}
        for origin in firsts.values():  # of each of the launch's stages
            mistakes.setdefault(origin, Diagnostic(origin, f"{found} ({draft.machine.device.name})"))
    if mistakes:
        raise ScheduleError(tuple(sorted(mistakes.values(), key=lambda d: (d.span.line, d.span.column))))
    return replace(draft, kernels=kernels)


class _Chooser:
    def __init__(self, draft: Draft) -> None:
        self.draft, self.graph = draft, draft.graph
        self.limits = limits_of(draft.machine.device)
        self.requests = Requests(draft.graph, draft.products, draft.machine.device.arch)
        self.arrivals = Arrivals(draft.graph, draft.machine)
        self.known: dict[tuple[object, ...], GemmConfig | str] = {}
        self.chosen: dict[GemmRequest, GemmConfig | str] = {}  # parts of other places may ask for the same

    def choose(self, ops: Sequence[int]) -> KernelChoice | str:
        """The kernel of one launch, or why there is none."""
        op = self.graph.ops[ops[0]]
        asked = op.where.resources
        refusal = out_of_limits(asked.sms, asked.residency, asked.smem, self.limits)
        if refusal is not None:
            return refusal
        bodies = [self.graph.ops[i].body for i in ops]
        if any(isinstance(body, ir.Gemm) for body in bodies):
            config = self._gemm(op.where, ops)
            return config if isinstance(config, str) else KernelChoice(config.kernel, config.tile[:2], config.smem)
        if isinstance(op.body, ir.KernelCall):
            return KernelChoice(op.body.kernel, smem=asked.smem or 0)
        return KernelChoice(COPY if all(isinstance(body, ir.Copy) for body in bodies) else REDUCE)

    def _gemm(self, where: ir.Where, ops: Sequence[int]) -> GemmConfig | str:
        asked, streamed = where.resources, self.graph.stages[where.stage].streamed
        share = self.draft.shares.get(LaunchKey(where.stage, where.rank))
        if share is not None:
            asked = replace(asked, sms=share)
        places = [(i, g) for i in ops if isinstance(g := self.graph.ops[i].body, ir.Gemm)]
        gemms, alone = [g for _, g in places], len(places) == len(ops)
        arrival = self.arrivals.last(where, gemms) if streamed else 0.0
        flags, private = self._flags([i for i, _ in places]) if streamed else ([Flags()] * len(gemms), ())
        key = (asked, alone, streamed, arrival, private, *flags, *self.requests.key(where.rank, gemms))
        if key not in self.known:
            request = self.requests.request(
                where.rank, gemms, flags, private, asked, alone=alone, streamed=streamed, arrival=arrival
            )
            if request not in self.chosen:
                self.chosen[request] = choose_gemm(request, self.limits)
            self.known[key] = self.chosen[request]
        return self.known[key]

    def _flags(self, ops: Sequence[int]) -> tuple[list[Flags], tuple[int, ...]]:
        """The flags of the works, and those among them that nothing outside the launch waits for. They are numbered
        anew: ranks alike have the same."""
        signals = self.draft.signals
        new: dict[int, int] = {}

        def renumbered(flags: Sequence[int]) -> tuple[int, ...]:
            return tuple(new.setdefault(flag, 1 + len(new)) for flag in flags)

        found = [Flags(renumbered(waits_of(self.draft, i)), renumbered(signals.raised.get(i, ()))) for i in ops]
        return found, tuple(number for flag, number in new.items() if flag in signals.private)

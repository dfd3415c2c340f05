"""Pass: chooses a kernel for every launch, and its attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias

from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from ..graph import ir
from ..graph.budget import WORKS, Budget
from ..graph.kinds import likeness
from ..kernels.catalogue import COPY, copy_sms
from ..kernels.families import choose
from ..kernels.family import Chosen, GemmRequest
from ..kernels.naive.family import NAIVE, block_of, kernel_of
from ..kernels.occupancy import Limits, out_of_limits
from ..kernels.works import kernel_work, symbolic
from .arrivals import Arrivals
from .draft import Draft, KernelChoice, LaunchKey, launches, waits_of
from .ir import LaunchAttributes
from .leave import Leaving


def choose_kernels(draft: Draft) -> Draft:
    """Every launch has a kernel that takes its works, with the flags that they wait for, and runs with what the text
    asks of the device: the shared memory that yields the residency asked for, its share of multiprocessors, and its
    priority where that differs from the queue's. Raises ScheduleError where no kernel does."""
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


_Flags: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # that a work waits for, and that it raises


class _Chooser:
    def __init__(self, draft: Draft) -> None:
        self.draft, self.graph = draft, draft.graph
        self.limits = Limits.of(draft.machine.device)
        self.shapes = {t.name: t.shapes for t in draft.graph.tensors}
        self.look = symbolic(draft.graph.tensors)
        self.arrivals = Arrivals(draft.graph, draft.machine)
        self.known: dict[tuple[object, ...], Chosen | str] = {}
        self.budget = Budget(WORKS)
        self.leaving = Leaving(draft.graph, self.limits)

    def choose(self, ops: Sequence[int]) -> KernelChoice | str:
        """The kernel of one launch, or why there is none."""
        op = self.graph.ops[ops[0]]
        asked = op.where.resources
        refusal = out_of_limits(asked.sms, asked.residency, asked.smem, self.limits)
        if refusal is not None:
            return refusal
        bodies = [self.graph.ops[i].body for i in ops]
        if any(isinstance(body, ir.Gemm) for body in bodies):
            found = self._gemm(op.where, ops)
            if (
                isinstance(found, str)
                and asked.leave is not None
                and asked.kernel is None
                and not isinstance(self._gemm(replace(op.where, resources=replace(asked, leave=None)), ops), str)
            ):
                return self.leaving.refusal(asked.leave)
            if isinstance(found, str):
                return found
            return KernelChoice(found.kernel, self._attributes(op.where, found.smem), found.tile[:2])
        if isinstance(op.body, ir.KernelCall):
            if asked.leave is not None:
                return (
                    f"leave = {asked.leave} cannot be promised of kernel '{op.body.kernel}', whose registers only a "
                    "GPU knows; say smem, or leave = 8 sms"
                )
            blocks = prod(op.body.grid)
            if asked.sms is not None and blocks > asked.sms:
                return (
                    f"kernel '{op.body.kernel}' has a grid of {blocks} blocks, which may be on {blocks} "
                    f"multiprocessors; with sms = {asked.sms} it may have {asked.sms} blocks"
                )
            return KernelChoice(op.body.kernel, self._attributes(op.where, asked.smem or 0))
        kernel, smem = kernel_of(bodies), 0
        if asked.leave is not None:
            request = GemmRequest((), leave=self.leaving.footprints(asked.leave))
            room = NAIVE.leaving(kernel, request, self.limits)
            if isinstance(room, str):
                return self.leaving.refusal(asked.leave, [block_of(kernel, self.limits)])
            smem = room.least
        attributes = self._attributes(op.where, smem)
        if kernel.name == COPY:
            attributes = replace(attributes, sms=attributes.sms or copy_sms(self.limits.sms))
        return KernelChoice(kernel.name, attributes)

    def _attributes(self, where: ir.Where, smem: int) -> LaunchAttributes:
        """What a launch with so much shared memory asks of the device."""
        asked, queue = where.resources, self._queue(where)
        priority = asked.priority if asked.priority != queue.resources.priority else None
        return LaunchAttributes(smem, asked.residency, self._sms(where), priority, asked.leave)

    def _queue(self, where: ir.Where) -> ir.Queue:
        return self.graph.queue(self.graph.stages[where.stage].queue)

    def _sms(self, where: ir.Where) -> int | None:
        """The multiprocessors of a launch, by the text or as its share."""
        return self.draft.shares.get(LaunchKey(where.stage, where.rank), where.resources.sms)

    def _gemm(self, where: ir.Where, ops: Sequence[int]) -> Chosen | str:
        """The kernel of a launch that holds products."""
        asked, streamed = where.resources, self.graph.stages[where.stage].streamed
        vendor = asked.kernel == "vendor"
        queue = self._queue(where)
        if vendor and asked.priority != queue.resources.priority:
            return (
                f"priority = {asked.priority} cannot be had of the vendor's kernels, which have their stream's; say it "
                f"on queue '{queue.name}'"
            )
        sms = self._sms(where)
        bodies = [self.graph.ops[i].body for i in ops]
        gemms = [body for body in bodies if isinstance(body, ir.Gemm)]
        arrival = self.arrivals.last(where, gemms) if streamed else 0.0
        flags, private = self._flags(ops) if streamed else ([((), ())] * len(ops), frozenset())
        products = (likeness(g, where.rank, self.shapes) for g in gemms)
        key = (asked, sms, len(gemms) == len(ops), streamed, arrival, private, *flags, *products)
        if key not in self.known:
            self.budget.spend(len(bodies), where.origin)
            works = tuple(
                kernel_work(body, self.look, *f)
                for body, f in zip(bodies, flags, strict=True)
                if not isinstance(body, ir.Collective)
            )
            leave = self.leaving.footprints(asked.leave)
            request = GemmRequest(
                works, asked.smem, asked.residency, sms, streamed, arrival, private, asked.kernel, leave
            )
            self.known[key] = choose(request, self.limits)
        return self.known[key]

    def _flags(self, ops: Sequence[int]) -> tuple[list[_Flags], frozenset[int]]:
        """The flags of the works, and those among them that nothing outside the launch waits for. They are numbered
        anew: ranks alike have the same."""
        signals = self.draft.signals
        new: dict[int, int] = {}

        def renumbered(flags: Sequence[int]) -> tuple[int, ...]:
            return tuple(new.setdefault(flag, 1 + len(new)) for flag in flags)

        found = [(renumbered(waits_of(self.draft, i)), renumbered(signals.raised(i))) for i in ops]
        return found, frozenset(number for flag, number in new.items() if flag in signals.private)

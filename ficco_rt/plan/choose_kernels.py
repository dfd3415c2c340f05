"""Pass: chooses a kernel for every launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from ..graph import ir
from ..graph.budget import WORKS, Budget
from ..kernels.families import choose
from ..kernels.family import Chosen, GemmRequest
from ..kernels.naive.family import NAIVE, block_of, kernel_of
from ..kernels.occupancy import Limits, out_of_limits
from ..kernels.works import kernel_work, symbolic
from .arrivals import Arrivals
from .draft import Draft, KernelChoice, LaunchKey, launches, waits_of
from .leave import Leaving


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


@dataclass(frozen=True, slots=True)
class _Flags:
    """What a work waits for and raises."""

    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()


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
            return found if isinstance(found, str) else KernelChoice(found.kernel, found.tile[:2], found.smem)
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
            return KernelChoice(op.body.kernel, smem=asked.smem or 0)
        kernel = kernel_of(bodies)
        if asked.leave is None:
            return KernelChoice(kernel.name)
        request = GemmRequest((), leave=self.leaving.footprints(asked.leave))
        room = NAIVE.leaving(kernel, request, self.limits)
        if isinstance(room, str):
            return self.leaving.refusal(asked.leave, [block_of(kernel, self.limits)])
        return KernelChoice(kernel.name, smem=room.least)

    def _gemm(self, where: ir.Where, ops: Sequence[int]) -> Chosen | str:
        """The kernel of a launch that holds products."""
        asked, streamed = where.resources, self.graph.stages[where.stage].streamed
        vendor = asked.kernel == "vendor"
        queue = self.graph.queue(self.graph.stages[where.stage].queue)
        if vendor and asked.priority != queue.resources.priority:
            return (
                f"priority = {asked.priority} cannot be had of the vendor's kernels, which have their stream's; say it "
                f"on queue '{queue.name}'"
            )
        sms = self.draft.shares.get(LaunchKey(where.stage, where.rank), asked.sms)
        bodies = [self.graph.ops[i].body for i in ops]
        gemms = [body for body in bodies if isinstance(body, ir.Gemm)]
        arrival = self.arrivals.last(where, gemms) if streamed else 0.0
        flags, private = self._flags(ops) if streamed else ([_Flags()] * len(ops), frozenset())
        key = (asked, sms, len(gemms) == len(ops), streamed, arrival, private, *flags, *self._key(where.rank, gemms))
        if key not in self.known:
            self.budget.spend(len(bodies), where.origin)
            works = tuple(
                kernel_work(body, self.look, f.waits, f.signals)
                for body, f in zip(bodies, flags, strict=True)
                if not isinstance(body, ir.Collective)
            )
            leave = self.leaving.footprints(asked.leave)
            request = GemmRequest(works, asked.smem, asked.residency, sms, streamed, arrival, private, vendor, leave)
            self.known[key] = choose(request, self.limits)
        return self.known[key]

    def _key(self, rank: int, gemms: Sequence[ir.Gemm]) -> tuple[object, ...]:
        """A key that is equal for products that no kernel can tell apart. Ranks take the same parts of equal tensors,
        and the graph holds the axes of each part once."""
        key: list[object] = []
        for g in gemms:
            shapes = tuple(self.shapes[r.tensor][r.rank] for r in (g.left, g.right, g.out))
            key += (g.left.tensor, g.right.tensor, g.out.tensor, shapes, g.left_transposed, g.right_transposed)
            key += (id(g.left.axes), id(g.right.axes), id(g.out.axes))
            key += (g.out.rank != rank, *((a.tensor, id(a.axes)) for a in g.addends))
        return tuple(key)

    def _flags(self, ops: Sequence[int]) -> tuple[list[_Flags], frozenset[int]]:
        """The flags of the works, and those among them that nothing outside the launch waits for. They are numbered
        anew: ranks alike have the same."""
        signals = self.draft.signals
        new: dict[int, int] = {}

        def renumbered(flags: Sequence[int]) -> tuple[int, ...]:
            return tuple(new.setdefault(flag, 1 + len(new)) for flag in flags)

        found = [_Flags(renumbered(waits_of(self.draft, i)), renumbered(signals.raised(i))) for i in ops]
        return found, frozenset(number for flag, number in new.items() if flag in signals.private)

"""Resolves what launches leave free, as the text states it: `leave = 8 sms`, `leave = nccl`, `leave = 100 KiB`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ficco_dsl.diagnostics import Diagnostic, ScheduleError

from ..graph import ir
from ..kernels.block_fit import Footprint, Several, left, shape
from ..kernels.catalogue import copy_sms
from ..kernels.collective_blocks import EXCHANGE, planned
from ..kernels.families import footprints, tensor_core_families
from ..kernels.occupancy import Limits
from ..machine.model import Machine

_LEAST_THREADS, _WARP = 64, 32


def resolve_leave(graph: ir.Graph, machine: Machine) -> ir.Graph:
    """The graph in which `sms` replaces the multiprocessors to be left free. Raises ScheduleError if none remain."""
    total = machine.device.sms
    known: dict[tuple[ir.Resources, bool], ir.Resources] = {}
    ops: list[ir.Op] = []
    for op in graph.ops:
        asked = op.where.resources
        if asked.leave is None or asked.leave.what != "sms":
            ops.append(op)
            continue
        key = asked, isinstance(op.body, ir.Copy)
        if key not in known:
            kept = total - asked.leave.amount
            if kept < 1:
                message = f"leave = {asked.leave}, but the device has {total} multiprocessors ({machine.device.name})"
                raise ScheduleError((Diagnostic(op.where.origin, message),))
            usual = copy_sms(total) if isinstance(op.body, ir.Copy) else total
            known[key] = replace(asked, sms=min(kept, asked.sms or usual), leave=None)
        ops.append(replace(op, where=replace(op.where, resources=known[key])))
    return replace(graph, ops=tuple(ops)) if known else graph


class Leaving:
    """The other blocks for which blocks of a graph's launches must leave room on each multiprocessor."""

    def __init__(self, graph: ir.Graph, limits: Limits) -> None:
        self._graph, self._limits = graph, limits
        self._kinds: Mapping[str, set[str]] | None = None  # of collectives, by queue

    def footprints(self, leave: ir.Leave | None) -> tuple[Footprint, ...]:
        """A block of each of these must fit beside those of the launch."""
        if leave is None:
            return ()
        if leave.what == "bytes":
            return (Footprint(f"{leave.amount} bytes", 0, 0, 0, leave.amount),)
        found: dict[Footprint, None] = {}
        for queue, kinds in self.kinds().items():
            asked = self._graph.queue(queue).collectives or ir.CollectiveSettings()
            found |= dict.fromkeys(planned(kinds, asked.threads, self._limits.arch))
        return tuple(found)

    def kinds(self) -> Mapping[str, set[str]]:
        """The kinds of collectives of each queue."""
        if self._kinds is None:
            self._kinds = defaultdict(set)
            for op in self._graph.ops:
                if isinstance(op.body, ir.Collective):
                    self._kinds[self._graph.stages[op.where.stage].queue].add(op.body.kind)
        return self._kinds

    def refusal(self, leave: ir.Leave, blocks: Sequence[Footprint] = ()) -> str:
        """Why no block leaves that, of these kernels or of those for products, with the numbers and the way out."""
        limits = self._limits
        smallest = min(blocks or footprints(limits), key=lambda f: (f.threads * f.registers, f.smem))
        needs = f"{smallest.kernel}{'' if blocks else ', the smallest,'} takes {_taken(smallest)}"
        if leave.what == "bytes":
            return (
                f"leave = {leave}: a block keeps out a second one of its launch only if it takes more than half of the "
                f"{limits.smem_per_sm} bytes of shared memory of a multiprocessor, so fewer than "
                f"{limits.smem_per_sm // 2 - limits.smem_reserved} are left; leave less, or leave = "
                f"{limits.sms // 8} sms"
            )
        other = max(self.footprints(leave), key=lambda f: f.threads * f.registers)
        rest = left([Several(other)], limits)
        return (
            f"leave = nccl: beside a block of {other.kernel} ({_taken(other)}) a multiprocessor has "
            f"{rest.registers} registers and {rest.smem} bytes of shared memory left; {needs}; "
            f"{self._way_out(other, blocks)}"
        )

    def _way_out(self, other: Footprint, blocks: Sequence[Footprint]) -> str:
        sms = f"leave = {self._limits.sms // 8} sms"
        if any(EXCHANGE in kinds for kinds in self.kinds().values()):
            return f"all_to_all is made of sends, whose blocks no setting makes smaller: say {sms}"
        made_for = tensor_core_families(self._limits.arch)
        for threads in range(other.threads - _WARP, _LEAST_THREADS - 1, -_WARP):
            thin = planned({"all_gather"}, threads, self._limits.arch)
            own = blocks or (made_for[0].footprints(self._limits) if made_for else ())
            if thin != (other,) and any(shape(block, 1, thin, self._limits) is not None for block in own):
                return f"say threads = {threads} on the queue of the collectives, or {sms}"
        return f"say {sms}"


def _taken(block: Footprint) -> str:
    return f"{block.threads} threads × {block.registers} registers, {block.smem} bytes of shared memory"

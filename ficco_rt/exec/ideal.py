"""What a plan's work would take if nothing stood in its way: the yardsticks that a run is measured with."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from ..graph.ir import CollectiveKind, Gemm
from ..machine.cost import collective_time, gemm_rate
from ..machine.model import Machine, Port
from ..plan.ir import CollectiveCall, Plan, Transfer, Work
from ..region import Region
from ..types import TYPES


@dataclass(frozen=True, slots=True)
class Ideal:
    """Microseconds on the virtual clock of a machine. See `ideal`."""

    compute_alone: float
    communication_alone: float

    @property
    def time(self) -> float:
        """Perfect overlap: the longer of the two hides the other."""
        return max(self.compute_alone, self.communication_alone)

    @property
    def serial(self) -> float:
        """No overlap: one after the other."""
        return self.compute_alone + self.communication_alone


def ideal(plan: Plan, machine: Machine) -> Ideal:
    """Both halves of the plan's work, each by itself and uncut.

    compute_alone: all GEMM operations of the busiest rank as one launch at the machine's rate for large
    GEMMs: no pieces, no half-filled waves of tiles, no limit on multiprocessors; not less than the way of
    its operands through memory, each part of a tensor counted once. Reductions, user kernels and copies
    inside a device do not count: a whole operation would not need them. 0 without GEMMs.

    communication_alone: the bytes that the busiest port has to pass, in or out (switch: a port a rank;
    mesh: a link an ordered pair; ring: a link a neighbour, which also passes what goes further), at the rate of its
    tier, plus one copy's fixed cost for each pair of ranks that copies go between; bytes are those of
    the plan's copies between ranks, and what kernels read and write on other ranks. Added to that: the plan's
    vendor collectives, all of one kind as one call. 0 if nothing crosses a link.
    """
    machine = replace(machine, ranks=plan.ranks)
    return Ideal(_compute(plan, machine), _communication(plan, machine))


def _compute(plan: Plan, machine: Machine) -> float:
    dtypes = {t.name: t.dtype for t in plan.tensors}
    arithmetic: dict[int, float] = defaultdict(float)
    touched: dict[int, dict[str, set[Region]]] = defaultdict(lambda: defaultdict(set))
    for stream, launch in plan.launches():
        for gemm in (work.body for work in launch.works if isinstance(work.body, Gemm)):
            k = gemm.left.shape[-2] if gemm.left_transposed else gemm.left.shape[-1]
            rate = gemm_rate(machine.device, dtypes[gemm.left.tensor])
            arithmetic[stream.rank] += 2.0 * gemm.out.elements * k / rate
            for region in (gemm.left, gemm.right, gemm.out):
                if region.rank == stream.rank:
                    touched[stream.rank][region.tensor].add(region)
    slowest = 0.0
    for rank, time in arithmetic.items():
        moved = 0
        for name, regions in touched[rank].items():
            whole = 1
            for n in plan.tensor(name).shapes[rank]:
                whole *= n
            # overlapping regions are counted twice, so never more than there is
            moved += min(whole, sum(r.elements for r in regions)) * TYPES[dtypes[name]].bytes
        slowest = max(slowest, time, moved / machine.device.memory_rate)
    return slowest + machine.device.launch_time if arithmetic else 0.0


@dataclass(slots=True)
class _PortLoad:
    bytes: int = 0
    pairs: set[tuple[int, int]] = field(default_factory=set)  # that copies go between


def _communication(plan: Plan, machine: Machine) -> float:
    ports: dict[Port, _PortLoad] = defaultdict(_PortLoad)
    dtypes = {t.name: t.dtype for t in plan.tensors}

    def size(region: Region) -> int:
        return region.elements * TYPES[dtypes[region.tensor]].bytes

    def cross(src: int, dst: int, amount: int, copied: bool = False) -> None:
        if src == dst:
            return
        for port in machine.ports(src, dst):
            ports[port].bytes += amount
            if copied:
                ports[port].pairs.add((src, dst))

    groups: dict[int, tuple[CollectiveKind, int]] = {}  # the bytes that one rank holds of the whole, at most
    for stream, part in ((stream, part) for stream, command in plan.commands() for part in command.parts):
        match part:
            case Transfer():
                cross(part.src.rank, part.dst.rank, size(part.src), copied=True)
            case Work():
                for region in part.reads:
                    cross(region.rank, stream.rank, size(region))
                for region in part.writes:
                    cross(stream.rank, region.rank, size(region))
            case CollectiveCall():
                held = size(part.dst if part.kind == "all_gather" else part.src)
                before = groups.get(part.group, (part.kind, 0))[1]
                groups[part.group] = (part.kind, max(before, held))
    whole: dict[CollectiveKind, int] = defaultdict(int)
    for kind, held in groups.values():
        whole[kind] += held
    copies = 0.0
    for port, load in ports.items():
        links = machine.of_port(port)
        copies = max(copies, links.copy_time * len(load.pairs) + load.bytes / links.rate)
    return copies + sum(collective_time(machine, kind, held) for kind, held in whole.items())

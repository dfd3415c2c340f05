"""The yardsticks with which a run is compared: `serial`, the time without overlap, and `ideal`, the time with perfect
overlap.

The yardsticks belong to the plan's operation (`exec.operation`), so all schedules of an operation are compared with the
same two: a schedule is better than another if its share of the ideal is greater. They are pure functions of the
operation, of the number of ranks that share a GPU, and of the machine. A plan that does not claim all of its outputs
has no operation. Its yardsticks are computed from the work that it does, and do not apply to other plans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from ..geometry.region import Region
from ..graph.ir import CollectiveKind, Gemm
from ..machine.durations import collective_time, gemm_rate, gemm_time
from ..machine.model import Machine, Port
from ..plan.ir import CollectiveCall, Plan, Transfer, Work
from ..types import TYPES
from .operation import Exchange, Operation, Way, operation_of


@dataclass(frozen=True, slots=True)
class Yardsticks:
    """Microseconds. `of`: the yardsticks of the plan's operation, or of this plan alone. Of a plan that repeats a
    product and its collective: how many `iterations`, and all collectives alone by the vendor's library. `ideal_by`:
    what the ideal's way sends in place of what the claims send (`Way.by`). `serial_by`: the schedule that ran as
    serial; none: computing alone, then moving alone. `turns`: how often each was run; 0: modelled."""

    compute_alone: float
    communication_alone: float
    serial: float
    of: Literal["operation", "plan"]
    iterations: int = 0
    collectives_alone: float = 0.0
    ideal_by: str = ""
    serial_by: str = ""
    turns: int = 0

    @property
    def measured(self) -> bool:
        return self.turns > 0

    @property
    def ideal(self) -> float:
        """Perfect overlap: the longer of the two hides the other."""
        return max(self.compute_alone, self.communication_alone)


def ideal(plan: Plan, machine: Machine, ranks_per_gpu: int = 1) -> Yardsticks:
    """The yardsticks of the plan's operation, or of the plan."""
    operation = operation_of(plan)
    if operation is not None:
        return ideal_of(operation, machine, ranks_per_gpu)
    shared = replace(machine, ranks=-(-plan.ranks // ranks_per_gpu))
    compute, communication = _compute(plan, machine, ranks_per_gpu), _communication(plan, shared, ranks_per_gpu)
    return Yardsticks(compute, communication, compute + communication, "plan")


# ---------------------------------------------------------------- of an operation


def ideal_of(operation: Operation, machine: Machine, ranks_per_gpu: int = 1) -> Yardsticks:
    """The yardsticks of an operation.

    ideal: of the ways to compute it the one that takes least (`best_way`), and of that way the longer of two times.
    compute_alone is the busiest GPU's products, each as one launch at the machine's rate for large GEMMs, or the way of
    its operands through memory. communication_alone is the least bytes that have to pass the busiest port (ring: the
    links to both neighbours), and the fixed cost of one copy or launch. Sums, and copies inside a GPU, do not count.

    serial: the usual way, one step after the other: vendor collectives of whole shards, and each product as one launch.

    What carries the operation out several times takes all of these as often. In the ideal, one launch of each product
    and one fixed cost of copies are enough, because the others are hidden behind what runs.

    Ranks that share a GPU share its arithmetic, and only what goes from one GPU to another passes a link.
    """
    machine = replace(machine, ranks=-(-operation.ranks // ranks_per_gpu))
    way = best_way(operation, machine, ranks_per_gpu)
    compute, communication = _multiplying(way, machine, ranks_per_gpu), _moving(way, machine, ranks_per_gpu)
    usual = operation.usual
    collectives = sum(_collective(exchange, machine, ranks_per_gpu) for exchange in usual.exchanges)
    times, repeated = float(operation.times), operation.repeated
    fixed = len(way.multiplications) * machine.device.launch_time
    return Yardsticks(
        times * (compute - fixed) + fixed,
        times * (communication - _fixed(machine)) + _fixed(machine) if communication else 0.0,
        times * (_multiplying(usual, machine, ranks_per_gpu) + collectives),
        "operation",
        repeated.number if repeated else 0,
        times * collectives if repeated else 0.0,
        way.by,
    )


def best_way(operation: Operation, machine: Machine, ranks_per_gpu: int = 1) -> Way:
    """The way of computing the operation whose ideal is least; of equal ones the first."""
    shared = replace(machine, ranks=-(-operation.ranks // ranks_per_gpu))

    def time(way: Way) -> float:
        return max(_multiplying(way, shared, ranks_per_gpu), _moving(way, shared, ranks_per_gpu))

    return min(operation.ways, key=time)


def _multiplying(way: Way, machine: Machine, ranks_per_gpu: int) -> float:
    """All products of the busiest GPU, each one launch."""
    times: dict[int, float] = defaultdict(float)
    for product in way.multiplications:
        for rank, (m, n, k) in enumerate(product.shapes):
            times[rank // ranks_per_gpu] += gemm_time(machine, m, n, k, product.dtype)
    return max(times.values(), default=0.0) + len(way.multiplications) * machine.device.launch_time


def _moving(way: Way, machine: Machine, ranks_per_gpu: int) -> float:
    """All exchanges of a way at once; `machine` has a rank for each GPU."""
    relayed = 0.0  # bytes on each link of a ring
    direct: dict[Port, float] = defaultdict(float)
    for exchange in way.exchanges:
        between = _between(exchange, exchange.least, ranks_per_gpu)
        if machine.links.kind == "ring" and not machine.outer and exchange.kind != "all_to_all":
            relayed += _relayed(between, machine.ranks)
            continue
        if exchange.kind != "all_to_all":
            between = _passed_on(between, machine, direct)
        for (src, dst), size in between.items():
            for port in machine.ports(src, dst):
                direct[port] += size
    moved = relayed / machine.links.rate
    moved += max((size / machine.of_port(port).rate for port, size in direct.items()), default=0.0)
    return _fixed(machine) + moved if moved else 0.0


def _fixed(machine: Machine) -> float:
    """What moving costs beside its bytes: one copy, or one launch."""
    return min(machine.links.copy_time, machine.device.launch_time)


def _between(exchange: Exchange, item: int, ranks_per_gpu: int) -> Mapping[tuple[int, int], int]:
    """Bytes from GPU to GPU."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    for (src, dst), elements in exchange.pairs(ranks_per_gpu).items():
        found[src // ranks_per_gpu, dst // ranks_per_gpu] += elements * item
    return found


def _relayed(between: Mapping[tuple[int, int], int], gpus: int) -> float:
    """A ring's GPUs pass on what others need too, and add to it what is a sum: so every byte comes to a GPU once, or
    leaves it once, over the links of both neighbours."""
    leaves, comes = _ends(between)
    return max((min(leaves[gpu], comes[gpu]) for gpu in range(gpus)), default=0) / max(1, min(2, gpus - 1))


def _passed_on(
    between: Mapping[tuple[int, int], int], machine: Machine, loads: dict[Port, float]
) -> Mapping[tuple[int, int], int]:
    """Adds to `loads` what crosses outer tiers, and returns the rest. What several ranks of a group need comes into it
    once, and what several add to leaves it once, by all of the group's ports: the others are passed on inside."""
    inside = {pair: size for pair, size in between.items() if machine.tier(*pair) == 0}
    inner = machine.links.ranks or machine.ranks
    for tier, links in enumerate(machine.tiers[1:], start=1):
        comes: dict[tuple[int, int], int] = defaultdict(int)  # from a rank into a group
        leaves: dict[tuple[int, int], int] = defaultdict(int)  # out of a group, for a rank
        for (src, dst), size in between.items():
            if machine.tier(src, dst) == tier:
                comes[src, dst // inner] = max(comes[src, dst // inner], size)
                leaves[src // inner, dst] = max(leaves[src // inner, dst], size)
        into: dict[int, int] = defaultdict(int)
        out: dict[int, int] = defaultdict(int)
        for (_, group), size in comes.items():
            into[group] += size
        for (group, _), size in leaves.items():
            out[group] += size
        ports = max(1, inner // links.ranks_a_port)
        for group in into.keys() | out.keys():
            least = min(into[group], out[group]) / ports
            for number in range(ports):
                loads[Port("in", group * ports + number, tier=tier)] += least
        inner = links.ranks or machine.ranks
    return inside


def _ends(between: Mapping[tuple[int, int], int]) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes that leave each GPU, and that come to it."""
    leaves: dict[int, int] = defaultdict(int)
    comes: dict[int, int] = defaultdict(int)
    for (src, dst), size in between.items():
        leaves[src] += size
        comes[dst] += size
    return leaves, comes


def _collective(exchange: Exchange, machine: Machine, ranks_per_gpu: int) -> float:
    """One call of the vendor's collective, of what lies there in its own type; not less than its bytes take."""
    leaves, comes = _ends(_between(exchange, exchange.item, ranks_per_gpu))
    moved = max((*leaves.values(), *comes.values()), default=0)
    if not moved:
        return 0.0
    passes = 2 if exchange.kind == "all_reduce" else 1
    held = moved * machine.ranks // (machine.ranks - 1) // passes  # as if all ranks had as much as the busiest one
    least = _moving(Way((replace(exchange, least=exchange.item),)), machine, ranks_per_gpu)
    return max(collective_time(machine, exchange.kind, held), least)


# ---------------------------------------------------------------- of a plan


def _compute(plan: Plan, machine: Machine, ranks_per_gpu: int) -> float:
    """All GEMM operations of the busiest GPU as one launch at the machine's rate for large GEMMs; not less than the way
    of its operands through memory, each part of a tensor counted once. Reductions, user kernels and copies inside a GPU
    do not count. 0 without GEMMs."""
    dtypes = {t.name: t.dtype for t in plan.tensors}
    arithmetic: dict[int, float] = defaultdict(float)
    touched: dict[int, dict[str, set[Region]]] = defaultdict(lambda: defaultdict(set))
    for stream, launch in plan.launches():
        for gemm in (work.body for work in launch.works if isinstance(work.body, Gemm)):
            arithmetic[stream.rank] += gemm.flops / gemm_rate(
                machine.device, "tf32" if gemm.tf32 else dtypes[gemm.left.tensor]
            )
            for region in (gemm.left, gemm.right, gemm.out):
                if region.rank == stream.rank:
                    touched[stream.rank][region.tensor].add(region)
    times: dict[int, float] = defaultdict(float)
    for rank, time in arithmetic.items():
        moved = 0
        for name, regions in touched[rank].items():
            # overlapping regions are counted twice, so never more than there is
            elements = min(prod(plan.tensor(name).shapes[rank]), sum(r.elements for r in regions))
            moved += elements * TYPES[dtypes[name]].bytes
        times[rank // ranks_per_gpu] += max(time, moved / machine.device.memory_rate)
    return max(times.values()) + machine.device.launch_time if times else 0.0


def _communication(plan: Plan, machine: Machine, ranks_per_gpu: int) -> float:
    """The bytes that the busiest port has to pass, in or out (switch: a port a GPU; mesh: a link an ordered pair; ring:
    a link a neighbour, which also passes what goes further), plus one copy's fixed cost for each pair of GPUs that
    copies go between; bytes are those of the plan's copies between GPUs, and what kernels read and write on others.
    Added to that: the plan's vendor collectives, all of one kind as one call. 0 if nothing crosses a link."""
    loads: dict[Port, int] = defaultdict(int)  # bytes
    pairs: dict[Port, set[tuple[int, int]]] = defaultdict(set)  # that copies go between
    dtypes = {t.name: t.dtype for t in plan.tensors}

    def size(region: Region) -> int:
        return region.elements * TYPES[dtypes[region.tensor]].bytes

    def cross(source: int, target: int, amount: int, copied: bool = False) -> None:
        src, dst = source // ranks_per_gpu, target // ranks_per_gpu
        if src == dst:
            return
        for port in machine.ports(src, dst):
            loads[port] += amount
            if copied:
                pairs[port].add((src, dst))

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
            case CollectiveCall(kind=kind):
                if kind == "send_recv":
                    cross(part.src.rank, part.to, size(part.src), copied=bool(part.reads))
                    continue
                held = size(part.dst if kind == "all_gather" else part.src)
                before = groups.get(part.group, (kind, 0))[1]
                groups[part.group] = (kind, max(before, held))
    whole: dict[CollectiveKind, int] = defaultdict(int)
    for kind, held in groups.values():
        whole[kind] += held
    copies = 0.0
    for port, load in loads.items():
        links = machine.of_port(port)
        copies = max(copies, links.copy_time * len(pairs[port]) + load / links.rate)
    return copies + sum(collective_time(machine, kind, held) for kind, held in whole.items())

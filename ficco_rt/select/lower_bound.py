"""A lower bound of the time of a graph, from its bytes and operations alone. It shows which candidates are worth
simulating."""

from __future__ import annotations

from collections.abc import Hashable

from ..geometry.region import Region, between_ranks
from ..graph.ir import Collective, Gemm, Graph
from ..graph.kinds import kind_of
from ..machine.durations import gemm_rate
from ..machine.model import Machine
from ..types import TYPES


def bound(graph: Graph, machine: Machine) -> float:
    """Microseconds. The multiprocessors of each rank and each port of a link have work to do: GEMMs at the machine's
    rate, bytes at the link's. Some way to it comes before, and some way from it is still to come. Launches, signals,
    tiles and what a copy costs beyond its bytes do not count."""
    dtypes = {t.name: t.dtype for t in graph.tensors}

    def size(region: Region) -> int:
        return region.elements * TYPES[dtypes[region.tensor]].bytes

    uses = []
    for op in graph.ops:
        used: dict[Hashable, float] = {}
        body, rank = op.body, op.where.rank
        if isinstance(body, Gemm):
            used[rank] = body.flops / gemm_rate(machine.device, dtypes[body.left.tensor])
        elif isinstance(body, Collective):
            used[rank, "collectives"] = kind_of(body).time(body, machine, rank, size, None)
        for src, dst, region in between_ranks(rank, op.reads, op.writes):
            for port in machine.ports(src, dst):
                used[port] = used.get(port, 0.0) + size(region) / machine.of_port(port).rate
        uses.append(used)
    alone = [max(used.values(), default=0.0) for used in uses]
    begins, ends = [0.0] * len(alone), [0.0] * len(alone)
    for i, deps in enumerate(graph.deps):
        before = max((ends[dep.before] for dep in deps), default=0.0)
        body = graph.ops[i].body
        begins[i] = 0.0 if isinstance(body, Gemm) and body.addends else before  # its tiles add last what they wait for
        ends[i] = max(before, begins[i] + alone[i])
    behind = [0.0] * len(alone)
    for i in range(len(alone) - 1, -1, -1):
        body = graph.ops[i].body
        own = 0.0 if isinstance(body, Gemm) and body.addends else alone[i]
        for dep in graph.deps[i]:
            behind[dep.before] = max(behind[dep.before], own + behind[i])
    first: dict[Hashable, float] = {}
    total: dict[Hashable, float] = {}
    last: dict[Hashable, float] = {}
    for i, used in enumerate(uses):
        for what, time in used.items():
            first[what] = min(first.get(what, begins[i]), begins[i])
            total[what] = total.get(what, 0.0) + time
            last[what] = min(last.get(what, behind[i]), behind[i])
    return max([max(ends, default=0.0), *(first[what] + total[what] + last[what] for what in total)])

"""What `ficco explain` tells of a schedule, as plain values: stages, waits, bytes, operations, memory, the plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import prod
from typing import Any

from ..device.features import usual
from ..device.ir import Placement
from ..device.launches import LaunchPlanner
from ..device.room_table import room_table, table_facts
from ..geometry.region import between_ranks
from ..graph.ir import Collective, Copy, Gemm, Graph, KernelCall, Op, Reduce
from ..graph.kinds import kind_of
from ..graph.ops.kind import OpKind
from ..machine.model import Machine, Port
from ..plan.ir import Plan, SignalFlag
from ..trace.model import base_name
from ..types import TYPES
from .job import Job, given_words, operations, proof_words, waits
from .sources import diagnostic_record

Facts = dict[str, Any]
MATRIX = 8  # the most ranks for which every pair gets a number of its own


def gather(job: Job) -> Facts:
    """Everything that is reported, as plain values: bytes, operations, microseconds."""
    graph, plan, machine = job.graph, job.plan, job.machine
    assert graph is not None
    return {
        "schedule": graph.schedule,
        "title": job.title,
        "path": job.path,
        "ranks": graph.ranks,
        "machine": machine.name,
        "params": dict(graph.params),
        "given": given_words(job),
        "computes": [claim.text for claim in graph.claims],
        "proof": proof_words(job),
        "unproven": job.unproven,
        "stages": _stages(graph, plan),
        "waits_for": _waits_for(graph),
        "traffic": _traffic(graph, machine),
        "compute": _compute(graph, plan, machine),
        "memory": _memory(graph, machine),
        "room": _room(plan, machine),
        "plan": _plan(plan),
        "warnings": [diagnostic_record(d) for d in job.warnings],
    }


def _stages(graph: Graph, plan: Plan) -> list[Facts]:
    by_stage: dict[str, list[Op]] = {}
    for stage in graph.stages:
        by_stage.setdefault(stage.name, [])
    for op in graph.ops:
        by_stage[graph.stages[op.where.stage].name].append(op)
    launches, shared = _launches(plan)
    facts = []
    for name, ops in by_stage.items():
        own = [s for s in graph.stages if s.name == name]
        queue = graph.queue(own[0].queue)
        a_rank = Counter(op.where.rank for op in ops)
        facts.append(
            {
                "name": name,
                "line": own[0].origin.line,
                "queue": queue.name,
                "engine": queue.engine,
                "priority": queue.resources.priority,
                "asked_of_the_library": None if queue.collectives is None else asdict(queue.collectives),
                "streamed": own[0].streamed,
                "iterations": len(own),
                "phases": len({(op.where.stage, op.where.phase) for op in ops}),
                "after": sorted({graph.stages[a].name for s in own for a in s.after}),
                "operations": len(ops),
                "operations_a_rank": least_and_most(a_rank[r] for r in range(graph.ranks)),
                "launches_a_rank": least_and_most(launches[r, name] for r in range(graph.ranks)),
                "launched_with": sorted(shared.get(name, ())),
                "does": [
                    _does(graph, kind, [op for op in ops if kind_of(op.body) is kind])
                    for kind in dict.fromkeys(kind_of(op.body) for op in ops)
                ],
            }
        )
    return facts


def _does(graph: Graph, kind: OpKind[Any], ops: Sequence[Op]) -> Facts:
    """One kind of operation of a stage, as each rank sees it."""
    bodies: list[Any] = [op.body for op in ops]  # all of `kind`
    size = partial(_bytes, graph)

    def a_rank(amount: Callable[[Any], int]) -> list[int]:
        found: Counter[int] = Counter()
        for op in ops:
            found[op.where.rank] += amount(op)
        return least_and_most(found[r] for r in range(graph.ranks))

    facts: Facts = {"kind": kind.word, "a_rank": a_rank(lambda op: 1)}
    if kind.body is Copy:
        facts["bytes_each"] = _distinct(size(copy.dst) for copy in bodies)
        facts["bytes_a_rank"] = a_rank(lambda op: size(op.writes[0]))
        ways = Counter(_way(op.where.rank, copy) for op, copy in zip(ops, bodies, strict=True))
        facts["ways"] = {way: ways[way] for way in ("push", "pull", "local") if ways[way]}
        peers: list[set[int]] = [set() for _ in range(graph.ranks)]
        for op, copy in zip(ops, bodies, strict=True):
            peers[op.where.rank] |= {copy.dst.rank, copy.src.rank} - {op.where.rank}
        facts["peers"] = least_and_most(map(len, peers))
    elif kind.body is Gemm:
        facts["shapes"] = _distinct((*gemm.out.shape[-2:], gemm.depth) for gemm in bodies)
        facts["flops_a_rank"] = a_rank(lambda op: op.body.flops)
        facts["by_library"] = a_rank(lambda op: op.where.resources.kernel == "vendor")
        facts["accumulates"] = any(gemm.accumulate for gemm in bodies)
        facts["terms"] = _distinct(len(gemm.addends) for gemm in bodies)
    elif kind.body is Collective:
        facts["collectives"] = sorted({call.kind for call in bodies})
        facts["bytes_each"] = _distinct(max(size(call.dst), size(call.src)) for call in bodies)
    elif kind.body is KernelCall:
        facts["kernels"] = sorted({call.kernel for call in bodies})
    else:
        if kind.body is Reduce:
            facts["terms"] = _distinct(len(total.terms) for total in bodies)
        facts["shapes"] = _distinct(region.shape for body in bodies for region in body.writes)
        facts["bytes_a_rank"] = a_rank(lambda op: sum(map(size, (*op.reads, *op.writes))))
    if kind.side != "moves":
        for name, own in (("bytes_from_others", 1), ("bytes_to_others", 0)):
            moved = a_rank(lambda op, own=own: sum(b[2] for b in _between(graph, op) if b[own] == op.where.rank))  # type: ignore[misc]
            if moved[1]:
                facts[name] = moved
    return facts


def _waits_for(graph: Graph) -> list[Facts]:
    """For each pair of stages: how the operations of one wait for those of the other, because of data."""
    # for each op: how many ops it waits for, its rank, and how many of these ops are on other ranks
    pairs: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    why: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    order = {name: i for i, name in enumerate(dict.fromkeys(s.name for s in graph.stages))}
    kinds: dict[str, str] = {}
    for op in graph.ops:
        name, kind = graph.stages[op.where.stage].name, kind_of(op.body).word
        kinds[name] = kind if kinds.get(name, kind) == kind else "operation"
    for number, deps in enumerate(graph.deps):
        op = graph.ops[number]
        stage = graph.stages[op.where.stage].name
        found: dict[str, set[tuple[int, int]]] = {}
        for dep in deps:
            other = graph.ops[dep.before].where
            name = graph.stages[other.stage].name
            found.setdefault(name, set()).add((dep.before, other.rank))
            why.setdefault((stage, name), Counter())[dep.hazard, dep.tensor] += 1
        for name, befores in found.items():
            away = sum(rank != op.where.rank for _, rank in befores)
            pairs.setdefault((stage, name), []).append((len(befores), op.where.rank, away))
    facts = []
    for stage, before in sorted(pairs, key=lambda p: (order[p[0]], order[p[1]])):
        entries = pairs[stage, before]
        waiting = Counter(rank for _, rank, _ in entries)
        reasons = Counter(why[stage, before])
        facts.append(
            {
                "stage": stage,
                "for": before,
                "operations": len(entries),
                "operations_a_rank": least_and_most(waiting[r] for r in range(graph.ranks)),
                "kinds": [kinds[stage], kinds[before]],
                "each_for": least_and_most(number for number, _, _ in entries),
                "from": _from(sum(n for n, _, _ in entries), sum(away for _, _, away in entries)),
                "because": [
                    {"hazard": h, "tensor": t} for (h, t), _ in sorted(reasons.items(), key=lambda r: (-r[1], r[0]))
                ],
            }
        )
    return facts


def _from(total: int, away: int) -> str:
    return "other ranks" if away == total else "this and other ranks" if away else "this rank"


def _traffic(graph: Graph, machine: Machine) -> Facts:
    """Bytes by (from, to), and what that means for the busiest link."""
    n = graph.ranks
    pairs: Counter[tuple[int, int]] = Counter()
    local = launched = 0
    for op in graph.ops:
        match op.body:
            case Copy(dst=dst, src=src) if src.rank == dst.rank:
                local += _bytes(graph, dst)
            case Collective(kind="send_recv", src=src, to=to):
                pairs[src.rank, to] += _bytes(graph, src)
            case _:  # other collectives touch their own rank alone: who sends what is the library's
                for source, target, size in _between(graph, op):
                    pairs[source, target] += size
                    launched += 0 if isinstance(op.body, Copy) else size
    load: Counter[Port] = Counter()
    for (a, b), size in pairs.items():
        for port in machine.ports(a, b):
            load[port] += size
    return {
        "out": [sum(pairs[r, p] for p in range(n)) for r in range(n)],
        "in": [sum(pairs[p, r] for p in range(n)) for r in range(n)],
        "within_ranks": local,
        "by_launches": launched,
        "pairs": [[pairs[a, b] for b in range(n)] for a in range(n)] if n <= MATRIX else None,
        **_busiest(machine, load, machine.links.kind),
        "tiers": [
            {"name": links.name, **_busiest(machine, {p: n for p, n in load.items() if p.tier == i}, links.kind)}
            for i, links in enumerate(machine.tiers)
        ],
    }


def _busiest(machine: Machine, load: Mapping[Port, int], topology: str) -> Facts:
    """The port that takes longest, among ports with the bytes that pass each."""
    times = {port: size / machine.of_port(port).rate for port, size in load.items()}
    busiest = min(times, key=lambda port: (-times[port], _port(machine, port)), default=None)
    facts: Facts = {
        "topology": topology,
        "links_used": len(load),
        "links_even": len(set(times.values())) == 1,
        "busiest_link": None,
    }
    if busiest is not None:
        words = " ".join(_port(machine, busiest))
        facts["busiest_link"] = {"link": words, "bytes": load[busiest], "time_us": times[busiest]}
    return facts


def _port(machine: Machine, port: Port) -> tuple[str, ...]:
    """A port or link in words: `out of rank 3`, `rank 0 to rank 1`, `into ranks 8–15`."""
    each = machine.of_port(port).ranks_a_port

    def end(number: int) -> tuple[str, str]:
        first = number * each
        return ("rank", str(number)) if each == 1 else ("ranks", f"{first}–{min(first + each, machine.ranks) - 1}")

    (noun, a), (_, b) = end(port.a), end(port.b)
    if port.kind == "link":
        return noun, a, f"to {noun}", b
    return ("out of" if port.kind == "out" else "into") + f" {noun}", a


def _compute(graph: Graph, plan: Plan, machine: Machine) -> Facts:
    flops: Counter[int] = Counter()
    dtypes: set[str] = set()
    for op in graph.ops:
        if isinstance(op.body, Gemm):
            flops[op.where.rank] += op.body.flops
            dtypes.add(graph.tensor(op.body.left.tensor).dtype)
    tiles = Counter[int]()
    launches = Counter[int]()
    for stream, launch in plan.launches():
        launches[stream.rank] += 1
        tiles[stream.rank] += sum(prod(work.tiles) for work in launch.works if work.tiles is not None)
    ranks = range(graph.ranks)
    rate = dict(machine.device.gemm_rate)
    slowest = min((rate[d] for d in dtypes), default=0.0)
    return {
        "gemm_flops_a_rank": least_and_most(flops[r] for r in ranks),
        "gemm_time_us": max((flops[r] for r in ranks), default=0) / slowest if slowest else 0.0,
        "launches_a_rank": least_and_most(launches[r] for r in ranks),
        "tiles_a_rank": least_and_most(tiles[r] for r in ranks),
    }


def _memory(graph: Graph, machine: Machine) -> Facts:
    tensors = []
    totals = [0] * graph.ranks
    for tensor in graph.tensors:
        sizes = [TYPES[tensor.dtype].bytes * prod(shape) for shape in tensor.shapes]
        totals = [a + b for a, b in zip(totals, sizes, strict=True)]
        largest = max(range(graph.ranks), key=lambda r: sizes[r])
        shape = list(tensor.shapes[largest])
        entry = {"name": tensor.name, "kind": tensor.kind, "dtype": tensor.dtype, "shape": shape}
        tensors.append({**entry, "bytes": sizes[largest], "same_on_all": len(set(tensor.shapes)) == 1})
    return {"tensors": tensors, "peak_bytes_a_rank": max(totals, default=0), "device_bytes": machine.device.memory}


def _room(plan: Plan, machine: Machine) -> Facts:
    """Of rank 0, each rank on a device of its own."""
    device = machine.device
    planner = LaunchPlanner(plan, device, Placement(tuple(range(plan.ranks))), usual(device.arch), frozenset())
    return table_facts(room_table(plan, device, planner.all(rank=0)))


def _plan(plan: Plan) -> Facts:
    streams = Counter(s.rank for s in plan.streams)
    names = [s.name for s in plan.streams if s.rank == 0]
    signals = sum(isinstance(command, SignalFlag) for _, command in plan.commands())
    return {
        "streams_a_rank": least_and_most(streams[r] for r in range(plan.ranks)),
        "streams_of_rank_0": names,
        "commands": sum(len(s.commands) for s in plan.streams),
        "operations": operations(plan),
        "events": plan.events,
        "flags": len(plan.flag_homes),
        "flag_signals_on_streams": signals,
        "waits": waits(plan),
    }


def _launches(plan: Plan) -> tuple[Counter[tuple[int, str]], dict[str, set[str]]]:
    """For each rank and stage, how many launches hold works of the stage; and for each stage, which other stages share
    a launch with it."""
    found: Counter[tuple[int, str]] = Counter()
    shared: dict[str, set[str]] = defaultdict(set)
    for stream, launch in plan.launches():
        names = set(map(base_name, launch.stages))
        found.update((stream.rank, name) for name in names)
        for name in names:
            shared[name] |= names - {name}
    return found, shared


def _between(graph: Graph, op: Op) -> list[tuple[int, int, int]]:
    """What an operation reads and writes on other ranks: from which rank, to which, how many bytes."""
    found = between_ranks(op.where.rank, op.reads, op.writes)
    return [(source, target, _bytes(graph, region)) for source, target, region in found]


def _bytes(graph: Graph, region: Any) -> int:
    return int(TYPES[graph.tensor(region.tensor).dtype].bytes * region.elements)


def _way(rank: int, copy: Copy) -> str:
    if copy.src.rank == copy.dst.rank:
        return "local"
    return "push" if copy.src.rank == rank else "pull"


def least_and_most(values: Iterable[int]) -> list[int]:
    """[least, most]"""
    listed = list(values)
    return [min(listed), max(listed)] if listed else [0, 0]


def _distinct(values: Iterable[Any]) -> list[Any]:
    return sorted(set(values))

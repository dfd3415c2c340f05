"""The facts of a schedule, as plain values, for `ficco explain` and the language server: stages, waits, bytes,
operations, memory, the plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, TypeAlias

from ..device.features import virtual
from ..device.fit_table import FitTable, fit_table
from ..device.ir import Placement
from ..device.launches import LaunchPlanner
from ..files.records import LEFT_OUT, Count, Micros, Params, filled
from ..geometry.region import between_ranks
from ..graph import ir
from ..graph.kinds import kind_of
from ..graph.ops.kind import OpKind
from ..graph.scales import is_scales
from ..machine.durations import gemm_rate
from ..machine.model import Machine, Port, TopologyKind
from ..plan.ir import Plan, SignalFlag
from ..trace.model import base_name
from ..types import TYPES
from .job import Job, given_words, operations, proof_words, waits
from .sources import DiagnosticRecord, diagnostic_records

MATRIX = 8  # the most ranks for which every pair gets a number of its own


Spread: TypeAlias = tuple[int, int]  # least and most


@dataclass(frozen=True, slots=True)
class OperationFacts:
    """Operations of one kind in a stage, as each rank sees them; of two numbers the least and the most.

    kind: What the language calls the operation.
    a_rank: Operations a rank.
    by_library: GEMMs that the vendor's library makes, a rank.
    ways: push, pull, local: how many.
    peers: Other ranks that a rank copies to or from.
    bytes_from_others: What launches read in other ranks' memory, a rank. Absent: nothing.
    bytes_to_others: What launches write in other ranks' memory, a rank. Absent: nothing.
    shapes: Different ones; of GEMMs [M, N, K].
    functions: What is applied to the sums.
    """

    kind: str
    a_rank: Spread
    by_library: Spread = LEFT_OUT
    bytes_each: tuple[Count, ...] = LEFT_OUT
    bytes_a_rank: Spread = LEFT_OUT
    ways: Mapping[str, Count] = LEFT_OUT
    peers: Spread = LEFT_OUT
    bytes_from_others: Spread = LEFT_OUT
    bytes_to_others: Spread = LEFT_OUT
    shapes: tuple[tuple[Count, ...], ...] = LEFT_OUT
    flops_a_rank: Spread = LEFT_OUT
    accumulates: bool = LEFT_OUT
    terms: tuple[Count, ...] = LEFT_OUT
    functions: tuple[str, ...] = LEFT_OUT
    collectives: tuple[str, ...] = LEFT_OUT
    kernels: tuple[str, ...] = LEFT_OUT


@dataclass(frozen=True, slots=True)
class StageFacts:
    """A stage; of two numbers the least and the most.

    asked_of_the_library: What the queue asks of NCCL or RCCL; null: nothing.
    launched_with: Stages that share its launches.
    does: One for each kind of operation.
    """

    name: str
    line: Count
    queue: str
    engine: ir.Engine
    priority: ir.Priority | None
    asked_of_the_library: ir.CollectiveSettings | None
    streamed: bool
    iterations: Count
    phases: Count
    after: tuple[str, ...]
    operations: Count
    operations_a_rank: Spread
    launches_a_rank: Spread
    launched_with: tuple[str, ...]
    does: tuple[OperationFacts, ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why operations wait."""

    hazard: str
    tensor: str


@dataclass(frozen=True, slots=True)
class WaitFacts:
    """How operations of a stage wait for those of a stage.

    for: The stage that is waited for.
    operations: That wait.
    operations_a_rank: Least and most.
    each_for: How many each waits for, least and most.
    """

    stage: str
    for_: str
    operations: Count
    operations_a_rank: Spread
    kinds: tuple[str, str]
    each_for: Spread
    from_: Literal["this rank", "other ranks", "this and other ranks"]
    because: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """What a link carries.

    link: In words, such as out of rank 3.
    time_us: At the link's rate.
    """

    link: str
    bytes: Count
    time: Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """What the links of a machine, or of a tier, carry.

    links_even: All take equally long.
    busiest_link: The one that takes longest; null: nothing crosses one.
    """

    topology: TopologyKind
    links_used: Count
    links_even: bool
    busiest_link: LinkLoad | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUse(LinkUse):
    """What the links of a tier carry."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic(LinkUse):
    """The bytes that move.

    out: Bytes from each rank to others.
    in: Bytes to each rank from others.
    within_ranks: Bytes of copies within ranks.
    by_launches: Of the bytes between ranks: those that launches other than copies read and write themselves.
    pairs: Bytes from rank to rank; null: too many ranks.
    """

    out: tuple[Count, ...]
    in_: tuple[Count, ...]
    within_ranks: Count
    by_launches: Count
    pairs: tuple[tuple[Count, ...], ...] | None
    tiers: tuple[TierUse, ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """What is computed; of two numbers the least and the most.

    gemm_time_us: Of the busiest rank, at the rate of large products.
    """

    gemm_flops_a_rank: Spread
    gemm_time: Micros
    launches_a_rank: Spread
    tiles_a_rank: Spread


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A tensor.

    shape: On the rank where it is largest.
    """

    name: str
    kind: Literal["input", "output", "scratch"]
    dtype: str
    shape: tuple[Count, ...]
    bytes: Count
    same_on_all: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that tensors take."""

    tensors: tuple[TensorFacts, ...]
    peak_bytes_a_rank: Count
    device_bytes: Count


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """How much a plan holds.

    streams_a_rank: Least and most.
    """

    streams_a_rank: Spread
    streams_of_rank_0: tuple[str, ...]
    commands: Count
    operations: Count
    events: Count
    flags: Count
    flag_signals_on_streams: Count
    waits: Count


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `ficco explain --json` prints.

    params: Params and types by name.
    given: Values that rules gave, a sentence each.
    computes: Claims, as the schedule writes them.
    block_fit: Kernels of rank 0 that may share a multiprocessor, and which fit beside which.
    """

    schedule: str
    title: str
    path: str
    ranks: Count
    machine: str
    params: Params
    given: tuple[str, ...]
    computes: tuple[str, ...]
    proof: str
    unproven: tuple[str, ...]
    stages: tuple[StageFacts, ...]
    waits_for: tuple[WaitFacts, ...]
    traffic: Traffic
    compute: Compute
    memory: Memory
    block_fit: FitTable
    plan: PlanFacts
    warnings: tuple[DiagnosticRecord, ...]


def gather(job: Job) -> Explanation:
    """Everything that is reported, as plain values: bytes, operations, microseconds."""
    graph, plan, machine = job.graph, job.plan, job.machine
    assert graph is not None
    device, placement = machine.device, Placement(tuple(range(plan.ranks)))  # each rank on a device of its own
    planner = LaunchPlanner(plan, device, placement, virtual(device.arch), frozenset())
    return filled(
        Explanation,
        job,
        graph,
        machine=machine.name,
        params=dict(graph.params),
        given=tuple(given_words(job)),
        computes=tuple(claim.text for claim in graph.claims),
        proof=proof_words(job),
        stages=_stages(graph, plan),
        waits_for=tuple(_waits_for(graph)),
        traffic=_traffic(graph, machine),
        compute=_compute(graph, plan, machine),
        memory=_memory(graph, machine),
        block_fit=fit_table(plan, device, planner.all(rank=0)),
        plan=_plan(plan),
        warnings=diagnostic_records(job.warnings),
    )


def _stages(graph: ir.Graph, plan: Plan) -> tuple[StageFacts, ...]:
    by_stage: dict[str, list[ir.Op]] = {}
    for stage in graph.stages:
        by_stage.setdefault(stage.name, [])
    for op in graph.ops:
        by_stage[_stage(graph, op)].append(op)
    launches, shared = _launches(plan)
    facts = []
    for name, ops in by_stage.items():
        own = [s for s in graph.stages if s.name == name]
        queue = graph.queue(own[0].queue)
        a_rank = Counter(op.where.rank for op in ops)
        kinds = dict.fromkeys(kind_of(op.body) for op in ops)
        facts.append(
            StageFacts(
                name=name,
                line=own[0].origin.line,
                queue=queue.name,
                engine=queue.engine,
                priority=queue.resources.priority,
                asked_of_the_library=queue.collectives,
                streamed=own[0].streamed,
                iterations=len(own),
                phases=len({(op.where.stage, op.where.phase) for op in ops}),
                after=tuple(sorted({graph.stages[a].name for s in own for a in s.after})),
                operations=len(ops),
                operations_a_rank=least_and_most(a_rank[r] for r in range(graph.ranks)),
                launches_a_rank=least_and_most(launches[r, name] for r in range(graph.ranks)),
                launched_with=tuple(sorted(shared.get(name, ()))),
                does=tuple(_does(graph, kind, [op for op in ops if kind_of(op.body) is kind]) for kind in kinds),
            )
        )
    return tuple(facts)


def _does(graph: ir.Graph, kind: OpKind[Any], ops: Sequence[ir.Op]) -> OperationFacts:
    """One kind of operation of a stage, as each rank sees it."""
    bodies: list[Any] = [op.body for op in ops]  # all of `kind`
    size = partial(_bytes, graph)

    def a_rank(amount: Callable[[Any], int]) -> Spread:
        found: Counter[int] = Counter()
        for op in ops:
            found[op.where.rank] += amount(op)
        return least_and_most(found[r] for r in range(graph.ranks))

    facts: dict[str, Any] = {}
    if kind.body is ir.Copy:
        facts["bytes_each"] = _distinct(size(copy.dst) for copy in bodies)
        facts["bytes_a_rank"] = a_rank(lambda op: size(op.writes[0]))
        ways = Counter(_way(op.where.rank, copy) for op, copy in zip(ops, bodies, strict=True))
        facts["ways"] = {way: ways[way] for way in ("push", "pull", "local") if ways[way]}
        peers: list[set[int]] = [set() for _ in range(graph.ranks)]
        for op, copy in zip(ops, bodies, strict=True):
            peers[op.where.rank] |= {copy.dst.rank, copy.src.rank} - {op.where.rank}
        facts["peers"] = least_and_most(map(len, peers))
    elif kind.body is ir.Gemm:
        facts["shapes"] = _distinct((*gemm.out.shape[-2:], gemm.depth) for gemm in bodies)
        facts["flops_a_rank"] = a_rank(lambda op: op.body.flops)
        facts["by_library"] = a_rank(lambda op: op.where.resources.kernel == "vendor")
        facts["accumulates"] = any(gemm.accumulate for gemm in bodies)
        facts["terms"] = _distinct(len(gemm.addends) for gemm in bodies)
    elif kind.body is ir.Collective:
        facts["collectives"] = tuple(sorted({call.kind for call in bodies}))
        facts["bytes_each"] = _distinct(max(size(call.dst), size(call.src)) for call in bodies)
    elif kind.body is ir.KernelCall:
        facts["kernels"] = tuple(sorted({call.kernel for call in bodies}))
    else:
        if kind.body is ir.Reduce:
            facts["terms"] = _distinct(len(total.terms) for total in bodies)
        facts["shapes"] = _distinct(r.shape for body in bodies for r in body.writes if not is_scales(r.tensor))
        facts["bytes_a_rank"] = a_rank(lambda op: sum(map(size, (*op.reads, *op.writes))))
    functions = sorted({body.function for body in bodies if isinstance(body, ir.Gemm | ir.Reduce) and body.function})
    if functions:
        facts["functions"] = tuple(functions)
    if kind.side != "moves":
        for name, own in (("bytes_from_others", 1), ("bytes_to_others", 0)):
            moved = a_rank(lambda op, own=own: sum(b[2] for b in _between(graph, op) if b[own] == op.where.rank))  # type: ignore[misc]
            if moved[1]:
                facts[name] = moved
    return OperationFacts(kind.word, a_rank(lambda op: 1), **facts)


def _waits_for(graph: ir.Graph) -> Iterator[WaitFacts]:
    """For each pair of stages: how the operations of one wait for those of the other, because of data."""
    found: dict[tuple[str, str], dict[int, list[ir.Dep]]] = {}  # what each waiting operation waits for
    order = {name: i for i, name in enumerate(dict.fromkeys(s.name for s in graph.stages))}
    kinds: dict[str, str] = {}
    for op in graph.ops:
        name, kind = _stage(graph, op), kind_of(op.body).word
        kinds[name] = kind if kinds.get(name, kind) == kind else "operation"
    for number, deps in enumerate(graph.deps):
        for dep in deps:
            pair = _stage(graph, graph.ops[number]), _stage(graph, graph.ops[dep.before])
            found.setdefault(pair, {}).setdefault(number, []).append(dep)
    ranks = [op.where.rank for op in graph.ops]
    for stage, before in sorted(found, key=lambda p: (order[p[0]], order[p[1]])):
        waiting = found[stage, before]
        awaited = {number: {dep.before for dep in deps} for number, deps in waiting.items()}
        away = [ranks[b] != ranks[number] for number, befores in awaited.items() for b in befores]
        a_rank = Counter(ranks[number] for number in waiting)
        reasons = Counter((dep.hazard, dep.tensor) for deps in waiting.values() for dep in deps)
        yield WaitFacts(
            stage=stage,
            for_=before,
            operations=len(waiting),
            operations_a_rank=least_and_most(a_rank[r] for r in range(graph.ranks)),
            kinds=(kinds[stage], kinds[before]),
            each_for=least_and_most(map(len, awaited.values())),
            from_="other ranks" if all(away) else "this and other ranks" if any(away) else "this rank",
            because=tuple(Reason(*reason) for reason, _ in sorted(reasons.items(), key=lambda r: (-r[1], r[0]))),
        )


def _stage(graph: ir.Graph, op: ir.Op) -> str:
    return graph.stages[op.where.stage].name


def _traffic(graph: ir.Graph, machine: Machine) -> Traffic:
    """Bytes by (from, to), and what that means for the busiest link."""
    n = graph.ranks
    pairs: Counter[tuple[int, int]] = Counter()
    local = launched = 0
    for op in graph.ops:
        match op.body:
            case ir.Copy(dst=dst, src=src) if src.rank == dst.rank:
                local += _bytes(graph, dst)
            case ir.Collective(kind="send_recv", src=src, to=to):
                pairs[src.rank, to] += _bytes(graph, src)
            case _:  # other collectives touch their own rank alone: who sends what is the library's
                for source, target, size in _between(graph, op):
                    pairs[source, target] += size
                    launched += 0 if isinstance(op.body, ir.Copy) else size
    load: Counter[Port] = Counter()
    for (a, b), size in pairs.items():
        for port in machine.ports(a, b):
            load[port] += size
    return Traffic(
        out=tuple(sum(pairs[r, p] for p in range(n)) for r in range(n)),
        in_=tuple(sum(pairs[p, r] for p in range(n)) for r in range(n)),
        within_ranks=local,
        by_launches=launched,
        pairs=tuple(tuple(pairs[a, b] for b in range(n)) for a in range(n)) if n <= MATRIX else None,
        **_busiest(machine, load, machine.links.kind),
        tiers=tuple(
            TierUse(name=links.name, **_busiest(machine, {p: n for p, n in load.items() if p.tier == i}, links.kind))
            for i, links in enumerate(machine.tiers)
        ),
    )


def _busiest(machine: Machine, load: Mapping[Port, int], topology: str) -> dict[str, Any]:
    """The port that takes longest, among ports with the bytes that pass each; fields of `LinkUse`."""
    times = {port: size / machine.of_port(port).rate for port, size in load.items()}
    most = min(times, key=lambda port: (-times[port], _port(machine, port)), default=None)
    busiest = None if most is None else LinkLoad(" ".join(_port(machine, most)), load[most], times[most])
    even = len(set(times.values())) == 1
    return {"topology": topology, "links_used": len(load), "links_even": even, "busiest_link": busiest}


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


def _compute(graph: ir.Graph, plan: Plan, machine: Machine) -> Compute:
    flops: Counter[int] = Counter()
    dtypes: set[str] = set()
    for op in graph.ops:
        if isinstance(op.body, ir.Gemm):
            flops[op.where.rank] += op.body.flops
            dtypes.add("tf32" if op.body.tf32 else graph.tensor(op.body.left.tensor).dtype)
    tiles = Counter[int]()
    launches = Counter[int]()
    for stream, launch in plan.launches():
        launches[stream.rank] += 1
        tiles[stream.rank] += sum(prod(work.tiles) for work in launch.works if work.tiles is not None)
    ranks = range(graph.ranks)
    slowest = min((gemm_rate(machine.device, d) for d in dtypes), default=0.0)
    return Compute(
        gemm_flops_a_rank=least_and_most(flops[r] for r in ranks),
        gemm_time=max((flops[r] for r in ranks), default=0) / slowest if slowest else 0.0,
        launches_a_rank=least_and_most(launches[r] for r in ranks),
        tiles_a_rank=least_and_most(tiles[r] for r in ranks),
    )


def _memory(graph: ir.Graph, machine: Machine) -> Memory:
    tensors = []
    totals = [0] * graph.ranks
    for tensor in graph.tensors:
        sizes = [TYPES[tensor.dtype].bytes * prod(shape) for shape in tensor.shapes]
        totals = [a + b for a, b in zip(totals, sizes, strict=True)]
        largest = max(range(graph.ranks), key=lambda r: sizes[r])
        shape, same = tensor.shapes[largest], len(set(tensor.shapes)) == 1
        tensors.append(TensorFacts(tensor.name, tensor.kind, tensor.dtype, shape, sizes[largest], same))
    return Memory(tuple(tensors), max(totals, default=0), machine.device.memory)


def _plan(plan: Plan) -> PlanFacts:
    streams = Counter(s.rank for s in plan.streams)
    return PlanFacts(
        streams_a_rank=least_and_most(streams[r] for r in range(plan.ranks)),
        streams_of_rank_0=tuple(s.name for s in plan.streams if s.rank == 0),
        commands=sum(len(s.commands) for s in plan.streams),
        operations=operations(plan),
        events=plan.events,
        flags=len(plan.flag_homes),
        flag_signals_on_streams=sum(isinstance(command, SignalFlag) for _, command in plan.commands()),
        waits=waits(plan),
    )


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


def _between(graph: ir.Graph, op: ir.Op) -> list[tuple[int, int, int]]:
    """What an operation reads and writes on other ranks: from which rank, to which, how many bytes."""
    found = between_ranks(op.where.rank, op.reads, op.writes)
    return [(source, target, _bytes(graph, region)) for source, target, region in found]


def _bytes(graph: ir.Graph, region: Any) -> int:
    return int(TYPES[graph.tensor(region.tensor).dtype].bytes * region.elements)


def _way(rank: int, copy: ir.Copy) -> str:
    if copy.src.rank == copy.dst.rank:
        return "local"
    return "push" if copy.src.rank == rank else "pull"


def least_and_most(values: Iterable[int]) -> Spread:
    """The two."""
    listed = list(values)
    return (min(listed), max(listed)) if listed else (0, 0)


def _distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(set(values)))

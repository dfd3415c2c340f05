"""`ficco explain`: what a schedule does, in plain words. The facts are gathered first (`--json` prints those)."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from ..errors import UsageError
from ..graph.ir import WORDS, Body, Collective, Copy, Gemm, Graph, Op, Reduce
from ..machine.model import Machine, Port
from ..plan.ir import Plan, SignalFlag
from ..trace import base_name
from ..types import TYPES
from .check import operations, proof_words, waits
from .choosing import given_words
from .common import Job, Request, compile_job, count, join_words, read
from .console import Progress, Style, table
from .drawing import show_bytes, show_flops, show_time
from .report import diagnostic_record, print_json, warn
from .settings import show_params

Facts = dict[str, Any]
MATRIX = 8  # the most ranks for which every pair gets a number of its own
_NOUNS = {"gemm": "GEMM", "reduce": "sum", "collective": "call", "launch": "launch"}
SHAPES = 3  # different sizes of a stage's operations that are listed


def explain(target: str, gpus: int | None, settings: tuple[str, ...], machine: str | None, as_json: bool) -> int:
    """Print the explanation of a schedule."""
    source = read(target)
    if source.is_plan:
        name = source.name
        raise UsageError(f"{name}: is a plan; explain works on the schedule, 'ficco-run --emit plan' prints a plan")
    job = compile_job(Request(source, gpus, settings, machine), Progress())
    facts = gather(job)
    if as_json:
        print_json(facts)
    else:
        sys.stdout.write(render(facts, Style(sys.stdout)))
        warn(job.warnings, job.texts)
    return 0


# ---------------------------------------------------------------- facts


def gather(job: Job) -> Facts:
    """Everything that is told, as plain values: bytes, operations, microseconds."""
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
                "streamed": own[0].streamed,
                "iterations": len(own),
                "phases": len({(op.where.stage, op.where.phase) for op in ops}),
                "after": sorted({graph.stages[a].name for s in own for a in s.after}),
                "operations": len(ops),
                "operations_a_rank": _range(a_rank[r] for r in range(graph.ranks)),
                "launches_a_rank": _range(launches[r, name] for r in range(graph.ranks)),
                "launched_with": sorted(shared.get(name, ())),
                "does": [_does(graph, kind, [op for op in ops if type(op.body) is kind]) for kind in _kinds(ops)],
            }
        )
    return facts


def _kinds(ops: Iterable[Op]) -> list[type[Body]]:
    return list(dict.fromkeys(type(op.body) for op in ops))


def _does(graph: Graph, kind: type[Body], ops: Sequence[Op]) -> Facts:
    """One kind of operation of a stage, as each rank sees it."""
    number = Counter(op.where.rank for op in ops)
    facts: Facts = {"kind": WORDS[kind], "a_rank": _range(number[r] for r in range(graph.ranks))}
    bodies: list[Any] = [op.body for op in ops]  # all of `kind`
    size: Counter[int] = Counter()
    if kind is Copy:
        for op, copy in zip(ops, bodies, strict=True):
            size[op.where.rank] += _bytes(graph, copy.dst)
        facts["bytes_each"] = _distinct(_bytes(graph, copy.dst) for copy in bodies)
        facts["bytes_a_rank"] = _range(size[r] for r in range(graph.ranks))
        ways = Counter(_way(op.where.rank, copy) for op, copy in zip(ops, bodies, strict=True))
        facts["ways"] = {way: ways[way] for way in ("push", "pull", "local") if ways[way]}
        peers: list[set[int]] = [set() for _ in range(graph.ranks)]
        for op, copy in zip(ops, bodies, strict=True):
            peers[op.where.rank] |= {copy.dst.rank, copy.src.rank} - {op.where.rank}
        facts["peers"] = _range(map(len, peers))
    elif kind is Gemm:
        for op, gemm in zip(ops, bodies, strict=True):
            size[op.where.rank] += _flops(gemm)
        facts["shapes"] = _distinct(map(_mnk, bodies))
        facts["flops_a_rank"] = _range(size[r] for r in range(graph.ranks))
        facts["accumulates"] = any(gemm.accumulate for gemm in bodies)
        facts["terms"] = _distinct(len(gemm.addends) for gemm in bodies)
    elif kind is Reduce:
        for op, total in zip(ops, bodies, strict=True):
            size[op.where.rank] += _bytes(graph, total.out) * (len(total.terms) + 1)
        facts["terms"] = _distinct(len(total.terms) for total in bodies)
        facts["shapes"] = _distinct(total.out.shape for total in bodies)
        facts["bytes_a_rank"] = _range(size[r] for r in range(graph.ranks))
    elif kind is Collective:
        facts["collectives"] = sorted({call.kind for call in bodies})
        facts["bytes_each"] = _distinct(max(_bytes(graph, call.dst), _bytes(graph, call.src)) for call in bodies)
    else:
        facts["kernels"] = sorted({call.kernel for call in bodies})
    return facts


def _waits_for(graph: Graph) -> list[Facts]:
    """For each pair of stages: how the operations of one wait for those of the other, because of data."""
    pairs: dict[tuple[str, str], list[tuple[int, int, int]]] = {}  # of each op: befores, rank, befores elsewhere
    why: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    order = {name: i for i, name in enumerate(dict.fromkeys(s.name for s in graph.stages))}
    kinds: dict[str, str] = {}
    for op in graph.ops:
        name, kind = graph.stages[op.where.stage].name, WORDS[type(op.body)]
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
                "operations_a_rank": _range(waiting[r] for r in range(graph.ranks)),
                "kinds": [kinds[stage], kinds[before]],
                "each_for": _range(number for number, _, _ in entries),
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
    local = 0
    for op in graph.ops:
        match op.body:
            case Copy(dst=dst, src=src) if src.rank == dst.rank:
                local += _bytes(graph, dst)
            case Copy(dst=dst, src=src):
                pairs[src.rank, dst.rank] += _bytes(graph, dst)
            case Gemm(out=out) if out.rank != op.where.rank:
                pairs[op.where.rank, out.rank] += _bytes(graph, out)
    load: Counter[Port] = Counter()
    for (a, b), size in pairs.items():
        for port in machine.ports(a, b):
            load[port] += size
    return {
        "out": [sum(pairs[r, p] for p in range(n)) for r in range(n)],
        "in": [sum(pairs[p, r] for p in range(n)) for r in range(n)],
        "within_ranks": local,
        "pairs": [[pairs[a, b] for b in range(n)] for a in range(n)] if n <= MATRIX else None,
        **_busiest(machine, load, machine.links.kind),
        "tiers": [
            {"name": links.name, **_busiest(machine, {p: n for p, n in load.items() if p.tier == i}, links.kind)}
            for i, links in enumerate(machine.tiers)
        ],
    }


def _busiest(machine: Machine, load: Mapping[Port, int], topology: str) -> Facts:
    """Of ports with the bytes that they pass: the one that takes longest."""
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
            flops[op.where.rank] += _flops(op.body)
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
        "gemm_flops_a_rank": _range(flops[r] for r in ranks),
        "gemm_time_us": max((flops[r] for r in ranks), default=0) / slowest if slowest else 0.0,
        "launches_a_rank": _range(launches[r] for r in ranks),
        "tiles_a_rank": _range(tiles[r] for r in ranks),
    }


def _memory(graph: Graph, machine: Machine) -> Facts:
    tensors = []
    totals = [0] * graph.ranks
    for tensor in graph.tensors:
        sizes = [TYPES[tensor.dtype].bytes * _product(shape) for shape in tensor.shapes]
        totals = [a + b for a, b in zip(totals, sizes, strict=True)]
        largest = max(range(graph.ranks), key=lambda r: sizes[r])
        shape = list(tensor.shapes[largest])
        entry = {"name": tensor.name, "kind": tensor.kind, "dtype": tensor.dtype, "shape": shape}
        tensors.append({**entry, "bytes": sizes[largest], "same_on_all": len(set(tensor.shapes)) == 1})
    return {"tensors": tensors, "peak_bytes_a_rank": max(totals, default=0), "device_bytes": machine.device.memory}


def _plan(plan: Plan) -> Facts:
    streams = Counter(s.rank for s in plan.streams)
    names = [s.name for s in plan.streams if s.rank == 0]
    signals = sum(isinstance(command, SignalFlag) for _, command in plan.commands())
    return {
        "streams_a_rank": _range(streams[r] for r in range(plan.ranks)),
        "streams_of_rank_0": names,
        "commands": sum(len(s.commands) for s in plan.streams),
        "operations": operations(plan),
        "events": plan.events,
        "flags": len(plan.flag_homes),
        "flag_signals_on_streams": signals,
        "waits": waits(plan),
    }


def _launches(plan: Plan) -> tuple[Counter[tuple[int, str]], dict[str, set[str]]]:
    """How many launches hold works of a stage, by rank and its name; and with which other stages they do."""
    found: Counter[tuple[int, str]] = Counter()
    shared: dict[str, set[str]] = defaultdict(set)
    for stream, launch in plan.launches():
        names = set(map(base_name, launch.stages))
        found.update((stream.rank, name) for name in names)
        for name in names:
            shared[name] |= names - {name}
    return found, shared


def _bytes(graph: Graph, region: Any) -> int:
    return int(TYPES[graph.tensor(region.tensor).dtype].bytes * region.elements)


def _mnk(gemm: Gemm) -> tuple[int, int, int]:
    k = gemm.left.shape[-2] if gemm.left_transposed else gemm.left.shape[-1]
    return gemm.out.shape[-2], gemm.out.shape[-1], k


def _flops(gemm: Gemm) -> int:
    return 2 * gemm.out.elements * _mnk(gemm)[2]


def _way(rank: int, copy: Copy) -> str:
    if copy.src.rank == copy.dst.rank:
        return "local"
    return "push" if copy.src.rank == rank else "pull"


def _product(shape: Iterable[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _range(values: Iterable[int]) -> list[int]:
    """[least, most]"""
    listed = list(values)
    return [min(listed), max(listed)] if listed else [0, 0]


def _distinct(values: Iterable[Any]) -> list[Any]:
    return sorted(set(values))


# ---------------------------------------------------------------- words


def render(facts: Facts, style: Style) -> str:
    """The explanation for people."""
    out = [style(facts["schedule"], "bold") + (f": {facts['title']}" if facts["title"] else "")]
    out.append(
        f"{count(facts['ranks'], 'rank')} of {facts['machine']}, with "
        + (show_params(facts["params"].items()) or "no params")
    )
    out += facts["given"]
    for text in facts["computes"]:  # a claim without its proof has been an error
        out.append(f"computes {text.removeprefix('computes').strip()}: proven")
    if facts["unproven"]:
        out.append(style(f"UNPROVEN: nothing says what {join_words(facts['unproven'])} must hold", "yellow"))
    for title, lines in (
        ("Stages, in order", _stage_lines(facts)),
        ("What waits for what", _wait_lines(facts)),
        ("Bytes moved", _traffic_lines(facts)),
        ("Computation, a rank", _compute_lines(facts)),
        ("Memory, a rank", _memory_lines(facts)),
        ("Plan", _plan_lines(facts)),
    ):
        out += ["", style(title, "bold"), *lines]
    return "\n".join(out) + "\n"


def _stage_lines(facts: Facts) -> list[str]:
    lines = []
    engines = {"copy": "copy engine", "sm": "multiprocessors", "nccl": "vendor collectives"}
    for number, stage in enumerate(facts["stages"], 1):
        where = f"on queue {stage['queue']} ({engines[stage['engine']]}"
        where += f", priority {stage['priority']})" if stage["priority"] else ")"
        more = [f"line {stage['line']}"]
        if stage["iterations"] > 1:
            more.append(f"{stage['iterations']} iterations")
        elif stage["phases"] > 1:
            more.append(f"{stage['phases']} steps, each finished by all ranks before the next")
        if stage["after"]:
            more.append(f"after {join_words(stage['after'])}")
        lines.append(f"  {number}. {stage['name']} {where}; {'; '.join(more)}")
        lines += [f"       each rank: {_doing(does)}" for does in stage["does"]]
        launches = stage["launches_a_rank"]
        if stage["streamed"]:
            persistent = _spread(launches, "persistent launch")
            if stage["launched_with"]:
                persistent += f" with {join_words(stage['launched_with'])}"
            lines.append(f"       streamed: {persistent}, whose works wait for flags or raise them")
        elif launches[1]:
            lines.append(f"       {_spread(launches, 'launch')} a rank")
        if not stage["does"]:
            lines.append("       nothing to do with this many ranks")
    return lines


def _doing(does: Facts) -> str:
    kind, a_rank = does["kind"], does["a_rank"]
    if kind == "copy":
        ways = does["ways"]
        verb = join_words(
            {"push": "pushed to others", "pull": "pulled from others", "local": "within the rank"}[w] for w in ways
        )
        each = _some(show_bytes(b) for b in does["bytes_each"])
        to = f" ({_spread(does['peers'], 'peer')})" if does["peers"][1] else ""
        return (
            f"{_spread(a_rank, 'copy')} {verb}{to}, {each} each, {_spread_of(does['bytes_a_rank'], show_bytes)} in all"
        )
    if kind == "gemm":
        shapes = _some(" × ".join(map(str, s)) for s in does["shapes"])
        adding = ", adding up" if does["accumulates"] else ""
        adding += f", with a sum of {_terms(does)}" if any(does["terms"]) else ""
        return (
            f"{_spread(a_rank, 'GEMM')} of {shapes} (m × n × k){adding}, {_spread_of(does['flops_a_rank'], show_flops)}"
        )
    if kind == "reduce":
        shapes = _some(" × ".join(map(str, s)) for s in does["shapes"])
        return f"{_spread(a_rank, 'sum')} of {_terms(does)} of {shapes}"
    if kind == "collective":
        each = _some(show_bytes(b) for b in does["bytes_each"])
        return f"{_spread(a_rank, 'call')} of {join_words(does['collectives'])}, {each} each"
    return f"{_spread(a_rank, 'launch')} of {join_words(does['kernels'])} (not seen by the proof)"


def _terms(does: Facts) -> str:
    """`3 terms`, `0 or 1 term`."""
    *others, most = does["terms"]
    return _some([*map(str, others), count(most, "term")])


def _wait_lines(facts: Facts) -> list[str]:
    lines = []
    for wait in facts["waits_for"]:
        tensors = join_words(dict.fromkeys(b["tensor"] for b in wait["because"]))
        hazards = join_words(dict.fromkeys(b["hazard"] for b in wait["because"]))
        same = " earlier" if wait["stage"] == wait["for"] else ""
        kind, before = (_NOUNS.get(k, k) for k in wait["kinds"])
        each, a_rank = _spread(wait["each_for"], before), _spread(wait["operations_a_rank"], kind)
        whose = "another rank" if wait["from"] == "other ranks" and wait["each_for"][1] == 1 else wait["from"]
        who = f"{wait['stage']} waits for{same} {wait['for']}"
        lines.append(f"  {who}: {a_rank} a rank, each for {each} by {whose} ({tensors}, {hazards})")
    waiting = {w["stage"] for w in facts["waits_for"]}
    free = [s["name"] for s in facts["stages"] if s["name"] not in waiting and s["operations"]]
    if free:
        lines.append(f"  {join_words(free)} {'waits' if len(free) == 1 else 'wait'} for nothing")
    return lines


def _traffic_lines(facts: Facts) -> list[str]:
    traffic, ranks = facts["traffic"], facts["ranks"]
    lines = []
    if traffic["links_used"]:
        out = _spread_of(_range(traffic["out"]), show_bytes)
        lines.append(f"  a rank sends {out} and receives {_spread_of(_range(traffic['in']), show_bytes)}")
        pairs = traffic["pairs"]
        if pairs:
            between = {pairs[a][b] for a in range(ranks) for b in range(ranks) if a != b}
            if len(between) == 1:
                lines.append(f"  every rank sends every other {show_bytes(between.pop())}")
            else:
                rows = [["from \\ to", *map(str, range(ranks))]]
                rows += [[str(a), *(show_bytes(s) if s else "·" for s in row)] for a, row in enumerate(pairs)]
                lines.append(table(rows, right=frozenset(range(ranks + 1))))
        several = len(traffic["tiers"]) > 1
        for tier in traffic["tiers"]:
            if (busiest := tier["busiest_link"]) is None:
                continue
            kind = {"switch": "port", "mesh": "link", "ring": "link"}[tier["topology"]]
            load = f"{show_bytes(busiest['bytes'])}, {show_time(busiest['time_us'])} at its rate"
            which = f"each {kind} that is used" if tier["links_even"] else f"the busiest {kind} ({busiest['link']})"
            name = f"{tier['topology']} of tier {tier['name']}" if several else tier["topology"]
            lines.append(f"  {name}: {which} carries {load}")
    if traffic["within_ranks"]:
        lines.append(f"  copies within ranks: {show_bytes(traffic['within_ranks'])} over all ranks")
    calls = [d for s in facts["stages"] for d in s["does"] if d["kind"] == "collective"]
    if calls:
        lines.append(f"  besides what {count(sum(d['a_rank'][1] for d in calls), 'collective')} a rank move")
    return lines or ["  nothing"]


def _compute_lines(facts: Facts) -> list[str]:
    compute = facts["compute"]
    if not compute["launches_a_rank"][1]:
        return ["  nothing"]
    flops = _spread_of(compute["gemm_flops_a_rank"], show_flops)
    lines = [f"  GEMMs: {flops}, {show_time(compute['gemm_time_us'])} at the rate of large ones"]
    tiles = f" with {_spread(compute['tiles_a_rank'], 'output tile')}" if compute["tiles_a_rank"][1] else ""
    lines.append(f"  {_spread(compute['launches_a_rank'], 'launch')}{tiles}")
    return lines


def _memory_lines(facts: Facts) -> list[str]:
    memory = facts["memory"]
    rows = []
    for tensor in memory["tensors"]:
        shape = f"[{', '.join(map(str, tensor['shape']))}]"
        varies = "" if tensor["same_on_all"] else "the largest; it differs from rank to rank"
        rows.append((tensor["name"], tensor["kind"], f"{shape} {tensor['dtype']}", show_bytes(tensor["bytes"]), varies))
    peak, device = memory["peak_bytes_a_rank"], memory["device_bytes"]
    share = f"{100 * peak / device:.1f} %" if 1000 * peak > device else "less than 0.1 %"
    fits = f"{share} of the device" if peak <= device else f"MORE than the device's {show_bytes(device)}"
    return [table(rows, right=frozenset((3,))), f"  in all {show_bytes(peak)}, {fits}"]


def _plan_lines(facts: Facts) -> list[str]:
    plan = facts["plan"]
    names = plan["streams_of_rank_0"]
    listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    streams = f"{_spread(plan['streams_a_rank'], 'stream')} a rank ({listed})"
    carriers = [count(plan[n], n[:-1]) for n in ("events", "flags", "waits")]
    return [
        f"  {streams}, {count(plan['commands'], 'command')} over all ranks",
        f"  order beyond that of the streams: {', '.join(carriers)}",
    ]


def _spread(limits: Sequence[int], noun: str) -> str:
    """`7 copies`, `3 to 5 copies`."""
    least, most = limits
    return count(most, noun) if least == most else f"{least} to {count(most, noun)}"


def _spread_of(limits: Sequence[int], show: Any) -> str:
    least, most = show(limits[0]), show(limits[1])
    return str(most) if least == most else f"{least} to {most}"


def _some(words: Iterable[str]) -> str:
    listed = list(dict.fromkeys(words))
    if len(listed) <= SHAPES:
        return " or ".join(listed)
    return f"{listed[0]} to {listed[-1]}"

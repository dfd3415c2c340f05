"""Ways to damage a plan: take out one wait, cut a stream in two, swap a mark with a wait, or change what it does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ficco_rt.graph.ir import Copy, Gemm, KernelCall, Reduce
from ficco_rt.plan.ir import (
    CollectiveCall,
    CopyAsync,
    Launch,
    Plan,
    Record,
    SignalFlag,
    Stream,
    Transfer,
    WaitEvent,
    WaitFlag,
    Work,
)


@dataclass(frozen=True)
class Damage:
    """A damaged plan and what was done to it."""

    what: str
    plan: Plan


def with_stream(plan: Plan, stream: Stream) -> Plan:
    return replace(plan, streams=tuple(stream if s.id == stream.id else s for s in plan.streams))


def without_one_wait(plan: Plan) -> Iterator[Damage]:
    """Every event wait, flag wait and work's flag, one at a time."""
    for stream in plan.streams:
        for i, command in enumerate(stream.commands):
            before, after = stream.commands[:i], stream.commands[i + 1 :]
            place = f"rank {stream.rank} {stream.name} command {i}"
            if isinstance(command, WaitEvent | WaitFlag):
                yield Damage(f"{place}: no {command}", with_stream(plan, replace(stream, commands=before + after)))
            elif isinstance(command, Launch):
                for j, work in enumerate(command.works):
                    for flag in work.waits:
                        fewer = replace(work, waits=tuple(f for f in work.waits if f != flag))
                        works = (*command.works[:j], fewer, *command.works[j + 1 :])
                        new = replace(command, works=works)
                        yield Damage(
                            f"{place} work {j}: no wait for flag {flag}",
                            with_stream(plan, replace(stream, commands=(*before, new, *after))),
                        )


def with_stream_cut(plan: Plan) -> Iterator[Damage]:
    """Every stream cut before each of its commands that touch memory: what follows goes to a stream of its own,
    with the waits directly before that command."""
    for stream in plan.streams:
        commands = stream.commands
        for i, command in enumerate(commands):
            if not isinstance(command, CopyAsync | Launch | CollectiveCall):
                continue
            first = i
            while first > 0 and isinstance(commands[first - 1], WaitEvent | WaitFlag):
                first -= 1
            if first == 0:
                continue
            head, tail = replace(stream, commands=commands[:first]), commands[first:]
            cut = with_stream(plan, head)
            extra = replace(stream, id=len(plan.streams), commands=tail)
            yield Damage(
                f"rank {stream.rank} {stream.name} cut before command {first}",
                replace(cut, streams=(*cut.streams, extra)),
            )


def with_mark_and_wait_swapped(plan: Plan) -> Iterator[Damage]:
    """A mark (record, signal) swapped with the next wait of its stream, or the last one before it: on one rank
    alone, and on the same stream of every rank at once."""
    for stream in plan.streams:
        twins = [s for s in plan.streams if (s.queue, len(s.commands)) == (stream.queue, len(stream.commands))]
        for i, j in _swaps(stream):
            place = f"{stream.name}: commands {i} and {j} swapped on rank {stream.rank}"
            yield Damage(place, with_stream(plan, _swapped(stream, i, j)))
            if stream is twins[0] and len(twins) > 1:
                everywhere = plan
                for twin in twins:
                    everywhere = with_stream(everywhere, _swapped(twin, i, j))
                yield Damage(f"{place} and all others", everywhere)


def _swaps(stream: Stream) -> list[tuple[int, int]]:
    marks = [i for i, c in enumerate(stream.commands) if isinstance(c, Record | SignalFlag)]
    waits = [i for i, c in enumerate(stream.commands) if isinstance(c, WaitEvent | WaitFlag)]
    pairs = {(i, min(later)) for i in marks if (later := [j for j in waits if j > i])}
    return sorted(pairs | {(max(earlier), i) for i in marks if (earlier := [j for j in waits if j < i])})


def _swapped(stream: Stream, i: int, j: int) -> Stream:
    commands = list(stream.commands)
    commands[i], commands[j] = commands[j], commands[i]
    return replace(stream, commands=tuple(commands))


# ---------------------------------------------------------------- what a plan does


Part = Transfer | CollectiveCall | Copy | Gemm | Reduce | KernelCall


def with_bodies(plan: Plan, change: Callable[[Part], Part | None]) -> Plan:
    """What is done, changed; None: left out, with the command where nothing else is in it."""
    streams = []
    for stream in plan.streams:
        commands = []
        for command in stream.commands:
            match command:
                case CopyAsync():
                    transfers = tuple(t for old in command.transfers if (t := change(old)) is not None)
                    commands += [replace(command, transfers=transfers)] if transfers else []  # type: ignore[arg-type]
                case Launch():
                    bodies = [(work, change(work.body)) for work in command.works]
                    works = tuple(replace(work, body=body) for work, body in bodies if body is not None)  # type: ignore[arg-type]
                    commands += [replace(command, works=works)] if works else []
                case CollectiveCall():
                    commands += [c for c in [change(command)] if c is not None]  # type: ignore[misc]
                case _:
                    commands.append(command)
        streams.append(replace(stream, commands=tuple(commands)))
    return replace(plan, streams=tuple(streams))


def with_contents_changed(plan: Plan, rng: random.Random) -> Damage:
    """One thing done otherwise: another region of the same shape read or written, on another rank, a term or a whole
    work left out or taken twice, two bodies exchanged, a scratch tensor of another type."""
    regions = [region for part in plan.parts() for region in (*part.reads, *part.writes)]
    bodies = [part.body if isinstance(part, Work) else part for part in plan.parts()]
    target, other = rng.choice(bodies), rng.choice(bodies)
    kind = rng.choice(["region", "rank", "terms", "out", "exchange", "type", "sum"])
    if kind == "type":
        name = rng.choice([t.name for t in plan.tensors])
        dtype = rng.choice(["bf16", "fp16", "fp32"])
        tensors = tuple(replace(t, dtype=dtype) if t.name == name else t for t in plan.tensors)  # type: ignore[arg-type]
        return Damage(f"{name} is {dtype}", replace(plan, tensors=tensors))

    def changed(body: Part) -> Part | None:
        if kind == "exchange" and type(body) is type(target) is type(other):
            return other if body is target else target if body is other else body
        if body is not target:
            return body
        if kind == "out":
            return None
        if kind == "sum" and isinstance(body, Gemm):
            return replace(body, accumulate=not body.accumulate and not body.addends)
        if kind == "terms" and isinstance(body, Reduce | Gemm):
            field = "terms" if isinstance(body, Reduce) else "addends"
            terms = list(getattr(body, field))
            if not terms:
                return body
            terms[rng.randrange(len(terms))] = rng.choice(terms)
            return replace(body, **{field: tuple(terms[rng.randrange(2) :])})
        fields = [f for f in ("dst", "src", "out", "left", "right") if hasattr(body, f)]
        field = rng.choice(fields)
        old = getattr(body, field)
        alike = [r for r in regions if (r.tensor, r.shape) == (old.tensor, old.shape) and r != old] or [old]
        new = rng.choice(alike) if kind == "region" else old.on((old.rank + 1) % plan.ranks)
        return replace(body, **{field: new})

    return Damage(f"{kind} of {target}", with_bodies(plan, changed))


class Cycle(Exception):
    """The plan's orders contradict each other."""


def happens_before(plan: Plan) -> dict[tuple[int, int], int]:
    """For each op's command (stream, index) the bit set of (command) nodes that precede it. By brute force:
    plain reachability over the plan's edges, sharing no code with the check."""
    nodes: list[tuple[int, int, int]] = []  # stream, command, work (-1: the command itself, its start)
    number: dict[tuple[int, int, int], int] = {}

    def node(key: tuple[int, int, int]) -> int:
        if key not in number:
            number[key] = len(nodes)
            nodes.append(key)
        return number[key]

    edges: dict[int, set[int]] = {}

    def edge(a: int, b: int) -> None:
        edges.setdefault(b, set()).add(a)

    givers: dict[tuple[str, int], int] = {}
    takers: list[tuple[tuple[str, int], int]] = []
    groups: dict[int, list[tuple[int, int]]] = {}
    for s in plan.streams:
        last = None
        for i, c in enumerate(s.commands):
            begin = node((s.id, i, -1))
            end = node((s.id, i, -2))
            if last is not None:
                edge(last, begin)
            last = end
            if isinstance(c, Launch) and c.streamed:
                for j, w in enumerate(c.works):
                    me, done = node((s.id, i, j)), node((s.id, i, -3 - j))
                    edge(begin, me)
                    edge(me, done)
                    edge(done, end)
                    takers += [(("flag", f), me) for f in w.waits]
                    givers |= {("flag", f): done for f in w.signals}
            else:
                edge(begin, end)
            if isinstance(c, WaitEvent):
                takers.append((("event", c.event), begin))
            elif isinstance(c, WaitFlag):
                takers.append((("flag", c.flag), begin))
            elif isinstance(c, Record):
                givers["event", c.event] = end
            elif isinstance(c, SignalFlag):
                givers["flag", c.flag] = end
            elif isinstance(c, CollectiveCall):
                groups.setdefault(c.group, []).append((begin, end))
    for what, taker in takers:
        edge(givers[what], taker)
    for members in groups.values():
        for begin, _ in members:
            for _, end in members:
                edge(begin, end)
    reach: dict[int, int] = {}
    waiting = {n: len(edges.get(n, ())) for n in range(len(nodes))}
    after: dict[int, list[int]] = {}
    for b, befores in edges.items():
        for a in befores:
            after.setdefault(a, []).append(b)
    ready = [n for n, k in waiting.items() if k == 0]
    while ready:
        n = ready.pop()
        reach[n] = 1 << n
        for a in edges.get(n, ()):
            reach[n] |= reach[a]
        for b in after.get(n, ()):
            waiting[b] -= 1
            if not waiting[b]:
                ready.append(b)
    if len(reach) < len(nodes):
        raise Cycle
    out: dict[tuple[int, int], int] = {}
    for s in plan.streams:
        for i, c in enumerate(s.commands):
            if isinstance(c, Launch) and c.streamed:
                for j, w in enumerate(c.works):
                    out[w.op, 0] = reach[number[s.id, i, j]]
                    out[w.op, 1] = 1 << number[s.id, i, -3 - j]
            elif isinstance(c, CopyAsync):
                for t in c.transfers:
                    out[t.op, 0] = reach[number[s.id, i, -1]]
                    out[t.op, 1] = 1 << number[s.id, i, -2]
            elif isinstance(c, Launch):
                out[c.works[0].op, 0] = reach[number[s.id, i, -1]]
                out[c.works[0].op, 1] = 1 << number[s.id, i, -2]
            elif isinstance(c, CollectiveCall):
                out[c.op, 0] = reach[number[s.id, i, -1]]
                out[c.op, 1] = 1 << number[s.id, i, -2]
    return out


def unordered(plan: Plan, deps: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """The pairs (before, after) of ops that the plan leaves without an order."""
    known = happens_before(plan)
    return [(u, v) for u, v in deps if not known[v, 0] & known[u, 1]]

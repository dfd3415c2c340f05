"""Ways to damage a plan: take out one wait, cut a stream in two, swap a mark with a wait, or change what it does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

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


@dataclass
class _Edges:
    """The nodes of a plan, numbered as they come, and what each must be behind."""

    number: dict[tuple[int, int, int], int] = field(default_factory=dict)  # of (stream, command, work): see `_edges`
    behind: dict[int, set[int]] = field(default_factory=dict)

    def node(self, stream: int, command: int, work: int) -> int:
        return self.number.setdefault((stream, command, work), len(self.number))

    def edge(self, before: int, after: int) -> None:
        self.behind.setdefault(after, set()).add(before)

    def reach(self) -> dict[int, int]:
        """For each node the bit set of those that precede it, itself too. By brute force."""
        reach: dict[int, int] = {}
        waiting = {n: len(self.behind.get(n, ())) for n in range(len(self.number))}
        after: dict[int, list[int]] = {}
        for b, befores in self.behind.items():
            for a in befores:
                after.setdefault(a, []).append(b)
        ready = [n for n, k in waiting.items() if k == 0]
        while ready:
            n = ready.pop()
            reach[n] = 1 << n
            for a in self.behind.get(n, ()):
                reach[n] |= reach[a]
            for b in after.get(n, ()):
                waiting[b] -= 1
                if not waiting[b]:
                    ready.append(b)
        if len(reach) < len(self.number):
            raise Cycle
        return reach


def _edges(plan: Plan) -> _Edges:
    """The orders that a plan states. A command begins at work -1 and ends at -2; work j of a streamed launch begins
    at j and ends at -3 - j."""
    edges = _Edges()
    givers: dict[tuple[str, int], int] = {}
    takers: list[tuple[tuple[str, int], int]] = []
    groups: dict[int, list[tuple[int, int]]] = {}
    for s in plan.streams:
        last = None
        for i, c in enumerate(s.commands):
            begin, end = edges.node(s.id, i, -1), edges.node(s.id, i, -2)
            if last is not None:
                edges.edge(last, begin)
            last = end
            edges.edge(begin, end)
            for j, w in enumerate(c.works if isinstance(c, Launch) and c.streamed else ()):
                me, done = edges.node(s.id, i, j), edges.node(s.id, i, -3 - j)
                edges.edge(begin, me)
                edges.edge(me, done)
                edges.edge(done, end)
                takers += [(("flag", f), me) for f in w.waits]
                givers |= {("flag", f): done for f in w.signals}
            match c:
                case WaitEvent(event=event):
                    takers.append((("event", event), begin))
                case WaitFlag(flag=flag):
                    takers.append((("flag", flag), begin))
                case Record(event=event):
                    givers["event", event] = end
                case SignalFlag(flag=flag):
                    givers["flag", flag] = end
                case CollectiveCall(group=group):
                    groups.setdefault(group, []).append((begin, end))
    for what, taker in takers:
        edges.edge(givers[what], taker)
    for members in groups.values():
        for begin, _ in members:
            for _, end in members:
                edges.edge(begin, end)
    return edges


def happens_before(plan: Plan) -> dict[tuple[int, int], int]:
    """For (op, 0) the bit set of nodes that precede the op's begin, for (op, 1) the bit of its end. Shares no code with
    the check."""
    edges = _edges(plan)
    reach = edges.reach()
    out: dict[tuple[int, int], int] = {}
    for s in plan.streams:
        for i, c in enumerate(s.commands):
            ops: list[tuple[int, int, int]] = []  # number, begin, end
            match c:
                case Launch(streamed=True):
                    ops = [(w.op, j, -3 - j) for j, w in enumerate(c.works)]
                case Launch():
                    ops = [(c.works[0].op, -1, -2)]
                case CopyAsync():
                    ops = [(t.op, -1, -2) for t in c.transfers]
                case CollectiveCall(op=op):
                    ops = [(op, -1, -2)]
            for op, begin, end in ops:
                out[op, 0] = reach[edges.number[s.id, i, begin]]
                out[op, 1] = 1 << edges.number[s.id, i, end]
    return out


def unordered(plan: Plan, deps: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """The pairs (before, after) of ops that the plan leaves without an order."""
    known = happens_before(plan)
    return [(u, v) for u, v in deps if not known[v, 0] & known[u, 1]]

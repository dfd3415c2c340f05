"""Seeded damage to a graph: what a wrong schedule, or a wrong compiler, might do to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.graph import ir
from ficco_rt.graph.link import link
from ficco_rt.graph.op_rules import broken


@dataclass(frozen=True)
class Mutant:
    """Damaged ops, and what was done to them."""

    what: str
    ops: tuple[ir.Op, ...]


Ops = tuple[ir.Op, ...]
Maker = Callable[[random.Random, ir.Graph], Mutant | None]


def mutants(graph: ir.Graph, seed: int, count: int) -> Iterator[Mutant]:
    """`count` mutants, all kinds in turn. Kinds that a graph has no place for are passed over."""
    rng = random.Random(seed)
    made = tried = 0
    while made < count and tried < 50 * count:
        mutant = KINDS[tried % len(KINDS)](rng, graph)
        tried += 1
        if mutant is not None and mutant.ops != graph.ops:
            made += 1
            yield mutant


def restaged(graph: ir.Graph, ops: Ops) -> ir.Graph:
    """The graph with these ops in this order as its one meaning: wherever the order leaves a stage and comes back
    to it, that is one more stage of the same name and queue."""
    stages: list[ir.Stage] = []
    out: list[ir.Op] = []
    last: tuple[int, int] | None = None
    for op in ops:
        here = (op.where.stage, op.where.phase)
        if last is None or here[0] != last[0] or here < last:
            stages.append(graph.stages[op.where.stage])
        last = here
        out.append(replace(op, where=replace(op.where, stage=len(stages) - 1)))
    tensors = {t.name: t for t in graph.tensors}
    legal = all(broken(op, tensors) is None for op in out)  # `build` links legal ops only; the proof refuses others
    deps = link(out, tensors, stages) if legal else ((),) * len(out)
    return replace(graph, ops=tuple(out), stages=tuple(stages), deps=deps)


def _replaced(ops: Ops, i: int, *new: ir.Op) -> Ops:
    return (*ops[:i], *new, *ops[i + 1 :])


def _changed(op: ir.Op, **changes: Any) -> ir.Op:
    """The op, doing something else."""
    return replace(op, body=replace(op.body, **changes))


def _all_of(graph: ir.Graph, *kinds: type[ir.Body]) -> list[int]:
    return [i for i, op in enumerate(graph.ops) if isinstance(op.body, kinds)]


def _summed(body: ir.Body) -> tuple[str, tuple[Region, ...]]:
    """What is added up in a sum or in a gemm's epilogue, and which field has it."""
    if isinstance(body, ir.Reduce):
        return "terms", body.terms
    return "addends", body.addends if isinstance(body, ir.Gemm) else ()


def _line(op: ir.Op) -> str:
    return f"{type(op.body).__name__} of rank {op.where.rank}, line {op.where.origin.line}"


def dropped(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    i = rng.randrange(len(graph.ops))
    return Mutant(f"dropped {_line(graph.ops[i])}", _replaced(graph.ops, i))


def doubled(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    """The op once more, right behind or as the last of all (where a buffer may hold something else by then)."""
    i = rng.randrange(len(graph.ops))
    op = graph.ops[i]
    if rng.random() < 0.5:
        return Mutant(f"doubled {_line(op)}", _replaced(graph.ops, i, op, op))
    return Mutant(f"repeated {_line(op)} at the end", (*graph.ops, op))


def summed_twice(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    """A gemm's product added once more."""
    found = _all_of(graph, ir.Gemm)
    if not found:
        return None
    i = rng.choice(found)
    op = graph.ops[i]
    again = _changed(op, accumulate=True, addends=())
    return Mutant(f"added twice: {_line(op)}", _replaced(graph.ops, i, op, again))


def swapped(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    """Two ops in each other's place in the one meaning: reads before writes, sums begun late."""
    if len(graph.ops) < 2:
        return None
    i, j = sorted(rng.sample(range(len(graph.ops)), 2))
    a, b = graph.ops[i], graph.ops[j]
    if isinstance(a.body, ir.Collective) or isinstance(b.body, ir.Collective):
        return None  # calls of one collective must stand together to be a graph at all
    ops = list(graph.ops)
    ops[i], ops[j] = b, a
    return Mutant(f"swapped {_line(a)} and {_line(b)}", tuple(ops))


def _fields(op: ir.Op) -> list[str]:
    return [f for f in ("dst", "src", "out", "left", "right") if hasattr(op.body, f)]


def _shifted(rng: random.Random, region: Region, dims: list[int] | None = None) -> Region:
    choices = [d for d in (dims or range(len(region.axes))) if region.axes[d].segments]
    dim = rng.choice(choices)
    by = rng.choice((-1, 1))
    axis = region.axes[dim]
    at = rng.randrange(len(axis.segments))
    old = axis.segments[at]
    kind = rng.random()
    if kind < 0.6:  # the whole piece one further
        new = Interval(old.start + by, old.stop + by)
    elif kind < 0.8:
        new = Interval(old.start + by, old.stop)
    else:
        new = Interval(old.start, old.stop + by)
    segments = (*axis.segments[:at], new, *axis.segments[at + 1 :])
    axes = (*region.axes[:dim], Axis(segments, axis.dropped), *region.axes[dim + 1 :])
    return Region(region.tensor, region.rank, axes)


def off_by_one(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    i = rng.randrange(len(graph.ops))
    op = graph.ops[i]
    field, terms = _summed(op.body)
    if terms and rng.random() < 0.7:
        k = rng.randrange(len(terms))
        terms = (*terms[:k], _shifted(rng, terms[k]), *terms[k + 1 :])
        return Mutant(f"term {k} off by one: {_line(op)}", _replaced(graph.ops, i, _changed(op, **{field: terms})))
    fields = _fields(op)
    if not fields:
        return None
    name = rng.choice(fields)
    new = _changed(op, **{name: _shifted(rng, getattr(op.body, name))})
    return Mutant(f"{name} off by one: {_line(op)}", _replaced(graph.ops, i, new))


def both_off_by_one(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    """Both sides of a copy, or out and left of a gemm, one row further: sizes still fit."""
    i = rng.randrange(len(graph.ops))
    op = graph.ops[i]
    pair = ("dst", "src") if isinstance(op.body, ir.Copy) else ("out", "left") if isinstance(op.body, ir.Gemm) else None
    if pair is None:
        return None
    state = rng.getrandbits(32)
    changes = {name: _shifted(random.Random(state), getattr(op.body, name), [0]) for name in pair}
    return Mutant(f"{pair[0]} and {pair[1]} off by one: {_line(op)}", _replaced(graph.ops, i, _changed(op, **changes)))


def wrong_rank(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    found = _all_of(graph, ir.Copy, ir.Gemm)
    if not found or graph.ranks < 2:
        return None
    i = rng.choice(found)
    op = graph.ops[i]
    name = rng.choice(("dst", "src")) if isinstance(op.body, ir.Copy) else "out"
    region: Region = getattr(op.body, name)
    other = rng.choice([r for r in range(graph.ranks) if r != region.rank])
    new = _changed(op, **{name: region.on(other)})
    return Mutant(f"{name} on rank {other}: {_line(op)}", _replaced(graph.ops, i, new))


def wrong_k(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    """A gemm over a K interval of the wrong place or length, on one operand or alike on both."""
    found = _all_of(graph, ir.Gemm)
    if not found:
        return None
    i = rng.choice(found)
    op = graph.ops[i]
    gemm = op.body
    assert isinstance(gemm, ir.Gemm)
    left_k = len(gemm.left.axes) - (2 if gemm.left_transposed else 1)
    right_k = len(gemm.right.axes) - (1 if gemm.right_transposed else 2)
    state = rng.getrandbits(32)
    new = op
    if rng.random() < 0.75:
        new = _changed(new, left=_shifted(random.Random(state), gemm.left, [left_k]))
    if rng.random() < 0.75:
        new = _changed(new, right=_shifted(random.Random(state), gemm.right, [right_k]))
    return Mutant(f"wrong K: {_line(op)}", _replaced(graph.ops, i, new))


def stale(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    """A read of another piece of the same size: of another op's, or of another tensor or rank's."""
    i = rng.randrange(len(graph.ops))
    op = graph.ops[i]
    names = [f for f in ("src", "left", "right") if hasattr(op.body, f)]
    if not names:
        return None
    name = rng.choice(names)
    region: Region = getattr(op.body, name)
    others = sorted(
        {
            r
            for other in graph.ops
            for r in (*other.reads, *other.writes)
            if r.shape == region.shape and r != region and (r.rank == region.rank or isinstance(op.body, ir.Copy))
        },
        key=str,
    )
    if not others:
        return None
    new = _changed(op, **{name: rng.choice(others)})
    return Mutant(f"{name} reads {getattr(new.body, name)}: {_line(op)}", _replaced(graph.ops, i, new))


def elsewhere(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    """A write to another piece of the same size."""
    i = rng.randrange(len(graph.ops))
    op = graph.ops[i]
    names = [f for f in ("dst", "out") if hasattr(op.body, f)]
    name = names[0]
    region: Region = getattr(op.body, name)
    others = sorted(
        {
            w
            for other in graph.ops
            for w in other.writes
            if w.shape == region.shape
            and w != region
            and (w.rank == region.rank or isinstance(op.body, ir.Copy | ir.Gemm))
        },
        key=str,
    )
    if not others:
        return None
    new = _changed(op, **{name: rng.choice(others)})
    return Mutant(f"{name} writes {getattr(new.body, name)}: {_line(op)}", _replaced(graph.ops, i, new))


def transposed(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    found = _all_of(graph, ir.Gemm)
    if not found:
        return None
    i = rng.choice(found)
    op = graph.ops[i]
    side = "left_transposed" if rng.random() < 0.5 else "right_transposed"
    new = _changed(op, **{side: not getattr(op.body, side)})
    return Mutant(f"transposed: {_line(op)}", _replaced(graph.ops, i, new))


def term_changed(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    """A sum, alone or of a gemm, that lacks a term, takes one twice, or takes a wrong one."""
    found = [i for i, op in enumerate(graph.ops) if _summed(op.body)[1]]
    if not found:
        return None
    i = rng.choice(found)
    op = graph.ops[i]
    field, terms = _summed(op.body)
    k = rng.randrange(len(terms))
    kind = rng.randrange(3)
    if kind == 0 and (len(terms) > 1 or isinstance(op.body, ir.Gemm)):
        terms = terms[:k] + terms[k + 1 :]
    elif kind == 1:
        terms = (*terms, terms[k])
    else:
        out, *_ = op.writes
        others = [t for o in graph.ops for t in (*o.reads, *o.writes) if t.shape == out.shape]
        terms = (*terms[:k], rng.choice(others), *terms[k + 1 :])
    return Mutant(f"terms changed: {_line(op)}", _replaced(graph.ops, i, _changed(op, **{field: terms})))


def function_changed(rng: random.Random, graph: ir.Graph) -> Mutant | None:
    """Another function, or none, or its factor and a term exchanged; or a function of a sum that had none."""
    found = _all_of(graph, ir.Gemm, ir.Reduce)
    if not any(getattr(graph.ops[i].body, "function", None) for i in found):
        return None
    i = rng.choice(found)
    body = graph.ops[i].body
    assert isinstance(body, ir.Gemm | ir.Reduce)
    name, terms = _summed(body)
    if body.factor is not None and terms and rng.random() < 0.5:
        changes: dict[str, Any] = {name: (body.factor, *terms[1:]), "factor": terms[0]}
    elif body.factor is not None:
        changes = {"function": rng.choice([None, "silu"]), "factor": None}
    else:
        changes = {"function": rng.choice([f for f in (None, "gelu", "silu") if f != body.function])}
    return Mutant(
        f"function changed: {_line(graph.ops[i])}", _replaced(graph.ops, i, _changed(graph.ops[i], **changes))
    )


KINDS: tuple[Maker, ...] = (
    dropped,
    doubled,
    summed_twice,
    swapped,
    off_by_one,
    both_off_by_one,
    wrong_rank,
    wrong_k,
    stale,
    elsewhere,
    transposed,
    term_changed,
    function_changed,
)

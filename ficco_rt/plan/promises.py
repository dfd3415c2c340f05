"""Invariants that lowering passes promise: rules of the draft that are always checked after the pass.

A broken rule is a bug of ours. The check names the pass that broke it, which the finished plan would not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeAlias

from ..errors import InternalError
from ..graph import ir
from .draft import Draft, LaunchKey, launches, to_text
from .plan_rules import takes

Promise: TypeAlias = Callable[[Draft], Iterator[str]]
MOST_SHOWN = 5


def ops_have_streams(draft: Draft) -> Iterator[str]:
    """Every op has a stream, of its rank and of its stage's queue."""
    stages = draft.graph.stages
    if len(draft.stream_of) != len(draft.graph.ops):
        yield f"{len(draft.stream_of)} of {len(draft.graph.ops)} ops have a stream"
    for i, (op, s) in enumerate(zip(draft.graph.ops, draft.stream_of, strict=False)):
        key = draft.streams[s]
        if key.rank != op.where.rank or key.queue != stages[op.where.stage].queue:
            yield f"op {i} of rank {op.where.rank} stands on {key}"


def order_is_topological(draft: Draft) -> Iterator[str]:
    """Every op occurs once, after all ops that it depends on."""
    place = [-1] * len(draft.graph.ops)
    for at, i in enumerate(draft.order):
        place[i] = at
    if len(draft.order) != len(place) or -1 in place:
        yield f"the order has {len(draft.order)} entries for {len(place)} ops, each once"
    for i, deps in enumerate(draft.graph.deps):
        for d in deps:
            if place[d.before] >= place[i]:
                yield f"op {i} stands before op {d.before}, on which it depends"


def launches_are_alike(draft: Draft) -> Iterator[str]:
    """Streamed ops, and they alone, are works of a streamed launch: of their rank, of a stage on their queue. No other
    op is between works of a launch on their stream."""
    stages = draft.graph.stages
    last: dict[int, LaunchKey | None] = {}  # by stream
    over: set[LaunchKey | None] = set()
    for i in draft.order:
        op, key, s = draft.graph.ops[i], draft.launch_of[i], draft.stream_of[i]
        stage = stages[op.where.stage]
        head = stage if key is None else stages[key.stage]
        fits = key is None or (key.rank == op.where.rank and key.stage <= op.where.stage and head.queue == stage.queue)
        if not fits or (key is not None) != stage.streamed:
            yield f"op {i} of rank {op.where.rank}, stage '{stage.label}', is a work of {key}"
        if last.get(s) != key:
            over.add(last.get(s))
            last[s] = key
        if key is not None and key in over:
            yield f"op {i} is a work of {key}, behind which another op stands on its stream"


def shares_fit(draft: Draft) -> Iterator[str]:
    """A share is a number of multiprocessors of the device, where the text says none."""
    for key, sms in draft.shares.items():
        if not 0 < sms <= draft.machine.device.sms:
            yield f"{key} has a share of {sms} multiprocessors"


def signals_have_numbers(draft: Draft) -> Iterator[str]:
    """Whatever is waited for has a number, each its own, and a flag lives where it is waited for."""
    signals = draft.signals
    for i, needs in draft.needs.items():
        rank = draft.graph.ops[i].where.rank
        for need in needs:
            if need.flag:
                number = signals.flags.get(need.before, {}).get(rank)
                known = number is not None and signals.flag_homes[number] == rank
            else:
                known = need.before in signals.events
            if not known:
                yield f"op {i} waits for op {need.before} by a signal that has no number"
    flags = [flag for of_ranks in signals.flags.values() for flag in of_ranks.values()]
    if sorted(flags) != list(range(len(signals.flag_homes))):
        yield "flags do not have the numbers from 0 on, each once"
    if sorted(signals.events.values()) != list(range(len(signals.events))):
        yield "events do not have the numbers from 0 on, each once"


def kernels_take_works(draft: Draft) -> Iterator[str]:
    """The ops of a launch have one kernel, which does such works."""
    for ops in launches(draft):
        choice = draft.kernels.get(ops[0])
        if choice is None or any(draft.kernels.get(i) is not choice for i in ops):
            yield f"the launch that begins with op {ops[0]} does not have one kernel"
            continue
        bodies = [draft.graph.ops[i].body for i in ops]
        if not takes(choice.kernel, bodies) or (len(ops) > 1 and isinstance(bodies[0], ir.KernelCall)):
            yield f"kernel {choice.kernel} cannot do the launch that begins with op {ops[0]}"


def attributes_are_sizes(draft: Draft) -> Iterator[str]:
    """The device can give a launch its attributes."""
    device = draft.machine.device
    for ops in launches(draft):
        a = draft.kernels[ops[0]].attributes
        if a.smem > device.smem_per_block or not 0 < (a.sms or 1) <= device.sms:
            yield f"the launch that begins with op {ops[0]} has {a} on {device.name}"


def hold(draft: Draft, after: str, promises: tuple[Promise, ...]) -> None:
    """Raises InternalError if a pass breaks its promises."""
    for promise in promises:
        broken = list(islice(promise(draft), MOST_SHOWN))
        if broken:
            raise InternalError(f"after pass {after}: {'; '.join(broken)}\n{to_text(draft)}")

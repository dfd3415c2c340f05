"""A plan in the making: what the lowering passes hand on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..graph.ir import Graph, Op
from ..graph.text import body_text
from ..machine.model import Machine
from .ir import LaunchAttributes, Order


@dataclass(frozen=True, slots=True, order=True)
class StreamKey:
    """Which stream: a rank's queue, and the peer where each link has a stream of its own."""

    rank: int
    queue: str
    link: int  # -1: all peers


@dataclass(frozen=True, slots=True)
class Need:
    """An op waits for an earlier one, by an event or by a flag. `launch` puts the wait before the whole launch."""

    before: int
    flag: bool
    launch: bool = False


@dataclass(frozen=True, slots=True)
class LaunchChoice:
    """A kernel with its tile and attributes, for one op."""

    kernel: str
    tile: tuple[int, int]
    attributes: LaunchAttributes


@dataclass(frozen=True, slots=True)
class Draft:
    """Filled from top to bottom by the passes of `lower`; empty fields are not known yet."""

    graph: Graph
    machine: Machine
    streams: tuple[StreamKey, ...] = ()
    stream_of: tuple[int, ...] = ()  # op → stream
    order: tuple[int, ...] = ()  # ops as they are issued; a topological order of the dependencies
    joined: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)  # see `launch_of`
    choices: dict[int, LaunchChoice] = field(default_factory=dict)  # op → kernel
    needs: dict[int, tuple[Need, ...]] = field(default_factory=dict)  # op → what it must wait for
    orders: tuple[Order, ...] = ()


def launch_of(draft: Draft, op: Op) -> tuple[int, int]:
    """Which launch a streamed op is a work of: the index of the stage that it begins with, and the rank."""
    key = (op.where.stage, op.where.rank)
    return draft.joined.get(key, key)


def to_text(draft: Draft) -> str:
    """What is known so far, by streams: for reading between two passes."""
    lines = []
    order = draft.order or tuple(range(len(draft.graph.ops)))
    for s, key in enumerate(draft.streams):
        lines.append(f"rank {key.rank} {key.queue}{'' if key.link < 0 else f' link {key.link}'}")
        for i in order:
            if draft.stream_of[i] == s:
                needs = "".join(
                    f" {'flag' if n.flag else 'event'} of {n.before}{' at launch' if n.launch else ''}"
                    for n in draft.needs.get(i, ())
                )
                waits = f" waits for{needs}" if needs else ""
                choice = f" by {draft.choices[i].kernel} {draft.choices[i].attributes}" if i in draft.choices else ""
                lines.append(f"  {i} {body_text(draft.graph.ops[i].body)}{waits}{choice}")
    return "\n".join(lines)

"""A plan in the making: what the lowering passes hand on."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..graph.ir import Graph
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
    needs: dict[int, tuple[Need, ...]] = field(default_factory=dict)  # op → what it must wait for
    orders: tuple[Order, ...] = ()
    choices: dict[int, LaunchChoice] = field(default_factory=dict)  # op → kernel

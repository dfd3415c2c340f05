"""The draft of a plan, which the lowering passes hand on from one to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..graph.ir import Graph
from ..graph.text import body_text
from ..machine.model import Machine
from .ir import LaunchAttributes, Order


@dataclass(frozen=True, slots=True, order=True)
class StreamKey:
    """Which stream: a rank's queue, and the peer where each link has a stream of its own."""

    rank: int
    queue: str
    link: int  # -1: all peers


class LaunchKey(NamedTuple):  # a tuple: looked up for every work
    """Which streamed launch: the index of the stage that it begins with, and the rank."""

    stage: int
    rank: int


@dataclass(frozen=True, slots=True)
class Need:
    """A wait of an op for an earlier one, by an event or by a flag. `launch`: the whole launch waits."""

    before: int
    flag: bool
    launch: bool = False


@dataclass(frozen=True, slots=True)
class Signals:
    """The numbers of events and flags, in the order of the ops that raise them."""

    events: Mapping[int, int] = field(default_factory=dict)  # op → the event recorded after it
    flags: Mapping[int, Mapping[int, int]] = field(default_factory=dict)  # op and waiting rank → flag
    flag_homes: tuple[int, ...] = ()  # flag → the rank that waits for it
    private: frozenset[int] = frozenset()  # flags that one launch, and nothing else, waits for

    def raised(self, op: int) -> tuple[int, ...]:
        """The flags that an op raises."""
        return tuple(self.flags[op].values()) if op in self.flags else ()


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The kernel of a launch, what the launch asks of the device, and the output tile of products."""

    kernel: str
    attributes: LaunchAttributes
    tile: tuple[int, int] = (1, 1)


@dataclass(frozen=True, slots=True)
class Draft:
    """The fields are filled from top to bottom by the passes of `lower`; empty fields are not known yet."""

    graph: Graph
    machine: Machine
    streams: tuple[StreamKey, ...] = ()
    stream_of: tuple[int, ...] = ()  # op → stream
    order: tuple[int, ...] = ()  # ops as they are issued; a topological order of the dependencies
    launch_of: tuple[LaunchKey | None, ...] = ()  # op → the streamed launch that it is a work of
    shares: Mapping[LaunchKey, int] = field(default_factory=dict)  # multiprocessors, where the text leaves them open
    needs: Mapping[int, tuple[Need, ...]] = field(default_factory=dict)  # op → what it must wait for
    orders: tuple[Order, ...] = ()
    signals: Signals = field(default_factory=Signals)
    kernels: Mapping[int, KernelChoice] = field(default_factory=dict)  # op → its launch's kernel


def launches(draft: Draft) -> Iterator[list[int]]:
    """The ops of each kernel launch: one, or those of a streamed one. Of copies several may go out as one."""
    streamed: dict[LaunchKey, list[int]] = {}
    on_sms = {q.name for q in draft.graph.queues if q.engine == "sm"}
    for i in draft.order:
        key = draft.launch_of[i]
        if key is not None:
            streamed.setdefault(key, []).append(i)
        elif draft.graph.stages[draft.graph.ops[i].where.stage].queue in on_sms:
            yield [i]
    yield from streamed.values()


def waits_of(draft: Draft, i: int) -> tuple[int, ...]:
    """The flags that a work of a streamed launch waits for itself."""
    rank, flags = draft.graph.ops[i].where.rank, draft.signals.flags
    return tuple([flags[n.before][rank] for n in draft.needs.get(i, ()) if n.flag and not n.launch])


def to_text(draft: Draft) -> str:
    """The draft by streams, as far as it is filled, for reading between two passes."""
    lines = []
    order = draft.order or tuple(range(len(draft.graph.ops)))
    for s, key in enumerate(draft.streams):
        lines.append(f"rank {key.rank} {key.queue}{'' if key.link < 0 else f' link {key.link}'}")
        lines += (f"  {_op(draft, i)}" for i in order if draft.stream_of[i] == s)
    return "\n".join(lines)


def _op(draft: Draft, i: int) -> str:
    text = f"{i} {body_text(draft.graph.ops[i].body)}"
    if draft.launch_of and (key := draft.launch_of[i]) is not None:
        text += f" in the launch of stage '{draft.graph.stages[key.stage].label}'"
    if draft.needs.get(i):
        needs = (
            f"{'flag' if n.flag else 'event'} of {n.before}{' at launch' if n.launch else ''}" for n in draft.needs[i]
        )
        text += f" waits for {', '.join(needs)}"
    if i in draft.kernels:
        text += f" by {draft.kernels[i]}"
    return text

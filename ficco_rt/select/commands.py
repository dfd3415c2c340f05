"""How many commands the plan of a shipped schedule has, in closed form: what the host issues for a run.

`graph.lower` and `plan.emit` decide what they are; a test holds these formulas to the plans. A copy that a launch waits
for is three commands: the copy, an event's record, a wait. Tiles wait for flags by themselves: a copy that they wait
for is two. So is a copy that itself waits, if nothing has to wait for it. Where pieces of K are no multiples of 64, a
plan has further launches, which nothing here counts: rules take no such pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..machine.model import TopologyKind
from .facts import Facts


@dataclass(frozen=True, slots=True)
class _Counted:
    """What the numbers of commands depend on."""

    f: Facts
    params: Mapping[str, object]  # all params of the schedule, bound

    @property
    def peers(self) -> int:
        return self.f.peers

    @property
    def pieces(self) -> int:
        """Those of a shard."""
        return self.number("chunks")

    @property
    def streams(self) -> int:
        """A rank's streams of copies."""
        return _streams(self.f.c.links, self.peers)

    def number(self, name: str) -> int:
        value = self.params[name]
        assert isinstance(value, int)  # the language has bound it
        return value

    def shares(self, name: str) -> tuple[int, ...]:
        """The pieces of a list of shares; one of no rows is none."""
        value = self.params[name]
        assert isinstance(value, Sequence)
        return tuple(int(share) for share in value if share)


def _streams(links: TopologyKind, peers: int) -> int:
    """Copies of a rank that go over different links have a stream each."""
    return {"switch": min(1, peers), "mesh": peers, "ring": min(2, peers)}[links]


def _told(sent: Sequence[int], needed: Sequence[int]) -> int:
    """How many pieces of a shard, sent in the shares `sent`, a flag is raised for, if it is needed in the shares
    `needed`: for the last one that each of these reads."""
    ends = [end * sum(needed) for end in accumulate(sent)]
    return len({next(i for i, end in enumerate(ends) if end >= part * sum(sent)) for part in accumulate(needed)})


# Of one rank, which has peers.


def _steps(pieces: int, a: _Counted) -> int:
    """The own shard's launch, and for each piece of all peers a launch behind their copies."""
    return 1 + pieces * (3 * a.peers + 1)


def _relay(a: _Counted) -> int:
    first, middle, last = (a.shares(name) for name in ("first", "middle", "last"))
    steps = [middle] if a.peers == 1 else [first, *[middle] * (a.peers - 2), last]
    copies = sum(map(len, steps))
    return 1 + 2 * copies + sum(map(_told, steps, [*steps[1:], last]))


def _tapered_scatter(a: _Counted) -> int:
    first, last = a.shares("first"), a.shares("last")
    steps = [(1,)] if a.peers == 1 else [first, *[(1,)] * (a.peers - 2), last]
    return 1 + 2 * sum(map(len, steps)) + sum(_told(step, last) for step in steps)


def _gather_of_nodes(a: _Counted, all_to_all: bool = False) -> int:
    """Messages, copies inside the node, those that pass on what came by messages, and the launches."""
    node = a.number("node")
    others, inside = a.f.ranks // node - 1, node - 1
    waits = _streams(a.f.c.node_links, inside)  # of the copies that pass a message on
    sent, waits = (node, inside) if all_to_all else (1, waits)
    near = 3 * inside + min(1, inside)
    return 1 + a.pieces * (near + others * (2 * sent + waits + 2 * inside + 1 + 1 + inside))


def _scatter_of_nodes(a: _Counted) -> int:
    node = a.number("node")
    others, inside = a.f.ranks // node - 1, node - 1
    near = (others + 1) * (2 * min(1, inside) + _streams(a.f.c.node_links, inside) + 2 * inside)
    far = others * (1 + inside + 1 + 2) + 2 * min(1, others)  # the last message is behind all others
    return a.pieces * (near + far + 1 + inside)


COMMANDS: Mapping[str, Callable[[_Counted], int]] = {
    "a2a_gemm/hierarchical": lambda a: _gather_of_nodes(a, all_to_all=True),
    "a2a_gemm/overlapped": lambda a: 1 + 4 * a.peers * a.pieces,
    "a2a_gemm/serial": lambda a: 4 + 3 * a.peers,
    "ag_gemm/hetero_fused_1d": lambda a: _steps(a.pieces, a),
    "ag_gemm/hetero_unfused_1d": lambda a: 1 + 4 * a.peers * a.pieces,
    "ag_gemm/hierarchical": _gather_of_nodes,
    "ag_gemm/oneshot": lambda a: 2,
    "ag_gemm/serial": lambda a: 4 + 3 * a.peers,
    "ag_gemm/shard_p2p": lambda a: 1 + 4 * a.peers,
    "ag_gemm/shard_ring": lambda a: 5 * a.peers,
    "ag_gemm/stationary_a": lambda a: 1 + 2 * (a.peers + len(a.shares("deep")) - 1) + 2 * a.peers * a.pieces,
    "ag_gemm/streamed": lambda a: 1 + 2 * (a.peers * a.pieces + len(a.shares("deep")) - 1),
    "ag_gemm/tapered": lambda a: _steps(len(a.shares("taper")), a),
    "ag_gemm/uniform_fused_1d": lambda a: a.pieces * (4 + 3 * a.peers),
    "ag_gemm/uniform_fused_2d": lambda a: a.pieces * (4 + 3 * a.peers),
    "gemm_ar/oneshot": lambda a: 2,
    "gemm_ar/overlapped": lambda a: a.pieces * (6 * a.peers + 2 + 2 * a.streams),
    "gemm_ar/serial": lambda a: 4,
    "gemm_ar/streamed": lambda a: 1 + a.pieces * (3 * a.peers + 2 * a.streams),
    "gemm_rs/chunked": lambda a: a.pieces * (6 * a.peers + 1),
    "gemm_rs/direct": lambda a: 1,
    "gemm_rs/hierarchical": _scatter_of_nodes,
    "gemm_rs/oneshot": lambda a: 2,
    "gemm_rs/relay": _relay,
    "gemm_rs/ring": lambda a: 9 * a.peers + 1,
    "gemm_rs/serial": lambda a: 3 + 3 * a.peers + a.streams,
    "gemm_rs/shard": lambda a: 6 * a.peers + 2,
    "gemm_rs/stationary_c": lambda a: 1 + 2 * a.peers,
    "gemm_rs/streamed": lambda a: 1 + 3 * a.peers * a.pieces,
    "gemm_rs/tapered": _tapered_scatter,
}
# Of one rank alone, where that is not one launch.
_ALONE: Mapping[str, Callable[[_Counted], int]] = {
    **dict.fromkeys(("ag_gemm/oneshot", "gemm_ar/oneshot", "gemm_rs/oneshot"), lambda a: 2),
    **dict.fromkeys(("a2a_gemm/serial", "ag_gemm/serial", "gemm_ar/serial", "gemm_rs/ring"), lambda a: 4),
    **dict.fromkeys(("ag_gemm/uniform_fused_1d", "ag_gemm/uniform_fused_2d"), lambda a: 4 * a.pieces),
    **dict.fromkeys(("gemm_ar/overlapped", "gemm_rs/chunked", "gemm_rs/hierarchical"), lambda a: a.pieces),
    **dict.fromkeys(("gemm_rs/serial", "gemm_rs/shard"), lambda a: 2),
}


def commands(f: Facts, schedule: str, params: Mapping[str, object]) -> int:
    """Commands over all ranks of a shipped schedule that has an estimate; `params` are all of its params, bound."""
    formula = COMMANDS[schedule] if f.peers else _ALONE.get(schedule, lambda a: 1)
    return f.ranks * formula(_Counted(f, params))

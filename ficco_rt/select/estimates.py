"""What a shipped schedule takes, in closed form: good enough to say which candidates are worth a simulation.

Each formula is the longest of three ways through a pipeline of pieces: the GEMM without a stop, the wait for the first
piece and the GEMM behind it, all copies and what is left of the GEMM behind the last one. What a schedule adds to that
(launches, sums, a second pass over C) is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from ..machine.cost import ADDED
from .facts import Facts, turns

Params = Mapping[str, object]
TILE = 128, 256  # of the large products of every family of kernels for tensor cores, about


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of a shard, as shares of it: they add up to 1."""

    shares: tuple[float, ...]

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return len(self.shares)

    @property
    def first(self) -> float:
        """The share of the piece that is sent first."""
        return self.shares[0]

    @property
    def last(self) -> float:
        """The share of the piece that is sent last."""
        return self.shares[-1]


def pieces(value: object) -> Pieces:
    """Of a parameter's value: a number of equal ones, or a list of shares."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        shares = [float(v) for v in value if v]
        return Pieces(tuple(v / sum(shares) for v in shares) or (1.0,))
    count = value if isinstance(value, int) else 1
    return Pieces((1 / count,) * count if count > 0 else (1.0,))


def _of(params: Params, name: str) -> Pieces:
    return pieces(params.get(name, 1))


def _cut(f: Facts, rows: float) -> float:
    """How many times as long a GEMM takes that is launched in pieces of so many rows: whole waves of tiles. Smaller
    tiles, which such pieces get, take half of that loss away."""
    tiles = ceil(max(1.0, rows) / TILE[0]) * ceil(f.shape.n / TILE[1])
    waves = tiles / f.c.sms
    return min(1.5, (1 + ceil(waves) / waves) / 2)


def _sum(f: Facts, seen: float = ADDED) -> float:
    """Adding all peers' terms to a shard, or what is seen of that inside a GEMM."""
    return seen * f.memory((f.ranks + 1) * f.shape.sent)


def _copies(f: Facts, count: int) -> float:
    """One pass of a rank's copies, so many pieces a shard."""
    return f.turns * (f.shard + count * f.c.copy_time)


def _to_neighbours(f: Facts) -> Facts:
    """The facts of a schedule that goes from neighbour to neighbour: it uses one link of a mesh, as on a ring."""
    return replace(f, c=replace(f.c, links="ring"))


def _received(f: Facts, p: Pieces, launches: int, stretch: float = 1.0, deep: int = 1) -> float:
    """Own shard first, then pieces of single shards as they come."""
    first = f.shard * p.first + f.c.copy_time + f.c.signal_time
    last = _copies(f, p.count) + (deep - 1) * f.c.copy_time + f.c.signal_time
    gemm = f.gemm * stretch
    return launches * f.c.launch_time + max(
        gemm, first + gemm - f.own, last + f.abreast * f.own * stretch * p.last / deep
    )


def _stepped(f: Facts, p: Pieces, own_first: bool, stretch: float) -> float:
    """Steps over a piece of every shard."""
    first = f.turns * (f.shard * p.first + f.c.copy_time) + f.c.signal_time
    last = _copies(f, p.count) + f.c.signal_time
    gemm = f.gemm * stretch
    rest = gemm - f.own if own_first else gemm
    alone = gemm if own_first else 0.0
    return (p.count + own_first) * f.c.launch_time + max(alone, first + rest, last + rest * p.last)


def _rows(f: Facts, p: Pieces, shards: int = 1) -> float:
    """Rows of the smallest piece of so many shards."""
    return shards * f.shape.m / f.ranks * min(p.shares)


def _one_piece_a_launch(f: Facts, params: Params) -> float:
    p = _of(params, "chunks")
    return _received(f, p, 1 + f.peers * p.count, _cut(f, _rows(f, p)))


def _ring_gather(f: Facts, params: Params) -> float:
    return _one_piece_a_launch(_to_neighbours(f), params)


def _serial_gather(f: Facts, params: Params) -> float:
    return _copies(f, 1) + f.c.signal_time + f.c.launch_time + f.gemm * _cut(f, f.shape.m)


def _stationary_a(f: Facts, params: Params) -> float:
    p, out = _of(params, "chunks"), f.way(f.shape.out or 0.0)
    instead = f.shard * f.smaller
    first = instead - out + f.c.copy_time + f.c.signal_time
    behind = max(0.0, out * p.last + f.c.copy_time - f.own / 2)  # the last products' copy, beside half the own product
    last = f.turns * (instead + (1 + p.count) * f.c.copy_time)
    return f.c.launch_time + f.c.signal_time + max(f.gemm + behind, first + f.gemm - f.own + behind, first + last)


def _sent(f: Facts, p: Pieces, last: float, launches: int, stretch: float, passes: int = 1) -> float:
    """Pieces of products for the peers, sent as they are made, and the own rows behind what comes."""
    gemm = f.gemm * stretch
    copies = passes * _copies(f, p.count)
    behind = f.abreast * f.own * p.first * stretch + copies + passes * f.c.signal_time + f.own * last * stretch
    return launches * f.c.launch_time + _sum(f) + max(gemm, behind)


def _scattered(f: Facts, params: Params) -> float:
    p = _of(params, "chunks")
    return _sent(f, p, p.last, p.count * f.ranks, _cut(f, _rows(f, p)), f.passes)


def _streamed_scatter(f: Facts, params: Params) -> float:
    p = _of(params, "chunks")
    return _sent(f, p, p.last, 2, 1.0, f.passes)


def _uneven_scatter(f: Facts, params: Params) -> float:
    first, last = _of(params, "first"), _of(params, "last")
    extra = (first.count + last.count - 2) * f.c.copy_time
    return _sent(f, Pieces((first.first,)), last.last, 2, 1.0) + extra


def _relayed_scatter(f: Facts, params: Params) -> float:
    return _uneven_scatter(_to_neighbours(f), params)


def _shard_scatter(f: Facts, params: Params) -> float:
    whole = Pieces((1.0,))
    return _sent(f, whole, 0.0, f.ranks + 1, _cut(f, _rows(f, whole))) + _sum(f, 1 - ADDED)


def _ring_scatter(f: Facts, params: Params) -> float:
    hop = f.shard + f.c.copy_time + f.c.signal_time + f.c.launch_time + f.memory(3 * f.shape.sent)
    return f.c.launch_time + max(f.gemm + hop, f.own + f.peers * hop)


def _direct(f: Facts, params: Params) -> float:
    p = _of(params, "chunks")
    return f.c.launch_time + f.c.signal_time + _sum(f) + max(f.gemm, f.stored + f.own * p.last * 2)


def _stationary_c(f: Facts, params: Params) -> float:
    instead = f.shard * f.smaller
    first = instead + 2 * f.c.copy_time + f.c.signal_time
    last = f.turns * (instead + 2 * f.c.copy_time) + f.c.signal_time
    added = ADDED * f.peers * 2 * f.memory(f.shape.sent)
    return f.c.launch_time + added + max(f.gemm, first + f.gemm - f.own, last + f.own)


def _one_shot_gather(f: Facts, params: Params) -> float:
    return 2 * f.c.launch_time + f.c.signal_time + f.stored + f.gemm


def _one_shot_sum(f: Facts, params: Params) -> float:
    shards = f.ranks if f.operation == "gemm_ar" else 1
    read = shards * f.stored
    return 2 * f.c.launch_time + f.c.signal_time + f.gemm + read + shards * _sum(f, 1.0)


def _serial_sum(f: Facts, params: Params) -> float:
    return 2 * f.c.launch_time + f.gemm + _copies(f, 1) + f.c.signal_time + _sum(f, 1.0)


def _serial_all_reduce(f: Facts, params: Params) -> float:
    return 2 * f.c.launch_time + f.gemm + f.two_passes


def _streamed_gather(f: Facts, params: Params) -> float:
    return _received(f, _of(params, "chunks"), 1, deep=_of(params, "deep").count)


def _fused_steps(f: Facts, params: Params) -> float:
    p = pieces(params.get("taper", params.get("chunks", 1)))
    return _stepped(f, p, True, _cut(f, _rows(f, p, max(1, f.peers))))


def _uniform_steps(f: Facts, params: Params) -> float:
    p = _of(params, "chunks")
    return _stepped(f, p, False, _cut(f, _rows(f, p, f.ranks)))


def _steps_of_k(f: Facts, params: Params) -> float:
    p = _of(params, "chunks")
    again = 2 * (p.count - 1) * f.memory(f.shape.m * f.shape.n)
    return _stepped(f, p, False, _cut(f, f.shape.m)) + again


def two_levels(f: Facts, params: Params) -> float:
    """Messages between nodes, copies inside a node of what is sent and of what has come, and the GEMM beside them; of
    the last message's GEMM nothing is hidden."""
    p, per_node = _of(params, "chunks"), f.c.node if f.operation == "a2a_gemm" else 1
    messages = turns(f.c.links, f.nodes - 1) * per_node * (f.shard + p.count * (f.c.copy_time + 2 * f.c.signal_time))
    copies = (
        turns(f.c.node_links, f.c.node - 1)
        * f.nodes
        * (f.shard * f.c.link_rate / f.c.node_rate + p.count * f.c.node_copy_time)
    )
    launches = 1 + f.nodes * p.count
    gemm = f.gemm * _cut(f, _rows(f, p, f.c.node))
    if f.operation == "gemm_rs":  # a node's rows are added up in GEMMs of a rank's rows
        gemm += _sum(f) / f.nodes + f.gemm / f.c.node * (_cut(f, _rows(f, p)) - 1)
    behind = f.own * f.c.node * p.last
    return launches * f.c.launch_time + max(gemm, max(messages, copies) + f.c.node_copy_time + behind)


ESTIMATES: dict[str, Callable[[Facts, Params], float]] = {
    "a2a_gemm/hierarchical": two_levels,
    "a2a_gemm/overlapped": _one_piece_a_launch,
    "a2a_gemm/serial": _serial_gather,
    "ag_gemm/hetero_fused_1d": _fused_steps,
    "ag_gemm/hetero_unfused_1d": _one_piece_a_launch,
    "ag_gemm/hierarchical": two_levels,
    "ag_gemm/oneshot": _one_shot_gather,
    "ag_gemm/serial": _serial_gather,
    "ag_gemm/shard_p2p": _one_piece_a_launch,
    "ag_gemm/shard_ring": _ring_gather,
    "ag_gemm/stationary_a": _stationary_a,
    "ag_gemm/streamed": _streamed_gather,
    "ag_gemm/tapered": _fused_steps,
    "ag_gemm/uniform_fused_1d": _uniform_steps,
    "ag_gemm/uniform_fused_2d": _steps_of_k,
    "gemm_ar/oneshot": _one_shot_sum,
    "gemm_ar/overlapped": _scattered,
    "gemm_ar/serial": _serial_all_reduce,
    "gemm_ar/streamed": _streamed_scatter,
    "gemm_rs/chunked": _scattered,
    "gemm_rs/direct": _direct,
    "gemm_rs/hierarchical": two_levels,
    "gemm_rs/oneshot": _one_shot_sum,
    "gemm_rs/relay": _relayed_scatter,
    "gemm_rs/ring": _ring_scatter,
    "gemm_rs/serial": _serial_sum,
    "gemm_rs/shard": _shard_scatter,
    "gemm_rs/stationary_c": _stationary_c,
    "gemm_rs/streamed": _streamed_scatter,
    "gemm_rs/tapered": _uneven_scatter,
}


def estimate(f: Facts | None, schedule: str, params: Params) -> float | None:
    """Microseconds of a shipped schedule; None of one that has no formula."""
    formula = ESTIMATES.get(schedule)
    return formula(f, params) if formula is not None and f is not None else None

"""A machine as plain data: what lowering, the virtual clock and `explain` need to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

TopologyKind: TypeAlias = Literal["switch", "mesh", "ring"]
Port: TypeAlias = tuple[Literal["out", "in", "link"], int, int]  # out of or into a rank, or from one to another


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. Rates are what large transfers and GEMMs reach, not the data sheet's peaks."""

    name: str
    arch: str
    sms: int
    smem_per_sm: int  # bytes
    smem_per_block: int  # bytes, the most that one block may ask for
    smem_reserved: int  # bytes that the system takes of every block
    max_residency: int  # blocks a multiprocessor, whatever their size
    warp: int  # threads that go together: a warp, a wavefront
    max_warps: int  # of all blocks of a multiprocessor
    memory: int  # bytes
    memory_rate: float  # bytes a microsecond
    gemm_rate: tuple[tuple[str, float], ...]  # dtype, operations a microsecond
    launch_time: float  # microseconds that a kernel launch costs on its stream


@dataclass(frozen=True, slots=True)
class Links:
    """How GPUs reach each other.

    switch: every GPU has one port of `rate` each way, to all peers; copies to different peers share it.
    mesh: every ordered pair has a link of its own.
    ring: only neighbours have links; a copy further away passes through every link between.
    """

    kind: TopologyKind
    rate: float  # bytes a microsecond, one direction, of a port or a link
    copy_time: float  # microseconds that every separate copy costs beyond its bytes
    signal_time: float  # microseconds from a signal to a waiter on another GPU


@dataclass(frozen=True, slots=True)
class Machine:
    """A node. `source` says where its numbers come from."""

    name: str
    device: Device
    links: Links
    ranks: int
    source: str

    def ports(self, src: int, dst: int) -> tuple[Port, ...]:
        """What a copy from src to dst keeps busy."""
        match self.links.kind:
            case "switch":
                return ("out", src, 0), ("in", dst, 0)
            case "mesh":
                return (("link", src, dst),)
            case _:
                n = self.ranks
                step = 1 if (dst - src) % n <= (src - dst) % n else -1
                way = [(src + i * step) % n for i in range(self.hops(src, dst) + 1)]
                return tuple(("link", a, b) for a, b in pairwise(way))

    def hops(self, a: int, b: int) -> int:
        """Links that a copy from a to b crosses."""
        if a == b:
            return 0
        if self.links.kind == "ring":
            d = (b - a) % self.ranks
            return min(d, self.ranks - d)
        return 1

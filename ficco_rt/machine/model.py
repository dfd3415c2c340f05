"""A machine as plain data: what lowering, the virtual clock and `explain` need to know about it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from .measured_tables import Measured
from .units import ByteRate, Bytes, Count, CountOrNone, OperationRate, SomeBytes, Time, TimeOrShare

TopologyKind: TypeAlias = Literal["switch", "mesh", "ring"]
Reach: TypeAlias = Literal["memory", "messages"]


class Port(NamedTuple):  # a tuple: the clock looks them up all the time
    """What a copy keeps busy: a port out of `a` or into `a`, or the link from `a` to `b`. `a` and `b` count the ports
    of the tier: ranks, or the groups of ranks that share a port there."""

    kind: Literal["out", "in", "link"]
    a: int
    b: int = 0
    tier: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. Rates are what large transfers and GEMMs reach, not the data sheet's peaks.

    Sizes are in bytes, times in microseconds, rates in bytes or operations a microsecond (a multiplication and its
    addition are two). Making one raises nothing: what takes a machine checks its numbers, and raises UsageError.
    Source: the vendor's device queries, and measurements by `ficco calibrate`; `Machine.sources` says which.
    """

    name: str
    arch: str  # as the vendor's compiler calls it: sm_90a, gfx942
    sms: Count  # multiprocessors, or compute units
    smem_per_sm: SomeBytes  # shared memory
    smem_per_block: SomeBytes  # the most that one block may ask for
    smem_reserved: Bytes  # that the system takes of every block
    max_residency: Count  # blocks a multiprocessor, whatever their size
    warp: Count  # threads that go together: a warp, a wavefront
    max_warps: Count  # of all blocks of a multiprocessor
    memory: SomeBytes
    memory_rate: ByteRate
    gemm_rate: tuple[tuple[str, OperationRate], ...]  # by dtype
    launch_time: Time  # that a kernel launch costs on its stream
    # Figures of this device, by the names of `cost.Overheads`, `cost.Power` and `cost.VendorGemm`. What is not here is
    # the architecture's, or of the device's name (`cost.OVERHEADS`, `cost.POWER`, `cost.VENDOR_GEMMS`).
    overheads: tuple[tuple[str, TimeOrShare], ...] = ()
    power: tuple[tuple[str, TimeOrShare], ...] = ()
    vendor_gemm: tuple[tuple[str, TimeOrShare], ...] = ()


@dataclass(frozen=True, slots=True)
class Links:
    """How the ranks of a tier reach each other.

    switch: every port goes to all others at `rate` each way; copies to different peers share it.
    mesh: every ordered pair of ports has a link of its own.
    ring: only neighbours have links; a copy further away passes through every link between.

    `ranks` consecutive ranks are joined, then the next as many (0: all ranks). A port is a rank's own, or of
    `ranks_a_port` consecutive ranks that share it. `reach`: what a rank has of another one here: its `memory`, for
    copy engines, loads and stores; or `messages` alone, by the vendor's library.

    Rates are in bytes a microsecond, times in microseconds. Making one raises nothing: what takes a machine checks its
    numbers, and raises UsageError. Source: measurements by `ficco calibrate`, else the vendor's data sheets;
    `Machine.sources` says which.
    """

    kind: TopologyKind
    rate: ByteRate  # one direction, of a port or a link
    copy_time: Time  # that every separate copy costs beyond its bytes
    signal_time: Time  # from a signal to a waiter on another GPU
    name: str = "node"
    ranks: CountOrNone = 0
    ranks_a_port: Count = 1
    reach: Reach = "memory"


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs of one kind, and how they reach each other: by the links of one tier, or by further ones (`outer`) where
    those join more ranks. `source` says where its numbers come from, `sources` where single ones do.
    A number was measured if its own source begins with "measured".

    Times are in microseconds, sizes in bytes, rates in both. Making one raises nothing: what takes a machine checks
    its numbers, and raises UsageError. Its methods take ranks from 0 to `ranks - 1`, which nothing checks.

    Example: `dataclasses.replace(ficco_rt.load_machine("h200-switch"), ranks=4)`.
    """

    name: str
    device: Device
    links: Links
    ranks: Count
    source: str
    outer: tuple[Links, ...] = ()
    measured: Measured | None = None
    sources: tuple[tuple[str, str], ...] = field(default=(), compare=False)  # path of a number, text

    @property
    def tiers(self) -> tuple[Links, ...]:
        """The tiers, from the innermost to the one that joins all ranks."""
        return (self.links, *self.outer)

    def tier(self, a: int, b: int) -> int:
        """The number of the innermost tier that joins two ranks."""
        for i, links in enumerate(self.tiers[:-1]):
            if a // links.ranks == b // links.ranks:
                return i
        return len(self.outer)

    def between(self, a: int, b: int) -> Links:
        """The links by which two ranks reach each other."""
        return self.tiers[self.tier(a, b)] if self.outer else self.links

    @property
    def node(self) -> int:
        """Consecutive ranks that reach each other's memory: the GPUs of a node."""
        inside = 1
        for links in self.tiers:
            if links.reach == "messages":
                return inside
            inside = min(links.ranks or self.ranks, self.ranks)
        return self.ranks

    def as_one_node(self) -> Machine:
        """The machine, changed so that every rank reaches the memory of all others."""
        links, *outer = (replace(links, reach="memory") for links in self.tiers)
        return replace(self, links=links, outer=tuple(outer))

    def of_port(self, port: Port) -> Links:
        """The links that a port belongs to."""
        return self.tiers[port.tier]

    def ports(self, src: int, dst: int) -> tuple[Port, ...]:
        """The ports that a copy from src to dst occupies."""
        tier = self.tier(src, dst)
        links = self.tiers[tier]
        a, b = src // links.ranks_a_port, dst // links.ranks_a_port
        match links.kind:
            case "switch":
                return Port("out", a, tier=tier), Port("in", b, tier=tier)
            case "mesh":
                return (Port("link", a, b, tier),)
            case _:
                first, n = self._ring(links, src)
                step = 1 if (b - a) % n <= (a - b) % n else -1
                way = [first + (a - first + i * step) % n for i in range(self.hops(src, dst) + 1)]
                return tuple(Port("link", *ends, tier) for ends in pairwise(way))

    def hops(self, a: int, b: int) -> int:
        """Links that a copy from a to b crosses."""
        if a == b:
            return 0
        links = self.between(a, b)
        if links.kind == "ring":
            _, n = self._ring(links, a)
            d = (b // links.ranks_a_port - a // links.ranks_a_port) % n
            return min(d, n - d)
        return 1

    def _ring(self, links: Links, rank: int) -> tuple[int, int]:
        """The first port of the rank's ring, and how many there are."""
        joined = links.ranks or self.ranks
        first = rank // joined * joined
        stop = min(first + joined, self.ranks)
        return first // links.ranks_a_port, -(-(stop - first) // links.ranks_a_port)

    def source_of(self, path: str) -> str:
        """Where a number comes from, such as `tiers[0].rate` or `device.gemm_rate.bf16`, which may have the source of
        `device.gemm_rate`. Empty if only the machine's `source` is known."""
        told = dict(self.sources)
        return told.get(path) or told.get(path.rpartition(".")[0], "")

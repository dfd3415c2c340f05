"""The facts that rules are based on: one operation's sizes on one machine, as bytes and microseconds.

All formulas are closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..machine.durations import STORES, gemm_rate
from ..machine.model import Device, Links, Machine, TopologyKind
from ..types import TYPES
from .operations import OPERATIONS, Shape, Sizes

TILE = 256  # rows that a large GEMM's blocks make together: tiles of 256, or pairs of tiles of 128
USUAL = 5.0  # µs of a product from which it is worth a look which kernel takes it
HALF = 1.17  # how much longer a product of half as many rows takes, for its operations (docs/choose.md, `filled`)


def turns(links: TopologyKind, peers: int, shared: int = 1) -> int:
    """How many whole copies, one to each peer, share a way: all of them where they leave by one port; on a mesh, whose
    links carry them at once, those of the ranks that share a link."""
    return shared**2 if links == "mesh" and peers else peers


@dataclass(frozen=True, slots=True)
class Facts:
    """One operation of known sizes on one machine. Times are microseconds."""

    operation: str
    ranks: int
    shape: Shape
    dtype: str
    machine: Machine
    leave: int = 0  # multiprocessors that launches which wait leave to other libraries
    turned: bool = False  # the second operand is stored with K as columns

    @property
    def device(self) -> Device:
        """A GPU of the machine."""
        return self.machine.device

    @property
    def links(self) -> Links:
        """The links that join all these ranks."""
        return self.machine.between(0, self.ranks - 1)

    @property
    def node(self) -> int:
        """Ranks that reach each other's memory: all of them, unless there are several nodes."""
        return min(self.machine.node, self.ranks)

    @property
    def gemm_rate(self) -> float:
        """The operations a microsecond of a large product of the type."""
        return gemm_rate(self.device, self.dtype)

    @property
    def item(self) -> int:
        """The bytes of an element."""
        return TYPES[self.dtype].bytes

    @property
    def peers(self) -> int:
        """The other ranks."""
        return self.ranks - 1

    @property
    def turns(self) -> int:
        """Copies, one to each peer, of which each waits for the one before."""
        return turns(self.links.kind, self.peers, self.links.ranks_a_port)

    @property
    def abreast(self) -> float:
        """Number of shards that arrive at the same time."""
        return self.peers / self.turns if self.peers else 1.0

    @property
    def nodes(self) -> int:
        """Groups of ranks that reach each other's memory; the last one may be smaller."""
        return -(-self.ranks // self.node)

    @property
    def gemm(self) -> float:
        """The whole product of a rank: its arithmetic, or its operands' way through memory."""
        s = self.shape
        return max(2.0 * s.m * s.n * s.k / self.gemm_rate, self.memory(s.m * s.k + s.k * s.n + s.m * s.n))

    @property
    def usual(self) -> bool:
        """Whether fast kernels take the product: of 16-bit types, or of fp8 with K as columns, in rows of whole 16
        bytes. It does not matter for the smallest ones."""
        whole, s = 16 // self.item, self.shape
        fits = self.item < 4 and s.k % whole == s.n % whole == 0 and (self.item > 1 or self.turned)
        return fits or self.gemm < USUAL

    @property
    def lost(self) -> float:
        """How much longer the product takes if it leaves multiprocessors to other libraries."""
        return self.gemm * self.leave / max(1, self.device.sms - self.leave)

    @property
    def own(self) -> float:
        """The time of the product of a rank's own shard."""
        return self.gemm / self.ranks

    @property
    def rows(self) -> float:
        """The rows of a shard."""
        return self.shape.m / self.ranks

    @property
    def balance(self) -> float:
        """The rows for which a product takes as long as reading its second operand from memory."""
        return self.gemm_rate * self.item / (2 * self.device.memory_rate)

    def stretch(self, rows: float) -> float:
        """How much longer a product of so many rows takes than its operations: whole tiles are computed, and all of the
        second operand is read."""
        half = rows <= TILE / 2
        tile = TILE / 2 if half else TILE
        return max(ceil(rows / tile) * tile / rows * (HALF if half else 1.0), self.balance / rows)

    @property
    def ragged(self) -> float:
        """How much longer the GEMM takes in shards than whole, as a part of its time."""
        return max(0.0, self.stretch(self.rows) / self.stretch(self.shape.m) - 1)

    @property
    def shard(self) -> float:
        """The bytes that a peer is sent, on their way."""
        return self.way(self.shape.sent)

    @property
    def passes(self) -> int:
        """How often such bytes travel."""
        return OPERATIONS[self.operation].passes

    @property
    def copies(self) -> float:
        """All that a rank sends, one whole copy a peer: in turn by a port, at once by links of a mesh."""
        return self.passes * self.turns * (self.shard + self.links.copy_time)

    @property
    def ratio(self) -> float:
        """The product's time as a multiple of the copies' time."""
        return self.gemm / self.copies if self.copies else float("inf")

    @property
    def pace(self) -> float:
        """The time that a shard is multiplied in, as a multiple of the time that it comes in."""
        return self.own / (self.shard + self.links.copy_time)

    @property
    def smaller(self) -> float:
        """What a stationary schedule sends, as a part of what is usually sent."""
        instead, sent = self.shape.instead, self.shape.sent
        return instead / sent if instead is not None and sent else float("inf")

    @property
    def saved(self) -> float:
        """How much longer the usual copies and half a shard's product take than the GEMM and a stationary schedule's
        copies."""
        return self.copies + self.own / 2 - max(self.gemm, self.smaller * self.copies)

    @property
    def stored(self) -> float:
        """What is sent to all peers, stored by multiprocessors in place of copies."""
        return self.turns * self.shard / STORES

    @property
    def everything(self) -> float:
        """Every peer's whole product, read by multiprocessors: what an all-reduce in one shot takes."""
        return self.ranks * self.stored

    @property
    def two_passes(self) -> float:
        """An all-reduce of the vendor's: the bytes of two passes, and a signal a step of each."""
        return 2 * (self.turns * self.shard + self.peers * self.links.signal_time)

    def way(self, elements: float) -> float:
        """Elements on a link."""
        return elements * self.item / self.links.rate

    def memory(self, elements: float) -> float:
        """Elements read or written in a device's memory."""
        return elements * self.item / self.device.memory_rate


def facts(operation: str, ranks: int, sizes: Sizes, machine: Machine, dtype: str, leave: int = 0) -> Facts | None:
    """The facts of an operation that rules cover; None for any other operation. `sizes` are bound, and `dtype` is the
    operands' type in words."""
    if operation not in OPERATIONS:
        return None
    shape = OPERATIONS[operation].shape(ranks, sizes)
    return Facts(operation, ranks, shape, dtype.split()[0], machine, leave, bool(sizes.get("transb")))

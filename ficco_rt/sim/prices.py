"""The prices of a launch's works on a machine, each by its own kernel, and the shared resources that they use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

from ..device.ir import DeviceLaunch
from ..geometry.region import Region, between_ranks, called, summary
from ..graph.ir import Gemm
from ..graph.kinds import done, kind_of
from ..kernels.catalogue import cluster_tiles
from ..kernels.families import pace
from ..kernels.family import KernelConfig
from ..kernels.pace import Pace
from ..machine import durations
from ..machine.model import Machine, Port
from ..plan.ir import Work
from ..plan.plan_rules import tiles
from ..trace.model import Launched, SpanKind
from ..types import TYPES
from .contention import Supply

# µs: a tile that waits for its addends sees their flags, loads and adds them, and is stored. Fitted on H200 and taken
# for all machines (docs/internals/model.md)
ADDING = 3.0


# of what products whose tiles are at work at once could read once for all of them, what they do if it is larger than
# the cache: they drift apart
TOGETHER = 0.3
# the share of the memory's rate that products reach; fitted as `ADDING`, to few rows beside a large right operand
READ = 0.95


@dataclass(slots=True)  # frozen ones take thrice as long to make
class TileCost:
    """The tiles of a product, by groups of blocks, and what a group takes for one. µs."""

    count: int
    steps: float  # all steps of K of a tile
    step: float
    ends: float


@dataclass(slots=True)
class Price:
    """A work alone. `time`: µs on the launch's multiprocessors; of a product, what its operands' way takes at least.
    `uses`: bytes of each supply, in all. `sent`: of a product, what its stores on another rank use, and `sent_time`
    how long they take: blocks go on meanwhile."""

    kind: SpanKind
    label: str
    bytes: int
    flops: int
    peer: int | None
    time: float
    uses: Mapping[Supply, float]
    tiles: TileCost | None = None
    sent: Mapping[Supply, float] = field(default_factory=dict)
    sent_time: float = 0.0
    # of a product that waits for its addends alone: the share of a tile's steps that stand behind the first of them
    late: float | None = None
    peer_bytes: int = 0  # of what is no copy: read and written in other ranks' memory

    def elsewhere(self, label: str) -> Price:
        """The price of an equal work with another name. `dataclasses.replace` takes several times as long."""
        return Price(
            self.kind, label, self.bytes, self.flops, self.peer, self.time, self.uses, self.tiles, self.sent,
            self.sent_time, self.late, self.peer_bytes,
        )  # fmt: skip


class Prices:
    """The prices of one plan's works on a machine. Equal works are priced once: NOTE the graph holds each part's axes
    once, and the plan holds them as long as prices are asked for."""

    def __init__(self, machine: Machine, dtypes: Mapping[str, str], inputs: Container[str] = ()) -> None:
        self.machine, self.dtypes, self.inputs = machine, dtypes, inputs
        # by id of a configuration, which is kept, so that its id is nobody else's
        self._launched: dict[int, tuple[KernelConfig, Launched]] = {}
        self._paces: dict[tuple[int, str], tuple[KernelConfig, Pace]] = {}
        self._equal: dict[Pace, Pace] = {}  # one of those that are equal
        self._flows: dict[tuple[int, int, int], tuple[float, Mapping[Supply, float]]] = {}
        self._products: dict[tuple[object, ...], Price] = {}
        self._summaries: dict[int, str] = {}

    def size(self, region: Region) -> int:
        return region.elements * TYPES[self.dtypes[region.tensor]].bytes

    def limit(self, supply: Supply) -> float:
        """Bytes a microsecond that a port or a memory can move."""
        if isinstance(supply, int):
            return self.machine.device.memory_rate
        assert isinstance(supply, Port)
        return self.machine.of_port(supply).rate

    def held(self, launch: DeviceLaunch) -> float:
        """Multiprocessors that a launch holds until it ends. Its blocks leave room where several share one."""
        config = launch.config
        return min(config.blocks / max(1, config.resident), self.machine.device.sms)

    def launched(self, launch: DeviceLaunch) -> Launched:
        """The launch of a kernel as the trace records it."""
        config = launch.config
        known = self._launched.get(id(config))
        if known is None:
            how = Launched(config.entry, config.smem, config.resident, config.blocks)
            known = self._launched[id(config)] = config, how
        return known[1]

    def pace(self, launch: DeviceLaunch, dtype: str) -> Pace:
        config = launch.config
        known = self._paces.get((id(config), dtype))
        if known is None:
            found = pace(config, self.machine.device, dtype)
            known = self._paces[id(config), dtype] = config, self._equal.setdefault(found, found)
        return known[1]

    def moved(self, src: int, dst: int, size: int, share: float = 1.0) -> Mapping[Supply, float]:
        """What bytes from rank to rank use, of links of which `share` can be reached. A rank's memory is known by its
        number."""
        if src == dst:
            return {src: 2.0 * size}
        uses: dict[Supply, float] = dict.fromkeys(self.machine.ports(src, dst), size / share)
        uses[src] = uses[dst] = float(size)
        return uses

    def flow(self, src: int, dst: int, size: int) -> tuple[float, Mapping[Supply, float]]:
        """The bytes of a copy alone: the µs that they take, and what they use a microsecond. The rate is that of what
        passes the fewest in a time."""
        known = self._flows.get((src, dst, size))
        if known is None:
            uses = self.moved(src, dst, size)
            time = max(amount / self.limit(supply) for supply, amount in uses.items())
            rates = {supply: amount / time for supply, amount in uses.items()} if time else {}
            known = self._flows[src, dst, size] = time, rates
        return known

    def part(self, region: Region) -> str:
        """Which part of its tensor."""
        known = self._summaries.get(id(region.axes))
        if known is None:
            known = self._summaries[id(region.axes)] = summary(region)
        return known

    def work(self, work: Work, launch: DeviceLaunch, rank: int, parts: int = 1) -> Price:
        """`parts`: into how many K of a product's tiles is split."""
        machine = self.machine
        if isinstance(work.body, Gemm):
            return self._alike(work, work.body, launch, rank, parts)
        sms = launch.sms if launch.sms < machine.device.sms else None
        body, kind = work.body, kind_of(work.body)
        moved, flops, peer, far = done(body, rank, self.size)
        return Price(
            kind.span,
            kind.label(body, rank, self.part),
            moved,
            flops,
            peer,
            kind.time(body, machine, rank, self.size, sms),
            self._uses(work.reads, work.writes, rank, durations.PUSHED),
            peer_bytes=far,
        )

    def _uses(
        self, reads: Sequence[Region], writes: Sequence[Region], rank: int, share: float
    ) -> Mapping[Supply, float]:
        """The memory of the own rank, and the links to other ranks that are read or written, of which a kernel reaches
        `share`."""
        uses: dict[Supply, float] = defaultdict(float)
        for src, dst, region in (*((r.rank, rank, r) for r in reads), *((rank, r.rank, r) for r in writes)):
            size = self.size(region)
            moved = {src: float(size)} if src == dst else self.moved(src, dst, size, share)
            for supply, amount in moved.items():
                uses[supply] += amount
        return uses

    def _alike(self, work: Work, gemm: Gemm, launch: DeviceLaunch, rank: int, parts: int) -> Price:
        """A product's price, which is that of all products of its sizes and its kernel that stand elsewhere in their
        tensors."""
        label = f"{called(gemm.out, rank)} {self.part(gemm.out)}"
        grid = tiles(gemm.out, launch.config.tile)  # not `work.tiles`: the launch may have another kernel than the plan
        if gemm.addends:
            return self._product(work, gemm, launch, rank, parts, label, grid)
        a, b, out, config = gemm.left, gemm.right, gemm.out, launch.config
        kernel = id(self.pace(launch, self.dtypes[a.tensor])), config.tile, config.cluster
        how = (gemm.left_transposed, gemm.right_transposed, gemm.accumulate, grid, parts, len(launch.works) > 1)
        places = (rank, out.rank, out.tensor, a.tensor, b.tensor, out.shape, a.shape, b.shape)
        key = (kernel, how, places)
        known = self._products.get(key)
        if known is None:
            known = self._products[key] = self._product(work, gemm, launch, rank, parts, label, grid)
        return known.elsewhere(label)

    def _product(
        self, work: Work, gemm: Gemm, launch: DeviceLaunch, rank: int, parts: int, label: str, grid: tuple[int, int]
    ) -> Price:
        machine, config, out = self.machine, launch.config, gemm.out
        moved = sum(map(self.size, (*work.reads, *work.writes)))
        sent = self._uses((), [out], rank, durations.STORES) if out.rank != rank else {}
        m, n = out.shape[-2:]
        k = gemm.depth
        batch = out.elements // max(1, m * n)
        dtype = self.dtypes[gemm.left.tensor]
        kernel = self.pace(launch, dtype)
        rows, columns = grid
        count = max(1, batch * cluster_tiles(config, rows, columns))
        added = sum(map(self.size, gemm.addends))
        # what the arithmetic does not hide of the addends, which all multiprocessors add at once
        shown = durations.ADDED * durations.kernel_time(machine, added + 2 * self.size(out)) if added else 0.0
        shown *= kernel.groups / count
        share = 1.0 if kernel.whole_edges else batch * m * n / (batch * rows * columns * prod(config.tile))
        far = durations.link_time(machine, rank, out.rank, self.size(out), durations.STORES)
        shown += durations.SENT * far * kernel.groups / count
        # a right operand that no other row of tiles loads comes out of memory
        step = kernel.step if rows > config.cluster else max(kernel.step, kernel.fetched)
        cost = TileCost(count, kernel.steps(k), step * share, kernel.ends + shown)
        if len(launch.works) > 1:  # products whose tiles are at work at once read some of the right operand together
            right = self.size(gemm.right)
            together = 1.0 if right <= kernel.cache else TOGETHER
            moved -= round(together * right * max(0.0, 1 - count * parts / kernel.groups))
        time = moved / (READ * machine.device.memory_rate)
        peer = out.rank if out.rank != rank else None
        uses: dict[Supply, float] = {rank: moved / READ}
        given = gemm.left.tensor in self.inputs and gemm.right.tensor in self.inputs
        late = kernel.behind_addends(len(gemm.addends), k) if gemm.addends and given else None
        far_bytes = sum(self.size(region) for _, _, region in between_ranks(rank, work.reads, work.writes))
        return Price("gemm", label, moved, gemm.flops, peer, time, uses, cost, sent, far, late, far_bytes)


@dataclass(slots=True)
class PieceOfK:
    """A work of a merged product: when its operands are there, on the launch's clock, and its price."""

    ready: float
    price: Price


@dataclass(slots=True)
class Taken:
    """When a product's first tile begins and ends, when its last one ends, and how long all groups are busy with it."""

    begin: float
    first_end: float
    stop: float
    busy: float


@dataclass(slots=True)
class Place:
    """Where the tiles of a product stand among those of a launch, parts of tiles counted each: the number of the first,
    how many there are, and how many of the tiles are among the launch's last, which do not fill a round."""

    first: int
    amount: int
    last: int


class TileGroups:
    """The groups of a launch: they take tiles, and parts of them, one after another, round and round. `counts` and
    `splits`: the tiles of each product, and into how many parts K of these is split."""

    def __init__(
        self, kernel: Pace, start: float, counts: Sequence[int], splits: Sequence[int], tail_parts: int
    ) -> None:
        self.kernel = kernel
        self.free = [start] * max(1, kernel.groups)  # when each has done what it has taken
        self.next = 0
        self.fresh = True  # none has taken any
        self.total = left = sum(counts)
        self.splits, self.tail_parts = splits, tail_parts
        self.places: list[Place] = []
        first, tail = 0, self.total % len(self.free)
        for count, split in zip(counts, splits, strict=True):
            left -= count
            last = max(0, min(count, tail - left))
            amount = (count - last) * split + last * (tail_parts if tail_parts > 1 else split)
            self.places.append(Place(first, amount, last))
            first += amount

    def apart(self, number: int, before: int) -> bool:
        """Whether no group takes a tile of one product behind a tile of an earlier one, or of any between the two."""
        last = self.places[number]
        return last.first + last.amount - self.places[before].first <= len(self.free)

    def estimate(self, parts: Sequence[PieceOfK]) -> float:
        """About how long all groups are busy with the tiles of a product."""
        tiles = [part.price.tiles for part in parts]
        return sum(t.count * t.steps * t.step for t in tiles if t is not None) / len(self.free)

    def take(self, number: int, parts: Sequence[PieceOfK], accumulate: bool, slower: float) -> Taken:
        """The tiles of a product. `slower`: how much longer steps take than of a device at rest."""
        place, splits = self.places[number], self.splits[number]
        tiles = [part.price.tiles for part in parts]
        count = tiles[0].count if tiles[0] is not None else 0
        steps = sum(t.steps for t in tiles if t is not None)
        step = next(t.step for t in tiles if t is not None) * slower
        ends = max(t.ends for t in tiles if t is not None)
        shares = [t.steps / steps if t is not None and steps else 1.0 for t in tiles]
        alone = sum(part.price.time for part in parts) / count  # of a tile's bytes, if it has the memory for itself
        last, self.next = place.last, place.first % len(self.free)
        begin, first_end, stop, busy = float("inf"), float("inf"), 0.0, 0.0
        for amount, split in ((count - last, splits), (last, self.tail_parts if self.tail_parts > 1 else splits)):
            if not amount:
                continue
            end = ends + self.kernel.tail(split, accumulate) - self.kernel.ends
            least = alone * min(len(self.free), self.total * split) / split
            time = max((ceil(steps / split) if split > 1 else steps) * step + end * self.kernel.shown, least)
            first, final = self._hand_out(amount * split, time, self._ready(parts, shares, split))
            begin, stop = min(begin, first), max(stop, final + end * (1 - self.kernel.shown))
            first_end = min(first_end, first + time)
            busy += amount * split * time / len(self.free)
        return Taken(begin, min(first_end, stop), stop, busy)

    @staticmethod
    def _ready(parts: Sequence[PieceOfK], shares: Sequence[float], split: int) -> list[tuple[float, float]]:
        """When each part of K is there, and which share of a tile's time comes after that at least."""
        if len(parts) == 1 and parts[0].price.late is not None:
            return [(parts[0].ready + ADDING, min(1.0, parts[0].price.late * split))]
        found, after = [], 1.0
        for part, share in zip(parts, shares, strict=True):
            found.append((part.ready, min(1.0, after * split)))
            after -= share
        return found

    def _hand_out(self, count: int, time: float, ready: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """`count` tiles, or parts of them: when the first begins and the last ends."""
        free, groups = self.free, len(self.free)
        soonest = max(at + share * time for at, share in ready)
        rounds, over = divmod(count, groups)
        if self.fresh and self.next == 0:  # all groups are free at the same time, and the first of them begins
            self.fresh = False
            end = max(free[0] + time, soonest)
            if rounds:
                free[:over] = [end + rounds * time] * over
                free[over:] = [end + (rounds - 1) * time] * (groups - over)
            else:
                free[:over] = [end] * over
            self.next = over
            return end - time, free[0]
        self.fresh = False
        begin, stop = float("inf"), 0.0
        for i in range(groups if rounds else over):  # a group's first tile may have to wait, no other
            at = self.next + i
            if at >= groups:
                at -= groups
            end = free[at] + time
            if end < soonest:
                end = soonest
            if end < begin:
                begin = end
            if rounds:
                end += (rounds - (i >= over)) * time
            free[at] = end
            if end > stop:
                stop = end
        self.next = (self.next + over) % groups
        return begin - time, stop

"""Simulates a launch on the virtual clock: its works run one after another, each once everything that it waits for has
arrived."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..device.ir import DeviceLaunch
from ..errors import Span
from ..graph.ir import Gemm
from ..machine.durations import slowed
from ..trace.model import launch_label
from .contention import Supply
from .prices import PieceOfK, Price, TileGroups
from .streams import Signal, SimStream
from .virtual_clock import VirtualClock


@dataclass(slots=True)
class _Making:
    """A work that is made by itself, or several that are made as one: when each was seen to be ready, and its price."""

    works: tuple[int, ...]
    seen: list[float]
    parts: list[PieceOfK]
    begun: float = 0.0  # when its first tile began
    made: bool = False
    asked: set[Signal] = field(default_factory=set)  # that it is looked at again for
    due: float = 0.0  # when it is looked at again
    open: int = 1  # its tiles, and its stores on another rank


class LaunchRun:
    """A running launch. `free`: the time when its stream became free for it; `done` is called at its end."""

    def __init__(
        self, clock: VirtualClock, stream: SimStream, launch: DeviceLaunch, free: float, done: Callable[[], None]
    ) -> None:
        self.clock, self.stream, self.launch, self.done = clock, stream, launch, done
        merged = launch.made_as_one
        splits = launch.config.split_k.works or (1,) * len(merged)
        parts = {i: n for works, n in zip(merged, splits, strict=True) for i in works}
        self.prices = [clock.prices.work(w, launch, stream.rank, parts[i]) for i, w in enumerate(launch.works)]
        self.products = [_Making(works, [], []) for works in merged]
        self.groups = self._groups(splits)
        self.made = 0  # products, from the first on
        self.together = self._together()
        self.drawn = free  # until when the stream's lane is drawn
        self.start = free
        self.waited = 0.0
        self.free = 0.0  # on the launch's clock: when works that are not made in tiles have ended
        self.open = len(self.products)
        self.sending: dict[Supply, deque[_Making]] = {}  # by port: products whose stores take it, one after another
        self.under_way: dict[int, Mapping[Supply, float]] = {}  # by product: what it uses a microsecond

    def _groups(self, splits: Sequence[int]) -> TileGroups | None:
        counts = [price.tiles.count for product in self.products if (price := self.prices[product.works[0]]).tiles]
        gemm = next((w.body for w in self.launch.works if isinstance(w.body, Gemm)), None)
        if gemm is None:
            return None
        assert len(counts) == len(self.products)  # one kernel makes all works of a launch
        kernel = self.clock.prices.pace(self.launch, self.clock.prices.dtypes[gemm.left.tensor])
        return TileGroups(kernel, kernel.start, counts, splits, self.launch.config.split_k.tail)

    def _together(self) -> float:
        """How long copies take that go out together, as a share of the time that they would take one after another:
        each way, and the launch's multiprocessors, are busy for the sum of what they are busy with for each."""
        if len(self.prices) == 1 or self.groups is not None or any(work.waits for work in self.launch.works):
            return 1.0
        ways: dict[Supply, float] = defaultdict(float)
        for price in self.prices:
            for supply, amount in price.uses.items():
                ways[supply] += amount / self.clock.prices.limit(supply)
        after = sum(price.time for price in self.prices)
        width = min(self.launch.sms, self.clock.machine.device.sms) / self.clock.machine.device.sms
        memory = ways.pop(self.stream.rank, 0.0) / width
        return min(1.0, max(memory, *ways.values(), 0.0) / after) if after else 1.0

    def begin(self) -> None:
        now, clock = self.clock.now, self.clock
        if self.launch.spins:
            self.drawn = self.start = now
        self.activity = clock.sharing.begin(now, {}, self.stream.rank, clock.prices.held(self.launch))
        self._look()

    # ---- what waits

    def _look(self) -> None:
        """Products are looked at in their order. One that is ready does not wait for others before it that are not, if
        no group takes its tiles behind theirs."""
        number = self.made
        while number < len(self.products):
            product = self.products[number]
            if number > self.made and (self.groups is None or not self.groups.apart(number, self.made)):
                return
            if not product.made and all(self._ready(product) for _ in range(len(product.works) - len(product.parts))):
                product.made = True
                self._make(number, product)
            if product.made and number == self.made:
                self.made += 1
            number += 1

    def _ready(self, product: _Making) -> bool:
        """Whether the product's next part is seen to be ready. Else `_look` is called again when something is."""
        clock, rank = self.clock, self.stream.rank
        index = product.works[len(product.parts)]
        latest = 0.0
        for signal in self._signals(index):
            seen = clock.seen(signal, rank)
            if seen is None:
                if signal not in product.asked:
                    product.asked.add(signal)
                    clock.waiting.setdefault(signal, []).append(self._look)
                return False
            latest = max(latest, seen)
        if latest > clock.now:
            if latest > product.due:
                product.due = latest
                clock.at(latest, self._look)
            return False
        product.seen.append(latest)
        product.parts.append(PieceOfK(self.activity.read(clock.now), self.prices[index]))
        return True

    def _signals(self, index: int) -> list[Signal]:
        flags = self.clock.flags
        return [flags[flag] for flag in self.launch.works[index].waits if flag in flags]

    # ---- what takes time

    def _make(self, number: int, product: _Making) -> None:
        """All parts of a product are there: when it begins and ends on the launch's clock."""
        clock, rank = self.clock, self.stream.rank
        sharing, now, activity = clock.sharing, clock.now, self.activity
        if self.groups is None:
            (part,) = product.parts
            begin, time = max(self.free, part.ready), part.price.time
            stop = self.free = begin + time * self.together
        else:
            body = self.launch.works[product.works[0]].body
            assert isinstance(body, Gemm)
            before = clock.multiplied.get(rank, 0.0)
            slower = slowed(clock.machine.device, before, self.groups.estimate(product.parts))
            taken = self.groups.take(number, product.parts, body.accumulate, slower)
            clock.multiplied[rank] = before + taken.busy
            begin, stop, time = taken.begin, taken.stop, taken.stop - taken.begin
            if product.parts[-1].price.sent:
                product.open += 1
                sharing.call(now, activity, taken.first_end, lambda: self._send(product))
        sharing.call(now, activity, begin, lambda: self._began(number, product, time))
        sharing.call(now, activity, stop, lambda: self._stopped(number, product))

    def _send(self, product: _Making) -> None:
        """The stores of a product on another rank begin when its first tile has ended, and those before it that take
        the same port or link."""
        way = next(supply for supply in product.parts[-1].price.sent if not isinstance(supply, int))
        queue = self.sending.setdefault(way, deque())
        queue.append(product)
        if len(queue) == 1:
            self._store(queue)

    def _store(self, queue: deque[_Making]) -> None:
        """Start to store the first product of the queue; the products behind it follow."""
        price = queue[0].parts[-1].price
        time = price.sent_time

        def sent() -> None:
            product = queue.popleft()
            if queue:
                self._store(queue)
            self._ended(product)

        self.clock.flow({supply: amount / time for supply, amount in price.sent.items()}, time, sent)

    def _began(self, number: int, product: _Making, time: float) -> None:
        product.begun = self.clock.now
        if not self.under_way and max(product.seen) > self.drawn:
            self._wait(product.works[0], self.drawn, product.seen[0])
        uses: dict[Supply, float] = defaultdict(float)
        for part in product.parts:
            for supply, amount in part.price.uses.items():
                uses[supply] += amount / time if time > 0 else 0.0
        self.under_way[number] = uses
        self._use()

    def _stopped(self, number: int, product: _Making) -> None:
        del self.under_way[number]
        if self.open > 1 or product.open > 1:  # else the launch ends now
            self._use()
        self._ended(product)

    def _use(self) -> None:
        uses: dict[Supply, float] = defaultdict(float)
        for some in self.under_way.values():
            for supply, amount in some.items():
                uses[supply] += amount
        if self.groups is not None:  # tiles' times know already that their groups load no faster than the memory gives
            uses[self.stream.rank] = min(uses[self.stream.rank], self.clock.prices.limit(self.stream.rank))
        self.clock.sharing.use(self.clock.now, self.activity, uses)

    def _ended(self, product: _Making) -> None:
        product.open -= 1
        if product.open:
            return
        clock = self.clock
        self._draw(product)
        for index in product.works:
            for flag in self.launch.works[index].signals:
                semaphore = clock.flags.get(flag)
                if semaphore is not None:
                    clock.lift(semaphore, semaphore, clock.now, self.stream)
        self.open -= 1
        if not self.open:
            clock.sharing.end(clock.now, self.activity)
            if self.launch.spins:
                self._whole()
            self.done()

    # ---- what the trace shows

    def _wait(self, index: int, start: float, stop: float) -> None:
        signals = self._signals(index)
        if signals and stop > start:
            origin = self.launch.works[index].origin
            self.clock.wait(self.stream, self.launch.stages[index], origin, signals, start, stop, self._ops(index))
            self.drawn = stop
            self.waited += stop - start

    def _ops(self, index: int) -> tuple[int, ...]:
        """The work's, where it is one of a streamed launch."""
        return (self.launch.works[index].op,) if self.launch.spins else ()

    def _whole(self) -> None:
        """A span for the launch as a whole, above those of its works."""
        launch, now = self.launch, self.clock.now
        label = launch_label(launch.stages, self.prices[0].label, len(self.prices))
        did = {"bytes": sum(price.bytes for price in self.prices), "flops": sum(price.flops for price in self.prices)}
        ops, waited = tuple(dict.fromkeys(work.op for work in launch.works)), self.waited
        self._record("launch", label, launch.stages[0], self.start, now, launch.origin, ops=ops, waited=waited, **did)

    def _record(self, kind: str, label: str, stage: str, start: float, stop: float, origin: Span, **more: Any) -> None:
        launched = self.clock.prices.launched(self.launch)
        self.clock.span(self.stream, kind, label, stage, start, stop, origin.place, launched=launched, **more)

    def _draw(self, product: _Making) -> None:
        """A span for each work. Of a streamed launch it goes from when the product's first tile began to when its last
        one ended, beside those of products whose tiles are at work at the same time. Of a product in parts, each goes
        from when it came, as long as its share of K is."""
        now = self.clock.now
        steps = [part.price.tiles.steps if part.price.tiles else 1.0 for part in product.parts]
        stop = begun = product.begun if self.launch.spins else self.drawn
        share = (now - begun) / (sum(steps) or 1.0)
        for i, index in enumerate(product.works):
            start = min(now, max(stop, product.seen[i]))
            stop = now if i + 1 == len(steps) else min(now, start + share * steps[i])
            self._span(index, product.parts[i].price, start, stop)
            if i + 1 < len(steps):
                self._wait(product.works[i + 1], max(stop, self.drawn), min(now, product.seen[i + 1]))

    def _span(self, index: int, price: Price, start: float, stop: float) -> None:
        work, stage = self.launch.works[index], self.launch.stages[index]
        kind = "collective" if work.op in self.clock.calls else price.kind
        did = {"bytes": price.bytes, "flops": price.flops, "peer": price.peer, "peer_bytes": price.peer_bytes}
        self._record(kind, f"{stage}  {price.label}", stage, start, stop, work.origin, ops=(work.op,), **did)
        self.drawn = max(self.drawn, stop)

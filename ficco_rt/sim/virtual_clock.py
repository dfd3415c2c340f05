"""The event queue of the virtual clock: what happens at which time, and which signals are set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from ..device.ir import DevicePlan, EventName
from ..errors import PlanError, Span
from ..graph.budget import SHARED, Budget
from ..machine.durations import overheads
from ..machine.model import Machine
from ..plan.ir import CollectiveCall, Plan
from ..trace.model import TraceSpan
from .contention import Sharing, Supply
from .prices import Prices
from .streams import Raised, Signal, SimStream


class VirtualClock:
    """Events of a run of a plan, whose device plan is `made`, and what they need to know."""

    def __init__(self, plan: Plan, made: DevicePlan, machine: Machine) -> None:
        self.machine, self.overheads = machine, overheads(machine.device)
        self.semaphores, self.flags = made.semaphores, made.semaphore_of
        self.calls: set[int] = {command.op for _, command in plan.commands() if isinstance(command, CollectiveCall)}
        self.prices = Prices(
            machine, {t.name: t.dtype for t in plan.tensors}, {t.name for t in plan.tensors if t.kind == "input"}
        )
        self.spans: list[TraceSpan] = []
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.now = 0.0
        self.counter = count()  # events of one time happen as they were made
        self.raised: dict[Signal, Raised] = {}
        self.waiting: dict[Signal, list[Callable[[], None]]] = {}
        self.heard: dict[SimStream, Raised] = {}  # what a side stream waited for last
        budget, place = Budget(SHARED, PlanError), plan.origin
        self.sharing = Sharing(
            self.prices.limit, machine.device.sms, self.at, self.overheads.beside, lambda n: budget.spend(n, place)
        )
        self.multiplied: dict[int, float] = {}  # by rank: µs of products, which slow a device down

    def at(self, time: float, action: Callable[[], None]) -> None:
        heappush(self.events, (time, next(self.counter), action))

    def run(self) -> None:
        while self.events:
            self.now, _, action = heappop(self.events)
            action()

    # ---- signals

    def seen(self, signal: Signal, rank: int, delay: float = 0.0) -> float | None:
        """When `rank` sees the signal up, on the same rank after `delay`; None while nothing has raised it."""
        raised = self.raised.get(signal)
        if raised is None:
            return None
        return raised.time + (delay if raised.rank == rank else self.machine.between(raised.rank, rank).signal_time)

    def lift(self, signal: Signal, of: EventName | int, time: float, by: SimStream) -> None:
        """Raises a signal: a semaphore, or a record of an event."""
        if by.name.kind == "wait":  # an event of a side stream tells the signal that the side stream has waited for
            _, _, of, origin = self.heard[by]
            self.raised[signal] = Raised(time, by.rank, of, origin)
        else:
            self.raised[signal] = Raised(time, by.rank, of, by)
        for action in self.waiting.pop(signal, ()):
            action()

    def wait(
        self,
        stream: SimStream,
        stage: str,
        place: Span | None,
        signals: Sequence[Signal],
        start: float,
        stop: float,
        ops: tuple[int, ...] = (),
    ) -> None:
        """Record a wait of a stage. It ended when the last of its signals was seen."""
        last = max((self.raised[signal] for signal in signals), key=lambda raised: raised.time)
        what = str(last.of) if isinstance(last.of, EventName) else self.semaphores[last.of].purpose
        label = f"waits for {what} of rank {last.by.rank} stream {last.by.label}"
        where, waited = "" if place is None else place.place, stop - start if ops else 0.0
        self.span(stream, "wait", label, stage, start, stop, where, ops=ops, waited=waited)

    # ---- what takes time

    def flow(self, uses: Mapping[Supply, float], time: float, done: Callable[[], None]) -> None:
        """Bytes go from now on, which take so long alone."""
        activity = self.sharing.begin(self.now, uses)

        def come() -> None:
            self.sharing.end(self.now, activity)
            done()

        self.sharing.call(self.now, activity, time, come)

    def span(
        self, stream: SimStream, kind: str, label: str, stage: str, start: float, stop: float, place: str, **more: Any
    ) -> None:
        """Adds a span of a stream to the trace; `more` are other fields of it."""
        self.spans.append(TraceSpan(stream.rank, stream.name.number, kind, label, stage, start, stop, place, **more))

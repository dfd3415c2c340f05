"""How a run begins and ends on all devices, beside the callers' streams.

Every device has a *gate*, behind which its streams of the plan begin, and a *done*, which stands behind all of them:

    gate of a device   waits for every device's done of the run before, so that nothing of it is overwritten, unless
                       the host has seen that run's end, and for the streams of those callers whose tensors the
                       device touches
    caller's stream    goes on behind the streams that touch the caller's tensors: its own rank's, and others' that
                       read or write them

so neither waits for a device that it has nothing to do with: an event that another device waits for takes ten
microseconds to get there, one of the same device two. Where all devices shall begin at one time, for marks on one clock
or because nobody calls, gates of streams wait for a start on the first device.

Flags that no launch takes down go down behind their device's own streams: these wait for all of them, so none is raised
after that.

A graph of a device stands in place of its streams, between the gate and done. The calls of a beginning and an end are
made ready once for each set of callers' streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from ...errors import DeviceError
from ...plan.ir import Plan
from ...plan.ir import Stream as PlanStream
from .devices import Device
from .flags import Flags
from .gpus import Gpus
from .program import entered, make
from .streams import GpuStream, Step
from .vendor import Handle

KEPT = 8  # sets of callers' streams

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Replay:
    """The calls of a run as graphs. `enters`: some change the context."""

    steps: tuple[Step, ...]
    enters: bool


@dataclass(frozen=True, slots=True)
class Sides:
    """The calls before a run and after it."""

    begin: tuple[Step, ...]
    end: tuple[Step, ...]


class Joins:
    """The beginnings and ends of one plan's runs. `streams` are the plan's, complete when a run begins."""

    def __init__(self, gpus: Gpus, flags: Flags, plan: Plan, streams: Sequence[GpuStream]) -> None:
        self._gpus = gpus
        self._flags = flags
        self._plan = plan
        self._streams = streams
        self._sides: dict[tuple[Handle, ...], Sides] = {}
        self._start = gpus.new_event(gpus.first)
        self._called = [gpus.new_event(gpus.device(rank)) for rank in range(plan.ranks)]
        self.gates = {i: gpus.new_event(device, timing=True) for i, device in gpus.devices.items()}
        self.ends = {i: gpus.new_event(device, timing=True) for i, device in gpus.devices.items()}
        self.done = {i: gpus.new_event(device) for i, device in gpus.devices.items()}
        self._opened = {i: gpus.new_event(device) for i, device in gpus.devices.items()}  # the gate inside a graph
        touched = [callers(stream, plan) for stream in plan.streams]
        homes = gpus.homes
        self._needs = {  # device → ranks whose callers it waits for
            i: sorted({r for s, t in zip(plan.streams, touched, strict=True) if homes[s.rank] == i for r in t})
            for i in gpus.devices
        }
        self._frees = [  # rank → streams that its caller waits for
            [n for n, t in enumerate(touched) if rank in t] for rank in range(plan.ranks)
        ]

    def sides(self, called: Sequence[Handle], marked: bool, behind: bool, timed: bool) -> Sides:
        """For callers' streams, one a rank, or none. `marked`: with marks in time, so that all devices begin together,
        as where nobody calls. `behind`: a run before may still be on its way. `timed`: with events that tell how long
        the run takes."""
        return kept(
            self._sides,
            (marked, behind, timed, *called),
            lambda: self._sides_of(self._begin(called, marked, behind, timed), self._end(called, timed)),
        )

    def _sides_of(self, begin: Iterable[Step], end: Iterable[Step]) -> Sides:
        vendor = self._gpus.vendor
        return Sides(tuple(entered(vendor, begin)), tuple(entered(vendor, end)))

    # ---- on streams

    def _begin(self, called: Sequence[Handle], marked: bool, behind: bool, timed: bool) -> Iterator[Step]:
        gpus, vendor, first = self._gpus, self._gpus.vendor, self._gpus.first
        together = marked or not called
        yield from self._callers_come(called, range(len(called)))
        if together:
            yield from self._wait(first, [*self._called[: len(called)], *self._before(behind)])
            yield Step(first, *vendor.record_action(self._start, gpus.control[first.ordinal]), "the run's start")
        for i, device in gpus.devices.items():
            if not together:
                events = [*self._comes(called, i), *self._before(behind)]
            else:
                events = [self._start] if device is not first else []
            opens = events[0] if len(events) == 1 else self.gates[i]
            if timed or opens is self.gates[i]:
                yield from self._wait(device, events)
                yield Step(device, *vendor.record_action(self.gates[i], gpus.control[i]), "the run's gate")
            for stream in self._on(i):
                yield Step(device, *vendor.wait_action(stream.handle, opens), str(stream))
                if stream.waits is not None and not marked:  # with marks all stands on the stream itself
                    yield Step(device, *vendor.wait_action(stream.waits.stream, opens), str(stream))

    def _end(self, called: Sequence[Handle], timed: bool) -> Iterator[Step]:
        gpus, vendor = self._gpus, self._gpus.vendor
        for i, device in gpus.devices.items():
            for stream in self._on(i):
                yield Step(device, *vendor.record_action(stream.tail, stream.handle), str(stream))
        for rank, caller in enumerate(called):
            for n in self._frees[rank]:
                wait = vendor.wait_action(caller, self._streams[n].tail)
                yield Step(gpus.device(rank), *wait, f"the caller's stream of rank {rank}")
        for i, device in gpus.devices.items():
            yield from self._wait(device, [stream.tail for stream in self._on(i)])
            if timed:
                yield Step(device, *vendor.record_action(self.ends[i], gpus.control[i]), "the run's end")
            lower = self._flags.lower(i, gpus.control[i], crossings=False)
            if lower is not None:
                yield Step(device, *lower, "the plan's flags")
            yield Step(device, *vendor.record_action(self.done[i], gpus.control[i]), "the run's end")

    def _callers_come(self, called: Sequence[Handle], ranks: Iterable[int]) -> Iterator[Step]:
        for rank in ranks:
            record = self._gpus.vendor.record_action(self._called[rank], called[rank])
            yield Step(self._gpus.device(rank), *record, f"the caller's stream of rank {rank}")

    def _comes(self, called: Sequence[Handle], ordinal: int) -> list[Handle]:
        """The events of the callers that a device waits for."""
        return [self._called[rank] for rank in self._needs[ordinal]] if called else []

    def _before(self, behind: bool, but: int | None = None) -> list[Handle]:
        """The ends of the run before, where all flags are down again; `but`: of all devices but one."""
        return [event for i, event in self.done.items() if i != but] if behind else []

    def _on(self, ordinal: int) -> list[GpuStream]:
        return [s for s in self._streams if s.device.ordinal == ordinal]

    def _wait(self, device: Device, events: Sequence[Handle], stream: Handle = None) -> Iterator[Step]:
        """On the device's control stream, or another of its streams."""
        stream = self._gpus.control[device.ordinal] if stream is None else stream
        for event in events:
            yield Step(device, *self._gpus.vendor.wait_action(stream, event), "the run's gate")

    # ---- as graphs, one a device

    def inside_graphs(self) -> Sides:
        """What is captured before the plan's commands and behind them: from each device's control stream to its
        streams of the plan, and back when all are through and the device's words are down."""
        gpus, vendor = self._gpus, self._gpus.vendor
        begin: list[Step] = []
        end: list[Step] = []
        for i, device in gpus.devices.items():
            control, opened = gpus.control[i], self._opened[i]
            begin.append(Step(device, *vendor.record_action(opened, control), "the run's gate"))
            for stream in self._on(i):
                begin.append(Step(device, *vendor.wait_action(stream.handle, opened), str(stream)))
                end.append(Step(device, *vendor.record_action(stream.tail, stream.handle), str(stream)))
            end += self._wait(device, [stream.tail for stream in self._on(i)])
            lower = self._flags.lower(i, control, crossings=True)
            if lower is not None:
                end.append(Step(device, *lower, "the plan's flags"))
        return self._sides_of(begin, end)

    def replay(
        self, called: Sequence[Handle], graphs: Mapping[int, Handle], behind: bool, others: bool, timed: bool
    ) -> Replay:
        """Each device's graph between its gate and done; the rest as `sides` has it. `others`: the run before did not
        end on these very streams, as the graphs of the same callers do."""
        plain = tuple(self._around_graphs(called, graphs, behind, others, timed))
        steps = tuple(entered(self._gpus.vendor, plain))
        return Replay(steps, len(steps) > len(plain))

    def _around_graphs(
        self, called: Sequence[Handle], graphs: Mapping[int, Handle], behind: bool, others: bool, timed: bool
    ) -> Iterator[Step]:
        """On the stream of a caller of the device, where there is one: an event less on either side."""
        gpus, vendor = self._gpus, self._gpus.vendor
        hosts = {i: self._host(i) if called else None for i in gpus.devices}  # device → the rank of that caller
        on = {i: gpus.control[i] if rank is None else called[rank] for i, rank in hosts.items()}
        comes = {i: [rank for rank in self._needs[i] if rank != hosts[i]] if called else [] for i in gpus.devices}
        yield from self._callers_come(called, {rank for ranks in comes.values() for rank in ranks})
        for i, device in gpus.devices.items():
            events = [*(self._called[rank] for rank in comes[i]), *self._before(behind, but=None if others else i)]
            yield from self._wait(device, events, on[i])
            if timed:
                yield Step(device, *vendor.record_action(self.gates[i], on[i]), "the run's gate")
            yield Step(device, *vendor.graph_action(graphs[i], on[i]), "the run's graph")
        for i, device in gpus.devices.items():  # not before all gates: they wait for the run before
            if timed:
                yield Step(device, *vendor.record_action(self.ends[i], on[i]), "the run's end")
            yield Step(device, *vendor.record_action(self.done[i], on[i]), "the run's end")
            if hosts[i] is not None:  # so that the device's own streams tell whether it is through
                yield from self._wait(device, [self.done[i]])
        for rank, caller in enumerate(called):
            for i in dict.fromkeys(self._streams[n].device.ordinal for n in self._frees[rank]):
                if hosts[i] != rank:
                    wait = vendor.wait_action(caller, self.done[i])
                    yield Step(gpus.device(rank), *wait, f"the caller's stream of rank {rank}")

    def follow(self, called: Sequence[Handle]) -> None:
        """The devices' own streams stand behind the callers', on which graphs of a run that is not whole may be. This
        is called where another error is on its way, so it raises none."""
        for rank in range(len(called)):
            device = self._gpus.device(rank)
            with suppress(DeviceError), self._gpus.inside(device):
                make(self._gpus, [*self._callers_come(called, [rank]), *self._wait(device, [self._called[rank]])])

    def _host(self, ordinal: int) -> int | None:
        """The first rank of a device that its graph waits for."""
        return next((rank for rank in self._needs[ordinal] if self._gpus.homes[rank] == ordinal), None)


def kept(cache: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """The cache's value, made if it has none; the one used longest ago goes when there are more than KEPT."""
    found = cache.pop(key, None)
    if found is None:
        found = make()
        while len(cache) >= KEPT:
            del cache[next(iter(cache))]
    cache[key] = found
    return found


def callers(stream: PlanStream, plan: Plan) -> set[int]:
    """The ranks whose inputs and outputs the stream's commands touch, and its own. A collective touches those of all,
    but holds all ranks' streams together itself, so it adds none."""
    bound = {t.name for t in plan.tensors if t.kind != "scratch"}
    found = {stream.rank}
    for command in stream.commands:
        found |= {access.region.rank for access in command.accesses() if access.region.tensor in bound}
    return found

"""Runs of a plan: begun, issued, ended; captured and replayed; waited for, and given up.

The origin, a stream of the first device, waits for the callers' streams and for the last run; every stream of the
plan waits for it; commands follow; the origin waits for all streams' ends, and the callers' streams for that. So
everything of a run is complete, on all ranks, before the next overwrites it.

A run as a graph is the same calls, captured once, and one call a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import DeviceError, UsageError
from ..api import Call
from .devices import Device
from .flags import Flags
from .gpus import Gpus
from .spans import raisers_of, stuck
from .streams import Bound, GpuStream, Upload
from .vendor import Handle

DRAIN = 5.0  # seconds that a given-up run gets to end once its flags are forced up
_SPIN = 2e-3  # seconds that `synchronize` asks without a nap


@dataclass(slots=True, eq=False)
class Captured:
    """A run as a graph, and the calls that it was made of."""

    graph: Handle
    calls: tuple[Call, ...]


class Runs:
    """The runs of one plan. `streams` are the plan's; `uploads` tells what words must be 0 before a run.
    `timeout` is the seconds that `synchronize` waits; None: for ever."""

    def __init__(
        self,
        gpus: Gpus,
        flags: Flags,
        streams: Sequence[GpuStream],
        uploads: Callable[[], Sequence[Upload]],
        timeout: float | None,
    ) -> None:
        self._gpus = gpus
        self._flags = flags
        self._streams = streams
        self._uploads = uploads
        self._timeout = timeout
        self._running = False  # issued, not seen to end
        self._dirty = False  # a run was given up: flags and counters may be up
        self._replayed: Captured | None = None  # what the last run was, if a graph
        self._joined: list[tuple[Device, Handle]] = []  # the callers' streams in this run
        self.lost = False  # the devices do not answer any more: nothing can be given back
        self.marked = False  # the last run was recorded
        first = gpus.first
        self._origin = gpus.new_stream(first)
        self._start, self._stop = gpus.new_event(first, timing=True), gpus.new_event(first, timing=True)
        self._fork = gpus.new_event(first)
        self._callers = [gpus.new_event(gpus.device(rank)) for rank in range(len(gpus.homes))]
        self._bases = {i: gpus.new_event(device, timing=True) for i, device in gpus.devices.items()}

    # ---- on streams

    def begin(self, streams: Sequence[Handle]) -> None:
        self._prepare()
        self._replayed, self.marked = None, self._gpus.marking
        for stream in self._streams:
            stream.issued.clear()
        self._open(streams)
        self._fan_out()
        if self.marked:
            gpus, vendor = self._gpus, self._gpus.vendor
            for i, device in gpus.devices.items():
                gpus.enter(device)
                vendor.wait(gpus.control[i], self._fork)
                vendor.record(self._bases[i], gpus.control[i])

    def end(self) -> None:
        self._fan_in()
        self._close()

    def abandon(self) -> None:
        """The run that is being issued will not be whole: what was issued is let through, the rest forgotten."""
        if self.lost:
            return
        self._running = self._dirty = True
        self._joined = []
        self._release()
        self._gpus.end_issue()

    def _prepare(self) -> None:
        self.answers()
        if self._dirty:
            self._clear()
        self._gpus.begin_issue()

    def _open(self, streams: Sequence[Handle]) -> None:
        """The origin waits for what stands on the callers' streams now."""
        gpus, vendor = self._gpus, self._gpus.vendor
        self._joined = []
        for rank, (stream, event) in enumerate(zip(streams, self._callers, strict=False)):
            device = gpus.device(rank)
            gpus.enter(device)
            vendor.record(event, stream, f"the caller's stream of rank {rank}")
            self._joined.append((device, stream))
            vendor.wait(self._origin, event)
        gpus.enter(gpus.first)
        vendor.record(self._start, self._origin)
        self._running = True

    def _close(self) -> None:
        """The callers' streams go on when the origin gets here."""
        gpus, vendor = self._gpus, self._gpus.vendor
        gpus.enter(gpus.first)
        vendor.record(self._stop, self._origin)
        for device, stream in self._joined:
            gpus.enter(device)
            vendor.wait(stream, self._stop)
        self._joined = []
        gpus.end_issue()

    def _fan_out(self) -> None:
        """All streams of the plan begin when the origin gets here."""
        gpus, vendor = self._gpus, self._gpus.vendor
        gpus.enter(gpus.first)
        vendor.record(self._fork, self._origin)
        for stream in self._streams:
            gpus.enter(stream.device)
            vendor.wait(stream.handle, self._fork)

    def _fan_in(self) -> None:
        """The origin goes on when all streams are through and the flags are down again."""
        gpus, vendor = self._gpus, self._gpus.vendor
        for stream in self._streams:
            gpus.enter(stream.device)
            vendor.record(stream.tail, stream.handle)
        gpus.enter(gpus.first)
        for stream in self._streams:
            vendor.wait(self._origin, stream.tail)
        self._flags.lower(self._origin, self._fork)

    # ---- as a graph

    def capture(self, calls: Sequence[Call]) -> Captured:
        """The calls of a run as one graph over all devices."""
        gpus, vendor = self._gpus, self._gpus.vendor
        self.quiet()
        gpus.begin_issue()
        try:
            gpus.enter(gpus.first)
            vendor.begin_capture(self._origin)
            gpus.capturing = True
            try:
                self._fan_out()
                for issue in calls:
                    issue()
                self._fan_in()
            except BaseException:  # the first error is the one to tell
                gpus.enter(gpus.first)
                vendor.drop_capture(self._origin)
                raise
            finally:
                gpus.capturing = False
            gpus.enter(gpus.first)
            captured = vendor.end_capture(self._origin)
            try:
                return Captured(vendor.instantiate(captured), tuple(calls))
            finally:
                vendor.destroy_captured(captured)
        finally:
            gpus.end_issue()

    def replay(self, captured: Captured, streams: Sequence[Handle]) -> None:
        self._prepare()
        self._replayed, self.marked = captured, False
        self._open(streams)
        self._gpus.vendor.launch_graph(captured.graph, self._origin)
        self._close()

    # ---- the end of a run

    def synchronize(self) -> None:
        if not self._running or self.lost:
            return
        begun = time.monotonic()
        naps = 0
        while not self._ended(self._stop):
            waited = time.monotonic() - begun
            if self._timeout is not None and waited > self._timeout:
                self._give_up(waited)
            naps += 1
            if waited > _SPIN:
                time.sleep(min(1e-3, 1e-5 * naps))
        self._running = False

    def quiet(self) -> None:
        """The last run has ended, and the devices answer."""
        self.synchronize()
        self.answers()

    def answers(self) -> None:
        if self.lost:
            raise DeviceError("the GPUs do not answer since an earlier error; start a new process")

    def microseconds(self) -> float:
        """From the last run's begin to its end."""
        self.synchronize()
        return 1e3 * self._gpus.vendor.milliseconds(self._start, self._stop)

    def since(self, stream: GpuStream, mark: Handle) -> float:
        """Microseconds from a recorded run's begin to a mark. Devices' clocks are set to one another by the event that
        begins the run: they agree to some microseconds, the time that it takes to reach them."""
        base = self._bases[stream.device.ordinal]
        return max(0.0, 1e3 * self._gpus.vendor.milliseconds(base, mark))

    def _ended(self, event: Handle) -> bool:
        try:
            return self._gpus.vendor.ended(event)
        except DeviceError as error:
            self.lost = True  # errors of running work stay with the context
            raise DeviceError("\n".join([str(error), *self._report()])) from error

    def _give_up(self, waited: float) -> None:
        report = self._report()
        self._dirty = True
        through = self._release()
        if self._replayed is not None:
            report = self._report_of(self._replayed) if through else []
            report = report or ["a replayed graph does not tell how far it got; on streams (--no-graph) the run does"]
        state = "" if through else "\nthe GPUs still run it: this process can use them no more"
        raise DeviceError(f"the run did not end within {waited:.0f} s (--timeout)\n" + "\n".join(report) + state)

    def _report(self) -> list[str]:
        """A line for each stream that is not through."""
        if self._replayed is not None:
            return []
        raisers = raisers_of(self._streams)
        lines = [stuck(stream, self._done, raisers) for stream in self._streams]
        return [line for line in lines if line is not None]

    def _report_of(self, replayed: Captured) -> list[str]:
        """Where the commands of a graph that did not end get stuck when they are issued one by one."""
        try:
            self.begin(())
            for issue in replayed.calls:
                issue()
            self.end()
            begun = time.monotonic()
            while not self._ended(self._stop) and time.monotonic() - begun < DRAIN:
                time.sleep(1e-3)
            report = self._report()
        except DeviceError as error:
            report = str(error).splitlines()
        self._dirty = True
        self._release()
        return ["the same commands, issued one by one:", *report] if report else []

    def _done(self, bound: Bound) -> bool | None:
        """Whether a command has ended; None if nothing tells."""
        if self.marked and bound.marks:
            return self._passed(bound.marks[-1])
        if bound.event is not None:
            return self._passed(bound.event)
        return True if self._passed(bound.stream.tail) else None

    def _passed(self, event: Handle) -> bool:
        try:
            return self._gpus.vendor.ended(event)
        except DeviceError:
            return False

    def _release(self) -> bool:
        """Force all flags up, so that whatever waits for one goes on, and wait a little: is all through now?"""
        self._flags.force_up()
        if not self.drained():
            self.lost = True
            return False
        self._running = False
        return True

    def drained(self) -> bool:
        """Wait a little for all streams: are they through?"""
        begun = time.monotonic()
        while not self._gpus.idle():
            if time.monotonic() - begun > DRAIN:
                return False
            time.sleep(1e-3)
        return True

    def _clear(self) -> None:
        """Flags and counters are down, whatever a given-up run has left."""
        self._flags.clear()
        for upload in self._uploads():
            self._gpus.put(upload.device, upload.counters, np.zeros(upload.words, np.uint32))
        self._dirty = False

    def settle(self) -> None:
        """Before all is given back: the last run is through, or let through."""
        if self._running and not self.lost and not self.drained():
            self._release()


def handles(streams: Sequence[object], ranks: int) -> list[Handle]:
    """The callers' streams, one a rank: each an int handle, or an object with `cuda_stream` (PyTorch), `ptr` (CuPy) or
    `__cuda_stream__`."""
    if streams and len(streams) != ranks:
        raise UsageError(f"streams: wanted one a rank, {ranks}; given {len(streams)}")
    return [_handle(given, rank) for rank, given in enumerate(streams)]


def _handle(given: object, rank: int) -> int:
    protocol = getattr(given, "__cuda_stream__", None)
    if callable(protocol):
        return int(protocol()[1])
    for name in ("cuda_stream", "ptr"):
        found = getattr(given, name, None)
        if isinstance(found, int):
            return found
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    raise UsageError(f"streams: rank {rank}'s is {type(given).__name__}, not a stream of a GPU")

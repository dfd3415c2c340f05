"""Runs of a plan: begun, issued, ended; captured and replayed; waited for, and given up.

The origin, a stream of the first device, waits for the callers' streams and for the last run; every stream of the
plan waits for it; commands follow; the origin waits for all streams' ends, and the callers' streams for that. So
everything of a run is complete, on all ranks, before the next overwrites it.

A run as a graph is the same calls, captured once, and one call a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ...errors import DeviceError, UsageError
from ..api import Call
from .devices import Device
from .flags import Flags
from .gpus import SPIN, Gpus
from .refused import concerning
from .spans import raisers_of, stuck
from .streams import Bound, GpuStream, Upload
from .vendor import Handle

DRAIN = 5.0  # seconds that a given-up run gets to end once its flags are forced up


@dataclass(slots=True, eq=False)
class Captured:
    """A run as a graph, and the calls that it was made of."""

    graph: Handle
    calls: tuple[Call, ...]


class Runs:
    """The runs of one plan. `streams` are the plan's; `uploads` tells what words must be 0 before a run."""

    def __init__(
        self,
        gpus: Gpus,
        flags: Flags,
        streams: Sequence[GpuStream],
        uploads: Callable[[], Sequence[Upload]],
    ) -> None:
        self._gpus = gpus
        self._flags = flags
        self._streams = streams
        self._uploads = uploads
        self._running = False  # issued, not seen to end
        self._trouble: DeviceError | None = None  # of asking whether all is through
        self._dirty = False  # a run was given up: flags and counters may be up
        self._replayed: Captured | None = None  # what the last run was, if a graph
        self._joined: list[tuple[Device, Handle]] = []  # the callers' streams in this run
        self.lost = False  # what ran failed, or does not end: the devices run nothing of ours any more
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
                with concerning(device):
                    vendor.wait(gpus.control[i], self._fork)
                    vendor.record(self._bases[i], gpus.control[i])

    def end(self) -> None:
        self._fan_in()
        self._close()

    def abandon(self) -> None:
        """The run that is being issued will not be whole: what was issued is let through, the rest forgotten.
        It stands where another error is on its way, so it raises none."""
        self._joined = []
        if not self.lost:
            self._running = self._dirty = True
            self._release()
        if not self._gpus.hung:
            with suppress(DeviceError):
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
            with concerning(device):
                vendor.record(event, stream, f"the caller's stream of rank {rank}")
            self._joined.append((device, stream))
            with concerning(gpus.first):
                vendor.wait(self._origin, event)
        gpus.enter(gpus.first)
        with concerning(gpus.first):
            vendor.record(self._start, self._origin)
        self._running = True

    def _close(self) -> None:
        """The callers' streams go on when the origin gets here."""
        gpus, vendor = self._gpus, self._gpus.vendor
        gpus.enter(gpus.first)
        with concerning(gpus.first):
            vendor.record(self._stop, self._origin)
        for device, stream in self._joined:
            gpus.enter(device)
            with concerning(device):
                vendor.wait(stream, self._stop)
        self._joined = []
        gpus.end_issue()

    def _fan_out(self) -> None:
        """All streams of the plan begin when the origin gets here."""
        gpus, vendor = self._gpus, self._gpus.vendor
        gpus.enter(gpus.first)
        with concerning(gpus.first):
            vendor.record(self._fork, self._origin)
        for stream in self._streams:
            gpus.enter(stream.device)
            with concerning(stream.device):
                vendor.wait(stream.handle, self._fork)

    def _fan_in(self) -> None:
        """The origin goes on when all streams are through and the flags are down again."""
        gpus, vendor = self._gpus, self._gpus.vendor
        for stream in self._streams:
            gpus.enter(stream.device)
            with concerning(stream.device):
                vendor.record(stream.tail, stream.handle)
        gpus.enter(gpus.first)
        with concerning(gpus.first):
            for stream in self._streams:
                vendor.wait(self._origin, stream.tail)
        self._flags.lower(self._origin, self._fork)

    # ---- as a graph

    def capture(self, calls: Sequence[Call]) -> Captured:
        """The calls of a run as one graph over all devices."""
        gpus, vendor = self._gpus, self._gpus.vendor
        self.quiet()
        gpus.begin_issue()
        graph: Handle = None
        try:
            captured = self._recorded(calls)
            with concerning(gpus.first):
                graph = self._instance(captured)
            gpus.end_issue()
        except BaseException:  # the first error is the one to tell
            with suppress(DeviceError):
                gpus.end_issue()
            if graph is not None:
                with suppress(DeviceError):
                    vendor.destroy_graph(graph)
            raise
        return Captured(graph, tuple(calls))

    def _recorded(self, calls: Sequence[Call]) -> Handle:
        """What the calls put on the origin and the streams behind it."""
        gpus, vendor = self._gpus, self._gpus.vendor
        gpus.enter(gpus.first)
        try:
            with concerning(gpus.first):
                vendor.begin_capture(self._origin)
            gpus.capturing = True
            self._fan_out()
            for issue in calls:
                issue()
            self._fan_in()
            gpus.enter(gpus.first)
            with concerning(gpus.first):
                return vendor.end_capture(self._origin)
        except BaseException:  # the first error is the one to tell
            with suppress(DeviceError):
                gpus.enter(gpus.first)
            vendor.drop_capture(self._origin)
            raise
        finally:
            gpus.capturing = False

    def _instance(self, captured: Handle) -> Handle:
        """A graph to be launched, of what was captured, which is given back."""
        vendor = self._gpus.vendor
        try:
            graph = vendor.instantiate(captured)
        except BaseException:
            with suppress(DeviceError):
                vendor.destroy_captured(captured)
            raise
        try:
            vendor.destroy_captured(captured)
        except BaseException:
            with suppress(DeviceError):
                vendor.destroy_graph(graph)
            raise
        return graph

    def replay(self, captured: Captured, streams: Sequence[Handle]) -> None:
        try:
            self._prepare()
            self._replayed, self.marked = captured, False
            self._open(streams)
            with concerning(self._gpus.first):
                self._gpus.vendor.launch_graph(captured.graph, self._origin)
            self._close()
        except BaseException:
            self.abandon()
            raise

    # ---- the end of a run

    def synchronize(self) -> None:
        if not self._running or self.lost:
            return
        try:
            self._wait()
        except KeyboardInterrupt:  # flags may keep it from an end that nobody waits for any more
            self._dirty = True
            self._release()
            raise

    def _wait(self) -> None:
        begun = time.monotonic()
        limit = self._gpus.timeout
        naps = 0
        while not self._ended():
            waited = time.monotonic() - begun
            if limit is not None and waited > limit:
                self._give_up(waited)
            naps += 1
            if waited > SPIN:
                time.sleep(min(1e-3, 1e-5 * naps))
                self._ended(everywhere=True)
        self._running = False

    def quiet(self) -> None:
        """The last run has ended, and the devices answer."""
        self.synchronize()
        self.answers()

    def answers(self) -> None:
        if self.lost or self._gpus.hung:
            raise DeviceError("the GPUs run nothing since an earlier error; make a new executor, in a new process")

    def microseconds(self) -> float:
        """From the last run's begin to its end."""
        self.synchronize()
        with concerning(self._gpus.first):
            return 1e3 * self._gpus.vendor.milliseconds(self._start, self._stop)

    def since(self, stream: GpuStream, mark: Handle) -> float:
        """Microseconds from a recorded run's begin to a mark. Devices' clocks are set to one another by the event that
        begins the run: they agree to some microseconds, the time that it takes to reach them."""
        base = self._bases[stream.device.ordinal]
        return max(0.0, 1e3 * self._gpus.vendor.milliseconds(base, mark))

    def _ended(self, *, everywhere: bool = False) -> bool:
        """Whether the run has. DeviceError: what ran failed; with `everywhere`, on a device that the origin, which
        waits for it, may never hear of."""
        try:
            if everywhere:
                self._gpus.well()
            with concerning(self._gpus.first, "while the plan ran"):
                return self._gpus.vendor.ended(self._stop)
        except DeviceError as error:
            self.lost = True  # errors of running work stay with the context
            raise DeviceError("\n".join([str(error), *self._report()])) from error

    def _give_up(self, waited: float) -> None:
        report = self._report() or [f"{device} still runs what belongs to no command" for device in self._gpus.busy()]
        self._dirty = True
        through = self._release()
        if self._replayed is not None:
            report = self._report_of(self._replayed) if through else []
            report = report or ["a replayed graph does not tell how far it got; on streams (--no-graph) the run does"]
        busy = " and ".join(self._gpus.busy())
        state = "" if through else f"\n{busy} still run it: this process can use them no more"
        raise DeviceError(f"the run did not end within {waited:.3g} s (--timeout)\n" + "\n".join(report) + state)

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
            while not self._ended() and time.monotonic() - begun < DRAIN:
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
        with suppress(DeviceError):  # what still waits is seen below
            self._flags.force_up()
        if not self._drained():
            self.lost = self._gpus.hung = True
            return False
        self._running = False
        return True

    def _drained(self) -> bool:
        """Wait a little for all streams: does nothing run any more?"""
        begun = time.monotonic()
        self._trouble = None
        while True:
            through, error = self._gpus.rest()
            self.lost = self.lost or (error is not None and self._trouble is not None)  # again: no single call's
            self._trouble = self._trouble or error
            if through and (error is None or self.lost):
                return True
            if time.monotonic() - begun > DRAIN:
                return False
            time.sleep(1e-3)

    def _clear(self) -> None:
        """Flags and counters are down, whatever a given-up run has left."""
        self._flags.clear()
        for upload in self._uploads():
            self._gpus.put(upload.device, upload.counters, np.zeros(upload.words, np.uint32))
        self._dirty = False

    def settle(self) -> None:
        """Before all is given back: the last run is through, or let through. DeviceError: asking for that failed."""
        self._trouble = None
        if not self._gpus.hung and not self._drained():
            if self.lost:  # what still runs waits for a device that failed
                self._gpus.hung = True
            else:
                self._release()
        if self._trouble is not None:
            raise self._trouble


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

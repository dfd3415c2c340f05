"""Runs of a plan: begun, issued, ended; captured and replayed; waited for, and given up.

`joins` says how a run stands among the callers' streams and behind the run before. As graphs a run is the same calls,
captured once, a graph for each device, and one call a device and run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from ...errors import DeviceError, UsageError
from ...plan.ir import Plan
from .devices import Device
from .flags import Flags
from .gpus import SPIN, Gpus
from .joins import Joins, Replay, kept
from .program import Program, make
from .refused import Closing, concerning
from .spans import raisers_of, stuck
from .streams import Bound, GpuStream, Upload
from .vendor import Handle

DRAIN = 5.0  # seconds that a given-up run gets to end once its flags are forced up, and the one before it gets


@dataclass(slots=True, eq=False)
class Captured:
    """A run as graphs, by device, and the program that they were made of."""

    graphs: dict[int, Handle]
    program: Program
    replays: dict[tuple[Handle, ...], Replay] = field(default_factory=dict)  # by what stands around them


class Runs:
    """The runs of one plan. `streams` are the plan's; `uploads` tells what words must be 0 before a run."""

    def __init__(
        self,
        gpus: Gpus,
        flags: Flags,
        plan: Plan,
        streams: Sequence[GpuStream],
        uploads: Callable[[], Sequence[Upload]],
    ) -> None:
        self._gpus = gpus
        self._flags = flags
        self._streams = streams
        self._uploads = uploads
        self._joins = Joins(gpus, flags, plan, streams)
        self._running = False  # issued, not seen to end
        self._callers: tuple[Handle, ...] = ()  # of the last run
        self._trouble: DeviceError | None = None  # of asking whether all is through
        self._dirty = False  # a run was given up: flags and counters may be up
        self._replayed: Captured | None = None  # what the last run was, if graphs
        self.lost = False  # what ran failed, or does not end: the devices run nothing of ours any more
        self.marked = False  # the last run was recorded
        self._timed = False  # and timed

    # ---- on streams

    def run(self, program: Program, streams: Sequence[Handle]) -> None:
        gpus = self._gpus
        try:
            self._prepare()
            gpus.begin_issue()
            self._replayed, self.marked = None, gpus.marking
            steps = program.steps(marked=self.marked)
            for stream in self._streams:
                stream.issued = []
            self._timed = self.marked or gpus.timing or not streams
            sides = self._joins.sides(streams, self.marked, self._running, self._timed)
            self._running, self._callers = True, tuple(streams)
            make(gpus, sides.begin)
            program.issued()
            make(gpus, steps)
            make(gpus, sides.end)
            gpus.end_issue()
        except BaseException:
            self._abandon()
            raise

    def _abandon(self, hosts: Sequence[Handle] = ()) -> None:
        """The run that was being issued will not be whole: what was issued is let through, the rest forgotten.
        It stands where another error is on its way, so it raises none. `hosts`: callers' streams that have graphs."""
        if not self.lost:
            self._running = self._dirty = True
            self._await_last()
            self._joins.follow(hosts)
            self._release()
        if not self._gpus.hung:
            with suppress(DeviceError):
                self._gpus.end_issue()

    def _await_last(self) -> None:
        """The last run that is whole ends by itself: flags forced up would spoil it, and its end takes flags down. It
        gets DRAIN seconds."""
        begun = time.monotonic()
        with suppress(DeviceError):
            while not all(map(self._through, self._gpus.devices)) and time.monotonic() - begun < DRAIN:
                time.sleep(1e-3)

    def _prepare(self) -> None:
        self.answers()
        if self._dirty:
            self._clear()

    # ---- as graphs

    def capture(self, program: Program) -> Captured:
        """A run of the program as a graph for each device."""
        gpus = self._gpus
        self.quiet()
        captured = Captured({}, program)
        gpus.begin_issue()
        try:
            self._record(captured)
            gpus.end_issue()
        except BaseException:  # the first error is the one to tell
            with suppress(DeviceError):
                gpus.end_issue()
            with suppress(DeviceError):
                self.drop(captured)
            raise
        return captured

    def _record(self, captured: Captured) -> None:
        """Capture all devices' control streams at once, with the streams behind them, and make graphs of that."""
        gpus, vendor, sides = self._gpus, self._gpus.vendor, self._joins.inside_graphs()
        recording: list[Device] = []
        recorded: dict[int, Handle] = {}
        try:
            for ordinal, device in gpus.devices.items():
                gpus.enter(device)
                recording.append(device)
                with concerning(device):
                    vendor.begin_capture(gpus.control[ordinal])
            make(gpus, sides.begin)
            make(gpus, captured.program.captured())
            make(gpus, sides.end)
            for ordinal, device in gpus.devices.items():
                gpus.enter(device)
                with concerning(device):
                    recorded[ordinal] = vendor.end_capture(gpus.control[ordinal])
                recording.remove(device)
            for ordinal, device in gpus.devices.items():
                gpus.enter(device)
                with concerning(device):
                    captured.graphs[ordinal] = self._instance(recorded.pop(ordinal))
        except BaseException:  # the first error is the one to tell
            for device in recording:
                with suppress(DeviceError):
                    gpus.enter(device)
                vendor.drop_capture(gpus.control[device.ordinal])
            for graph in recorded.values():
                with suppress(DeviceError):
                    vendor.destroy_captured(graph)
            raise

    def _instance(self, recorded: Handle) -> Handle:
        """A graph to be launched, of what was recorded, which is given back."""
        vendor = self._gpus.vendor
        try:
            graph = vendor.instantiate(recorded)
        except BaseException:
            with suppress(DeviceError):
                vendor.destroy_captured(recorded)
            raise
        try:
            vendor.destroy_captured(recorded)
        except BaseException:
            with suppress(DeviceError):
                vendor.destroy_graph(graph)
            raise
        return graph

    def replay(self, captured: Captured, streams: Sequence[Handle]) -> None:
        try:
            self._prepare()
            behind, others = self._running, self._replayed is None or self._callers != tuple(streams)
            self._replayed, self.marked = captured, False
            joins, timed = self._joins, self._gpus.timing or not streams
            self._timed = timed
            replay = kept(
                captured.replays,
                (behind, others, timed, *streams),
                lambda: joins.replay(streams, captured.graphs, behind, others, timed),
            )
            if replay.enters:
                self._gpus.begin_issue()
            self._running, self._callers = True, tuple(streams)
            make(self._gpus, replay.steps)
            self._gpus.end_issue()
        except BaseException:
            self._abandon(streams)
            raise

    def drop(self, captured: Captured) -> None:
        """Give its graphs back."""
        closing = Closing()
        while captured.graphs:
            ordinal, graph = captured.graphs.popitem()
            closing(self._drop, self._gpus.devices[ordinal], graph)
        closing.end()

    def _drop(self, device: Device, graph: Handle) -> None:
        with concerning(device):
            self._gpus.vendor.destroy_graph(graph)

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
                self._give_up(limit)
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
        """From the last run's begin to its end on a device; the slowest counts."""
        if not self._timed:
            raise UsageError("the last run, on callers' streams, was not timed: set executor.timed = True before it")
        self.synchronize()
        return 1e3 * max(map(self._milliseconds, self._gpus.devices))

    def _milliseconds(self, ordinal: int) -> float:
        with concerning(self._gpus.devices[ordinal]):
            return self._gpus.vendor.milliseconds(self._joins.gates[ordinal], self._joins.ends[ordinal])

    def since(self, stream: GpuStream, mark: Handle) -> float:
        """Microseconds from a recorded run's begin to a mark. Devices' clocks are set to one another by the event that
        begins the run: they agree to some microseconds, the time that it takes to reach them."""
        base = self._joins.gates[stream.device.ordinal]
        return max(0.0, 1e3 * self._gpus.vendor.milliseconds(base, mark))

    def _ended(self, *, everywhere: bool = False) -> bool:
        """Whether the run has. DeviceError: what ran failed; with `everywhere`, on a device that another one still
        waits for, too."""
        try:
            if everywhere:
                self._gpus.well()
            return all(map(self._through, self._gpus.devices))
        except DeviceError as error:
            self.lost = True  # errors of running work stay with the context
            raise DeviceError("\n".join([str(error), *self._report()])) from error

    def _through(self, ordinal: int) -> bool:
        with concerning(self._gpus.devices[ordinal], "while the plan ran"):
            return self._gpus.vendor.ended(self._joins.done[ordinal])

    def _give_up(self, limit: float) -> None:
        report = self._report() or [f"{device} still runs what belongs to no command" for device in self._gpus.busy()]
        self._dirty = True
        through = self._release()
        if self._replayed is not None:
            report = self._report_of(self._replayed) if through else []
            report = report or ["a replayed graph does not tell how far it got; on streams (--no-graph) the run does"]
        busy = " and ".join(self._gpus.busy())
        state = "" if through else f"\n{busy} still run it: this process can use them no more"
        raise DeviceError(f"the run did not end within {limit:.3g} s (--timeout)\n" + "\n".join(report) + state)

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
            self.run(replayed.program, ())
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
    for name in ("cuda_stream", "ptr"):
        found = getattr(given, name, None)
        if isinstance(found, int):
            return found
    protocol = getattr(given, "__cuda_stream__", None)
    if callable(protocol):
        return int(protocol()[1])
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    raise UsageError(f"streams: rank {rank}'s is {type(given).__name__}, not a stream of a GPU")

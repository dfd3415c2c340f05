"""Puts the spans of several processes on one clock: that of process 0's machine.

A device measures times only between its own events. So each process finds out when its devices began the traced run by
its machine's clock: the host reads the clock, records an event on an idle device, waits for the event and reads the
clock again. The event lies between the two readings, and the device gives the time from the beginning of the run to the
event. The narrowest of a few tries counts; half of its width is the possible error.

The processes of a machine have one clock (CLOCK_MONOTONIC). Processes of different machines compare their clocks by
messages of the group: a message is received after it was sent, so messages in both directions bound the difference of
the clocks. The middle of these bounds counts, and half of their distance is the possible error.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from typing import NamedTuple

from ...process.group import Group, gathered
from ...trace.model import TraceSpan
from .gpus import Gpus
from .issue_order import ISSUE_ORDER
from .vendor import Gpu, Handle

TRIES = 8
ROUNDS = 8  # of messages between machines


class Reading(NamedTuple):
    """A point on a machine's clock, or between two machines' clocks, in microseconds, and how much it may be off."""

    at: float
    within: float = 0.0


class Spans(NamedTuple):
    """What the traced run was on a device, by times since it began there."""

    begun: Reading
    spans: tuple[TraceSpan, ...]


def now() -> float:
    return 1e6 * time.monotonic()


def begun(gpus: Gpus, device: Gpu, begin: Handle) -> Reading:
    """When an idle device recorded the event `begin`. DeviceError: the device does not answer."""
    vendor, stream = gpus.vendor, gpus.control[device.ordinal]
    event = gpus.new_event(device, timing=True)
    found: list[Reading] = []
    try:
        with gpus.inside(device):
            gpus.finish(device, stream)
            for _ in range(TRIES):
                before = now()
                vendor.record(event, stream)
                while not vendor.ended(event):
                    ISSUE_ORDER.seen()
                after = now()
                since = 1e3 * vendor.milliseconds(begin, event)
                found.append(Reading((before + after) / 2 - since, (after - before) / 2))
    finally:
        gpus.drop_event(event)
    return min(found, key=lambda reading: reading.within)


def on_one_clock(
    group: Group, machines: Sequence[str], mine: Sequence[Spans], timeout: float | None
) -> tuple[tuple[TraceSpan, ...], float]:
    """The spans of all processes since the first device began, and how much those of different devices may be off
    against each other. `machines`: each process's. All processes do this at the same step."""
    between = compared(group, machines, timeout)
    told = group.exchange(pickle.dumps(tuple(mine)), timeout, "gather the spans of a traced run")
    devices: list[tuple[Reading, Spans]] = []
    for place, data in enumerate(told):
        devices += [(between[place], spans) for spans in pickle.loads(data)]
    first = min(spans.begun.at - clock.at for clock, spans in devices)
    found: list[TraceSpan] = []
    for clock, spans in devices:
        late = spans.begun.at - clock.at - first
        found += [span._replace(start=span.start + late, stop=span.stop + late) for span in spans.spans]
    within = sorted((clock.within + spans.begun.within for clock, spans in devices), reverse=True)
    return tuple(found), sum(within[:2])


def compared(group: Group, machines: Sequence[str], timeout: float | None) -> list[Reading]:
    """For each process, how far its machine's clock is ahead of that of process 0."""
    if len(set(machines)) == 1:
        return [Reading(0.0)] * group.size
    sent, taken = [], []
    for _ in range(ROUNDS):
        sent.append(now())
        group.barrier(timeout, "compare clocks")
        taken.append(now())
    return ahead(machines, gathered(group, [sent, taken], timeout, "compare clocks"))


def ahead(machines: Sequence[str], told: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[Reading]:
    """See `compared`. `told`: for each process, when it had sent its message of each round, and when it had received
    those of all others."""
    sent, taken = told[0]
    bounds = {machines[0]: (0.0, 0.0)}
    for machine, (theirs, took) in zip(machines, told, strict=True):
        if machine == machines[0]:
            continue
        least = max(s - t for s, t in zip(theirs, taken, strict=True))
        most = min(t - s for t, s in zip(took, sent, strict=True))
        known = bounds.get(machine, (least, most))
        bounds[machine] = max(least, known[0]), min(most, known[1])
    return [Reading((bounds[m][0] + bounds[m][1]) / 2, (bounds[m][1] - bounds[m][0]) / 2) for m in machines]

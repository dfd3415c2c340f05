"""Inline streams. In a run among callers' streams, what such a stream does is issued to the stream on which its device
begins the run. So no event leads to it from there, and none back. With these two events, the first of which had timing,
a run took 3 µs longer than its kernels (H200).

A device has at most one, in the mode `streams`, if its streams do not share hardware queues (`crowded`), and runs end
also where callers' streams share some with them (`check.shares_queues`). Where a caller's stream has another priority
than the least one, or belongs to another context, runs are made in the mode `apart`, without inline streams. On NVIDIA
the least priority is the usual one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from ..kernels.target import compute_capability
from . import ir
from .layout import Layout


def inlined(layout: Layout, streams: Sequence[ir.DeviceStream]) -> Iterator[ir.DeviceStream]:
    """The streams, on each device one of the first rank's inline, which launches kernels: one of a low priority, or of
    a normal one, if those beside it have a high one. So none changes its place among them."""
    plan, placement = layout.plan, layout.placement
    nvidia = compute_capability(layout.device.arch) is not None
    found: dict[int, int] = {}  # by device, a stream of the plan
    on = Counter((placement.devices[s.rank], s.priority) for s in plan.streams if s.engine != "copy")
    for stream in plan.streams if nvidia else ():
        device = placement.devices[stream.rank]
        first = stream.rank == placement.ranks(device)[0]
        alone = stream.priority == "normal" and on[device, "normal"] == 1 and not on[device, "low"]
        if first and stream.engine == "sm" and (stream.priority == "low" or alone):
            found.setdefault(device, stream.id)
    for made in streams:
        yield replace(made, inline=made.name.kind == "plan" and found.get(made.device) == made.name.number)


def issued_to(plan: ir.DevicePlan, *, called: bool) -> dict[ir.StreamName, ir.StreamName]:
    """The inline streams of a run, each with the stream to which its actions are issued."""
    inline = {stream.device: stream.name for stream in plan.streams if stream.inline and called}
    begins = {a.event.number: a.stream for a in plan.called.prologue if is_begin(a)}
    return {name: begins[device] for device, name in inline.items() if device in begins}


def is_begin(action: ir.Action) -> TypeGuard[ir.RecordEvent]:
    """Whether a device begins a run with it."""
    return isinstance(action, ir.RecordEvent) and action.event.kind == "begin"

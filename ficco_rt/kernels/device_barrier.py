"""Host code of src/device_barrier.cu, the kernel that implements barriers between devices that share no events."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

SOURCE, ENTRY, THREADS = "device_barrier.cu", "device_barrier", 32
KINDS = {"signal": 0, "wait": 1, "reset": 2, "count": 3}  # of steps, as src/device_barrier.h numbers them
MOST = 32  # steps of a launch
_HEAD, _STEP = struct.Struct("<Qii"), struct.Struct("<Qii")  # BarrierList without its steps, and BarrierStep


@dataclass(frozen=True, slots=True)
class Step:
    """What is done with `count` semaphores side by side, from an address on."""

    address: int
    count: int
    kind: int


def argument(runs: int, steps: Sequence[Step]) -> bytes:
    """The argument of a launch that takes these steps, at most `MOST`. `runs`: the address of the device's count of
    runs."""
    listed = b"".join(_STEP.pack(step.address, step.count, step.kind) for step in steps)
    return _HEAD.pack(runs, len(steps), 0) + listed.ljust(MOST * _STEP.size, b"\0")

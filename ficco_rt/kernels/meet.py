"""The host's half of src/meet.cu, the kernel by which devices meet that share no events."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SOURCE, ENTRY, THREADS = "meet.cu", "meet", 32
KINDS = {"raise": 0, "wait": 1, "reset": 2, "count": 3}  # of steps, as src/meet.h numbers them
MOST = 32  # steps of a launch
_HEAD, _STEP = struct.Struct("<Qii"), struct.Struct("<Qii")  # MeetList without its steps, and MeetStep, of src/meet.h


@dataclass(frozen=True, slots=True)
class Step:
    """What is done with `count` words side by side, from an address on."""

    address: int
    count: int
    kind: int


def arguments(runs: int, steps: Sequence[Step]) -> Iterator[tuple[bytes]]:
    """The argument of each launch, one behind the other, that takes the steps. `runs`: the address of the device's
    count of runs."""
    for first in range(0, len(steps), MOST):
        part = steps[first : first + MOST]
        listed = b"".join(_STEP.pack(step.address, step.count, step.kind) for step in part)
        yield (_HEAD.pack(runs, len(part), 0) + listed.ljust(MOST * _STEP.size, b"\0"),)

"""The host's half of src/meet.cu, the kernel by which devices meet that share no events."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

SOURCE, ENTRY, THREADS = "meet.cu", "meet", 32
KINDS = {"raise": 0, "wait": 1, "reset": 2}  # of steps, as src/meet.h numbers them
_STEP = struct.Struct("<Qii")  # MeetStep of src/meet.h


@dataclass(frozen=True, slots=True)
class Step:
    """What is done with `count` words side by side, from an address on."""

    address: int
    count: int
    kind: int


def table(steps: Sequence[Step]) -> bytes:
    """The list in device memory, which the kernel goes through."""
    return b"".join(_STEP.pack(step.address, step.count, step.kind) for step in steps)


def arguments(address: int, steps: Sequence[Step]) -> tuple[bytes, ...]:
    """The launch's, with the address of the list."""
    return struct.pack("<Q", address), struct.pack("<i", len(steps))

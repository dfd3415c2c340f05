"""Host code of src/copy_rows.cu, the kernel that replaces a graph's own copies within a device."""

from __future__ import annotations

import struct

SOURCE, ENTRY, THREADS, LOADS = "copy_rows.cu", "copy_rows", 256, 4
PIECE = THREADS * LOADS * 16  # bytes that a block loads at once
MOST = 512  # blocks: some rounds of all multiprocessors. Beside launches that hold all but one, that one takes them all
_ROWS = struct.Struct("<6Q")  # CopyRows of src/copy_rows.h


def blocks(size: int) -> int:
    """Number of blocks of a launch that copies this many bytes."""
    return max(1, min(MOST, -(-size // PIECE)))


def argument(to: int, of: int, width: int, rows: int = 1, to_pitch: int = 0, of_pitch: int = 0) -> bytes:
    """The argument of a launch that copies `rows` rows of `width` bytes. Pitches are bytes from row to row."""
    return _ROWS.pack(to, of, width, rows, to_pitch, of_pitch)

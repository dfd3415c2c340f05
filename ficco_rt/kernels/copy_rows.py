"""The host's half of src/copy_rows.cu, the kernel that copies inside a device in place of a graph's own copies."""

from __future__ import annotations

import struct

SOURCE, ENTRY, THREADS = "copy_rows.cu", "copy_rows", 256
BLOCKS = 8  # which one multiprocessor has room for
_ROWS = struct.Struct("<6Q")  # CopyRows of src/copy_rows.h


def argument(to: int, of: int, width: int, rows: int = 1, to_pitch: int = 0, of_pitch: int = 0) -> bytes:
    """Of a launch that copies `rows` rows of `width` bytes. Pitches are bytes from row to row."""
    return _ROWS.pack(to, of, width, rows, to_pitch, of_pitch)

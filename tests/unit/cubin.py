"""Kernels as machine code, and what the compiler says of them, read from it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from ficco_rt.kernels.kernel_compiler import compile_file
from tests.mock.processes import kernels

FRAME_SIZE, REGISTERS = 0x11, 0x2F  # attributes of .nv.info: a symbol and a number


def compiled(source: Path, options: Sequence[str]) -> bytes:
    """The machine code of a kernel about which the compiler has nothing to say: kept for the next run of tests."""
    made = compile_file(source, options, Path(kernels()))
    if made.log:
        (Path(kernels()) / f"{made.key}.cubin").unlink()  # it would say nothing then
    assert made.log == ""  # 'setmaxnreg ignored', 'wgmma serialized' and the like come as messages
    return made.code


def registers_of(cubin: bytes, opcode: int) -> list[tuple[int, int, int]]:
    """The three registers that each instruction of this opcode reads, of a cubin for Hopper."""
    (offset,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count = struct.unpack_from("<HH", cubin, 0x3A)
    found = []
    for i in range(count):
        _, kind, flags, _, start, length = struct.unpack_from("<IIQQQQ", cubin, offset + i * size)
        if kind == 1 and flags & 4:  # code
            words = (int.from_bytes(cubin[at : at + 16], "little") for at in range(start, start + length, 16))
            found += [(w >> 24 & 255, w >> 32 & 255, w >> 64 & 255) for w in words if w & 0xFFF == opcode]
    return found


def resources(cubin: bytes) -> dict[str, int]:
    """Registers, stack and static shared memory of a cubin's one kernel, from its ELF sections."""
    assert cubin[:4] == b"\x7fELF"
    (offset,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, offset + i * size) for i in range(count)]
    text = headers[names]

    def name(header: tuple[int, ...]) -> str:
        start = text[4] + header[0]
        return cubin[start : cubin.index(b"\0", start)].decode()

    found: dict[str, int] = {"shared": 0}
    for h in headers:
        if name(h).startswith(".nv.shared.") and not name(h).startswith(".nv.shared.reserved"):
            found["shared"] += h[5]
        if name(h) == ".nv.info":  # attributes: format, kind, then 2 bytes or a size and that many
            at, stop = h[4], h[4] + h[5]
            while at < stop:
                form, kind, value = struct.unpack_from("<BBH", cubin, at)
                at += 4
                if form == 4:
                    if kind in (FRAME_SIZE, REGISTERS):
                        key = "stack" if kind == FRAME_SIZE else "registers"
                        found[key] = max(found.get(key, 0), struct.unpack_from("<II", cubin, at)[1])
                    at += value
    return found

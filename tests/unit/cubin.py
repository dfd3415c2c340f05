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

"""Kernels for AMD GPUs without one: compiled to code objects by clang, and run on the CPU thread by thread.

clang comes with the package `ziglang`, whose compiler knows every target of LLVM.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
_ZIG = (sys.executable, "-m", "ziglang")


KEPT = Path(tempfile.gettempdir()) / f"ficco-standin-{os.getuid()}-zig"


def zig(folder: Path, *arguments: str, text: str | None = None) -> None:
    """Run zig, which makes the file behind `-o`. What was made of the same sources before is taken instead."""
    made = folder / arguments[arguments.index("-o") + 1]
    kept = KEPT / "made" / _key(folder, arguments, text)
    if not kept.exists():
        # what zig builds of libc takes longer than a kernel: it is kept, and zig locks what several processes use
        environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(KEPT), "ZIG_LOCAL_CACHE_DIR": str(KEPT)}
        done = subprocess.run(
            (*_ZIG, *arguments), cwd=folder, env=environment, input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stderr}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        aside = kept.with_name(f"{kept.name}.{os.getpid()}")
        shutil.copyfile(made, aside)
        aside.rename(kept)
    made.unlink(missing_ok=True)  # a library of this name may be loaded
    shutil.copyfile(kept, made)


def _key(folder: Path, arguments: Sequence[str], text: str | None) -> str:
    """Of all that a file is made of: the arguments, and the contents of what they name or what that may include."""
    named = [folder / argument for argument in arguments if (folder / argument).is_file()]
    words = [argument.replace(str(folder), "") for argument in arguments]
    return hashlib.sha256(repr((words, text, _digest(*named), _sources())).encode()).hexdigest()


@cache
def _sources() -> str:
    folders = (HERE, HERE.parents[1] / "ficco_rt" / "kernels" / "src")
    found = sorted(f for folder in folders for f in folder.rglob("*") if f.suffix in (".cu", ".cuh", ".h", ".hip"))
    return importlib.metadata.version("ziglang") + _digest(*found)


def _digest(*files: Path) -> str:
    return hashlib.sha256(repr([(file.name, file.read_bytes()) for file in files]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as an architecture's machine code; bytes of LDS and scratch memory, registers of a lane."""

    entry: str
    assembly: str
    vector_registers: int  # with the accumulators
    scalar_registers: int
    spills: int
    lds: int
    scratch: int
    parameters: int  # bytes of the kernel's arguments that the host gives
    wave: int
    matrix_instructions: tuple[str, ...]


def compile_device(folder: Path, source: Path, options: Sequence[str]) -> Compiled:
    """Compile as hipRTC does, with its predefined names from `hiprtc.h`. `folder` is for what lies in between."""
    out = folder / "kernel.s"
    zig(
        folder, "clang", "-x", "hip", *options, "-nogpuinc", "-nogpulib", "--cuda-device-only", "-Wall", "-Wextra",
        "-Werror", "-Wno-unused-function", "-include", str(HERE / "hiprtc.h"), "-S", "-o", str(out), str(source),
    )  # fmt: skip
    assembly = out.read_text()

    def number(key: str) -> int:
        (found,) = re.findall(rf"^\s+\.{key}:\s+(\d+)$", assembly, re.MULTILINE)
        return int(found)

    (entry,) = re.findall(r"^\s+\.amdhsa_kernel (\S+)$", assembly, re.MULTILINE)
    return Compiled(
        entry=entry,
        assembly=assembly,
        vector_registers=number("vgpr_count"),
        scalar_registers=number("sgpr_count"),
        spills=number("vgpr_spill_count") + number("sgpr_spill_count"),
        lds=number("group_segment_fixed_size"),
        scratch=number("private_segment_fixed_size"),
        parameters=number("kernarg_segment_size"),
        wave=number("wavefront_size"),
        matrix_instructions=tuple(re.findall(r"^\s+(v_mfma\S+)", assembly, re.MULTILINE)),
    )


@dataclass(frozen=True, slots=True)
class CodeObject:
    """What a loaded code object says of its kernel: the 64 bytes of its descriptor."""

    machine: int  # of e_flags: the processor
    lds: int
    scratch: int


def code_object(folder: Path, arch: str, compiled: Compiled) -> CodeObject:
    """The assembly, assembled and linked into what a driver loads."""
    (folder / "kernel.s").write_text(compiled.assembly)
    zig(folder, "clang", "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", "-o", "kernel.o", "kernel.s")
    zig(folder, "ld.lld", "-shared", "-o", "kernel.co", "kernel.o")
    data = (folder / "kernel.co").read_bytes()
    assert data[:4] == b"\x7fELF"
    (machine,) = struct.unpack_from("<H", data, 18)
    assert machine == 224  # EM_AMDGPU
    (flags,) = struct.unpack_from("<I", data, 48)
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count, _ = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    symbols = next(h for h in headers if h[1] == 11)  # SHT_DYNSYM
    names = headers[symbols[6]]
    for at in range(symbols[4], symbols[4] + symbols[5], 24):
        name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
        start = names[4] + name
        if data[start : data.index(b"\0", start)].decode() == compiled.entry + ".kd":
            place = headers[section]
            lds, scratch = struct.unpack_from("<II", data, place[4] + value - place[3])
            return CodeObject(flags & 0xFF, lds, scratch)
    raise AssertionError(f"no descriptor of {compiled.entry}")


class OnCpu:
    """A kernel whose only argument is a struct, compiled for the CPU with `simt.h`."""

    def __init__(self, folder: Path, source: Path, options: Sequence[str], entry: str, argument: str, lds: str) -> None:
        """`argument` is the struct's name, `lds` the type of the dynamic shared memory's elements."""
        text = (
            f'#include "{HERE / "simt.h"}"\n#include "{source}"\n'
            f"alignas(16) thread_local {lds} dynamic[65536 / sizeof({lds})];\nSIMT_LAUNCH({entry}, {argument})\n"
        )
        library = folder / f"{entry}.so"
        given = [o for o in options if not o.startswith(("--offload-arch", "-O"))]
        zig(
            folder, "cc", "-x", "c++", *given, "-O2", "-mcpu=baseline", "-U_FORTIFY_SOURCE", "-fno-sanitize=all",
            "-fno-exceptions", "-fno-rtti", "-nostdinc++", "-nostdlib++", "-shared", "-fPIC", "-o", str(library), "-",
            text=text,
        )  # fmt: skip
        self._launch = ctypes.CDLL(str(library)).simt_launch
        self._launch.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint64)

    def __call__(self, argument: bytes, grid: int, threads: int, seed: int) -> None:
        """Run it. What the argument points to is this process's memory."""
        stopped = self._launch(argument, grid, threads, seed)
        assert not stopped, f"block {stopped - 1} came to a stop: its threads meet at different barriers"

"""CUDA C++ to cubin by NVRTC, with a cache on disk that processes share.

An entry's name is a hash of source, options and compiler version; its content carries its own hash, so that a
torn or damaged one is seen and made anew. Entries are written aside and published by a rename.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import env
from ..errors import DeviceError, InternalError

_MAGIC = b"ficco-cubin-1\n"
_DIGEST = 32


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code, and what the compiler said while making it (empty if it came from the cache)."""

    code: bytes
    key: str
    cached: bool
    log: str


def compile_file(source: Path, options: Sequence[str], cache: Path | None = None) -> Cubin:
    """The cubin of a source file of ours. `options` names the architecture; the sources include nothing else."""
    return compile_text(source.read_text(encoding="utf-8"), source.name, options, cache)


def compile_text(text: str, name: str, options: Sequence[str], cache: Path | None = None) -> Cubin:
    """The cubin of CUDA C++ text. `name` stands in the compiler's messages.

    Raises DeviceError if there is no NVRTC, InternalError with the compiler's log if it refuses the text.
    """
    nvrtc = _nvrtc()
    major, minor = _call(nvrtc, "nvrtcVersion")
    key = _key(text, options, f"nvrtc {major}.{minor}")
    path = (cache or env.cache_folder()) / f"{key}.cubin"
    code = _read(path)
    if code is not None:
        return Cubin(code, key, True, "")
    code, log = _compile(nvrtc, text, name, options)
    _publish(path, code)
    return Cubin(code, key, False, log)


def _key(text: str, options: Sequence[str], compiler: str) -> str:
    h = hashlib.sha256()
    for part in (compiler, *options, text):
        data = part.encode()
        h.update(len(data).to_bytes(8, "little"))  # lengths: no two lists of parts join to one text
        h.update(data)
    return h.hexdigest()


def _read(path: Path) -> bytes | None:
    """The entry's machine code; None if there is none, or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head = len(_MAGIC) + _DIGEST
    code = data[head:]
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : head] != hashlib.sha256(code).digest():
        return None
    return code


def _publish(path: Path, code: bytes) -> None:
    """Make the entry appear whole. A cache that cannot be written costs time, not the run."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=path.stem[:16], suffix=".part")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(_MAGIC + hashlib.sha256(code).digest() + code)
        os.replace(aside, path)
    except OSError:
        Path(aside).unlink(missing_ok=True)


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ImportError as e:
        raise DeviceError(f"no NVRTC bindings ({e}): install `ficco-rt[cuda]`") from e
    return nvrtc


def _call(nvrtc: Any, name: str, *args: Any) -> Any:
    """One NVRTC call, checked; what it returns beside the code (one value, a tuple of several, or None)."""
    try:
        code, *values = getattr(nvrtc, name)(*args)
    except RuntimeError as e:  # the library itself is missing: DynamicLibNotFoundError
        raise DeviceError(f"NVRTC cannot be loaded ({e}): install `ficco-rt[cuda]`") from e
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise DeviceError(f"{name} failed: {code.name}")
    return values[0] if len(values) == 1 else tuple(values) or None


def _compile(nvrtc: Any, text: str, name: str, options: Sequence[str]) -> tuple[bytes, str]:
    program = _call(nvrtc, "nvrtcCreateProgram", text.encode(), name.encode(), 0, [], [])
    try:
        # not `_call`: a refusal is told by the log, and the log is there only after it
        try:
            (code,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        finally:
            size = _call(nvrtc, "nvrtcGetProgramLogSize", program)
            buffer = bytearray(size)
            _call(nvrtc, "nvrtcGetProgramLog", program, buffer)
            log = bytes(buffer).rstrip(b"\0").decode(errors="replace")
        if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise InternalError(f"{name} does not compile with {' '.join(options)} ({code.name}):\n{log}")
        cubin = bytearray(_call(nvrtc, "nvrtcGetCUBINSize", program))
        if not cubin:
            raise InternalError(f"{name} gave no machine code: `-arch` must name a real architecture (sm_…)")
        _call(nvrtc, "nvrtcGetCUBIN", program, cubin)
        return bytes(cubin), log
    finally:
        _call(nvrtc, "nvrtcDestroyProgram", program)

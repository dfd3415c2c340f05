"""Compiles kernel source by the vendor's run-time compiler, with a cache on disk that processes share.

An entry's name is a hash of source, included headers, options and compiler version; its content includes a hash of name
and code, so that torn, damaged or exchanged entries are detected. An entry must be private to the user
(`files.private`). Any other entry is compiled again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import env
from ..errors import DeviceError, InternalError
from ..files import private

_MAGIC = b"ficco-code-2\n"
_DIGEST = 32
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)

KERNELS = Path(__file__).with_name("src")  # our own sources


@dataclass(frozen=True, slots=True)
class Compiler:
    """A vendor's run-time compiler through its Python bindings. The vendors' calls are named alike."""

    name: str  # for people
    prefix: str  # of its calls: nvrtcCreateProgram, hiprtcCreateProgram
    image: str  # what the calls that give the machine code are named for: nvrtcGetCUBIN, hiprtcGetCode
    suffix: str  # of entries in the cache
    extra: str  # of ficco-rt, which brings the bindings
    comes: str  # how to get the library
    arch: str  # the option that must name a real architecture

    def bindings(self) -> Any:
        """The bindings' module. DeviceError if the package is missing."""
        try:
            if self.prefix == "nvrtc":
                from cuda.bindings import nvrtc

                return nvrtc
            from hip import hiprtc

            return hiprtc
        except ImportError as e:
            raise DeviceError(f"no {self.name} bindings ({e}): install `ficco-rt[{self.extra}]`") from e


NVRTC = Compiler(
    "NVRTC",
    "nvrtc",
    "CUBIN",
    "cubin",
    "cuda",
    "install `ficco-rt[cuda]`",
    "`-arch` must name a real architecture (sm_…)",
)
HIPRTC = Compiler(
    "hipRTC", "hiprtc", "Code", "hsaco", "hip", "it comes with ROCm", "`--offload-arch` must name one (gfx…)"
)


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel's source text, and the text of each header that it includes."""

    name: str  # stands in the compiler's messages
    text: str
    headers: tuple[tuple[str, str], ...] = ()  # (as the `#include` spells it, text)

    @classmethod
    def of(cls, path: Path) -> KernelSource:
        """A source file with all that it includes, directly or not, by paths relative to the including file.

        NVRTC looks a header up by the directive's spelling alone. So within one source, each header must have one
        spelling, and each spelling one header. InternalError if not.
        """
        headers: dict[str, Path] = {}  # by their spellings
        spellings: dict[Path, str] = {}
        files = [path]
        for file in files:  # grows meanwhile
            for spelling in _INCLUDE.findall(file.read_text(encoding="utf-8")):
                header = (file.parent / spelling).resolve()
                if headers.setdefault(spelling, header) != header:
                    raise InternalError(f'{path.name}: "{spelling}" is {headers[spelling]} and {header}')
                if spellings.setdefault(header, spelling) != spelling:
                    raise InternalError(f'{path.name}: {header} is "{spellings[header]}" and "{spelling}"')
                if header not in files:
                    files.append(header)
        texts = tuple((spelling, header.read_text(encoding="utf-8")) for spelling, header in headers.items())
        return cls(path.name, path.read_text(encoding="utf-8"), texts)


@dataclass(frozen=True, slots=True)
class Code:
    """Machine code, and what the compiler said while making it (empty if it came from the cache)."""

    code: bytes
    key: str
    cached: bool
    log: str


def compile_file(source: Path, options: Sequence[str], cache: Path | None = None, by: Compiler = NVRTC) -> Code:
    """A source file of ours as machine code. `options` names the architecture."""
    return compile_source(KernelSource.of(source), options, cache, by)


def compile_text(text: str, name: str, options: Sequence[str], cache: Path | None = None, by: Compiler = NVRTC) -> Code:
    """A text that includes nothing. `name` stands in the compiler's messages."""
    return compile_source(KernelSource(name, text), options, cache, by)


def compile_source(
    source: KernelSource, options: Sequence[str], cache: Path | None = None, by: Compiler = NVRTC
) -> Code:
    """A source as machine code.

    Raises DeviceError if there is no compiler, InternalError with its log if it refuses the source.
    """
    rtc = _Rtc(by)
    major, minor = rtc.call("Version")
    key = _key(source, options, f"{by.prefix} {major}.{minor}")
    path = (cache or env.cache_folder()) / f"{key}.{by.suffix}"
    code = _read(path, key)
    if code is not None:
        return Code(code, key, True, "")
    code, log = rtc.compile(source, options)
    private.publish(path, _head(key, code) + code)
    return Code(code, key, False, log)


def _key(source: KernelSource, options: Sequence[str], compiler: str) -> str:
    h = hashlib.sha256()
    headers = [part for header in source.headers for part in header]
    for part in (compiler, str(len(options)), *options, source.text, *headers):
        data = part.encode()
        h.update(len(data).to_bytes(8, "little"))  # lengths: no two lists of parts make one text
        h.update(data)
    return h.hexdigest()


def _read(path: Path, key: str) -> bytes | None:
    """The entry's machine code; None if there is none that can be trusted."""
    data = private.read(path) or b""
    head = len(_MAGIC) + _DIGEST
    return data[head:] if data[:head] == _head(key, data[head:]) else None


def _head(key: str, code: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + code).digest()


class _Rtc:
    """A compiler's calls, checked."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._bindings = compiler.bindings()

    def call(self, short: str, *args: Any) -> Any:
        """What a call returns after its code: one value, a tuple of several, or None."""
        code, *values = self._result(short, *args)
        if code:
            raise DeviceError(f"{self._compiler.prefix}{short} failed: {code.name}")
        return values[0] if len(values) == 1 else tuple(values) or None

    def _result(self, short: str, *args: Any) -> tuple[Any, ...]:
        by = self._compiler
        try:
            result: tuple[Any, ...] = getattr(self._bindings, by.prefix + short)(*args)
        except RuntimeError as e:  # the bindings load the library at the first call
            reason = str(e).splitlines()[0]
            raise DeviceError(f"{by.name} cannot be loaded ({reason}): {by.comes}") from e
        return result

    def compile(self, source: KernelSource, options: Sequence[str]) -> tuple[bytes, str]:
        """Machine code and log."""
        by = self._compiler
        if by is NVRTC:
            self._known_arch(options)
        name = source.name
        headers = [text.encode() for _, text in source.headers]
        spellings = [spelling.encode() for spelling, _ in source.headers]
        program = self.call("CreateProgram", source.text.encode(), name.encode(), len(headers), headers, spellings)
        try:
            # not `call`: a refusal is told by the log, and the log is there only after it
            try:
                (code,) = self._result("CompileProgram", program, len(options), [o.encode() for o in options])
            finally:
                log = self._bytes("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            if code:
                raise InternalError(f"{name} does not compile with {' '.join(options)} ({code.name}):\n{log}")
            image = self._bytes(by.image, program)
            if not image:
                raise InternalError(f"{name} gave no machine code: {by.arch}")
            return image, log
        finally:
            # HIP's takes the address of the handle, and its bindings leave it to the caller to take it
            self.call("DestroyProgram", program.createRef() if hasattr(program, "createRef") else program)

    def _known_arch(self, options: Sequence[str]) -> None:
        """DeviceError if NVRTC makes no code for the architecture that the options name."""
        known = sorted(self.call("GetSupportedArchs"))
        for option in options:
            found = re.fullmatch(r"-arch=sm_(\d+)[a-z]?", option)
            if found and int(found[1]) not in known:
                major, minor = self.call("Version")
                age = "an older" if int(found[1]) < known[0] else "a newer"
                raise DeviceError(
                    f"NVRTC {major}.{minor} makes no code for this GPU's architecture, sm_{found[1]}; it knows "
                    f"sm_{known[0]} to sm_{known[-1]}. Install {age} nvidia-cuda-nvrtc, or take --backend host"
                )

    def _bytes(self, what: str, program: Any) -> bytes:
        buffer = bytearray(self.call(f"Get{what}Size", program))
        if buffer:
            self.call(f"Get{what}", program, buffer)
        return bytes(buffer)

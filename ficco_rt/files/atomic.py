"""Reads and writes files for commands: every failure is one readable sentence, and no file is left half-written."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError

MOST = 1 << 30  # bytes; /dev/zero has no end


def read_bytes(path: Path | str) -> bytes:
    """The content of a file, a pipe or a device."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise UsageError(_sentence(path, "read", error)) from error
    if len(data) > MOST:
        raise UsageError(f"{path}: has more than 1 GiB; nothing that ficco reads is as large")
    return data


def decoded(data: bytes, name: Path | str) -> str:
    """The content as text, which must be UTF-8, a byte order mark left out; `name` is what messages call it."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = error.start + len(data) - len(error.object)  # which lacks the mark
        raise UsageError(f"{name}: is not UTF-8 text (byte {at})") from error


def read_text(path: Path | str) -> str:
    """The file's content, which must be UTF-8."""
    return decoded(read_bytes(path), path)


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of output file, known by its suffix."""

    name: str
    suffixes: tuple[str, ...]


SCHEDULE = FileKind("schedule", (".ficco",))
PLAN = FileKind("plan", (".json",))
TRACE = FileKind("trace", (".json",))
PICTURE = FileKind("picture", (".svg", ".html"))
PAGE = FileKind("report page", (".html",))
REPORT = FileKind("report", (".json",))
MACHINE = FileKind("machine", (".toml",))
SHAPES = FileKind("table of settings", (".json",))
MEASURED = FileKind("file of measured times", (".json",))


def check_outputs(
    outputs: Iterable[tuple[FileKind, Path | str | None]], inputs: Iterable[Path | str | int] = ()
) -> None:
    """Complain now, not after a long run, about files that could not be written, and about those that nobody means: of
    another kind by their names, two outputs that are one file, or one of the inputs, through whatever links. An input
    may be an open file's number; an output of None is not written."""
    read = list(inputs)
    taken: set[str] = set()
    for kind, path in outputs:
        if path is None:
            continue
        check_target(path)
        special = is_special(Path(path))
        if Path(path).suffix.lower() not in kind.suffixes and not (special and len(kind.suffixes) == 1):
            raise UsageError(f"{path}: a {kind.name}'s name ends in {' or '.join(kind.suffixes)}")
        if not special and any(_same(path, name) for name in read):
            raise UsageError(f"{path}: is read here, and would be written over; name another file")
        if not special and os.path.realpath(path) in taken:
            raise UsageError(f"{path}: two outputs go to this file; give them different names")
        taken.add(os.path.realpath(path))


def _same(output: Path | str, given: Path | str | int) -> bool:
    try:
        return os.path.samestat(os.stat(output), os.stat(given))
    except (OSError, ValueError):  # not there, or no file at all
        return False


def check_target(path: Path | str) -> None:
    """Complain about a file that could not be written."""
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"{path}: is a directory; name a file in it")
    if not target.parent.is_dir():
        raise UsageError(f"{path}: there is no directory '{target.parent}'")
    place = target if is_special(target) else target.parent
    if not os.access(place, os.W_OK):
        raise UsageError(f"{path}: cannot be written: permission denied")


def write_atomic(path: Path | str, content: str | bytes) -> None:
    """Writes the whole file or nothing: to a temporary file first, then one rename. If the path is a link, its target
    is replaced, not the link."""
    check_target(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    try:
        if is_special(Path(path)):  # /dev/stdout, a pipe: there is nothing to rename over
            Path(path).write_bytes(data)
            return
        temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
        try:
            with open(temporary, "xb") as file:
                file.write(data)
            if target.exists():
                shutil.copymode(target, temporary)
            os.replace(temporary, target)
        except BaseException:  # Ctrl-C too: nothing may stay behind
            with suppress(OSError):
                temporary.unlink()
            raise
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(_sentence(path, "written", error)) from error


def is_special(path: Path) -> bool:
    """A pipe or a device: read once, written in place."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _sentence(path: Path | str, verb: str, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path}: there is no such file"
    if isinstance(error, IsADirectoryError):
        return f"{path}: is a directory, not a file"
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return f"{path}: cannot be {verb}: {reason[:1].lower()}{reason[1:]}"

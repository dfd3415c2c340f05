"""Finds the shipped schedules, in a checkout as in an installed package."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

from ..errors import UsageError

SUFFIX = ".ficco"
BASELINE = "serial"  # an operation's schedule with no overlap


@dataclass(frozen=True, slots=True)
class ShippedSchedule:
    """A shipped schedule.

    name: Such as ag_gemm/streamed.
    title: The first comment line.
    right: What it is right for.
    """

    name: str
    path: Path
    title: str
    right: str


def root() -> Path:
    """The folder of the shipped schedules."""
    here = Path(__file__).resolve().parents[1]
    installed = here / "schedules"
    return installed if installed.is_dir() else here.parent / "schedules"


def entries() -> tuple[ShippedSchedule, ...]:
    """All shipped schedules, by name."""
    found = []
    for name, path in shipped().items():
        text = path.read_text(encoding="utf-8", errors="replace")
        found.append(ShippedSchedule(name, path, title(text), right(text)))
    return tuple(found)


@cache
def shipped() -> Mapping[str, Path]:
    """The files of the shipped schedules, by name. They are looked for once in a process."""
    base = root()
    paths = sorted(base.rglob(f"*{SUFFIX}"))
    return {path.relative_to(base).with_suffix("").as_posix(): path for path in paths}


def operations() -> dict[str, tuple[str, ...]]:
    """The schedules of each operation, `ag_gemm` say: a folder of shipped schedules, of which `serial` says what the
    sizes are called. Folders without it, such as `concurrent`, hold schedules that nobody chooses among."""
    folders = {name: name.rpartition("/")[0] for name in shipped()}
    found = [folder for name, folder in folders.items() if folder and name == f"{folder}/{BASELINE}"]
    return {operation: tuple(n for n, folder in folders.items() if folder == operation) for operation in found}


def shipped_name(path: Path | str) -> str | None:
    """The library's name of a shipped schedule's file, by whatever path; None of any other file."""
    file, base = located(str(path)), root().resolve()
    try:
        there = file.resolve()
    except (OSError, RuntimeError, ValueError):  # a circle of links, a zero byte
        return None
    if there.suffix != SUFFIX or not there.is_relative_to(base):
        return None
    return there.relative_to(base).with_suffix("").as_posix()


def title(text: str) -> str:
    """A schedule's title: its first comment line."""
    for line in text.splitlines():
        if line.startswith("#"):
            return line.lstrip("# ").rstrip()
        if line.strip():
            break
    return ""


def right(text: str) -> str:
    """What a schedule is right for, from the sentence of its first comment that begins so, without the full stop:
    "Right for small work"; empty if there is no such sentence."""
    top = [line.lstrip("# ").rstrip() for line in takewhile(lambda line: line.startswith("#"), text.splitlines())]
    found = re.search(r"(?:^|[.:;] )(Right (?:for|when|where) [^.:;]*)", " ".join(top))
    return found[1] if found else ""


def shown(path: Path) -> str:
    """The name of a file in messages, plans and traces: for a shipped schedule the same on every machine, for any other
    file as given."""
    base = root()
    if path.is_absolute() and path.is_relative_to(base):
        return (Path("schedules") / path.relative_to(base)).as_posix()
    return str(path)


def located(name: str) -> Path:
    """The file that `shown` has named."""
    path = Path(name)
    if not path.is_file() and path.parts[:1] == ("schedules",):
        return root().joinpath(*path.parts[1:])
    return path


def find(name: str) -> Path:
    """The file of a schedule: a path as given (pipes and devices, too), or a library name with or without the suffix.

    Raises UsageError that says what is near.
    """
    path = Path(name)
    try:
        if path.is_dir():
            raise UsageError(f"{name} is a folder; name a {SUFFIX} file in it")
        if path.exists():
            return path
    except OSError as error:  # a name too long, a folder that may not be entered
        raise UsageError(f"{name[:200]}: cannot be read: {error.strerror}") from error
    except ValueError:  # a zero byte: no file has such a name
        pass
    known = shipped()
    wanted = name.removesuffix(SUFFIX).removeprefix("schedules/")
    if wanted in known:
        return known[wanted]
    members = operations().get(name)
    if members is not None:
        raise UsageError(f"{name} is an operation, of {', '.join(members)}; 'ficco choose {name}' chooses among them")
    near = difflib.get_close_matches(wanted, [*operations(), *known], n=3, cutoff=0.5)
    near += [k for k in known if k.split("/")[-1] == wanted.split("/")[-1] and k not in near]
    hint = f"; did you mean {' or '.join(near[:3])}?" if near else "; 'ficco list' names the shipped ones"
    raise UsageError(f"there is no schedule '{name}'{hint}")

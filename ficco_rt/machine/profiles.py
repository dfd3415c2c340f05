"""Resolves machine arguments: a stored name, a TOML file or a Machine, with a given number of ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

from ..errors import UsageError
from ..files.arguments import of_kind
from .file import SUFFIX, load
from .machine_rules import mistakes
from .model import Machine

AnyMachine: TypeAlias = Machine | str | Path

# Files of `stored/`. The first is the default; of several with one device `discover` takes the rates of the first.
NAMES = (
    "h200-switch",
    "h200-ring",
    "h200-nodes",
    "h100-switch",
    "a100-switch",
    "a100-pcie",
    "a40-pcie",
    "b200-switch",
    "gb200-nvl72",
    "gb200-nodes",
    "mi250x",
    "mi300x-mesh",
    "mi350x-mesh",
)
DEFAULT = NAMES[0]
_FOLDER = Path(__file__).parent / "stored"


@cache
def stored(name: str) -> Machine:
    """The stored machine of this name, as its file has it. Raises UsageError: no machine has the name."""
    if name not in NAMES:
        raise UsageError(
            f"no machine is called '{name}'; stored are {', '.join(NAMES)}, and the name of a machine's file ends in "
            f"{SUFFIX}"
        )
    return load(_FOLDER / f"{name}{SUFFIX}")


def profile(name: str, ranks: int) -> Machine:
    """The stored machine `name` with `ranks` ranks. Raises UsageError: no such name, or its tiers join fewer."""
    return _sized(stored(name), ranks)


def is_file(machine: str | Path) -> bool:
    """Whether a machine is named by the path of its file, which ends in .toml, and not by the name of a stored one."""
    return isinstance(machine, Path) or str(machine).endswith(SUFFIX)


def read(machine: str | Path) -> Machine:
    """A machine as its file has it: a stored one by name, any other by a path. Raises UsageError."""
    return load(machine) if is_file(machine) else stored(str(machine))


def scaled(machine: str | Path, ranks: int) -> Machine:
    """A machine by name or path with `ranks` ranks, even if its file has fewer. Raises UsageError if its tiers do not
    join as many."""
    return _sized(read(machine), ranks)


def chosen(machine: AnyMachine, ranks: int) -> Machine:
    """The machine for a caller's argument, with at least `ranks` ranks. A machine given by name or path gets exactly
    `ranks` ranks: a stored one can have as many as its tiers join, a file as many as it states. Raises UsageError."""
    if isinstance(machine, str | Path):
        return _sized(load(machine, ranks) if is_file(machine) else stored(str(machine)), ranks)
    own = of_kind(machine, Machine, f"machine is a Machine, a file or one of {', '.join(NAMES)}")
    wrong = mistakes(own)
    if wrong:
        raise UsageError("\n".join(f"machine {own.name!r}: {mistake}" for mistake in wrong))
    if own.ranks < ranks:
        raise UsageError(
            f"machine '{own.name}' has {own.ranks} ranks and {ranks} are needed; dataclasses.replace(machine, "
            f"ranks={ranks}) is such a machine of {ranks}"
        )
    return own


def _sized(machine: Machine, ranks: int) -> Machine:
    """The machine with `ranks` ranks, if its tiers join as many."""
    last = machine.tiers[-1]
    if last.ranks and ranks > last.ranks:
        raise UsageError(
            f"machine '{machine.name}' joins {last.ranks} ranks and {ranks} are needed; a file with a further tier "
            "describes a larger one (docs/machines.md)"
        )
    return replace(machine, ranks=ranks)

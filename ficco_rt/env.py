"""Every environment variable that the package reads, in one table."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Switch:
    name: str
    default: str
    meaning: str


SWITCHES: tuple[Switch, ...] = (
    Switch("FICCO_MAX_OPS", "500000", "statements that a schedule may expand to, over all ranks"),
    Switch("FICCO_CACHE", "", "folder of compiled kernels and choices; empty: ficco_rt in the user's cache folder"),
    Switch("FICCO_MEASURED", "", "file of measured times (docs/choose.md); empty: measured.json in that folder"),
    Switch("FICCO_DEBUG", "", "when not empty: the traceback of an internal error, and the draft after each pass"),
)

_DEFAULTS = {s.name: s.default for s in SWITCHES}


def get(name: str) -> str:
    """The value of a variable in the table."""
    return os.environ.get(name, _DEFAULTS[name])


def others(name: str) -> str | None:
    """The value of an environment variable that is not ours, such as a vendor's or a library's."""
    return os.environ.get(name)


def ask(name: str, value: str) -> bool:
    """Sets a vendor's variable for this process, unless the user has set it. Returns whether it was set here."""
    asked = name not in os.environ
    os.environ.setdefault(name, value)
    return asked


def withdraw(name: str) -> None:
    """Unsets a variable that `ask` has set."""
    os.environ.pop(name, None)


def cache_folder() -> Path:
    """Where compiled kernels and choices are kept between runs."""
    chosen = get("FICCO_CACHE")
    if chosen:
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ficco_rt"
    except RuntimeError:  # a user without a home, as containers have them
        import tempfile

        return Path(tempfile.gettempdir()) / f"ficco_rt-{os.getuid()}"

"""Files that only their user can have written, in which results are kept between runs. Entries of other owners, entries
that others may read or write, and links count as missing."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def read(path: Path) -> bytes | None:
    """The file's content; None if there is none that only the user can have written."""
    try:  # without a wait for a pipe
        with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                return None
            return file.read()
    except OSError:
        return None


def publish(path: Path, content: bytes) -> None:
    """Make the file appear whole, for nobody else to read. A folder that cannot be written costs time, not the run."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=path.stem[:16], suffix=".part")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(aside, path)
    except OSError:
        Path(aside).unlink(missing_ok=True)

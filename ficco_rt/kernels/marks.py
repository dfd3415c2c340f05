"""The host's half of `src/marks.h`: kernels that mark times of their tiles, and what marks say of a launch's works."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .family import KernelConfig, TileWorks

MARK = np.dtype([(name, np.uint64) for name in ("came", "began", "ended", "waited")])

Marks = npt.NDArray[Any]  # of MARK, one for each tile


def marking(config: KernelConfig) -> KernelConfig:
    """The kernel's twin that marks. It is launched alike, with the address of the marks as one more argument.

    The entry has a name of its own, by which it is defined where the kernel's is."""
    entry = f"marked_{config.entry}"
    options = (f"{o.partition('=')[0]}={entry}" if o.endswith(f"={config.entry}") else o for o in config.options)
    return replace(config, entry=entry, options=(*options, "-DMARKS=1"))


@dataclass(frozen=True, slots=True)
class WorkMarks:
    """The times of a work, or of works that are made as one, in ticks of the device's clock: when its first block came
    to it, when its first tile began, when its last tile ended, and how long blocks waited for it (the mean over all
    blocks)."""

    came: int
    began: int
    ended: int
    waited: float


def of_works(marks: Marks, tile_works: TileWorks, blocks: int) -> dict[int, WorkMarks]:
    """The times by the number of the work. In a run that was given up, tiles may have no marks."""
    numbers = np.asarray(tile_works)
    found: dict[int, WorkMarks] = {}
    for number in np.unique(numbers).tolist():
        mine = marks[(numbers == number) & (marks["ended"] > 0)]
        if len(mine):
            came, began, ended = mine["came"].min(), mine["began"].min(), mine["ended"].max()
            found[number] = WorkMarks(int(came), int(began), int(ended), float(mine["waited"].sum()) / blocks)
    return found

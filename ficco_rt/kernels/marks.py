"""Host code of `src/marks.h`: kernels that record the times of their tiles (marks), and the times of works computed
from marks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from .family import KernelConfig, TileWorks

MARK = np.dtype([(name, np.uint64) for name in ("came", "began", "ended", "waited", "where")])

Marks = npt.NDArray[Any]  # of MARK, one for each tile


def marking(config: KernelConfig) -> KernelConfig:
    """The instrumented variant of a kernel, which records marks. It is launched like the kernel, with the address of
    the marks as one more argument.

    The instrumented entry has its own name; the macro that defines the entry is redefined accordingly."""
    entry = f"marked_{config.entry}"
    options = (f"{o.partition('=')[0]}={entry}" if o.endswith(f"={config.entry}") else o for o in config.options)
    return replace(config, entry=entry, options=(*options, "-DMARKS=1"))


_NOWHERE = np.uint64(2**64 - 1)


def blocks_at_once(launches: Sequence[Marks]) -> int | None:
    """The most blocks of these launches that were on one multiprocessor at the same time; None: no mark says where. A
    block was there from its first tile's beginning to its last tile's end, at least."""
    lives: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by multiprocessor
    for marks in launches:
        made = marks[(marks["ended"] > 0) & (marks["where"] != _NOWHERE)]
        for where in np.unique(made["where"]):
            mine = made[made["where"] == where]
            lives[int(where) & 0xFFFFFFFF].append((int(mine["came"].min()), int(mine["ended"].max())))
    return max((_most(of) for of in lives.values()), default=None)


def _most(lives: Sequence[tuple[int, int]]) -> int:
    """Of intervals, how many overlap at most."""
    changes = sorted([(stop, -1) for _, stop in lives] + [(start, 1) for start, _ in lives])
    return max(accumulate(step for _, step in changes))


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

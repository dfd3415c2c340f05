"""Vector clocks: what is known to be done at a point of a plan.

A clock holds, for every stream, how many of its entries are done, and for works of streamed launches
that are still under way the set of works known to be done (bits of one integer).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True, eq=False)  # NOTE not frozen: a check makes hundreds of thousands
class Clock:
    done: NDArray[np.int32]  # by stream
    works: int  # bit set

    def join(self, other: Clock) -> Clock:
        """Both are known."""
        if other is self:
            return self
        return Clock(np.maximum(self.done, other.done), self.works | other.works)

    def at(self, stream: int, position: int) -> Clock:
        """This, and the first `position` entries of `stream`."""
        done = self.done.copy()
        done[stream] = position
        return Clock(done, self.works)

    def with_work(self, bit: int) -> Clock:
        return Clock(self.done, self.works | 1 << bit)


def start(streams: int) -> Clock:
    """Nothing is done."""
    return Clock(np.zeros(streams, np.int32), 0)

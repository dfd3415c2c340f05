"""Vector clocks: what is known to have completed at a point of a plan.

For every stream, a clock holds how many of its entries have completed. For streamed launches that still run, it holds
the set of works known to have completed (bits of one integer).
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
        """The clock that knows what both clocks know."""
        if other is self:
            return self
        return Clock(np.maximum(self.done, other.done), self.works | other.works)

    def at(self, stream: int, position: int) -> Clock:
        """This clock, joined with the first `position` entries of `stream`."""
        done = self.done.copy()
        done[stream] = position
        return Clock(done, self.works)

    def with_work(self, bit: int) -> Clock:
        return Clock(self.done, self.works | 1 << bit)


def start(streams: int) -> Clock:
    """The clock at the start, when nothing is done."""
    return Clock(np.zeros(streams, np.int32), 0)

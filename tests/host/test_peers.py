"""Looks at other processes of a group, on the host driver."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from ficco_rt.driver.host.peers import ENDED, FAILED, IDLE, Peers
from ficco_rt.errors import DeviceError


@pytest.mark.parametrize(
    ("last", "said"), [(ENDED, ""), (FAILED, "why it gave up"), (None, "process 1 has ended: it was there")]
)
def test_what_a_process_does_last_is_known_before_its_end(last: int | None, said: str) -> None:
    """It ends its run, or gives it up, and closes between two looks at it."""
    peers = Peers.__new__(Peers)
    status = np.zeros((2, IDLE + 2), np.int64)

    class Closing:
        def ended(self, place: int) -> bool:
            if last is not None:
                status[place][last] = 1
            return True

    facts = {"_others": [1], "_run": 1, "_status": status, "_segment": Closing(), "_seen": b"", "_timeout": None}
    for name, value in facts.items():
        setattr(peers, name, value)
    peers._last = lambda place: "was there"  # type: ignore[method-assign]
    peers._said = lambda place: "why it gave up"  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match=said) if said else nullcontext():
        peers._look(0.0, None)

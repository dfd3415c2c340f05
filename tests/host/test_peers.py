"""Looks at other processes of a group, on the host driver."""

from __future__ import annotations

import numpy as np
import pytest

from ficco_rt.driver.host.peers import ENDED, IDLE, Peers
from ficco_rt.errors import DeviceError


@pytest.mark.parametrize("through", [True, False])
def test_a_process_that_ends_behind_its_run_has_run(through: bool) -> None:
    """It ends its run and closes between two looks at it."""
    peers = Peers.__new__(Peers)
    status = np.zeros((2, IDLE + 2), np.int64)

    class Closing:
        def ended(self, place: int) -> bool:
            status[place][ENDED] = int(through)
            return True

    facts = {"_others": [1], "_run": 1, "_status": status, "_segment": Closing(), "_seen": b"", "_timeout": None}
    for name, value in facts.items():
        setattr(peers, name, value)
    peers._last = lambda place: "was there"  # type: ignore[method-assign]
    if through:
        peers._look(0.0, None)
    else:
        with pytest.raises(DeviceError, match="process 1 has ended: it was there"):
            peers._look(0.0, None)

"""Executors of one process at once: their runs hold each other out nowhere, and disturb each other nowhere."""

from __future__ import annotations

import os
import random

import pytest

from ficco_rt.driver.gpu import runs, turns
from tests.mock import several
from tests.mock.standin import StandIn

SHARES, ORDERS = 8, 12  # tests among which a draw of pairs is divided; orders of a pair
DRAWN = 5  # pairs of a test; of 378
SEED = int(os.environ.get("FICCO_SEVERAL", "0"))


@pytest.mark.parametrize("share", range(SHARES))
def test_every_order_ends(library: StandIn, share: int) -> None:
    """A part of `python -m tests.mock.several`."""
    chance = random.Random(f"{SEED} {share} {library.face}")
    for names in chance.sample(several.PAIRS, DRAWN):
        with several.pair(library, names, chance.choice((2, 3))) as running:
            for seed in range(ORDERS):
                assert not several.in_order(library, running, seed), f"{names}, order {seed}"
        assert not library.violations()
        assert not library.live()


def test_without_an_order_runs_hold_each_other_out(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above sees it."""
    monkeypatch.setattr(turns, "kept_back", lambda room, earlier, sms: [False for _ in earlier])
    monkeypatch.setattr(runs, "DRAIN", 0.1)
    monkeypatch.setattr(several, "TIMEOUT", 0.2)
    said = ""
    with several.pair(cuda, ("gemm_rs/streamed", "gemm_rs/streamed")) as running:
        for seed in range(30):
            said = said or several.in_order(cuda, running, seed)
    assert "the run did not end within 0.2 s" in said

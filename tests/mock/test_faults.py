"""Every schedule, struck by a sample of the fault campaign's faults (`python -m tests.mock.campaign --full`: all)."""

from __future__ import annotations

import pytest

from tests import cases
from tests.mock import campaign
from tests.mock.standin import StandIn

SHARES: dict[campaign.Kind, float] = dict.fromkeys(campaign.ALL, 0.01)


@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_faults_are_told_and_leave_nothing(library: StandIn, name: str) -> None:
    scores = campaign.run(library, name, SHARES)
    wrong = [text for score in scores.values() for text in score.wrong]
    assert not wrong, "\n".join(wrong)
    assert scores["call"].ends.total() >= 30, "every function that is called fails at least once"
    assert all(score.ends for kind, score in scores.items() if kind not in ("corrupt", "delay"))

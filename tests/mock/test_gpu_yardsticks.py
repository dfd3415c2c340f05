"""tests/gpu/test_yardsticks does what it says, on the stand-in, whose times mean nothing."""

from __future__ import annotations

import pytest

from tests.gpu import test_yardsticks as yardsticks
from tests.mock.standin import StandIn


def test_the_check_runs(cuda: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.set("devices 2")
    monkeypatch.setattr(yardsticks, "SCHEDULES", ("ag_gemm/serial", "ag_gemm/streamed"))
    monkeypatch.setattr(yardsticks, "LONGEST", (2,))
    yardsticks.holds("cuda", 2, 64, 2)
    out = capsys.readouterr().out
    assert "ag_gemm/streamed " in out
    assert " of 400 actions on a stream: issued in " in out
    assert "has no start gate" not in out
    assert "yardsticks are" not in out
    assert not cuda.violations()
    assert not cuda.live()

"""tools/yardstick_check.py does what it says, on the stand-in, whose times mean nothing."""

from __future__ import annotations

import pytest

from tests.mock.standin import StandIn
from tools import yardstick_check


def test_the_tool_runs(cuda: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.set("devices 2")
    monkeypatch.setattr(yardstick_check, "SCHEDULES", ("ag_gemm/serial", "ag_gemm/streamed"))
    monkeypatch.setattr(yardstick_check, "LONGEST", (2,))
    yardstick_check.main(["--m", "64", "--n", "64", "--k", "64", "--iters", "2"])
    out = capsys.readouterr().out
    assert "ag_gemm/streamed " in out
    assert " of 400 actions on a stream: issued in " in out
    assert "has no latch" not in out
    assert "yardsticks are" not in out
    assert not cuda.violations()
    assert not cuda.live()

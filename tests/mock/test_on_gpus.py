"""The launches that provoke waits and signals on real GPUs, on the stand-in: the program itself, and its verdicts."""

from __future__ import annotations

import pytest

from tests.mock.standin import StandIn
from tests.simt import on_gpus


@pytest.mark.parametrize("devices", [1, 2])
def test_late_operands(cuda: StandIn, devices: int, capsys: pytest.CaptureFixture[str]) -> None:
    cuda.reset(f"devices {devices}; arch sm_90; sms 16; query_steps 5000")
    assert on_gpus.main(["--repeats", "2", "--only", "sm90_gemm_64x64_c1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) >= 9
    assert all(line.endswith(": right") for line in said)
    assert cuda.early() > 0
    assert not cuda.violations()

"""The tool that asks a GPU what the device plan counts on, on the stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mock import standin
from tools import driver_facts

ROOT = Path(__file__).parents[2]


def test_the_table() -> None:
    environment = {
        **os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'dsl'}", "LD_LIBRARY_PATH": str(standin.folder("cuda")),
        "STANDIN": "devices 2; arch sm_75; flush 1",
    }  # fmt: skip
    command = [sys.executable, "-m", "tools.driver_facts", "--connections", "1", "8"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = [line.strip("| ").split(" | ") for line in ended.stdout.splitlines() if not line.startswith("|---")]
    rows = {asked: answers for asked, *answers in lines}
    assert rows["connections"] == ["1", "8"]
    assert rows["streams that wait and keep no other back"] == ["0", "7"]
    assert rows["streams made where others have gone, likewise"] == ["0", "7"]
    assert rows["passes a stream's wait"] == rows["passes an event behind a kernel that waits"] == ["no", "yes"]
    assert rows["passes a kernel that waits"] == ["yes", "yes"]
    assert [told for asked, told in rows.items() if asked.endswith("another GPU's context current")] == [
        ["right"] * 2
    ] * 7
    assert min(map(float, rows["the same with a flush of remote writes"])) > 0


def test_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["driver_facts"])
    monkeypatch.setattr("ficco_rt.driver.registry.device_count", lambda name: 0)
    assert driver_facts.main() == 3
    assert capsys.readouterr().err == "driver_facts: this machine has no NVIDIA GPU\n"

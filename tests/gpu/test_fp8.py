"""Scaled fp8 products of the Hopper kernel beside fp64: random types, scales, sizes, splits and waits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_random_products() -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "tools.gemm_bench", "--types", "fp8", "--check-only", "--cases", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode == 3:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr

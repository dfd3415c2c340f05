"""Scaled fp8 products of the Hopper kernel beside fp64: random types, scales, sizes, splits and waits. With FICCO_ALL
there are 2,000, else two of each kernel."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import cases

ROOT = Path(__file__).resolve().parents[2]


def test_random_products() -> None:
    pytest.importorskip("torch")
    each = "50" if cases.ALL else "2"
    command = [sys.executable, "-m", "tools.gemm_bench", "--types", "fp8", "--check-only", "--cases", each]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode == 3:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    checked = re.search(r"(\d+) kernels × (\d+) random cases", done.stdout)
    assert checked is not None
    assert int(checked[1]) * int(checked[2]) >= (2000 if cases.ALL else 60)

"""`ficco_rt.torch.install()` on GPUs: random calls, captures and host time (`symm_mem`), in two processes that have a
GPU each or share one; and PyTorch's own tests of what calls the operators, from a checkout of PyTorch that
FICCO_PYTORCH names, of the version that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.apart import ROOT, apart, environment
from tests.gpu.test_workspace import launched

pytestmark = pytest.mark.torch

CALLS = 200
LIMIT = 300
CHECKOUT = os.environ.get("FICCO_PYTORCH", "")
THEIRS = {  # file, and which of its tests; those that need two GPUs
    "micro_pipeline": ("test/distributed/tensor/parallel/test_micro_pipeline_tp.py", ""),
    "async_tp": ("test/distributed/test_symmetric_memory.py", "AsyncTPTest"),
}


def test_random_calls_captures_and_host_time(gpus: int, long: int) -> None:
    apart(launched, "symm_mem", 1 if gpus > 1 else 2, {"calls": CALLS * long}, limit=LIMIT * long)


@pytest.mark.skipif(not CHECKOUT, reason="FICCO_PYTORCH names no checkout of PyTorch")
@pytest.mark.parametrize("part", ["micro_pipeline", pytest.param("async_tp", marks=pytest.mark.gpus2)])
def test_pytorch_s_own(part: str) -> None:
    apart(theirs, *THEIRS[part], limit=600)


def theirs(file: str, which: str) -> bool:
    """Their tests, with ficco installed in every process. NOTE not in their folder, whose `torch` is not built."""
    paths = [str(ROOT / "tests" / "torch" / "site"), str(ROOT), str(ROOT / "dsl")]
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, str(Path(CHECKOUT) / file), "-k", which]
    variables = environment({"PYTHONPATH": os.pathsep.join(paths)})
    return subprocess.run(command, cwd=Path(CHECKOUT).parent, env=variables, check=False).returncode == 0

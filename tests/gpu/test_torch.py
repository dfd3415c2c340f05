"""`ficco_rt.torch.install()` on GPUs: random calls, captures and host time (`symm_mem`), in two processes that have a
GPU each or share one; and others' own tests, from checkouts: of what calls the operators (FICCO_PYTORCH names one of
the version that is installed, FICCO_TORCHTITAN), and of fp8 by blocks with ficco in place of vLLM's kernels
(FICCO_VLLM)."""

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
THEIRS = {  # the checkout, a file, and which of its tests: not those that look for a kernel of PyTorch's by its name
    "micro_pipeline": ("FICCO_PYTORCH", "test/distributed/tensor/parallel/test_micro_pipeline_tp.py", ""),
    "async_tp": ("FICCO_PYTORCH", "test/distributed/test_symmetric_memory.py", "AsyncTPTest and not matmul_native"),
    "torchtitan": ("FICCO_TORCHTITAN", "tests/unit_tests/test_distributed_linear.py", ""),
}
ON_TWO = ("async_tp", "torchtitan")


def test_random_calls_captures_and_host_time(gpus: int, long: int) -> None:
    apart(launched, "symm_mem", 1 if gpus > 1 else 2, {"calls": CALLS * long}, limit=LIMIT * long)


def test_layers_with_a_bias(gpus: int) -> None:
    apart(launched, "linear", 1 if gpus > 1 else 2, {}, limit=LIMIT)


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=pytest.mark.gpus2 if part in ON_TWO else ()) for part in THEIRS]
)
def test_others_own(part: str) -> None:
    variable, file, which = THEIRS[part]
    checkout = os.environ.get(variable)
    if not checkout:
        pytest.skip(f"{variable} names no checkout")
    apart(theirs, checkout, file, which, limit=600)


def test_vllms_own(gpus: int) -> None:
    checkout = os.environ.get("FICCO_VLLM")
    if not checkout:
        pytest.skip("FICCO_VLLM names no checkout")
    apart(launched, "vllm", 1 if gpus > 1 else 2, {"checkout": str(Path(checkout).resolve())}, limit=600)


def theirs(checkout: str, file: str, which: str) -> bool:
    """Their tests, with ficco installed in every process. NOTE not in PyTorch's folder, whose `torch` is not built."""
    mine = [ROOT / "tests" / "torch" / "site", ROOT, ROOT / "dsl"]
    paths = [*map(str, mine), *([checkout] if (Path(checkout) / "torchtitan").is_dir() else [])]
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, str(Path(checkout) / file), "-k", which]
    variables = environment({"PYTHONPATH": os.pathsep.join(paths)})
    return subprocess.run(command, cwd=Path(checkout).parent, env=variables, check=False).returncode == 0

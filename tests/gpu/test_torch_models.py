"""The examples of models on this machine's GPUs, in two processes that share one if there is one.

training: losses of 100 steps as PyTorch's on one process, which communicates nothing: eagerly, compiled and captured.
Each process has half of the weights of two layers of Llama-3-70B. decoding: tokens as PyTorch's, as CUDA graphs.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.gpu.apart import ROOT, environment

LIMIT = 400  # seconds of a program

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("mode", ["eager", "compile", "capture"])
def test_training(mode: str, long: int) -> None:
    said = _torchrun("llama_tp/llama.py", "train", "--mode", mode, "--steps", str(100 * long), "--ways", "ficco,plain")
    assert "off plain's by at most" in said


def test_decoding() -> None:
    assert _torchrun("llama_tp/llama.py", "decode", "--ways", "ficco,plain").count("a step of") == 8


def test_serving() -> None:
    assert _torchrun("serving/serve.py").count("all rows right") == 2


def _torchrun(script: str, *words: str) -> str:
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(ROOT / "examples" / script)]
    done = subprocess.run(
        [*start, *words], env=environment(), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

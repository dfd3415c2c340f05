"""`ficco_rt.torch.install()` on the CPU: processes with gloo, and ficco's host driver. A start has many parts, because
it costs more than they do. NOTE only these processes import PyTorch, which takes seconds."""

from __future__ import annotations

import os
from importlib.util import find_spec
from shutil import which

import pytest

from tests.torch.processes import together

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")

ALL = "FICCO_ALL" in os.environ


def test_two_processes() -> None:
    together(2, "parts.everything", 500, 1)


def test_four_processes() -> None:
    together(4, "parts.four", 500 if ALL else 60, 2)


@pytest.mark.skipif(not (ALL and which("g++")), reason="with FICCO_ALL=1, and a C++ compiler for PyTorch's code")
def test_inductor_s_micro_pipeline_pass() -> None:
    together(2, "parts.inductor")

"""The operands of `tools.bench --scales` (`bench_operands`)."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.torch.processes import together


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_operands() -> None:
    together(1, "bench_operands.everything")

"""ficco's operations as operators of PyTorch (extra `torch`; PyTorch 2.11 or later): docs/torch.md."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError("ficco_rt.torch needs PyTorch 2.11 or later: pip install 'ficco-rt[torch]'", name="torch")

from .groups import Settings
from .layers import ColumnParallel, ColumnParallelLinear, RowParallel, RowParallelLinear
from .symm_mem import install, installed, uninstall

__all__ = [
    "ColumnParallel",
    "ColumnParallelLinear",
    "RowParallel",
    "RowParallelLinear",
    "Settings",
    "install",
    "installed",
    "uninstall",
]

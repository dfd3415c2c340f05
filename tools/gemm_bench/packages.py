"""What the modules beside this one import at their top, and may be missing."""

from __future__ import annotations

import sys
from importlib import import_module


def require(program: str) -> None:
    """Exit code 3, with a message of `program`, where PyTorch or cuda-bindings is missing."""
    try:
        import_module("torch")
        import_module("cuda.bindings.driver")
    except ImportError as error:
        sys.stderr.write(f"{program} needs PyTorch and cuda-bindings: {error}\n")
        sys.exit(3)

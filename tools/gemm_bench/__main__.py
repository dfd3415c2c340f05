"""`python -m tools.gemm_bench`, from the checkout's root."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "dsl")]  # the checkout's own packages, also where another one is installed

try:
    import cuda.bindings.driver  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    sys.stderr.write(f"gemm_bench needs PyTorch and cuda-bindings: {error}\n")
    sys.exit(3)

from tools.gemm_bench.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

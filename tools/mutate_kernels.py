"""Mutations of NVIDIA's kernels on this machine's GPUs, one or two of them: which does a GPU show?

    python -m tools.mutate_kernels [--only N,…] [--jobs 8]      # numbers as `python -m tests.mutate --list` has them

Each mutation of `tests/mutations.txt` is made in a copy of the tree, compiled, and run with late operands
(`tests/simt/on_gpus.py`). The counts come last; exit code 1 if a mutation survives.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "dsl")]  # the checkout's own packages, also where another one is installed

from tests.mutate import main

if __name__ == "__main__":
    sys.exit(main(["--gpus", *sys.argv[1:]]))

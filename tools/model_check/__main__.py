"""`python -m tools.model_check`, from the checkout's root."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "dsl")]  # the checkout's own packages, also where another one is installed

from tools.model_check.cli import main

if __name__ == "__main__":  # worker processes import this file again
    sys.exit(main(sys.argv[1:]))

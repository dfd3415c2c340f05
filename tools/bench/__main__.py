"""`python -m tools.bench`, from the checkout's root."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "dsl")]  # the checkout's own packages, also where another one is installed

from tools.bench import campaign, cli

if __name__ == "__main__":  # worker processes import this file again
    given = sys.argv[1:]
    sys.exit(campaign.main(given[1:]) if given[:1] == ["campaign"] else cli.main(given))

"""Many plans in one workspace, and operations of any number of rows: in one process, and in two (`sized_rows`)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.gpu import sized_rows
from tests.gpu.apart import ROOT, apart

pytestmark = pytest.mark.torch

SIZES = 60  # as `--long 4` gives more than 200
LIMIT = 150


def test_any_number_of_rows(ranks: int, each: int, long: int) -> None:
    apart(sized_rows.sized, ranks, each, SIZES * long, limit=LIMIT * long)


def test_in_two_processes(gpus: int, long: int) -> None:
    apart(launched, 1 if gpus > 1 else 2, SIZES * long, limit=LIMIT * long)


def launched(each: int, sizes: int) -> bool:
    asked = json.dumps({"ranks": 2, "each": each, "sizes": sizes})
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "tests.gpu.sized_rows",
        asked,
    ]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0

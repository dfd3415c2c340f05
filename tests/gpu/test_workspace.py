"""Many plans in one workspace, operations of any number of rows, and a model's decode step: in one process, and in two
(`sized_rows`, `decode`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.gpu import decode, sized_rows
from tests.gpu.apart import ROOT, apart

pytestmark = pytest.mark.torch

SIZES = 60  # as `--long 4` gives more than 200
STEPS = 2500  # and 10,000
LIMIT = 150


def test_any_number_of_rows(ranks: int, each: int, long: int) -> None:
    apart(sized_rows.sized, ranks, each, SIZES * long, limit=LIMIT * long)


def test_any_number_of_rows_of_layers(ranks: int, each: int, long: int) -> None:
    apart(sized_rows.layers, ranks, each, SIZES * long, limit=LIMIT * long)


def test_in_two_processes(gpus: int, long: int) -> None:
    apart(launched, "sized_rows", 1 if gpus > 1 else 2, {"sizes": SIZES * long}, limit=LIMIT * long)


def test_a_decode_step(long: int) -> None:
    """NOTE memory of the GPU is compared: no other test may run there."""
    apart(decode.decode, 2, 2, STEPS * long, limit=LIMIT * long)


def test_decode_steps_of_two_processes(gpus: int, long: int) -> None:
    """Processes that share a GPU take turns on it, and wait for one another by turns."""
    steps = STEPS * long if gpus > 1 else 2 * long
    apart(launched, "decode", 1 if gpus > 1 else 2, {"steps": steps}, limit=LIMIT * long)


def launched(module: str, each: int, more: Mapping[str, object]) -> bool:
    asked = json.dumps({"ranks": 2, "each": each, **more})
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        f"tests.gpu.{module}",
        asked,
    ]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0

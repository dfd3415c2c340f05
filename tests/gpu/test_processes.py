"""Two processes, a GPU each or one that they share; `tests/gpu/processes.py` says what is done. A part of the schedules
is run each day, all with FICCO_ALL=1. `--long 17` makes 51 faults and 34,000 runs, and takes fresh data 17 times."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import pytest

from ficco_rt.files import shipped
from tests import cases
from tests.gpu import processes
from tests.gpu.apart import ROOT, apart
from tests.gpu.side import RANKS

LIMITS = {"right": 300, "kill": 90, "groups": 60, "flat": 90, "capture": 120, "ways": 60}  # seconds of a part
DAYS = 6  # in which each schedule has its turn
LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "-m"],
    "mpirun": ["mpirun", "-n", str(RANKS), sys.executable, "-m"],
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # in containers, by Open MPI


@pytest.fixture
def shared(gpus: int) -> int:
    """Processes that share a GPU."""
    return 1 if gpus > 1 else RANKS


def schedules() -> list[str]:
    """Of the day."""
    names = sorted(entry.name for entry in shipped.entries())
    return names if cases.ALL else names[date.today().toordinal() % DAYS :: DAYS]


@pytest.mark.parametrize(
    "part",
    ["right", "groups", "flat", "ways", "kill", pytest.param("capture", marks=[pytest.mark.gpus2, pytest.mark.nccl])],
)
def test_part(part: str, shared: int, long: int) -> None:
    today = date.today().toordinal()
    asked = {
        "parts": [part],
        "ranks_per_gpu": shared,
        "repeats": long,
        "kills": 3 * long,
        "runs": 2000 * long,
        "seed": today,
    }
    limit = LIMITS[part] * long * (DAYS if cases.ALL else 1)
    apart(processes.started, asked | {"schedules": schedules() if part == "right" else []}, limit=limit)


@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.torch), "mpirun"])
def test_in_a_launchers_processes(launcher: str, shared: int, long: int) -> None:
    if launcher == "mpirun":
        pytest.importorskip("mpi4py")
        if shutil.which("mpirun") is None:
            pytest.skip("there is no mpirun")
    asked = {"parts": ["right", "ways"], "ranks_per_gpu": shared, "repeats": long, "schedules": schedules()[:1]}
    apart(launched, LAUNCHERS[launcher], asked, limit=LIMITS["right"] * long)


@pytest.mark.gpus2
@pytest.mark.nccl
@pytest.mark.torch
def test_callers_graphs_in_a_launchers_processes() -> None:
    apart(launched, LAUNCHERS["torchrun"], {"parts": ["capture"]}, limit=LIMITS["capture"])


def launched(launcher: Sequence[str], asked: Mapping[str, Any]) -> bool:
    command = [*launcher, "tests.gpu.processes", json.dumps(asked)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **AS_ROOT}, check=False).returncode == 0

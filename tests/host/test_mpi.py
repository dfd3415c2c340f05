"""The host driver in processes that mpirun has started, and `ficco-run` there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit import pages
from tests.unit.command_line import GOOD

pytest.importorskip("mpi4py")

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
LIMIT = 120.0  # seconds, of which one start needs a few


def mpirun(size: int, *words: str, here: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Python in so many processes. Each has one thread for products: it has a part of the machine."""
    assert MPIRUN is not None, "mpirun is not there; the package mpich brings it"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'dsl'}", "OPENBLAS_NUM_THREADS": "1", "NO_COLOR": "1"}
    command = [MPIRUN, "-n", str(size), sys.executable, *words]
    return subprocess.run(
        command, cwd=here, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def test_processes_give_the_bits_of_one_process() -> None:
    done = mpirun(4, "-m", "tests.host.in_processes")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("world") == "<Group: process 0 of 4>"
    assert found.pop("differ") == []
    assert found.pop("two ranks each")
    assert found.pop("side by side") == [True] * 4
    assert found.pop("another plan").startswith("UsageError: the processes do not run the same: ranks is 4 in ")
    assert found.pop("late") == "DeviceError: process 0 has waited 0.2 s, and process 3 of 4 has not come"
    assert found.pop("missing").startswith("DeviceError: not all of the processes 0, 1, 2, 3 of the communicator have ")
    assert found.pop("met") == ["met"] * 4
    assert not found
    assert not [name for name in os.listdir("/dev/shm") if "ficco" in name]  # an MPI has files of its own there


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "good.ficco").write_text(GOOD)
    return tmp_path


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    page = (pages.DOCS / "embed" / "processes.md").read_text(encoding="utf-8")
    (program,) = [block.text for block in pages.blocks(page) if "layer_numpy.py" in block.words]
    (tmp_path / "layer_numpy.py").write_text(program, encoding="utf-8")
    done = mpirun(2, "layer_numpy.py", here=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == 2  # NOTE mpirun may mix what the processes print


def test_one_report_of_two_processes(here: Path) -> None:
    done = mpirun(2, "-m", "ficco_rt.run", "good.ficco", "--backend", "host", "--json", here=here)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert {name: record[name] for name in ("processes", "ranks", "verified", "proven", "backend")} == {
        "processes": 2,
        "ranks": 2,
        "verified": True,
        "proven": True,
        "backend": "host",
    }


def test_an_error_is_told_once(here: Path) -> None:
    done = mpirun(2, "-m", "ficco_rt.run", "good.ficco", "--gpus", "3", here=here)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "ficco-run: --gpus 3: mpirun has started 2 processes, and 3 ranks do not go out even on them; "
        "leave --gpus out, or start 3 processes\n"
    )

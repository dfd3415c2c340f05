"""`ficco-run` in two processes: process 0 tells whatever happens in any of them, and all end with one exit code."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from ficco_rt.cli import console, together
from ficco_rt.cli.main import execute
from ficco_rt.driver.host.peers import Peers
from ficco_rt.errors import DeviceError
from ficco_rt.process.group import Group
from tests.host.processes import group_of, several
from tests.unit.command_line import GOOD


def endings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str, before: Callable[[int], None] = lambda place: None
) -> list[tuple[int, str, str] | None]:
    """Exit code, stdout and the error on stderr of each process."""
    monkeypatch.chdir(folder)
    (folder / "good.ficco").write_text(GOOD)
    (folder / "store").mkdir(exist_ok=True)
    monkeypatch.setattr(together, "launched", lambda: ("mpirun", 2))
    monkeypatch.setattr(together, "GOODBYE", 0.5)
    monkeypatch.setattr(console, "_SLOW", 60.0)  # no line of progress on a busy machine

    def body(place: int) -> tuple[int, str, str]:
        Group.from_env = lambda timeout: group_of(folder / "store", 2, place)
        before(place)
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = execute("ficco-run", [*words, "--backend", "host"])
        return code, out.getvalue(), err.getvalue().partition("  help: ")[2].partition("\n")[2]  # behind a warning

    return several(folder, 2, body)


def test_process_0_reports_and_standard_input_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def before(place: int) -> None:
        sys.stdin = io.TextIOWrapper(io.BytesIO(GOOD.encode() if place == 0 else b""))

    first, second = endings(tmp_path, monkeypatch, "-", "--gpus", "4", before=before)
    assert second == (0, "", "")
    assert first[0] == 0
    assert "  backend  host: 4 virtual GPUs in 2 processes, on numpy, as NVIDIA H200 on a switch" in first[1]
    assert "  numbers  correct: integers equal, random data off by " in first[1]


def test_an_error_of_another_process_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def before(place: int) -> None:
        if place == 1:
            Peers.at = broken

    def broken(self: Peers, job: object) -> None:
        raise DeviceError("the disk is on fire")

    first, second = endings(tmp_path, monkeypatch, "good.ficco", before=before)
    assert second == (3, "", "")
    assert first == (3, "", "[process 1] ficco-run: device error: the disk is on fire\n")


def test_a_killed_process_does_not_leave_the_other_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def before(place: int) -> None:
        if place == 1:
            Peers.end = lambda self: os.kill(os.getpid(), signal.SIGKILL)

    first, second = endings(tmp_path, monkeypatch, "good.ficco", before=before)
    assert second is None
    assert first[:2] == (3, "")
    assert first[2].startswith("[process 0] ficco-run: device error: process 1 has ended: it was last at work ")


def test_files_that_differ_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def before(place: int) -> None:
        if place == 1:
            (tmp_path / "other").mkdir()
            os.chdir(tmp_path / "other")
            Path("good.ficco").write_text(GOOD.replace("N = 32", "N = 64"))

    first, second = endings(tmp_path, monkeypatch, "good.ficco", "--json", before=before)
    assert second == (2, "", "")
    assert first[0] == 2
    assert first[1].startswith('{"error": {"class": "UsageError", "exit_code": 2, "message": "the processes do not run')

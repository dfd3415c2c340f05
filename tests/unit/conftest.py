"""Fixtures for tests of the command line, and of choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ficco_rt.cli.main import execute
from ficco_rt.select import ranking
from tests.unit.command_line import GOOD, MISSING, Ending


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ending]:
    """Run a command line in this process."""

    def call(*words: str | Path) -> Ending:
        code = execute(str(words[0]), [str(w) for w in words[1:]])
        captured = capsys.readouterr()
        return Ending(code, captured.out, captured.err)

    return call


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of our own to work in, with good.ficco and missing.ficco."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.ficco").write_text(GOOD)
    (tmp_path / "missing.ficco").write_text(MISSING)
    return tmp_path


@pytest.fixture
def own_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No answer of another test or of the user's is remembered."""
    monkeypatch.setenv("FICCO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FICCO_MEASURED", raising=False)
    ranking._KEPT.clear()
    yield
    ranking._KEPT.clear()

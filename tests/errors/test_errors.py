"""One file a mistake: what the command line says of it, to the letter, and with which exit code.

Beside `NAME.ficco` stands `NAME.expected`: its first line is the command, the rest is what the command prints
and returns. `pytest tests/errors --update-golden` runs the commands again and writes the rest anew; read the
difference as the people who will meet these messages do.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from ficco_rt.cli import console
from ficco_rt.cli.main import execute

HERE = Path(__file__).parent
FILES = sorted(HERE.rglob("*.ficco"))
assert len(FILES) >= 60


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(HERE).with_suffix("")))
def test_message(
    path: Path,
    golden: Callable[[Path, str], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = path.with_suffix(".expected")
    command = expected.read_text(encoding="utf-8").split("\n")[0]
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(console, "_SLOW", 600.0)  # a busy machine takes more than a second for some steps
    words = shlex.split(command.removeprefix("$ "))
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    assert str(path.relative_to(HERE)) in words
    code = execute(words[0], words[1:])
    out, err = capsys.readouterr()
    assert code in (1, 2), f"exit code {code}\n{out}{err}"
    golden(expected, f"{command}\n{out}{err}exit {code}\n")


def test_huge_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("huge.ficco").write_text("schedule s\n" + "# a comment\n" * 100_000, encoding="utf-8")
    assert execute("ficco", ["check", "huge.ficco"]) == 1
    message = "the file has 1,200,011 bytes; a schedule has at most 1,048,576"
    assert message in capsys.readouterr().err


def test_no_expectation_is_left_over() -> None:
    assert {p.with_suffix("") for p in HERE.rglob("*.expected")} == {p.with_suffix("") for p in FILES}

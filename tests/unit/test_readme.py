"""What the README shows is what happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import ficco_dsl
from ficco_rt import compiler
from ficco_rt.cli.main import execute
from ficco_rt.errors import ScheduleError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.machine.profiles import profile

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    """The lines of shell blocks, cut at `&&`."""
    return [part.split() for block in blocks("sh") for line in block.splitlines() for part in line.split("&&")]


def test_the_runs_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], update_golden: bool
) -> None:
    """The figures that the page says of the first run are the model's: `--update-golden` writes them. NOTE in a folder
    of its own: an installed package takes a path of the checkout for a file of the user, which no rules are for."""
    monkeypatch.chdir(tmp_path)
    runs = [words for words in commands() if words[0] == "ficco-run"]
    assert len(runs) == 2
    for words in runs:
        assert execute("ficco-run", words[1:]) == 0, words
        out, err = capsys.readouterr()
        assert "numbers  correct" in out or "--backend sim" in " ".join(words)
        assert "warning" not in err
        if words is runs[0]:
            ((times, share),) = re.findall(
                r", both uncut; this is (\S+) times as fast$.*, (\d+) % of it reached$",
                out,
                re.MULTILINE | re.DOTALL,
            )
            said = r"(the run is )\S+( times as fast as moving [\w ]+, and it reaches )\d+( % of the ideal)"
            said = said.replace("[\\w ]", "[\\w\\s]").replace(" ", r"\s+")
            shown = re.sub(said, rf"\g<1>{times}\g<2>{share}\g<3>", README)
            assert len(re.findall(said, README)) == 1
            if update_golden:
                (ROOT / "README.md").write_text(shown, encoding="utf-8")
            else:
                assert shown == README, f"{times} times as fast, {share} % (--update-golden writes it)"


def test_the_picture_is_what_its_command_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    (words,) = [words for words in commands() if "--timeline" in words]
    start = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    assert f"\n{' '.join(words[: words.index('--timeline')])}\n" in start  # explained there
    assert execute("ficco-run", words[1:]) == 0
    golden(ROOT / "docs" / "timeline.svg", (tmp_path / "timeline.svg").read_text(encoding="utf-8"))


def test_the_other_commands_are_those_of_the_project() -> None:
    others = [" ".join(words) for words in commands() if words[0] != "ficco-run"]
    assert others == ["pip install .", "pip install -e '.[test]'", "pytest -n auto -q"]
    script = (ROOT / ".ci" / "run").read_text()
    assert "pip install -q -e '.[test]'" in script
    assert "pytest -n auto -q" in script


def test_the_tour_is_right_and_its_mistake_is_told_as_shown() -> None:
    (text,) = blocks("ficco")
    small = text.replace("4096", "512")  # the same schedule, an eighth of each size: numpy multiplies
    for ranks in (1, 2, 4, 8):
        sizes: dict[str, object] = {"M": 64}
        plan = compiler.plan_of(
            compiler.build(ficco_dsl.parse(small, "ag_gemm.ficco"), ranks, sizes), profile("h200-switch", ranks)
        )
        with Executor(plan, order="adversarial") as executor:
            assert verified_run(executor).ok
    wrong = text.replace("<- A.rows(c of 4)", "<- A.rows(0 of 4)")
    assert wrong != text
    with pytest.raises(ScheduleError) as caught:
        compiler.plan_of(compiler.build(ficco_dsl.parse(wrong, "ag_gemm.ficco"), 4), profile("h200-switch", 4))
    (shown,) = blocks("text")
    assert str(caught.value.diagnostics[0]).splitlines()[0] == shown.strip()


def test_the_python_example_runs() -> None:
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})

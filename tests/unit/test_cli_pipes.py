"""Commands in pipes: schedules on standard input, and streams that are closed or full."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ficco_rt.files import atomic
from tests import warm
from tests.unit.command_line import ENVIRONMENT, GOOD, MISSING, Ending, command


def piped(program: str, *words: str, text: str | bytes, cwd: Path | None = None) -> Ending:
    """A command in a process of its own, with `text` on standard input."""
    data = text.encode() if isinstance(text, str) else text
    with contextlib.chdir(cwd or Path.cwd()):
        process = warm.start(f"from ficco_rt.cli.main import {program}; {program}()", *words, data=data)
    out, err = process.communicate()
    assert process.returncode is not None
    return Ending(process.returncode, out, err)


def test_schedules_and_plans_on_standard_input(here: Path) -> None:
    name, shown = "-", "<stdin>"  # compile takes its other name
    compiled = piped("ficco", "compile", "/dev/stdin", "-n", "2", text=GOOD, cwd=here)
    assert (compiled.code, json.loads(compiled.out)["path"]) == (0, "/dev/stdin")
    for text, proof, words in ((GOOD, "proven", ["-n", "2"]), (compiled.out, "proven from the plan in T", [])):
        ending = piped("ficco", "check", name, *words, text=text, cwd=here)
        facts = "no race, no deadlock, 6 operations, 4 streams, 4 waits"
        out = re.sub(r"in [0-9.]+ [mµ]?s,", "in T,", ending.out)
        assert (ending.code, out) == (0, f"{shown}: 2 ranks: {proof}, {facts}\n")
        ending = piped("ficco_run", name, "--json", *words, text=text, cwd=here)
        assert (ending.code, ending.record["verified"], ending.record["path"]) == (0, True, shown)
    explained = piped("ficco", "explain", name, "-n", "2", text=GOOD, cwd=here)
    assert explained.out.startswith("small: All-gather, then one GEMM.\n")
    assert " |     copy G.rows(rank of ranks) @ p <- A\n" in explained.err
    for verb in ("compile", "explain"):
        refused = piped("ficco", verb, name, text=compiled.out, cwd=here)
        assert refused.code == 2
        assert refused.err.startswith(f"ficco {verb}: {shown}: is a plan")


def test_mistakes_on_standard_input_show_their_line(here: Path) -> None:
    for verb in ("check", "compile", "explain"):
        unknown = piped("ficco", verb, "-", "-n", "1", text=GOOD.replace("gemm C", "gemm Q"), cwd=here)
        assert unknown.code == 1
        assert "   26 |   gemm Q = G * B\n      |        ^\n" in unknown.err
    unproven = piped("ficco", "check", "-", "-n", "2", text=MISSING, cwd=here)
    assert unproven.code == 1
    assert "<stdin>:" in unproven.err
    assert "^" in unproven.err
    ending = piped("ficco_run", "-", "--json", text="schedule x\nparam M=!\n")
    error = ending.record["error"]
    assert (error["class"], error["diagnostics"][0]["path"]) == ("ScheduleError", "<stdin>")
    ending = piped("ficco_run", "-", "--json", text='{"ficco_plan": 1}')
    assert ending.record["error"]["class"] == "PlanError"


def test_fifos_are_read_and_not_rewritten(run: Callable[..., Ending], here: Path) -> None:
    os.mkfifo("pipe")
    for words in (["check", "pipe", "-n", "1,2"], ["explain", "pipe", "-n", "2"], ["fmt", "--check", "pipe"]):
        with subprocess.Popen(command("ficco", *words), env=ENVIRONMENT, stdout=subprocess.DEVNULL) as process:
            Path("pipe").write_text(GOOD)
            assert process.wait(timeout=300) in (0, 1)
    refused = "ficco fmt: pipe: is no file that could be rewritten; 'ficco fmt -' formats standard input\n"
    assert run("ficco", "fmt", "pipe") == Ending(2, "", refused)


def test_a_file_without_end_is_refused(run: Callable[..., Ending], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "MOST", 1 << 20)
    message = "ficco check: /dev/zero: has more than 1 GiB; nothing that ficco reads is as large\n"
    assert run("ficco", "check", "/dev/zero").err == message


@pytest.mark.parametrize(
    "words",
    [["list"], ["list", "--json"], ["--help"], ["explain", "ag_gemm/serial"], ["check", "nowhere"],
     ["check", "--json", "nowhere"]],
)  # fmt: skip
@pytest.mark.parametrize(("redirection", "reason"), [
    (">/dev/full", "cannot be written: no space left on device"), (">&-", "is closed"),
])  # fmt: skip
def test_standard_output_that_takes_nothing(words: list[str], redirection: str, reason: str) -> None:
    line = ["sh", "-c", f'"$@" {redirection}', "sh", *command("ficco", *words)]
    done = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == f"ficco: standard output {reason}"
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_standard_error_that_takes_nothing(redirection: str) -> None:
    line = ["sh", "-c", f'"$@" {redirection}', "sh", *command("ficco", "explain", "nowhere")]
    assert subprocess.run(line, capture_output=True, env=ENVIRONMENT).returncode == 2


def test_closed_standard_input() -> None:
    line = ["sh", "-c", '"$@" <&-', "sh", *command("ficco", "explain", "-")]
    done = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (2, "ficco explain: <stdin>: standard input is closed\n")

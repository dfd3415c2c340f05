"""The commands: what they print, where, and how they end."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import ficco_rt as ficco
from ficco_rt import files
from ficco_rt.cli.main import execute
from ficco_rt.cli.report import error_text
from ficco_rt.cli.settings import parse_settings, show_value
from ficco_rt.compiler import compile_schedule, save_plan
from ficco_rt.errors import DeviceError, InternalError, NumbersError, PlanError, UsageError
from ficco_rt.graph.ir import Gemm
from ficco_rt.machine.profiles import profile
from ficco_rt.region import Axis, Interval
from tests.unit import plan_damage as damage

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'dsl'}"}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # with it Python itself hides a pipe that breaks within a write

GOOD = """\
# All-gather, then one GEMM.
schedule small

param M = 64
param N = 32
param K = 48
type T = bf16

input A[M / ranks, K] : T
input B[K, N] : T
output C[M, N] : T
scratch G[M, K] : T

computes C = all_gather(A, rows) * B

queue dma { engine = copy }
queue compute { engine = sm }

stage gather on dma {
  for p in peers {
    copy G.rows(rank of ranks) @ p <- A
  }
  copy G.rows(rank of ranks) <- A
}
stage mm on compute {
  gemm C = G * B
}
"""
MISSING = GOOD.replace("  copy G.rows(rank of ranks) <- A\n", "")


@dataclass(frozen=True)
class Ending:
    code: int
    out: str
    err: str

    @property
    def record(self) -> Any:
        """The one JSON object on stdout."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


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


def command(name: str, *words: str) -> list[str]:
    """A command line for a process of its own."""
    return [sys.executable, "-c", f"from ficco_rt.cli.main import {name}; {name}()", *words]


# ---------------------------------------------------------------- help, version, usage


def test_help_is_quick() -> None:
    best = min(_seconds(command("ficco_run", "--help")) for _ in range(3))
    assert best < 0.25 * 2, f"ficco-run --help took {best:.2f} s"  # twice the promise: CI machines are slow


def _seconds(words: list[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    seconds = time.perf_counter() - start
    assert done.stdout.startswith("Usage: ")
    return seconds


def test_help_offers_only_what_exists(run: Callable[..., Ending]) -> None:
    text = run("ficco-run", "--help").out
    for option in ("--gpus", "--set", "--backend", "--machine", "--order", "--iters", "--warmup", "--no-verify",
                   "--seed", "--trace", "--timeline", "--emit", "--json", "--ranks-per-gpu", "--timeout"):  # fmt: skip
        assert f"{option} " in text
    assert "--graph / --no-graph" in text
    assert "auto|cuda|hip|host|sim" in text


def test_version(run: Callable[..., Ending]) -> None:
    from ficco_rt import __version__

    assert run("ficco-run", "--version") == run("ficco", "--version") == Ending(0, f"ficco {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ficco-run", "x", "--gpus", "0"],
         "ficco-run: invalid value for '--gpus' / '-n': '0' is not a whole number from 1 to 1024\n"
         "try 'ficco-run --help'\n"),
        (["ficco-run", "x", "--gpus", "many"],
         "ficco-run: invalid value for '--gpus' / '-n': 'many' is not a whole number from 1 to 1024\n"
         "try 'ficco-run --help'\n"),
        (["ficco-run", "x", "--emit", "ptx"],
         "ficco-run: invalid value for '--emit': 'ptx' is not one of 'graph', 'plan', 'plan-json', "
         "'device-plan', 'device-plan-json'\n"
         "try 'ficco-run --help'\n"),
        (["ficco-run", "--gpus", "2"],
         "ficco-run: missing argument 'SCHEDULE|OPERATION|plan.json'\ntry 'ficco-run --help'\n"),
        (["ficco", "explain"], None),
        (["ficco", "check", "x", "--gpus", "1,two"],
         "ficco check: --gpus 1,two: expected numbers from 1 to 1024 with commas between, such as 1,2,4,8\n"),
        (["ficco", "fmt", "nowhere.ficco"], "ficco fmt: nowhere.ficco: there is no such file\n"),
        (["ficco", "fmt", "."], "ficco fmt: .: is a directory, not a file\n"),
        (["ficco", "timeline", "nowhere.json"], "ficco timeline: nowhere.json: there is no such file\n"),
        (["ficco", "explain", "ag_gemm/hetero_unfused"],
         "ficco explain: there is no schedule 'ag_gemm/hetero_unfused'; did you mean "),
        (["ficco", "explain", "nowhere.ficco"], "ficco explain: there is no schedule 'nowhere.ficco'; "),
        (["ficco", "explain", "good.ficco", "--machine", "abacus"],
         "ficco explain: no machine is called 'abacus'; stored are h200-switch, "),
        (["ficco", "compile", "good.ficco", "-o", "no/plan.json"],
         "ficco compile: no/plan.json: there is no directory 'no'\n"),
        (["ficco", "compile", "good.ficco", "-o", "."], "ficco compile: .: is a directory; name a file in it\n"),
        (["ficco", "compile", "good.ficco", "--set", "M"],
         "ficco compile: --set M: expected NAME=VALUE, such as M=16384\n"
         "small has the params M = 64, N = 32, K = 48, T = bf16\n"),
        (["ficco", "compile", "good.ficco", "--set", "Q=1"], "ficco compile: schedule small has no param 'Q'; "),
    ],
)  # fmt: skip
def test_usage_errors(run: Callable[..., Ending], here: Path, words: list[str], message: str | None) -> None:
    ending = run(*words)
    assert ending.code == 2
    assert ending.out == ""
    if message is None:
        assert ending.err.startswith("Usage: ")
    elif message.endswith("\n"):
        assert ending.err == message
    else:
        assert ending.err.startswith(message)
    assert sorted(p.name for p in here.iterdir()) == ["good.ficco", "missing.ficco"]


def test_usage_error_as_json(run: Callable[..., Ending]) -> None:
    ending = run("ficco-run", "x", "--gpus", "0", "--json")
    message = "Invalid value for '--gpus' / '-n': '0' is not a whole number from 1 to 1024"
    error = {"class": "UsageError", "exit_code": 2, "message": message, "diagnostics": []}
    assert (ending.code, ending.record, ending.err) == (2, {"error": error}, "")


# ---------------------------------------------------------------- --set


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("M=1", 1),
        ("M=-3", -3),
        ("M=16_384", 16384),
        ("M = 7", 7),
        ("T=fp32", "fp32"),
        ("s=[4,2,1]", (4, 2, 1)),
        ("s=[4, 2, 1,]", (4, 2, 1)),
        ("s=4:2:1", (4, 2, 1)),
        ("s=[]", ()),
        ("s=[[1,2],[3,[4]]]", ((1, 2), (3, (4,)))),
    ],
)
def test_settings(text: str, value: object) -> None:
    assert list(parse_settings([text]).values()) == [value]
    name = text.partition("=")[0].strip()
    assert parse_settings([f"{name}={show_value(value)}"]) == {name: value}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["M"], "--set M: expected NAME=VALUE, such as M=16384"),
        (["1M=2"], "--set 1M=2: expected NAME=VALUE, such as M=16384"),
        (["=2"], "--set =2: expected NAME=VALUE, such as M=16384"),
        (["M="], "--set M=: the value is missing"),
        (["M=1,N=2"], "--set M=1,N=2: one param a --set; repeat the option for the next: --set M=1 --set N=2"),
        (["M=1,2"], "--set M=1,2: ',' after the value; a list stands in brackets: [4, 2, 1]"),
        (["M=1", "M=2"], "--set M=2: M is set twice"),
        (["M=[1,2"], "--set M=[1,2: the list has no closing ']'"),
        (["M=[1 2]"], "--set M=[1 2]: expected ',' or ']' before '2'"),
        (["M=2::1"], "--set M=2::1: '' is not a value; a value is a whole number (16384 or 16_384), "
                     "a list ([4, 2, 1] or 4:2:1) or a type (bf16, fp16, fp32)"),
        (["M=[fp32]"], "--set M=[fp32]: 'fp32' is not a value; a value is a whole number (16384 or 16_384), "
                       "a list ([4, 2, 1] or 4:2:1) or a type (bf16, fp16, fp32)"),
        (["M=4k"], "--set M=4k: '4k' is not a value; a value is a whole number (16384 or 16_384), "
                   "a list ([4, 2, 1] or 4:2:1) or a type (bf16, fp16, fp32)"),
        (["M=1.5"], "--set M=1.5: '1.5' is not a value; a value is a whole number (16384 or 16_384), "
                    "a list ([4, 2, 1] or 4:2:1) or a type (bf16, fp16, fp32)"),
        (["M=" + "9" * 5000], "--set M=99999999999999999999999999999999999999…: the number is too large"),
        (["M=" + "[" * 5000], "--set M=" + "[" * 5000 + ": lists nest at most 8 deep"),
    ],
)  # fmt: skip
def test_bad_settings(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_settings(texts)
    assert str(caught.value) == message


# ---------------------------------------------------------------- diagnostics


def test_a_wrong_schedule_for_people(run: Callable[..., Ending], here: Path) -> None:
    (here / "bad.ficco").write_text("schedule bad\n\tinput A[M] : bf16 # 入\n")
    ending = run("ficco", "explain", "bad.ficco")
    assert ending.code == 1
    assert ending.out == ""
    lines = ending.err.splitlines()
    assert lines[0].startswith("bad.ficco:")
    assert "    2 | \tinput A[M] : bf16 # 入" in lines
    assert any(line.startswith("      | \t") and line.endswith("^") for line in lines)
    assert "\x1b" not in ending.err  # no terminal, no colours


def test_a_wrong_schedule_as_json(run: Callable[..., Ending], here: Path) -> None:
    ending = run("ficco", "explain", "missing.ficco", "--json", "--gpus", "2")
    error = ending.record["error"]
    assert (ending.code, error["exit_code"], error["class"], ending.err) == (1, 1, "ScheduleError", "")
    assert error["diagnostics"]
    first = error["diagnostics"][0]
    assert sorted(first) == ["column", "end_column", "end_line", "help", "line", "message", "notes", "path"]
    assert first["path"] == "missing.ficco"
    assert error["message"].startswith(f"missing.ficco:{first['line']}:{first['column']}: {first['message']}")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("no"), 2, "ficco list: no\n"),
        (DeviceError("GPU 3 fell off"), 3, "ficco list: device error: GPU 3 fell off\n"),
        (NumbersError("C is off"), 4, "ficco list: the numbers are wrong: C is off\n"),
        (MemoryError("12 GiB"), 3, "ficco list: device error: this machine's memory is too small: 12 GiB\n"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), 2, "ficco list: x: No space left on device\n"),
    ],
)
def test_error_classes(
    run: Callable[..., Ending], monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, message: str
) -> None:
    monkeypatch.setattr("ficco_rt.library.entries", lambda: _raise(error))
    assert run("ficco", "list") == Ending(code, "", message)
    ending = run("ficco", "list", "--json")
    assert (ending.code, ending.record["error"]["exit_code"], ending.err) == (code, code, "")


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [KeyError("x"), InternalError("x"), RecursionError("x")])
def test_our_bugs_say_so(run: Callable[..., Ending], monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr("ficco_rt.library.entries", lambda: _raise(error))
    ending = run("ficco", "list")
    lines = ending.err.splitlines()
    assert (ending.code, ending.out) == (5, "")
    assert lines[0] == "ficco list: this is a bug in ficco"
    assert lines[1] == f"  {type(error).__name__}: {error}"
    assert lines[2].startswith("  at unit/test_cli.py:")
    assert lines[4] == "  please report it with these lines, the command and the schedule (CONTRIBUTING.md says where);"
    assert "Traceback" not in ending.err
    monkeypatch.setenv("FICCO_DEBUG", "1")
    assert "Traceback" in run("ficco", "list").err
    assert run("ficco", "list", "--json").record["error"]["exit_code"] == 5


def test_ctrl_c(run: Callable[..., Ending], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ficco_rt.library.entries", lambda: _raise(KeyboardInterrupt()))
    assert run("ficco", "list") == Ending(130, "", "\nficco: interrupted\n")


def test_ctrl_c_in_a_process_leaves_nothing_half_written(here: Path) -> None:
    words = command("ficco", "compile", "good.ficco", "-o", "plan.json")
    words[2] = (
        # a parent that ignores the signal, such as nohup, hands that on
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import ficco_rt.plan.codec as c, time; c.to_json = lambda p: print('now', flush=True) or time.sleep(30); "
        + words[2]
    )
    with subprocess.Popen(words, cwd=here, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert sorted(p.name for p in here.iterdir()) == ["good.ficco", "missing.ficco"]


def test_a_broken_pipe_is_quiet(here: Path) -> None:
    words = command("ficco", "compile", str(here / "good.ficco"), "--gpus", "64")
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(2) == b"{\n"
        process.stdout.close()
        errors = process.stderr.read()
        assert b"Traceback" not in errors
        assert b"roken" not in errors
    assert process.returncode == 141


def test_a_terminal_without_unicode_gets_no_traceback(here: Path) -> None:
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command("ficco", "explain", "good.ficco"), cwd=here, env=environment, capture_output=True)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert b"64 ? 32 ? 48" in done.stdout


# ---------------------------------------------------------------- files


def test_written_files_are_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "plan.json"
    files.write_atomic(target, "old")
    target.chmod(0o640)
    monkeypatch.setattr(os, "replace", lambda *_: _raise(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(target, "new")
    monkeypatch.setattr(os, "replace", lambda *_: _raise(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(UsageError, match=r"plan\.json: cannot be written: no space left on device"):
        files.write_atomic(target, "new")
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert target.read_text() == "old"
    link = tmp_path / "link.json"
    link.symlink_to("plan.json")
    files.write_atomic(link, "newer")
    assert (target.read_text(), link.is_symlink(), target.stat().st_mode & 0o777) == ("newer", True, 0o640)


def test_special_files_are_written_in_place() -> None:
    files.write_atomic("/dev/null", "text")
    assert not Path("/dev/null").is_file()


# ---------------------------------------------------------------- fmt


def test_fmt(run: Callable[..., Ending], here: Path) -> None:
    good = here / "good.ficco"
    run("ficco", "fmt", "good.ficco")
    formatted = good.read_text()
    good.write_text(formatted.replace("param M = 64", "param   M=64"))
    assert run("ficco", "fmt", "--check", "good.ficco") == Ending(1, "would format good.ficco\n", "")
    assert run("ficco", "fmt", "good.ficco") == Ending(0, "formatted good.ficco\n", "")
    assert good.read_text() == formatted
    assert run("ficco", "fmt", "good.ficco") == Ending(0, "", "")
    assert run("ficco", "fmt", "--check", "good.ficco") == Ending(0, "", "")


def test_fmt_standard_input(here: Path) -> None:
    done = subprocess.run(
        command("ficco", "fmt", "-"), input="schedule x\nparam M=!\n", capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("<stdin>:2:9: ")
    assert "    2 | param M=!\n      |         ^\n" in done.stderr
    run_good = subprocess.run(command("ficco", "fmt", "-"), input=GOOD, capture_output=True, text=True, env=ENVIRONMENT)
    again = subprocess.run(
        command("ficco", "fmt", "-"), input=run_good.stdout, capture_output=True, text=True, env=ENVIRONMENT
    )
    assert (again.returncode, again.stdout) == (0, run_good.stdout)


def test_fmt_formats_the_good_and_tells_of_all_the_bad(run: Callable[..., Ending], here: Path) -> None:
    for name in ("b1.ficco", "b2.ficco"):
        (here / name).write_text("schedule x\nparam M=!\n")
    (here / "good.ficco").write_text(GOOD.replace("param M = 64", "param   M=64"))
    ending = run("ficco", "fmt", "b1.ficco", "good.ficco", "b2.ficco")
    assert (ending.code, ending.out) == (1, "formatted good.ficco\n")
    assert "b1.ficco:2:9: " in ending.err
    assert "b2.ficco:2:9: " in ending.err


# ---------------------------------------------------------------- check, compile, list, explain


def test_check(run: Callable[..., Ending], here: Path) -> None:
    ending = run("ficco", "check", "good.ficco", "--gpus", "1,2,4")
    assert ending.code == 0
    assert ending.out == (
        "good.ficco: 1 rank: proven, no race, no deadlock, 2 operations, 2 streams, 1 wait\n"
        "good.ficco: 2 ranks: proven, no race, no deadlock, 6 operations, 4 streams, 4 waits\n"
        "good.ficco: 4 ranks: proven, no race, no deadlock, 20 operations, 8 streams, 16 waits\n"
    )


def test_check_goes_on_after_a_wrong_file(run: Callable[..., Ending], here: Path) -> None:
    ending = run("ficco", "check", "missing.ficco", "good.ficco", "nowhere.ficco", "--gpus", "2")
    assert ending.code == 2  # the worst of them
    assert ending.out.splitlines()[0] == "missing.ficco: 2 ranks: WRONG"
    assert ending.out.splitlines()[1].startswith("good.ficco: 2 ranks: proven, ")
    assert ending.out.splitlines()[2] == "nowhere.ficco: 2 ranks: WRONG"
    assert "missing.ficco:" in ending.err
    assert "there is no schedule 'nowhere.ficco'" in ending.err
    record = run("ficco", "check", "missing.ficco", "good.ficco", "--gpus", "2", "--json").record
    assert record["ok"] is False
    assert [r["ok"] for r in record["results"]] == [False, True]
    assert record["results"][0]["error"]["class"] == "ScheduleError"
    assert (record["results"][1]["proven"], record["results"][1]["operations"]) == (True, 6)


def test_unproven_is_repeated(run: Callable[..., Ending], here: Path) -> None:
    text = GOOD.replace("computes C = all_gather(A, rows) * B\n", "").replace("C[M, N] : T", "C[M, N] : T unproven")
    (here / "un.ficco").write_text(text)
    assert "un.ficco: 2 ranks: UNPROVEN C, no race" in run("ficco", "check", "un.ficco", "--gpus", "2").out
    explained = run("ficco", "explain", "un.ficco", "--gpus", "2").out
    assert "UNPROVEN: nothing says what C must hold" in explained
    assert run("ficco", "explain", "un.ficco", "--gpus", "2", "--json").record["unproven"] == ["C"]


def test_compile_and_check_the_plan(run: Callable[..., Ending], here: Path) -> None:
    ending = run("ficco", "compile", "good.ficco", "--gpus", "2", "-o", "plan.json")
    assert ending.code == 0
    assert ending.out.startswith("plan.json: small for 2 GPUs of h200-switch, proven, 6 operations, hash ")
    assert run("ficco", "compile", "good.ficco", "--gpus", "2").out == (here / "plan.json").read_text()
    checked = run("ficco", "check", "plan.json")
    assert re.fullmatch(
        r"plan\.json: 2 ranks: proven from the plan in [0-9.]+ [mµ]?s, no race, no deadlock, "
        r"6 operations, 4 streams, 4 waits\n",
        checked.out,
    )
    (result,) = run("ficco", "check", "--json", "plan.json").record["results"]
    assert (result["proven"], result["unproven"], 0 < result["proof_ms"] < 1000) == (True, [], True)
    ran = run("ficco-run", "plan.json")
    assert re.search(r"^ *plan +[0-9a-f]{16}, proven from the plan in [0-9.]+ [mµ]?s$", ran.out, re.MULTILINE)
    assert run("ficco-run", "plan.json", "--json").record["proven"] is True
    (here / "plan.json").write_text((here / "plan.json").read_text().replace("48", "47"))
    broken = run("ficco", "check", "plan.json")
    assert (broken.code, broken.out) == (1, "plan.json: WRONG\n")
    assert broken.err.startswith("plan.json:1:1: ")


def test_a_stored_plan_is_proven_from_what_it_does(run: Callable[..., Ending], here: Path) -> None:
    """Whatever it says of itself: its hash is made again here."""
    plan = ficco.compile("good.ficco", 2)
    ficco.save_plan(replace(plan, claims=()), "noclaims.json")
    assert "noclaims.json: 2 ranks: UNPROVEN C, no race, " in run("ficco", "check", "noclaims.json").out
    (result,) = run("ficco", "check", "--json", "noclaims.json").record["results"]
    assert (result["proven"], result["unproven"]) == (False, ["C"])
    ran = run("ficco-run", "noclaims.json")
    assert "UNPROVEN: nothing says what C must hold" in ran.out
    assert "proven from" not in ran.out
    ran = run("ficco-run", "noclaims.json", "--json")
    assert (ran.record["proven"], ran.record["unproven"]) == (False, ["C"])

    halves = Axis((Interval(32, 64), Interval(0, 32)))
    swapped = damage.with_bodies(
        plan,
        lambda body: (
            replace(body, left=replace(body.left, axes=(halves, body.left.axes[1]))) if isinstance(body, Gemm) else body
        ),
    )
    ficco.save_plan(swapped, "swapped.json")
    wrong = run("ficco", "check", "swapped.json")
    assert (wrong.code, wrong.out) == (1, "swapped.json: WRONG\n")
    place = "C@0 rows 0–31, columns 0–31 (last written by stage 'mm' on rank 0)"
    assert f"{place}: lacks A@0 rows 0–31, columns 0–47 × B@0 rows 0–47, columns 0–31; has besides A@1" in wrong.err
    assert run("ficco-run", "swapped.json").code == 1
    with pytest.raises(PlanError, match="lacks A@0 rows 0–31"):
        ficco.load_plan("swapped.json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "4"], "ficco-run: plan.json: is a plan for 2 GPUs, not for 4\n"),
        (["--set", "M=1"], "ficco-run: plan.json: a plan has its sizes bound; --set belongs to a schedule\n"),
        (["--machine", "h200-ring"], "ficco-run: plan.json: is a plan for h200-switch, not for h200-ring\n"),
    ],
)
def test_a_plan_is_bound(run: Callable[..., Ending], here: Path, words: list[str], message: str) -> None:
    run("ficco", "compile", "good.ficco", "--gpus", "2", "-o", "plan.json")
    assert run("ficco-run", "plan.json", *words) == Ending(2, "", message)


def test_list(run: Callable[..., Ending]) -> None:
    text = run("ficco", "list").out
    assert text.startswith(("a2a_gemm\n", "ag_gemm\n"))
    assert "\n  ag_gemm/hetero_unfused_1d  " in text
    record = run("ficco", "list", "--json").record
    entry = next(e for e in record["schedules"] if e["name"] == "ag_gemm/hetero_unfused_1d")
    assert Path(entry["path"]).is_file()
    assert entry["title"] in text
    assert entry["right"] == "Right when pieces are still large enough to fill the device"
    assert entry["right"] in text


@pytest.mark.parametrize(
    ("file", "like", "name"),
    [("mine.ficco", (), "mine"), ("copy.ficco", (), "schedule_copy"), ("2nd.ficco", (), "schedule_2nd"),
     ("own.ficco", ("--like", "gemm_rs/serial"), "own")],
)  # fmt: skip
def test_init(run: Callable[..., Ending], here: Path, file: str, like: tuple[str, ...], name: str) -> None:
    ending = run("ficco", "init", file, *like)
    assert (ending.code, ending.err) == (0, "")
    assert ending.out.startswith(f"{file}: written\n  ficco check {file} --gpus 4 ")
    assert f"\nschedule {name}\n" in (here / file).read_text()
    assert run("ficco", "fmt", "--check", file).code == 0
    assert run("ficco", "check", file, "--gpus", "4").code == 0
    again = run("ficco", "init", file)
    assert again == Ending(2, "", f"ficco init: {file}: is there already; name a new file, or remove that one\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [(["a.txt"], "a.txt: a schedule's name ends in .ficco"), (["no/a.ficco"], "no/a.ficco: there is no directory 'no'"),
     (["a.ficco", "--like", "ag_gemm/nix"], "there is no schedule 'ag_gemm/nix'; did you mean ")],
)  # fmt: skip
def test_init_refuses(run: Callable[..., Ending], here: Path, words: list[str], message: str) -> None:
    ending = run("ficco", "init", *words)
    assert (ending.code, ending.out) == (2, "")
    assert message in ending.err
    assert not (here / words[0]).exists()


def test_explain(run: Callable[..., Ending], here: Path) -> None:
    ending = run("ficco", "explain", "good.ficco", "--gpus", "4", "--set", "K=64")
    assert ending.code == 0
    for piece in (
        "small: All-gather, then one GEMM.\n4 ranks of h200-switch, with M = 64, N = 32, K = 64, T = bf16\n",
        "computes C = all_gather(A, rows) * B: proven\n",
        "  1. gather on queue dma (copy engine); line 19\n"
        "       each rank: 4 copies pushed to others and within the rank (3 peers), 2.0 KiB each, 8.0 KiB in all\n"
        "  2. mm on queue compute (multiprocessors); line 25\n"
        "       each rank: 1 GEMM of 64 × 32 × 64 (m × n × k), 262 kFLOP\n"
        "       1 launch a rank\n",
        "  mm waits for gather: 1 GEMM a rank, each for 4 copies by this and other ranks (G, read after write)\n"
        "  gather waits for nothing\n",
        "  a rank sends 6.0 KiB and receives 6.0 KiB\n"
        "  every rank sends every other 2.0 KiB\n"
        "  switch: each port that is used carries 6.0 KiB, 15.9 ns at its rate\n"
        "  copies within ranks: 8.0 KiB over all ranks\n",
        "  A  input    [16, 64] bf16  2.0 KiB\n",
        "  2 streams a rank (dma, compute), ",
    ):
        assert piece in ending.out
    facts = run("ficco", "explain", "good.ficco", "--gpus", "4", "--set", "K=64", "--json").record
    assert facts["traffic"]["pairs"][0] == [0, 2048, 2048, 2048]
    assert facts["compute"]["gemm_flops_a_rank"] == [2 * 64 * 32 * 64] * 2
    assert facts["memory"]["peak_bytes_a_rank"] == 2 * (16 * 64 + 64 * 32 + 64 * 32 + 64 * 64)
    assert [s["name"] for s in facts["stages"]] == ["gather", "mm"]
    assert [s["launched_with"] for s in facts["stages"]] == [[], []]


def test_explain_names_stages_that_are_one_launch(run: Callable[..., Ending]) -> None:
    words = ("ficco", "explain", "gemm_rs/relay", "--gpus", "4", "--set", "first=1:1:2", "--set", "last=2:1:1")
    out = run(*words).out
    assert "512 × 4096 × 1024 (m × n × k), with a sum of 0 or 1 term, 25.8 GFLOP\n" in out
    assert "       streamed: 1 persistent launch with own, whose works wait for flags or raise them\n" in out
    assert "       streamed: 1 persistent launch with mm, whose works wait for flags or raise them\n" in out
    stages = {s["name"]: s for s in run(*words, "--json").record["stages"]}
    assert {name: s["launched_with"] for name, s in stages.items()} == {"mm": ["own"], "pass": [], "own": ["mm"]}
    assert stages["mm"]["launches_a_rank"] == [1, 1]  # of three turns


# ---------------------------------------------------------------- ficco-run


FIELDS = [
    "schedule", "path", "title", "backend", "devices", "graph", "machine", "clock", "ranks", "params", "given",
    "choice", "verified", "integers", "proven", "unproven", "rel_err",
    "tolerance", "seed", "order", "iters", "time_ms", "time_ms_min", "time_ms_max", "serial_ms", "ideal_ms",
    "compute_alone_ms", "communication_alone_ms", "yardsticks", "yardsticks_of", "serial_by", "share_of_ideal",
    "exposed_ms", "exposed_of", "launches", "host_us", "plan_hash", "version",
]  # fmt: skip


def test_run_for_people(run: Callable[..., Ending], here: Path) -> None:
    ending = run("ficco-run", "good.ficco", "--gpus", "2")
    assert ending.code == 0
    lines = ending.out.splitlines()
    assert lines[:4] == [
        "small: All-gather, then one GEMM.",
        "  why      named on the command line (good.ficco)",
        "  backend  host: 2 virtual GPUs, on numpy, as NVIDIA H200 on a switch (h200-switch)",
        "  params   M = 64, N = 32, K = 48, T = bf16",
    ]
    starts = [
        "  numbers  correct: integers equal, random data off by ",
        "  time     ",
        "  serial   ",
        "  ideal    ",
        "  exposed  ",
        "  host     ",
    ]
    assert all(line.startswith(start) for line, start in zip(lines[4:10], starts, strict=True))
    assert lines[5].endswith(" µs modelled for h200-switch, not measured")
    assert lines[12].startswith("rank 0      dma │")
    assert lines[-1].strip() == "A gather   B mm"


def test_sim_models_a_run_without_data(run: Callable[..., Ending], here: Path) -> None:
    """Sizes that no machine here could hold, and the same virtual time as a run on data."""
    huge = ["--set", "M=1048576", "--set", "N=65536", "--set", "K=65536"]
    facts = run("ficco-run", "good.ficco", "--gpus", "4", "--backend", "sim", "--json", *huge).record
    assert (facts["backend"], facts["clock"], facts["verified"], facts["rel_err"]) == ("sim", "virtual", None, None)
    assert min(facts["time_ms"], facts["ideal_ms"]) > 1000
    small = ["good.ficco", "--gpus", "4", "--json"]
    modelled = run("ficco-run", *small, "--backend", "sim").record
    on_data = run("ficco-run", *small, "--backend", "host").record
    assert modelled["time_ms"] == on_data["time_ms"]
    assert modelled["plan_hash"] == on_data["plan_hash"]
    lines = run("ficco-run", "good.ficco", "--gpus", "2", "--backend", "sim").out.splitlines()
    assert lines[2] == "  backend  sim: 2 virtual GPUs, no data moves, as NVIDIA H200 on a switch (h200-switch)"
    assert lines[4] == "  numbers  not run: sim models times alone"


def test_run_as_json(run: Callable[..., Ending], here: Path) -> None:
    ending = run(
        "ficco", "run", "good.ficco", "--gpus", "4", "--json", "--set", "M=80", "--order", "random:7", "--seed", "3"
    )
    facts = ending.record
    assert ending.code == 0
    assert list(facts) == FIELDS
    assert (facts["schedule"], facts["backend"], facts["machine"], facts["clock"]) == (
        "small",
        "host",
        "h200-switch",
        "virtual",
    )
    assert facts["params"] == {"M": 80, "N": 32, "K": 48, "T": "bf16"}
    assert (facts["ranks"], facts["verified"], facts["integers"], facts["unproven"]) == (4, True, True, [])
    assert (facts["order"], facts["seed"], facts["iters"]) == ("random(7)", 3, 1)
    assert 0 < facts["rel_err"] < facts["tolerance"] < 0.02
    assert 0 < facts["ideal_ms"] <= facts["serial_ms"]
    assert facts["share_of_ideal"] == pytest.approx(facts["ideal_ms"] / facts["time_ms"])
    assert (facts["yardsticks"], facts["yardsticks_of"], facts["serial_by"]) == ("modelled", "operation", None)
    assert facts["exposed_of"] == "model"
    assert facts["host_us"] > 0
    assert len(facts["plan_hash"]) == 64


def test_iterations_and_no_verification(run: Callable[..., Ending], here: Path) -> None:
    words = ["ficco-run", "good.ficco", "--gpus", "2", "--iters", "3", "--warmup", "2"]
    facts = run(*words, "--no-verify", "--json").record
    assert (facts["verified"], facts["rel_err"], facts["iters"]) == (None, None, 3)
    text = run(*words).out
    assert " not measured, median of 3 runs\n" in text
    assert "  numbers  not verified (--no-verify)\n" in run(*words, "--no-verify").out


def test_a_stored_plan_runs_like_its_schedule(run: Callable[..., Ending], here: Path) -> None:
    run("ficco", "compile", "good.ficco", "--gpus", "2", "-o", "plan.json")
    stored, fresh = (run("ficco-run", *w, "--json").record for w in (["plan.json"], ["good.ficco", "--gpus", "2"]))
    for name in FIELDS:
        if name not in ("host_us", "path", "title"):
            assert stored[name] == fresh[name], name


def test_trace_and_timeline(run: Callable[..., Ending], here: Path) -> None:
    ending = run("ficco-run", "good.ficco", "--gpus", "2", "--trace", "t.json", "--timeline", "t.svg")
    assert ending.out.endswith("wrote t.json\nwrote t.svg\n")
    assert run("ficco", "timeline", "t.json", "-o", "again.svg").code == 0
    assert (here / "again.svg").read_text() == (here / "t.svg").read_text()
    assert ">small</text>" in (here / "t.svg").read_text()
    sketched = run("ficco", "timeline", "t.json").out.splitlines()
    assert sketched[0].startswith("small: ")
    assert sketched[0].endswith(", modelled for h200-switch, not measured")


def test_device_plans_for_few_hardware_queues(
    run: Callable[..., Ending], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    wanted = ("--emit", "device-plan", "--mode", "graph")
    chain = run("ficco-run", "good.ficco", "--gpus", "2", *wanted)
    assert "  device 0: 3 streams, 1 hardware queues, crowded" in chain.out.splitlines()
    assert "  wait for chain 0" in chain.out.splitlines()
    pushed = ("ficco-run", "gemm_rs/direct", "--gpus", "4", "--ranks-per-gpu", "2", "--set", "M=64", "--set", "N=64")
    refused = run(*pushed, "--set", "K=64", *wanted)
    assert (refused.code, refused.out) == (3, "")
    assert "device 0 has 1 hardware queue, and the streams of this run need 5: its graph would" in refused.err


def test_a_stored_plan_for_a_machine_of_ones_own(run: Callable[..., Ending], here: Path) -> None:
    machine = replace(profile("h200-switch", 2), name="mine")
    save_plan(compile_schedule("good.ficco", 2, machine=machine), "plan.json")
    assert run("ficco", "check", "plan.json").code == 0
    assert run("ficco-run", "plan.json", "--backend", "sim").code == 0
    assert "is a plan for mine, not for h200-ring" in run("ficco-run", "plan.json", "--machine", "h200-ring").err


@pytest.mark.parametrize("program", ["ficco", "ficco-run"])
def test_shells_complete(run: Callable[..., Ending], program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = {"ficco": "_FICCO_COMPLETE", "ficco-run": "_FICCO_RUN_COMPLETE"}[program]
    monkeypatch.setenv(variable, "zsh_source")
    source = run(program)
    assert source.code == 0
    assert f"{variable}=zsh_complete {program}" in source.out
    monkeypatch.setenv(variable, "zsh_complete")
    monkeypatch.setenv("COMP_WORDS", f"{program} " + ("check " if program == "ficco" else "") + "ag_gemm/st")
    monkeypatch.setenv("COMP_CWORD", "2" if program == "ficco" else "1")
    found = run(program)
    assert found.code == 0
    assert {"ag_gemm/stationary_a", "ag_gemm/streamed"} <= set(found.out.split())


def test_emit(run: Callable[..., Ending], here: Path) -> None:
    plan = run("ficco-run", "good.ficco", "--gpus", "2", "--emit", "plan-json")
    assert plan.out == run("ficco", "compile", "good.ficco", "--gpus", "2").out
    assert "gather" in run("ficco-run", "good.ficco", "--gpus", "2", "--emit", "plan").out
    assert run("ficco-run", "missing.ficco", "--gpus", "2", "--emit", "graph").code == 0  # not proven
    assert run("ficco-run", "missing.ficco", "--gpus", "2", "--emit", "plan").code == 1
    for given, message in [
        (("--mode", "graph"), "--mode is for --emit device-plan"),
        (("--emit", "plan", "--ranks-per-process", "1"), "--ranks-per-process is for --emit device-plan"),
        (("--emit", "plan", "--graph"), "--graph needs a run or --emit device-plan; --emit plan is the same with it"),
        (("--emit", "device-plan", "--graph", "--mode", "traced"), "--graph is --mode graph; given --mode traced"),
        (("--emit", "device-plan", "--ranks-per-gpu", "2", "--ranks-per-process", "1"), "take a multiple of 2"),
        (("--emit", "device-plan", "--machine", "mi300x-mesh", "--mode", "embedded"), "embeds no graphs in callers'"),
    ]:
        refused = run("ficco-run", "good.ficco", "--gpus", "2", *given)
        assert (refused.code, refused.out) == (2, "")
        assert message in refused.err
    for mode in ("streams", "graph", "embedded", "traced"):
        wanted = ("--emit", "device-plan", "--mode", mode, "--ranks-per-process", "1")
        text = run("ficco-run", "good.ficco", "--gpus", "2", *wanted).out
        assert f"mode {mode}" in text
        assert "ranks in processes 0 1" in text
    both = run("ficco-run", "good.ficco", "--emit", "plan", "--json")
    message = "--json describes a run and --emit does not run; --emit plan-json prints the plan as JSON"
    assert (both.code, both.record["error"]["message"]) == (2, message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backend", "metal"], "there is no backend 'metal' in this version; there is: auto, cuda (NVIDIA GPUs), "
                               "hip (AMD GPUs), host (numpy on this machine's CPU, times modelled for --machine), "
                               "sim (modelled times alone, any size)"),
        (["--backend", "host", "--graph"], "--graph is for GPUs: --backend cuda, or hip"),
        (["--backend", "sim", "--ranks-per-gpu", "2"], "--ranks-per-gpu is for GPUs: --backend cuda, or hip"),
        (["--backend", "cuda", "--order", "adversarial"], "--order steps the host backend; GPUs run in the order "
                                                          "that the plan leaves them"),
        (["--backend", "sim", "--iters", "3"], "--iters and --warmup repeat a run, and sim runs nothing: "
                                               "its times are the same every time"),
        (["--order", "random"], "--order random: there are fifo, random:SEED, adversarial and lazy:STREAM, "
                                "such as random:7"),
        (["--trace", "no/t.json"], "no/t.json: there is no directory 'no'"),
        (["--trace", "."], ".: is a directory; name a file in it"),
        (["--timeline", "t.png"], "t.png: a picture's name ends in .svg or .html"),
        (["--emit", "plan", "--trace", "t.json"], "--trace needs a run and --emit does not run"),
    ],
)  # fmt: skip
def test_run_usage_errors(run: Callable[..., Ending], here: Path, words: list[str], message: str) -> None:
    assert run("ficco-run", "good.ficco", *words) == Ending(2, "", f"ficco-run: {message}\n")
    assert sorted(p.name for p in here.iterdir()) == ["good.ficco", "missing.ficco"]


@pytest.mark.parametrize("number", ["", "\u0662", "2\u0662", "1e1"])
@pytest.mark.parametrize("command", ["ficco-run", "ficco check", "ficco compile", "ficco explain"])
def test_numbers_are_written_in_digits(run: Callable[..., Ending], here: Path, command: str, number: str) -> None:
    ending = run(*command.split(), "good.ficco", "--gpus", number)
    assert (ending.code, ending.out) == (2, "")
    assert "from 1 to 1024" in ending.err


def test_messages_name_shipped_schedules_where_they_are(
    run: Callable[..., Ending], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = run("ficco", "check", "ag_gemm/serial", "--set", "M=7")
    place = ending.err.split(":")[0]
    assert (ending.code, Path(place).is_file(), Path(place).name) == (1, True, "serial.ficco")
    error = DeviceError("schedules/ag_gemm/serial.ficco:12: lost; see ../schedules/x")
    assert error_text(error, "ficco") == f"ficco: device error: {place}:12: lost; see ../schedules/x"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ficco", "compile", "good.ficco", "-o", "good.ficco"], "good.ficco: a plan's name ends in .json"),
        (["ficco", "compile", "good.ficco", "-o", "link.json"],
         "link.json: is read here, and would be written over; name another file"),
        (["ficco", "compile", "good.ficco", "-o", "hard.json"],
         "hard.json: is read here, and would be written over; name another file"),
        (["ficco-run", "good.ficco", "--trace", "good.ficco"], "good.ficco: a trace's name ends in .json"),
        (["ficco-run", "good.ficco", "--trace", "x.py"], "x.py: a trace's name ends in .json"),
        (["ficco-run", "plan.json", "--trace", "./plan.json"],
         "./plan.json: is read here, and would be written over; name another file"),
        (["ficco-run", "good.ficco", "--timeline", "link.svg", "--trace", "other.json"],
         "link.svg: is read here, and would be written over; name another file"),
        (["ficco-run", "missing.ficco", "--trace", "a.json", "--timeline", "a.svg"],
         "a.svg: two outputs go to this file; give them different names"),
        (["ficco", "timeline", "plan.json", "-o", "plan.svg"],
         "plan.svg: is read here, and would be written over; name another file"),
    ],
    ids=lambda words: " ".join(words[1:]) if isinstance(words, list) else "",
)  # fmt: skip
def test_no_command_writes_over_what_it_reads(
    run: Callable[..., Ending], here: Path, words: list[str], message: str
) -> None:
    for name in ("link.json", "link.svg"):
        (here / name).symlink_to("good.ficco")
    os.link(here / "good.ficco", here / "hard.json")
    (here / "a.svg").symlink_to("a.json")
    (here / "plan.svg").symlink_to("plan.json")
    assert run("ficco", "compile", "good.ficco", "--gpus", "2", "-o", "plan.json").code == 0
    before = {p.name: p.read_bytes() for p in here.iterdir() if p.exists()}
    program = "ficco-run" if words[0] == "ficco-run" else " ".join(words[:2])
    assert run(*words) == Ending(2, "", f"{program}: {message}\n")
    assert {p.name: p.read_bytes() for p in here.iterdir() if p.exists()} == before


def test_standard_input_is_not_written_over(here: Path) -> None:
    with (here / "good.ficco").open() as text:
        os.link(here / "good.ficco", here / "plan.json")
        words = command("ficco", "compile", "-", "-o", "plan.json")
        done = subprocess.run(words, stdin=text, env=ENVIRONMENT, cwd=here, check=False)
    assert (done.returncode, (here / "good.ficco").read_text()) == (2, GOOD)


def test_wrong_numbers_are_code_4(run: Callable[..., Ending], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ficco_rt.exec.verify.tolerances", lambda _: [1e-9])
    ending = run("ficco-run", "good.ficco", "--gpus", "2")
    assert ending.code == 4
    assert "  numbers  WRONG: integers equal, random data off by " in ending.out
    assert "ficco-run: the numbers are wrong: C of rank " in ending.err
    facts = run("ficco-run", "good.ficco", "--gpus", "2", "--json").record
    assert list(facts) == [*FIELDS, "error"]
    assert (facts["verified"], facts["error"]["class"], facts["error"]["exit_code"]) == (False, "NumbersError", 4)


def test_an_unproven_output_is_named_everywhere(run: Callable[..., Ending], here: Path) -> None:
    text = GOOD.replace("computes C = all_gather(A, rows) * B\n", "").replace("C[M, N] : T", "C[M, N] : T unproven")
    (here / "un.ficco").write_text(text)
    ending = run("ficco-run", "un.ficco", "--gpus", "2")
    assert ending.code == 0
    assert "UNPROVEN: nothing says what C must hold\n" in ending.out
    assert (
        "  numbers  not verified: nothing is claimed; every element was written; C unproven and not compared\n"
        in ending.out
    )
    facts = run("ficco-run", "un.ficco", "--gpus", "2", "--json").record
    assert [facts[f] for f in ("unproven", "verified", "rel_err", "tolerance")] == [["C"], None, None, None]


def test_a_library_name_runs(run: Callable[..., Ending]) -> None:
    words = ["--gpus", "2", "--set", "M=64", "--set", "N=64", "--set", "K=64", "--json"]
    assert run("ficco-run", "ag_gemm/hetero_unfused_1d", *words).record["verified"] is True


# ---------------------------------------------------------------- standard input, pipes, standard output


def piped(program: str, *words: str, text: str | bytes, cwd: Path | None = None) -> Ending:
    """A command in a process of its own, with `text` on standard input."""
    data = text.encode() if isinstance(text, str) else text
    done = subprocess.run(command(program, *words), input=data, capture_output=True, env=ENVIRONMENT, cwd=cwd)
    return Ending(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_schedules_and_plans_on_standard_input(here: Path, name: str) -> None:
    shown = "<stdin>" if name == "-" else name
    compiled = piped("ficco", "compile", name, "-n", "2", text=GOOD, cwd=here)
    assert (compiled.code, json.loads(compiled.out)["path"]) == (0, shown)
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
        unproven = piped("ficco", verb, "-", "-n", "2", text=MISSING, cwd=here)
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
            assert process.wait(timeout=20) in (0, 1)
    refused = "ficco fmt: pipe: is no file that could be rewritten; 'ficco fmt -' formats standard input\n"
    assert run("ficco", "fmt", "pipe") == Ending(2, "", refused)


def test_a_file_without_end_is_refused(run: Callable[..., Ending], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST", 1 << 20)
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


# ---------------------------------------------------------------- words


def test_each_claim_is_proven_and_what_is_unproven_is_named_once(run: Callable[..., Ending], here: Path) -> None:
    text = GOOD.replace("output C[M, N] : T\n", "output C[M, N] : T\noutput D[M, N] : T\noutput Z[M, N] : T unproven\n")
    text = text.replace("* B\n\nqueue", "* B\ncomputes D = all_gather(A, rows) * B\n\nqueue")
    text = text.replace("  gemm C = G * B\n", "  gemm C = G * B\n  gemm D = G * B\n  gemm Z = G * B\n")
    (here / "two.ficco").write_text(text)
    out = run("ficco", "explain", "two.ficco", "-n", "2").out
    assert "\ncomputes C = all_gather(A, rows) * B: proven\ncomputes D = all_gather(A, rows) * B: proven\n" in out
    assert out.count("UNPROVEN") == 1
    assert "\nUNPROVEN: nothing says what Z must hold\n" in out


def test_plurals() -> None:
    from ficco_rt.cli.common import count

    nouns = ["copy", "persistent launch", "launch", "GEMM", "rank"]
    assert [count(2, n) for n in nouns] == ["2 copies", "2 persistent launches", "2 launches", "2 GEMMs", "2 ranks"]
    assert count(1, "persistent launch") == "1 persistent launch"


def test_help_says_what_the_command_takes(run: Callable[..., Ending]) -> None:
    for words, own in (
        (["ficco-run"], True), (["ficco", "run"], True), (["ficco", "check"], True),
        (["ficco", "explain"], False), (["ficco", "compile"], False),
    ):  # fmt: skip
        text = " ".join(run(*words, "--help").out.split())
        assert ("or the plan's own" in text) is own
        assert "standard input" in text or words[1:] == ["run"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--order", "lazy:99"], "--order lazy:99: the plan has no stream 99; it has 0 (dma of rank 0), "
                                 "1 (compute of rank 0), 2 (dma of rank 1), 3 (compute of rank 1)"),
        (["--order", "random:7)"], "--order random:7): there are fifo, random:SEED, adversarial and lazy:STREAM, "
                                   "such as random:7"),
        (["--order", "fifo", "--backend", "sim"], "--order is how the host backend steps, and sim runs nothing: "
                                                  "its times know no order"),
        (["--order", "fifo", "--emit", "plan"], "--order needs a run and --emit does not run"),
    ],
)  # fmt: skip
def test_orders_that_would_mean_nothing(run: Callable[..., Ending], here: Path, words: list[str], message: str) -> None:
    assert run("ficco-run", "good.ficco", "-n", "2", *words) == Ending(2, "", f"ficco-run: {message}\n")


def test_a_warning_is_told_once_a_statement(run: Callable[..., Ending], here: Path) -> None:
    ending = run("ficco", "check", "good.ficco", "-n", "1,2,4,8")
    assert ending.code == 0
    assert ending.err.count("warning: ") == 1
    results = run("ficco", "check", "good.ficco", "-n", "1,2,4,8", "--json").record["results"]
    assert [len(r["warnings"]) for r in results] == [0, 1, 1, 1]


def test_a_mistake_is_told_once_whatever_the_ranks(run: Callable[..., Ending], here: Path) -> None:
    (here / "bad.ficco").write_text("schedule x\nparam M=!\n")
    ending = run("ficco", "check", "bad.ficco", "-n", "1,2,4")
    assert (ending.code, ending.out, ending.err.count("bad.ficco:2:9: ")) == (1, "bad.ficco: WRONG\n", 1)

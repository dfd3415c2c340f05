"""What all commands share: help, usage, --set, diagnostics and exit codes, written files, the words of messages."""

from __future__ import annotations

import ast
import errno
import os
import re
import signal
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ficco_rt.errors import DeviceError, InternalError, NumbersError, UsageError
from ficco_rt.files import atomic
from ficco_rt.report.settings import parse_settings
from ficco_rt.report.wording import show_value
from tests.unit.command_line import ENVIRONMENT, GOOD, ROOT, Ending, command

# ---------------------------------------------------------------- help, version, usage


def test_help_is_quick() -> None:
    best = min(_seconds(command("ficco_run", "--help")) for _ in range(3))
    assert best < 0.25 * 2, f"ficco-run --help took {best:.2f} s"  # twice the promise: CI machines are slow


def _seconds(words: list[str]) -> float:
    """Processor time: the machine may be busy."""
    before = os.times()
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
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
         "'device-plan', 'device-plan-json', 'run-plan'\n"
         "try 'ficco-run --help'\n"),
        (["ficco-run", "--gpus", "2"],
         "ficco-run: missing argument 'SCHEDULE|OPERATION|plan.json'\ntry 'ficco-run --help'\n"),
        (["ficco", "explain"], None),
        (["ficco", "report", "trace.json"],
         "ficco report: missing option '--output' / '-o'\ntry 'ficco report --help'\n"),
        (["ficco", "explain", "ag_gem"], "ficco explain: there is no schedule 'ag_gem'; did you mean ag_gemm or "),
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
         "ficco compile: --set M: expected NAME=VALUE, such as M=16384, or QUEUE.ATTRIBUTE=VALUE\n"
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


TYPE_WORDS = "bf16, fp16, fp32, fp8_e4m3, fp8_e5m2, fp8_e4m3 scaled 1x128, …"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["M"], "--set M: expected NAME=VALUE, such as M=16384, or QUEUE.ATTRIBUTE=VALUE"),
        (["1M=2"], "--set 1M=2: expected NAME=VALUE, such as M=16384, or QUEUE.ATTRIBUTE=VALUE"),
        (["=2"], "--set =2: expected NAME=VALUE, such as M=16384, or QUEUE.ATTRIBUTE=VALUE"),
        (["M="], "--set M=: the value is missing"),
        (["M=1,N=2"], "--set M=1,N=2: one param a --set; repeat the option for the next: --set M=1 --set N=2"),
        (["M=1,2"], "--set M=1,2: ',' after the value; a list stands in brackets: [4, 2, 1]"),
        (["M=1", "M=2"], "--set M=2: M is set twice"),
        (["M=[1,2"], "--set M=[1,2: the list has no closing ']'"),
        (["M=[1 2]"], "--set M=[1 2]: expected ',' or ']' before '2'"),
        (["M=2::1"], "--set M=2::1: '' is not a value; a value is a whole number (16384 or 16_384), "
                     f"a list ([4, 2, 1] or 4:2:1) or a type ({TYPE_WORDS})"),
        (["M=[fp32]"], "--set M=[fp32]: 'fp32' is not a value; a value is a whole number (16384 or 16_384), "
                       f"a list ([4, 2, 1] or 4:2:1) or a type ({TYPE_WORDS})"),
        (["M=4k"], "--set M=4k: '4k' is not a value; a value is a whole number (16384 or 16_384), "
                   f"a list ([4, 2, 1] or 4:2:1) or a type ({TYPE_WORDS})"),
        (["M=1.5"], "--set M=1.5: '1.5' is not a value; a value is a whole number (16384 or 16_384), "
                    f"a list ([4, 2, 1] or 4:2:1) or a type ({TYPE_WORDS})"),
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
    monkeypatch.setattr("ficco_rt.files.shipped.entries", lambda: _raise(error))
    assert run("ficco", "list") == Ending(code, "", message)
    ending = run("ficco", "list", "--json")
    assert (ending.code, ending.record["error"]["exit_code"], ending.err) == (code, code, "")


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [KeyError("x"), InternalError("x"), RecursionError("x")])
def test_our_bugs_say_so(run: Callable[..., Ending], monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr("ficco_rt.files.shipped.entries", lambda: _raise(error))
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


def test_packages_to_install_are_those_of_the_extras() -> None:
    """By their own names: ficco itself comes from a checkout, and from no registry."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {line.split(";")[0] for lines in project["optional-dependencies"].values() for line in lines}
    told = set()
    for path in (ROOT / "ficco_rt").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "pip install " in text else ():
            if isinstance(node, ast.Constant) and "pip install " in str(node.value):
                told |= set(re.findall(r'"([^"]+)"', str(node.value).split("pip install ")[1]))
    vendor = {"nvmath-python>=1.0", "nvidia-cublas>=13.0", "hip-python[libraries]>=10"}
    nccl = {"nccl4py>=0.6,<0.7", "rocm-bindings-systems>=10"}
    assert told == {"cuda-bindings>=13.0", "nvidia-cuda-nvrtc>=13.0", "hip-python>=6.2", "pygls>=2", *vendor, *nccl}
    assert told <= extras


def test_ctrl_c(run: Callable[..., Ending], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ficco_rt.files.shipped.entries", lambda: _raise(KeyboardInterrupt()))
    assert run("ficco", "list") == Ending(130, "", "\nficco: interrupted\n")


@pytest.fixture
def interrupts() -> Iterator[None]:
    """If whoever started us has them ignored, so they would be here."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_in_a_destructor_is_not_lost(run: Callable[..., Ending], monkeypatch: pytest.MonkeyPatch) -> None:
    class Dropped:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def works(*_: object) -> None:
        Dropped()
        time.sleep(60)

    monkeypatch.setattr("ficco_rt.cli.main._invoke", works)
    begun = time.monotonic()
    assert run("ficco", "list") == Ending(130, "", "\nficco: interrupted\n")
    assert time.monotonic() - begun < 30


def test_ctrl_c_in_a_destructor_is_not_sent_to_an_ended_command(
    run: Callable[..., Ending], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dropped:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    class Timer:
        def __init__(self, _: float, send: Callable[[], None]) -> None:
            late.append(send)

        def start(self) -> None:
            pass

    def ends(*_: object) -> int:
        Dropped()
        return 0

    late: list[Callable[[], None]] = []
    monkeypatch.setattr("ficco_rt.cli.main._invoke", ends)
    monkeypatch.setattr(threading, "Timer", Timer)
    assert run("ficco", "list").code == 0
    (send,) = late
    send()


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
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert sorted(p.name for p in here.iterdir()) == ["good.ficco", "missing.ficco"]


def test_a_broken_pipe_is_quiet(here: Path) -> None:
    words = command("ficco", "compile", str(here / "good.ficco"), "--gpus", "16")  # 100 kB: more than a pipe holds
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
    atomic.write_atomic(target, "old")
    target.chmod(0o640)
    monkeypatch.setattr(os, "replace", lambda *_: _raise(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        atomic.write_atomic(target, "new")
    monkeypatch.setattr(os, "replace", lambda *_: _raise(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(UsageError, match=r"plan\.json: cannot be written: no space left on device"):
        atomic.write_atomic(target, "new")
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert target.read_text() == "old"
    link = tmp_path / "link.json"
    link.symlink_to("plan.json")
    atomic.write_atomic(link, "newer")
    assert (target.read_text(), link.is_symlink(), target.stat().st_mode & 0o777) == ("newer", True, 0o640)


def test_special_files_are_written_in_place() -> None:
    atomic.write_atomic("/dev/null", "text")
    assert not Path("/dev/null").is_file()


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
    from ficco_rt.report.wording import count

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

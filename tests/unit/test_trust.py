"""Files that kernels name: what runs them, what keeps their hash, and where they may lie."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import ficco_rt
from ficco_rt import compiler
from ficco_rt.errors import PlanError, ScheduleError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.plan import codec
from ficco_rt.plan.codec import content_hash
from ficco_rt.plan.ir import VERSION, Plan
from tests.unit.command_line import Ending

SCHEDULE = """\
# A kernel of a user.
schedule users

input  X[64, 64] : fp32
output Y[64, 64] : fp32 unproven

queue compute { engine = sm }

kernel double(read x, write y, int n) from "double.cu" entry "double_it" {
  host = "twin.py:double"
}

stage work on compute {
  launch double(X, Y, 64)
}
"""
TWIN = """\
import pathlib
pathlib.Path(__file__).with_name("ran").touch()

def double(x, y, n):
    y[:] = 2 * x
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A schedule with a kernel, and somewhere else to store plans. No driver opens, and nothing is compiled."""

    def refuse(*_: object) -> None:
        raise AssertionError("a command that runs nothing asked for a driver or a compiler")

    made = tmp_path / "made"
    (made / "below").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (made / "users.ficco").write_text(SCHEDULE)
    (made / "double.cu").write_text("// a kernel\n")
    (made / "twin.py").write_text(TWIN)
    monkeypatch.chdir(made)
    monkeypatch.setattr("ficco_rt.kernels.kernel_compiler.compile_source", refuse)
    return made


def ran(folder: Path) -> bool:
    return (folder / "ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["ficco", "check", "users.ficco", "plan.json"],
        ["ficco", "compile", "users.ficco", "--gpus", "2"],
        ["ficco", "explain", "users.ficco", "--gpus", "2"],
        ["ficco", "fmt", "users.ficco"],
        ["ficco", "list"],
        ["ficco-run", "users.ficco", "--gpus", "2", "--emit", "plan"],
        ["ficco-run", "users.ficco", "--gpus", "2", "--emit", "device-plan"],
        ["ficco-run", "plan.json", "--backend", "sim"],
    ],
    ids=lambda words: " ".join(words[:2] + words[4:]),
)
def test_what_only_reads_runs_nothing(
    run: Callable[..., Ending], folder: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.save_plan(compiler.compile_schedule("users.ficco", 2), "plan.json")
    monkeypatch.setattr("ficco_rt.driver.registry.open_driver", lambda *_, **__: pytest.fail("a driver was opened"))
    assert run(*words).code == 0
    assert not ran(folder)


def test_a_run_runs_them(run: Callable[..., Ending], folder: Path) -> None:
    assert run("ficco-run", "users.ficco", "--gpus", "2", "--backend", "host").code == 0
    assert ran(folder)


@pytest.mark.parametrize(("name", "said"), [
    ("double.cu", "a kernel's file is named relative to the schedule's folder"),
    ("twin.py", 'host is written "file.py:function", the file relative to the schedule\'s folder'),
])  # fmt: skip
def test_a_missing_file_is_told_when_compiled(folder: Path, name: str, said: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ScheduleError) as caught:
        ficco_rt.compile("users.ficco", 1)
    assert str(caught.value) == f"users.ficco:9:1: kernel 'double': there is no file '{folder / name}'; {said}"


def test_a_stored_plan_keeps_the_hash_of_each_file(folder: Path) -> None:
    plan = ficco_rt.compile("users.ficco", 2)
    ficco_rt.save_plan(plan, "below/../plan.json")
    again = ficco_rt.load_plan("plan.json")
    assert again == plan
    assert content_hash(again) == content_hash(plan)
    (folder / "twin.py").write_text(TWIN + "# one more line\n")
    message = (
        r"users\.ficco:9(:1)?: kernel 'double': 'twin\.py' is not the file that the plan was compiled with: its hash "
        r"was [0-9a-f]{16}… and is [0-9a-f]{16}…; compile the schedule again, or bring the file back"
    )
    with pytest.raises(PlanError) as told:
        ficco_rt.load_plan("plan.json")
    assert re.fullmatch(message, str(told.value))
    for held in (plan, again):  # changed since the plan was made or read
        with pytest.raises(UsageError) as caught:
            Executor(held)
        assert re.fullmatch(message, str(caught.value))
    assert not ran(folder)
    assert content_hash(ficco_rt.compile("users.ficco", 2)) != content_hash(plan)


def stored(base: Path, where: str, **changed: str) -> Path:
    """A plan in the file `where`, whose kernel says something else, with the hash that fits: anybody can make one."""
    path = base / where
    ficco_rt.save_plan(ficco_rt.compile("users.ficco", 1), path)
    data = json.loads(path.read_text())
    data["kernels"][0].update(changed)
    plan = codec.read_document(json.dumps(data), "", Plan, "plan", VERSION, lambda _: data["hash"])
    data["hash"] = codec.content_hash(plan)
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("where", "changed", "name", "target"),
    [
        ("../other/plan.json", {}, "double.cu", "double.cu"),
        ("plan.json", {"file": "../other/out.cu"}, "../other/out.cu", "../other/out.cu"),
        ("plan.json", {"file": "/etc/hostname"}, "/etc/hostname", "/etc/hostname"),
        ("plan.json", {"file": "link.cu"}, "link.cu", "../other/out.cu"),
        ("plan.json", {"folder": "../other", "file": "out.cu"}, "out.cu", "../other/out.cu"),
    ],
    ids=["stored elsewhere", "climbs", "absolute", "link", "folder"],
)
def test_a_stored_plan_names_files_of_its_own_folder(
    folder: Path, where: str, changed: dict[str, str], name: str, target: str
) -> None:
    (folder.parent / "other" / "out.cu").write_text("// a kernel\n")
    (folder / "link.cu").symlink_to(folder.parent / "other" / "out.cu")
    path = stored(folder, where, **changed)
    with pytest.raises(PlanError) as caught:
        ficco_rt.load_plan(path)
    first = caught.value.diagnostics[0]
    outside = (folder / target).resolve()
    assert first.message == (
        f"kernel 'double': a stored plan names files of its own folder, and '{name}' is '{outside}'"
    )
    assert (
        first.help == "store the plan beside its schedule; or say --trust (Python: trust=True) if you trust its maker"
    )
    if target != "/etc/hostname" and "folder" not in changed:
        assert ficco_rt.load_plan(path, trust=True).kernels[0].name == "double"


def test_trust_on_the_command_line(run: Callable[..., Ending], folder: Path) -> None:
    path = stored(folder, "../other/plan.json")
    assert run("ficco", "check", path).code == 1
    assert run("ficco", "check", path, "--trust").code == 0
    assert run("ficco-run", path, "--backend", "host").code == 1
    assert not ran(folder)
    assert run("ficco-run", path, "--backend", "host", "--trust").code == 0
    assert ran(folder)


def test_a_plan_without_hashes_is_refused(folder: Path) -> None:
    path = stored(folder, "plan.json", file_hash="")
    with pytest.raises(PlanError, match=r"the plan keeps no hash of 'double\.cu': compile it again$"):
        ficco_rt.load_plan(path)


def test_a_stored_name_has_no_control_characters(folder: Path) -> None:
    path = folder / "plan.json"
    ficco_rt.save_plan(ficco_rt.compile("users.ficco", 1), path)
    path.write_text(path.read_text().replace('"double.cu"', '"\\u001b[31m.cu"'))
    with pytest.raises(PlanError, match=r'plan\.kernels\[0\]\.file: "\\u001b\[31m\.cu" is no text$'):
        ficco_rt.load_plan(path)


def test_a_kernel_takes_single_pieces(folder: Path) -> None:
    pieces = "double(X.rows(peers of ranks), Y.rows(0 of 2), 64)"
    (folder / "users.ficco").write_text(SCHEDULE.replace("double(X, Y, 64)", pieces))
    with pytest.raises(ScheduleError) as caught:
        ficco_rt.compile("users.ficco", 4)
    assert caught.value.diagnostics[0].message.startswith(
        "launch double: x is a set of 2 pieces of X; a kernel gets the address of one piece: launch it for each, or "
        "copy them together first"
    )

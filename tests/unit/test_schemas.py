"""The JSON Schemas of what commands print, against real outputs; those of GPUs stand in tests/mock."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ficco_rt.cli.app import ficco
from ficco_rt.cli.schema import NAMES, made
from ficco_rt.exec.rounding import Allowance
from tests.schemas import hold
from tests.unit.command_line import Ending

SMALL = ["--set", "M=256", "--set", "N=256", "--set", "K=256"]
ON_2 = ["--gpus", "2"]


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_one_and_says_what_it_is_of(name: str) -> None:
    found = made(name)
    Draft202012Validator.check_schema(found)
    assert found["title"].endswith(".")

    def closed(part: object) -> None:
        if isinstance(part, dict):
            if "properties" in part:
                assert part["additionalProperties"] is not True
                assert set(part.get("required", ())) <= set(part["properties"])
            for value in part.values():
                closed(value)
        elif isinstance(part, list):
            for value in part:
                closed(value)

    closed(found)


def test_every_command_with_json_has_one() -> None:
    with_json = {name for name, command in ficco.commands.items() if any(p.name == "as_json" for p in command.params)}
    assert with_json == set(NAMES) - {"error"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run", ["ficco-run", "good.ficco", *ON_2]),
        ("run", ["ficco-run", "ag_gemm/streamed", *ON_2, *SMALL, "--backend", "sim"]),
        ("run", ["ficco-run", "ag_gemm", *ON_2, *SMALL, "--backend", "sim"]),
        ("check", ["ficco", "check", "good.ficco", "plan.json", "device.json", "-n", "1,2"]),
        ("choose", ["ficco", "choose", "ag_gemm", *ON_2, *SMALL]),
        ("choose", ["ficco", "choose", "ag_gemm", *ON_2, *SMALL, "--by", "model"]),
        ("explain", ["ficco", "explain", "gemm_ar/streamed", *ON_2]),
        ("explain", ["ficco", "explain", "ag_gemm/serial", "-n", "16", "--machine", "gb200-nvl72"]),
        ("explain", ["ficco", "explain", "gemm_ar/serial", *ON_2]),
        ("list", ["ficco", "list"]),
        ("machine", ["ficco", "machine"]),
        ("machine", ["ficco", "machine", "mi300x-mesh"]),
        ("explore", ["ficco", "explore", "ag_gemm", "-n", "2", *SMALL, "--schedules", "serial", "-j", "1"]),
        ("characterise", ["ficco", "characterise", "--set", "M=256", "--pieces", "2"]),
    ],
)
def test_what_is_printed_is_what_the_schema_says(
    name: str, words: list[str], run: Callable[..., Ending], here: Path
) -> None:
    if name == "check":
        assert run("ficco", "compile", "good.ficco", *ON_2, "-o", "plan.json").code == 0
        device = run("ficco-run", "good.ficco", *ON_2, "--emit", "device-plan-json").out
        (here / "device.json").write_text(device)
    ending = run(*words, "--json")
    hold(name, ending.record)
    assert ending.code == (2 if name == "check" else 0)  # the plan is for 2 ranks, and was asked for 1, too


def test_errors(run: Callable[..., Ending], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "bad.ficco").write_text("schedule x\nparam M=!\n")
    for words in (["missing.ficco", *ON_2], ["bad.ficco"], ["none.ficco"], ["good.ficco", "--gpus", "x"]):
        hold("error", run("ficco-run", *words, "--json").record)
    hold("check", run("ficco", "check", "bad.ficco", "missing.ficco", "-n", "2", "--json").record)
    monkeypatch.setattr("ficco_rt.exec.verify.allowances", lambda _: [Allowance(1e-9, 0.0, partial=False)])
    wrong = run("ficco-run", "good.ficco", *ON_2, "--json").record
    assert wrong["error"]["exit_code"] == 4
    hold("run", wrong)


def test_trace_files_hold_a_run(run: Callable[..., Ending], here: Path) -> None:
    assert run("ficco-run", "good.ficco", *ON_2, "--trace", "t.json").code == 0
    hold("run", json.loads((here / "t.json").read_text())["otherData"]["run"])


def test_a_schema_is_printed(run: Callable[..., Ending]) -> None:
    assert json.loads(run("ficco", "schema", "run").out) == made("run")
    listed = run("ficco", "schema").out.splitlines()
    assert [line.split()[0] for line in listed] == list(NAMES)
    assert listed[NAMES.index("list")].endswith("What `ficco list --json` prints.")
    assert run("ficco", "schema", "nonsense").err.startswith("ficco schema: there is no schema 'nonsense'; there is: ")


def test_what_a_schema_does_not_say_is_seen() -> None:
    good = {"schedules": [{"name": "a", "title": "", "right": "", "path": ""}]}
    hold("list", good)
    with pytest.raises(AssertionError, match=r"list: schedules\.0: .*'more' was unexpected"):
        hold("list", {"schedules": [{**good["schedules"][0], "more": 1}]})
    with pytest.raises(AssertionError, match=r"list: schedules\.0\.name: 5 is not of type 'string'"):
        hold("list", {"schedules": [{**good["schedules"][0], "name": 5}]})

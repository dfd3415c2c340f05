"""`ficco-run`: what it prints, writes and refuses."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from ficco_rt.cli.messages import error_text
from ficco_rt.compiler import compile_schedule, save_plan
from ficco_rt.errors import DeviceError
from ficco_rt.exec.rounding import Allowance
from ficco_rt.machine.profiles import profile
from tests.unit.command_line import ENVIRONMENT, GOOD, Ending, command

UNCLAIMED = GOOD.replace("computes C = all_gather(A, rows) * B\n", "").replace("C[M, N] : T", "C[M, N] : T unproven")
FIELDS = [
    "schedule", "path", "title", "backend", "devices", "processes", "collectives", "graph", "machine", "clock", "ranks",
    "params", "given", "choice", "verified", "integers", "proven", "why", "warnings", "unproven", "rel_err",
    "tolerance", "one_signed", "allowance", "short_sums", "seed", "order",
    "iters", "time_ms", "time_ms_min", "time_ms_max", "serial_ms", "ideal_ms",
    "compute_alone_ms", "communication_alone_ms", "yardsticks", "yardsticks_of", "serial_by", "ideal_by",
    "share_of_ideal", "exposed_ms", "exposed_of", "concurrent", "account", "stages", "modelled", "launches", "host_us",
    "plan_hash", "version",
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
        "  lost     ",
        "  host     ",
    ]
    assert all(line.startswith(start) for line, start in zip(lines[4:11], starts, strict=True))
    assert lines[5].endswith(" µs modelled for h200-switch, not measured")
    assert lines[13].startswith("rank 0      dma │")
    assert lines[-1].strip() == "A gather   B mm"


def test_an_ideal_of_another_way_says_what_that_way_sends(run: Callable[..., Ending], here: Path) -> None:
    """B and the products are smaller than A here; the same sizes with a wide B have the claim's own way."""
    words = ("ficco-run", "good.ficco", "--gpus", "4", "--backend", "sim", "--set", "K=4096")
    tall, wide = ("--set", "M=65536", "--set", "N=1024"), ("--set", "M=4096", "--set", "N=65536")
    by = "sending B and products in place of A"
    assert re.search(
        rf"^  ideal    .* = max\(computing .*, moving .*\) by {by}, \d+ % of it", run(*words, *tall).out, re.MULTILINE
    )
    assert run(*words, *tall, "--json").record["ideal_by"] == by
    assert " by sending " not in run(*words, *wide).out
    assert run(*words, *wide, "--json").record["ideal_by"] is None


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


def test_what_launches_move_themselves_is_not_told_apart(run: Callable[..., Ending], here: Path) -> None:
    """Sums that read other ranks' products: no false 0 of exposed communication, in words, JSON and pictures."""
    words = ("ficco-run", "gemm_ar/oneshot", "--gpus", "8", "--backend", "sim")
    out = run(*words, "--timeline", "picture.svg").out
    assert "\n  exposed  not told apart, as launches move 7.0 MiB between ranks themselves\n" in out
    assert "; on rank 0, which ends last; launches move 896 KiB between ranks themselves, as part of computing\n" in out
    words_of = (here / "picture.svg").read_text()
    assert "exposed communication not told apart: launches move 7.0 MiB themselves" in words_of
    assert "896 KiB of it in other ranks' memory" in unescape(words_of)
    facts = run(*words, "--json").record
    assert (facts["exposed_ms"], facts["exposed_of"]) == (None, "model")
    assert facts["account"]["peer_bytes"] == 7 * 16 * 4096 * 2
    assert [stage["peer_bytes"] for stage in facts["stages"]] == [0, 8 * 7 * 16 * 4096 * 2]
    plain = run("ficco-run", "good.ficco", "--gpus", "4", "--backend", "sim", "--json").record
    assert plain["exposed_ms"] > 0
    assert plain["account"]["peer_bytes"] == 0


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


def test_integers_alone(run: Callable[..., Ending], here: Path) -> None:
    words = ["ficco-run", "good.ficco", "--gpus", "2", "--exact"]
    assert "  numbers  correct: integers equal, random data not run\n" in run(*words).out
    facts = run(*words, "--json").record
    assert [facts[name] for name in ("verified", "integers", "rel_err", "tolerance")] == [True, True, None, None]
    for option, why in (("--no-verify", "--no-verify compares nothing"), ("--backend=sim", "sim runs nothing")):
        ending = run(*words, option)
        assert ending.code == 2
        assert ending.err == f"ficco-run: --exact says on what a run is verified, and {why}\n"


def test_wrong_integers_alone(run: Callable[..., Ending], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ficco_rt.exec import verify

    monkeypatch.setattr(verify, "_same_projected", lambda *_: False)
    worst = verify.Worst("C", 1, (2, 3), 5.0, 6.0)
    monkeypatch.setattr(verify, "_furthest", lambda *_: verify.Compared(1.0, 8.0, worst))
    ending = run("ficco-run", "good.ficco", "--gpus", "2", "--exact")
    assert ending.code == 4
    assert "  numbers  WRONG: integers DIFFER, random data not run\n" in ending.out
    assert "C of rank 1, rows 2, columns 3: 5, wanted 6 (on integers that nothing rounds, seed 0)" in ending.err
    # nothing is claimed, so there is nothing that integers could be held to
    (here / "un.ficco").write_text(UNCLAIMED)
    assert "  numbers  not verified: nothing is claimed" in run("ficco-run", "un.ficco", "--gpus", "2", "--exact").out


def test_a_stored_plan_runs_like_its_schedule(run: Callable[..., Ending], here: Path) -> None:
    run("ficco", "compile", "good.ficco", "--gpus", "2", "-o", "plan.json")
    stored, fresh = (run("ficco-run", *w, "--json").record for w in (["plan.json"], ["good.ficco", "--gpus", "2"]))
    for name in FIELDS:
        if name not in ("host_us", "path", "title", "why", "warnings"):
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


@pytest.mark.parametrize(
    ("program", "words", "wanted"),
    [
        ("ficco-run", "x.ficco --backend", {"auto", "cuda", "hip", "host", "sim"}),
        ("ficco", "run x.ficco --backend", {"auto", "cuda", "hip", "host", "sim"}),
        ("ficco", "shape x.ficco --backend", {"auto", "cuda", "hip", "sim"}),
        ("ficco", "tune ag_gemm --backend", {"auto", "cuda", "hip"}),
        ("ficco", "calibrate --backend", {"auto", "cuda", "hip"}),
    ],
)
def test_shells_complete_backends(
    run: Callable[..., Ending], program: str, words: str, wanted: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = {"ficco": "_FICCO_COMPLETE", "ficco-run": "_FICCO_RUN_COMPLETE"}[program]
    monkeypatch.setenv(variable, "bash_complete")
    for begun in ("", "h"):
        monkeypatch.setenv("COMP_WORDS", f"{program} {words} {begun}")
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) + 1))
        found = {line.partition(",")[2] for line in run(program).out.split()}
        assert found == {word for word in wanted if word.startswith(begun)}


@pytest.mark.parametrize(
    "words",
    [
        ("ficco", "explain", "ag_gemm/serial"),
        ("ficco", "check", "ag_gemm/serial"),
        ("ficco", "compile", "ag_gemm/serial", "-o", "plan.json"),
        ("ficco-run", "ag_gemm/serial", "--backend", "sim"),
        ("ficco", "choose", "ag_gemm", "--set", "M=4096", "--set", "N=4096", "--set", "K=4096"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_more_gpus_than_the_machine_has_are_told(
    run: Callable[..., Ending], here: Path, words: tuple[str, ...]
) -> None:
    """Of stored machines; those of files are as large as they say."""
    fact = "warning: machine h200-switch has 8 GPUs; 16 are modelled as if its switch joined them all\n"
    help = (
        "  help: take --machine h200-nodes, --gpus 8, or a machine's file that says what joins 16 (docs/machines.md)\n"
    )
    more = run(*words, "--gpus", "16")
    assert more.code == 0
    assert more.err.count(fact) == more.err.count(help) == 1
    assert "joined them all" not in run(*words, "--gpus", "8").err
    assert "joined them all" not in run(*words, "--gpus", "16", "--machine", "gb200-nvl72").err


def test_more_gpus_than_the_nodes_have_are_told(run: Callable[..., Ending], here: Path) -> None:
    words = ("ficco", "explain", "ag_gemm/hierarchical", "--machine", "h200-nodes", "--gpus")
    (warning, *_) = run(*words, "72", "--json").record["warnings"]
    assert warning["message"] == (
        "machine h200-nodes has 64 GPUs; 72 are modelled as if its switch of tier 'network' joined them all"
    )
    assert warning["help"] == "take --gpus 64, or a machine's file that says what joins 72 (docs/machines.md)"


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
        (
            ("--emit", "device-plan", "--ranks-per-gpu", "2", "--ranks-per-process", "3"),
            "take a multiple or a divisor of 2",
        ),
        (("--emit", "device-plan", "--machine", "mi300x-mesh", "--mode", "embedded"), "embeds no graphs in callers'"),
    ]:
        refused = run("ficco-run", "good.ficco", "--gpus", "2", *given)
        assert (refused.code, refused.out) == (2, "")
        assert message in refused.err
    for mode in ("streams", "apart", "graph", "embedded", "traced", "gated"):
        wanted = ("--emit", "device-plan", "--mode", mode, "--ranks-per-process", "1")
        text = run("ficco-run", "good.ficco", "--gpus", "2", *wanted).out
        assert f"mode {mode}" in text
        assert "ranks in processes 0 1" in text
    library = ("gemm_ar/serial", "--gpus", "2", "--collectives", "library", "--emit", "device-plan", "--mode")
    message = "takes one GPU a process: start a process for each GPU (--ranks-per-process 1)"
    assert message in run("ficco-run", *library, "embedded").err
    assert "all_reduce" in run("ficco-run", *library, "embedded", "--ranks-per-process", "1").out
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
        (["--backend", "host", "--node", "2"], "--node is for GPUs: --backend cuda, or hip"),
        (["--emit", "plan", "--node", "2"], "--node needs a run and --emit does not run"),
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
    monkeypatch.setattr("ficco_rt.exec.verify.allowances", lambda _: [Allowance(1e-9, 0.0, partial=False)])
    ending = run("ficco-run", "good.ficco", "--gpus", "2")
    assert ending.code == 4
    assert "  numbers  WRONG: integers equal, random data off by " in ending.out
    assert "ficco-run: the numbers are wrong: C of rank " in ending.err
    facts = run("ficco-run", "good.ficco", "--gpus", "2", "--json").record
    assert list(facts) == [*FIELDS, "error"]
    assert (facts["verified"], facts["error"]["class"], facts["error"]["exit_code"]) == (False, "NumbersError", 4)


def test_an_unproven_output_is_named_everywhere(run: Callable[..., Ending], here: Path) -> None:
    (here / "un.ficco").write_text(UNCLAIMED)
    ending = run("ficco-run", "un.ficco", "--gpus", "2")
    assert ending.code == 0
    assert "UNPROVEN: nothing says what C must hold\n" in ending.out
    assert (
        "  numbers  not verified: nothing is claimed; every element was written; C unproven and not compared\n"
        in ending.out
    )
    facts = run("ficco-run", "un.ficco", "--gpus", "2", "--json").record
    assert [facts[f] for f in ("unproven", "verified", "rel_err", "tolerance")] == [["C"], None, None, None]


def test_an_unproven_output_that_is_not_written_everywhere_is_told(run: Callable[..., Ending], here: Path) -> None:
    (here / "k.cu").write_text("")
    (here / "k.py").write_text("def first(x, y):\n    y[:1] = x[:1]\n")
    (here / "k.ficco").write_text(
        """schedule k
input X[8, 4] : fp32
output Y[8, 4] : fp32 unproven
queue compute { engine = sm }
kernel first(read x, write y) from "k.cu" entry "first" { grid = 1 block = 32 host = "k.py:first" }
stage s on compute { launch first(X, Y) }
"""
    )
    ending = run("ficco-run", "k.ficco", "--gpus", "1")
    assert ending.code == 4
    assert "  numbers  WRONG: not all of Y was written; Y unproven and not compared\n" in ending.out
    assert "the numbers are wrong: Y of rank 0, rows 1, columns 0: NaN, never written (seed 0)\n" in ending.err


def test_a_library_name_runs(run: Callable[..., Ending]) -> None:
    words = ["--gpus", "2", "--set", "M=64", "--set", "N=64", "--set", "K=64", "--json"]
    assert run("ficco-run", "ag_gemm/hetero_unfused_1d", *words).record["verified"] is True

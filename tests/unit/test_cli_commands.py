"""`ficco fmt`, `check`, `compile`, `list`, `init` and `explain`: what they print and how they end."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ficco_rt as ficco
from ficco_rt.errors import PlanError
from ficco_rt.files import shipped
from ficco_rt.geometry.region import Axis, Interval
from ficco_rt.graph.ir import Gemm
from tests.unit import plan_damage as damage
from tests.unit.command_line import ENVIRONMENT, GOOD, Ending, command

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
    good.write_bytes(b"\xef\xbb\xbf" + formatted.replace("param M = 64", "param   M=64").encode())
    assert run("ficco", "fmt", "good.ficco") == Ending(0, "formatted good.ficco\n", "")
    assert good.read_text() == formatted


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
    assert ending.out.splitlines()[2] == "nowhere.ficco: 2 ranks: not checked"
    assert "missing.ficco:" in ending.err
    assert "there is no schedule 'nowhere.ficco'" in ending.err
    record = run("ficco", "check", "missing.ficco", "good.ficco", "--gpus", "2", "--json").record
    assert record["ok"] is False
    assert [r["ok"] for r in record["results"]] == [False, True]
    assert record["results"][0]["error"]["class"] == "ScheduleError"
    assert (record["results"][1]["proven"], record["results"][1]["operations"]) == (True, 6)


def test_a_number_of_ranks_that_does_not_fit_is_refused_and_not_wrong(run: Callable[..., Ending], here: Path) -> None:
    text = GOOD.replace("schedule small\n", "schedule small\nparam even = 1 where ranks % 2 == 0\n")
    assert text != GOOD
    (here / "even.ficco").write_text(text)
    for target in ("even.ficco", "good.ficco"):  # by a check; by shapes that are not whole
        ending = run("ficco", "check", target, "--gpus", "2,3")
        assert ending.code == 1
        assert [line.partition(": proven")[0] for line in ending.out.splitlines()] == [
            f"{target}: 2 ranks",
            f"{target}: 3 ranks: refused",
        ]


def test_what_was_not_checked_is_not_called_wrong(
    run: Callable[..., Ending], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = ("ficco", "check", "good.ficco", "--gpus", "2")
    assert run("ficco", "check", "nowhere.ficco").out == "nowhere.ficco: not checked\n"
    assert run(*checked, "--set", "Q=1").out == "good.ficco: 2 ranks: not checked\n"
    monkeypatch.setenv("FICCO_MAX_OPS", "3")
    assert run(*checked).out == "good.ficco: 2 ranks: refused\n"


def test_a_number_is_a_list_of_one_where_a_list_is_the_default(run: Callable[..., Ending], here: Path) -> None:
    """`ficco choose` prints it so."""
    sizes = ("--gpus", "2", "--set", "M=256", "--set", "N=256", "--set", "K=256")
    as_number = run("ficco", "check", "ag_gemm/streamed", *sizes, "--set", "deep=1")
    assert as_number.code == 0
    assert as_number.out == run("ficco", "check", "ag_gemm/streamed", *sizes).out


def test_list_of_one_operation(run: Callable[..., Ending]) -> None:
    names = [line.split()[0] for line in run("ficco", "list", "gemm_ar").out.splitlines() if "/" in line.split()[0]]
    assert names == ["gemm_ar/oneshot", "gemm_ar/overlapped", "gemm_ar/serial", "gemm_ar/streamed"]
    assert [s["name"] for s in run("ficco", "list", "gemm_ar", "--json").record["schedules"]] == names
    ending = run("ficco", "list", "gemm")
    known = ", ".join(sorted({name.partition("/")[0] for name in shipped.shipped()}))
    assert (ending.code, ending.err) == (2, f"ficco list: there is no operation 'gemm'; there are {known}\n")


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
     ("my own.ficco", (), "my_own"),
     ("own.ficco", ("--like", "gemm_rs/serial"), "own")],
)  # fmt: skip
def test_init(run: Callable[..., Ending], here: Path, file: str, like: tuple[str, ...], name: str) -> None:
    ending = run("ficco", "init", file, *like)
    assert (ending.code, ending.err) == (0, "")
    assert ending.out.startswith(f"{file}: written\n  ficco check {shlex.quote(file)} --gpus 4 ")
    assert f"\nschedule {name}\n" in (here / file).read_text()
    assert run("ficco", "fmt", "--check", file).code == 0
    assert run("ficco", "check", file, "--gpus", "4").code == 0
    again = run("ficco", "init", file)
    assert again == Ending(2, "", f"ficco init: {file}: is there already; name a new file, or remove that one\n")


def test_init_says_what_a_copy_keeps_where_the_schedule_gets_values_by_rules(
    run: Callable[..., Ending], here: Path
) -> None:
    line = run("ficco", "init", "own.ficco", "--like", "ag_gemm/streamed").out.splitlines()[-1]
    told = re.fullmatch(
        r"On 4 GPUs the copy has (.+), as its text says; ag_gemm/streamed itself gets (.+) by rules, which "
        r"`ficco (explain ag_gemm/streamed --gpus 4)` prints",
        line,
    )
    assert told is not None
    assert told[1] == "chunks = 4, deep = [1]"
    assert told[1] != told[2]
    assert f", {told[1]}, " in run("ficco", "explain", "own.ficco", "--gpus", "4").out
    named = run("ficco", *told[3].split()).out
    assert all(f"\n{value} by a rule: " in named for value in told[2].split(", "))
    assert "by rules" not in run("ficco", "init", "plain.ficco", "--like", "ag_gemm/serial").out
    assert "by rules" not in run("ficco", "init", "first.ficco").out


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


@pytest.mark.parametrize("name", ["gemm_ar/oneshot", "gemm_rs/oneshot"])
def test_explain_counts_what_launches_move_themselves(run: Callable[..., Ending], name: str) -> None:
    """A sum that reads the products where they lie moves them over the links, though no copy does."""
    out = run("ficco", "explain", name, "--gpus", "8").out
    assert "       each rank: 1 sum of 8 terms of 16 × 4096, 896 KiB read from other ranks\n" in out
    assert (
        "Bytes moved\n"
        "  a rank sends 896 KiB and receives 896 KiB\n"
        "  every rank sends every other 128 KiB\n"
        "  switch: each port that is used carries 896 KiB, 2.38 µs at its rate\n"
        "  of this, launches read and write 7.0 MiB themselves, over all ranks\n\n"
    ) in out
    facts = run("ficco", "explain", name, "--gpus", "8", "--json").record
    traffic, size = facts["traffic"], 7 * 16 * 4096 * 2
    assert traffic["out"] == traffic["in"] == [size] * 8
    assert traffic["by_launches"] == 8 * size
    assert facts["stages"][1]["does"][0]["bytes_from_others"] == [size, size]


def test_explain_counts_what_products_and_kernels_write_elsewhere(run: Callable[..., Ending], here: Path) -> None:
    """A product whose output is another rank's, and one that adds to what lies there."""
    (here / "far.ficco").write_text(
        "schedule far\n\ninput A[64, 32] : bf16\ninput B[32, 64] : bf16\noutput C[64, 64] : bf16 unproven\n"
        "output D[64, 64] : fp32 unproven\noutput E[64, 64] : fp32 unproven\nqueue compute { engine = sm }\n"
        "stage mm on compute {\n  gemm C @ 1 - rank = A * B\n}\n"
        "stage own on compute {\n  gemm D = A * B\n}\n"
        "stage add on compute after own {\n  gemm E = A * B + sum(D @ 1 - rank)\n}\n"
    )
    ending = run("ficco", "explain", "far.ficco", "--gpus", "2", "--json")
    assert ending.code == 0, ending.err
    (mm, own, add), moved = ending.record["stages"], ending.record["traffic"]
    c, d = 64 * 64 * 2, 64 * 64 * 4
    assert mm["does"][0]["bytes_to_others"] == [c, c]
    assert "bytes_from_others" not in own["does"][0]
    assert add["does"][0]["bytes_from_others"] == [d, d]
    assert moved["pairs"] == [[0, c + d], [c + d, 0]]


def test_explain_gives_the_shape_of_what_is_quantized(run: Callable[..., Ending]) -> None:
    ending = run("ficco", "explain", "quantized/ag_gemm_serial", "--gpus", "4", "--set", "M=512", "--set", "K=256")
    assert "each rank: 1 quantization of 128 × 256\n" in ending.out


def test_explain_names_stages_that_are_one_launch(run: Callable[..., Ending]) -> None:
    words = ("ficco", "explain", "gemm_rs/relay", "--gpus", "4", "--set", "first=1:1:2", "--set", "last=2:1:1")
    out = run(*words).out
    assert "512 × 4096 × 1024 (m × n × k), with a sum of 0 or 1 term, 25.8 GFLOP\n" in out
    assert "       streamed: 1 persistent launch with own, whose works wait for flags or raise them\n" in out
    assert "       streamed: 1 persistent launch with mm, whose works wait for flags or raise them\n" in out
    stages = {s["name"]: s for s in run(*words, "--json").record["stages"]}
    assert {name: s["launched_with"] for name, s in stages.items()} == {"mm": ["own"], "pass": [], "own": ["mm"]}
    assert stages["mm"]["launches_a_rank"] == [1, 1]  # of three turns


def test_words_and_arguments_ask_for_the_same(run: Callable[..., Ending], here: Path) -> None:
    """Commands and `ficco_rt.compile` resolve a request in one place, where rules give what is left open."""
    words = ("--gpus", "4", "--set", "M=1024", "--set", "N=512", "--set", "K=256", "-o", "plan.json")
    assert run("ficco", "compile", "ag_gemm/streamed", *words).code == 0
    made = ficco.compile("ag_gemm/streamed", 4, M=1024, N=512, K=256)
    assert ficco.plan_hash(ficco.load_plan("plan.json")) == ficco.plan_hash(made)

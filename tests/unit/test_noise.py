"""Partial sums in types that are too narrow for them: what is warned of, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ficco_dsl
import ficco_rt
from ficco_rt import compiler
from ficco_rt.exec.executor import Executor
from ficco_rt.graph.ir import Gemm
from ficco_rt.graph.noise import Noise, Noises, claimed, coarse, short_sums
from ficco_rt.graph.prove import meaning
from ficco_rt.machine.profiles import profile
from ficco_rt.types import numpy_dtype
from tests import cases
from tests.cases import SCHEDULES
from tests.unit.command_line import Ending

STAGNATING = """schedule many
param c = 1024
input A[8, 1024] : bf16
input B[1024, 8] : bf16
output C[8, 8] : bf16
computes C = A * B
queue compute { engine = sm }
stage m on compute { for k in 0..c { gemm C += A.cols(k of c) * B.rows(k of c) } }
"""
WIDE = STAGNATING.replace("queue", "scratch P[8, 8] : fp32\nqueue").replace("gemm C", "gemm P") + (
    "stage r on compute { reduce C = sum(P) }\n"
)
CANCELLING = """schedule cancelling
input A[8, 64] : fp16
input B[64, 8] : fp16
scratch P[8, 8] : fp16
output C[8, 8] : fp16
computes C = all_reduce(A * B)
queue compute { engine = sm }
stage m on compute { gemm P = A * B }
stage r on compute { reduce C = sum(P @ all) }
"""
OVERFLOWING = """schedule t
input A[8, 100000] : fp16
input B[100000, 8] : fp16
scratch P[8, 8] : fp16
output C[8, 8] : fp32
computes C = A * B within fp16
queue compute { engine = sm }
stage m on compute { gemm P = A * B }
stage r on compute { reduce C = sum(P) }
"""
BF16 = numpy_dtype("bf16")
FP32 = "keep partial sums in an fp32 scratch tensor"
WAY_OUT = f"{FP32}, or add up fewer and larger pieces, such as one gemm over all of K"


FAST = """schedule fast
param K = 1024
input A[8, K] : fp8_e4m3
input B[8, K] : fp8_e4m3
output C[8, 8] : fp32
computes C = A * B.T
queue compute { engine = sm }
stage m on compute { gemm C = A * B.T }
"""


def test_sums_of_tensor_cores_alone_may_be_further_off() -> None:
    """By 2⁻¹⁵ for each of K on inputs of one sign, as was measured."""
    schedule = ficco_dsl.parse(FAST, "fast.ficco")

    def noise(**params: object) -> Noise:
        graph = compiler.build(schedule, 1, params)
        return claimed(Noises(graph.tensors, meaning(graph)), graph.claims[0])

    plain, fast, deeper = noise(), noise(fast=1), noise(fast=1, K=4096)
    assert noise(fast=0) == plain
    assert fast.lost - plain.lost == 2.0**-5
    assert deeper.lost - fast.lost == pytest.approx(3 * 2.0**-5, rel=0.05)
    assert plain.error < fast.error
    assert noise(fast=1, K=8192).lost > 0.16
    assert noise(fast=1, K=32768).lost > 0.66
    text = FAST.replace("K = 1024", "K = 1024  param fast = 7")
    params = dict(compiler.build(ficco_dsl.parse(text, "fast.ficco"), 1, {"fast": 8}).params)
    assert params["fast"] == 8  # a param of this name is the schedule's


def test_sums_by_tensor_cores_alone_are_asked_for_like_a_size() -> None:
    types = {"T": "fp8_e4m3 scaled row", "Weight": "fp8_e4m3 scaled row", "Sum": "bf16", "transb": 1}
    made = ficco_rt.choose("ag_gemm", 2, "h200-switch", M=512, N=512, K=512, fast=1, **types)
    products = [w.body for _, launch in made.plan.launches() for w in launch.works if isinstance(w.body, Gemm)]
    assert products
    assert all(body.fast for body in products)


def warned(run: Callable[..., Ending], *words: str) -> tuple[tuple[int, str, str], ...]:
    ending = run("ficco", "check", *words, "--json")
    assert ending.code == 0
    (result,) = ending.record["results"]
    assert result["proven"]
    return tuple((w["line"], w["message"], w["help"]) for w in result["warnings"])


def test_a_sum_that_stops_growing(run: Callable[..., Ending], here: Path) -> None:
    (here / "t.ficco").write_text(STAGNATING)
    message = (
        "C keeps partial sums in bf16: where all inputs are 1, the sum stops growing after 256 of 1024 pieces; "
        "roundings may take all of 'C = A * B' on inputs of one sign"
    )
    assert warned(run, "t.ficco", "--gpus", "1") == ((8, message, WAY_OUT),)
    ones = {"A": [np.ones((8, 1024), BF16)], "B": [np.ones((1024, 8), BF16)]}
    for text, sums in ((STAGNATING, 256), (WIDE, 1024)):
        (here / "t.ficco").write_text(text)
        result = np.zeros((8, 8), BF16)
        with Executor(ficco_rt.compile("t.ficco", 1)) as executor:
            executor.run(**ones, C=[result])
        assert set(result.astype(float).ravel()) == {sums}
    assert warned(run, "t.ficco", "--gpus", "1") == ()
    assert "  numbers  correct: " in run("ficco-run", "t.ficco", "--gpus", "1").out


def test_numbers_within_too_large_an_allowance_are_not_called_correct(run: Callable[..., Ending], here: Path) -> None:
    (here / "t.ficco").write_text(STAGNATING)
    words = ("t.ficco", "--gpus", "1", "--set", "c=64")
    message = "C keeps partial sums in bf16: roundings may take 13 % of 'C = A * B' on inputs of one sign"
    assert warned(run, *words) == ((8, message, WAY_OUT),)
    within = "within its roundings, which may take 13 % of a result of one sign"
    for more in ((), ("--exact",)):
        ending = run("ficco-run", *words, *more, "--report", "r.html")
        assert ending.code == 0
        assert f"  numbers  {within}: integers equal, " in ending.out
        assert "correct" not in ending.out
        assert within in (here / "r.html").read_text()
        facts = run("ficco-run", *words, *more, "--json").record
        assert (facts["verified"], facts["integers"], facts["allowance"] > 0.05) == (None, True, True)
        assert "error" not in facts
    # a stored plan says the same
    assert run("ficco", "compile", *words, "-o", "p.json").code == 0
    assert [text for _, text, _ in warned(run, "p.json")] == [message]
    assert warned(run, "t.ficco", "--gpus", "1", "--set", "c=16") == ()


def test_wrong_numbers_of_one_sign_are_code_4(run: Callable[..., Ending], here: Path) -> None:
    (here / "t.ficco").write_text(STAGNATING)
    ending = run("ficco-run", "t.ficco", "--gpus", "1")
    assert ending.code == 4
    assert "  numbers  WRONG: integers equal, data of one sign off by 6." in ending.out
    assert " (on data of one sign: relative error 6." in ending.err
    facts = run("ficco-run", "t.ficco", "--gpus", "1", "--json").record
    assert facts["verified"] is False
    assert facts["one_signed"]["tolerance"] == pytest.approx(0.05)


def test_partial_sums_that_overflow(run: Callable[..., Ending], here: Path) -> None:
    (here / "t.ficco").write_text(OVERFLOWING)
    message = (
        "P keeps partial sums in fp16, which ends at 65504: where all inputs are 1, one is 100000, and "
        "'C = A * B within fp16' is 100000 in fp32"
    )
    assert warned(run, "t.ficco", "--gpus", "1") == ((8, message, FP32),)


def test_partial_sums_that_overflow_where_terms_cancel(run: Callable[..., Ending], here: Path) -> None:
    (here / "t.ficco").write_text(CANCELLING)
    words = "; partial sums in P may overflow where the result does not (fp16 ends at 65504)\n"
    ending = run("ficco", "check", "t.ficco", "--gpus", "2")
    assert (ending.code, ending.err, ending.out.endswith(words)) == (0, "", True)
    assert words in run("ficco-run", "t.ficco", "--gpus", "2").out
    for command in (("ficco-run", "t.ficco", "--gpus", "2"), ("ficco", "check", "t.ficco", "--gpus", "2")):
        facts = run(*command, "--json").record
        assert facts.get("short_sums", facts.get("results", [facts])[0].get("short_sums")) == ["P"]
    (here / "t.ficco").write_text(CANCELLING.replace("P[8, 8] : fp16", "P[8, 8] : fp32"))
    assert run("ficco", "check", "t.ficco", "--gpus", "2").out.endswith(" waits\n")


def test_a_ring_and_a_collective_of_many_ranks(run: Callable[..., Ending]) -> None:
    found = warned(run, "gemm_ar/serial", "--gpus", "64")
    assert (
        32,
        "a collective may round C to bf16 at every rank that a sum comes past: roundings may take 13 % of "
        "'C = all_reduce(A * B)' on inputs of one sign",
        "give the collective fp32 tensors",
    ) in found
    assert (
        "P keeps partial sums in bf16: roundings may take 6.8 % of 'C = reduce_scatter(A * B, rows)' on inputs of one "
        "sign"
    ) in [message for _, message, _ in warned(run, "gemm_rs/ring", "--gpus", "32")]


@pytest.mark.parametrize("dtype", cases.FLOATS)
def test_shipped_schedules_at_8_ranks_are_exact_enough(dtype: str) -> None:
    for name in SCHEDULES:
        graph = compiler.build(compiler.load(name), 8, {"T": dtype})
        assert coarse(graph.tensors, graph.claims, meaning(graph)) == [], name
        short = short_sums(graph.tensors, graph.claims, meaning(graph))
        partial = name.startswith(
            (
                "gemm_ar/",
                "gemm_rs/",
                "quantized/gemm_rs",
                "ag_gemm_backward/",
                "concurrent/ar_",
                "ag_gemm/uniform_fused_2d",
            )
        )
        assert bool(short) == (dtype == "fp16" and partial), name


def test_one_rounding_is_no_partial_sum() -> None:
    text = "schedule s input A[8, 8] : fp8_e4m3 output C[8, 8] : fp8_e4m3 computes C = A * A " + (
        "queue q { engine = sm } stage mm on q { gemm C = A * A }"
    )
    graph = compiler.build(ficco_dsl.parse(text, "s.ficco"), 1, {})
    (warning,) = (w for w in compiler.lint(graph, profile("h200-switch", 1)) if "of one sign" in w.message)
    assert warning.message.startswith("C is stored in fp8_e4m3: roundings may take ")
    assert warning.help == "give it a wider type, such as bf16"

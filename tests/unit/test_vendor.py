"""Products by the vendor's library: what it takes, how its calls stand in device plans, and where it comes unasked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import ficco_dsl
from ficco_dsl.diagnostics import ScheduleError
from ficco_rt.cli.explain import explain
from ficco_rt.compiler import build, compile_schedule, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.codec import from_json, to_json
from ficco_rt.device.contents import COMPILE
from ficco_rt.device.features import usual
from ficco_rt.device.ir import DevicePlan, Placement
from ficco_rt.device.text import to_text
from ficco_rt.errors import PlanError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.graph.ir import Gemm
from ficco_rt.kernels import vendor_gemm
from ficco_rt.kernels.families import tuned
from ficco_rt.kernels.mfma.family import MFMA
from ficco_rt.kernels.sm80.family import SM80
from ficco_rt.kernels.sm90.family import SM90
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from ficco_rt.report.settings import parse_choices, parse_settings
from ficco_rt.sim.simulate import simulate
from tests.gpu import test_vendor as on_gpus

TEXT = """\
schedule one
param M = 256
param N = 256
param K = 256
type T = bf16
input   A[M, K] : T
input   B[K, N] : T
input   Z[M, N] : T
output  C[M, N] : T unproven
queue lib {{ engine = sm  kernel = vendor }}
stage mm on lib{stage} {{ {gemm} }}
"""


def compiled(gemm: str, stage: str = "", machine: str = "h200-switch", **params: object) -> Plan:
    text = TEXT.format(gemm=gemm, stage=stage)
    return plan_of(build(ficco_dsl.parse(text, "one.ficco"), 2, params), profile(machine, 2))


def on_device(plan: Plan, library: bool = False) -> DevicePlan:
    device = plan.target.device
    features = replace(usual(device.arch), vendor_gemms=library)
    return device_plan(layout_of(plan, device, Placement(tuple(range(plan.ranks))), features), "streams")


@pytest.mark.parametrize(
    ("stage", "gemm", "message"),
    [
        (" streamed", "gemm C = A * B", "kernel = vendor does not do this: the stage is streamed, and the library's "
         "kernels wait for no pieces; leave out 'streamed'"),
        (" with sms = 64, residency = 1", "gemm C = A * B", "residency = 1 cannot be had of the vendor's "
         "kernels; leave it out, or leave out kernel = vendor"),
        ("", "gemm C = A * B with priority = high", "priority = high cannot be had of the vendor's kernels, which have "
         "their stream's; say it on queue 'lib'"),
        ("", "gemm C = A.cols([2, 0] of 4) * B.rows([2, 0] of 4)", "kernel = vendor does not do this: K comes in 2 "
         "pieces, between which the sum would be rounded to bf16; write to an fp32 tensor, or a gemm for each piece"),
        ("", "gemm C = A.T * B let p = [2 * i for i in 0..17] gemm C.rows(p of 64) = A.rows(p of 64) * B",
         "kernel = vendor does not do this: it comes in 17 pieces, and the library is called for 16 at most; take "
         "fewer pieces"),
        ("", "let p = 1 - rank gemm C = A * B step i in 0..1 { gemm C.rows(rank of 2) @ p = A.rows(rank of 2) * B }",
         "kernel = vendor does not do this: its "
         "result lies on another rank; take a tensor of this rank, and a copy"),
    ],
)  # fmt: skip
def test_what_the_library_does_not_do_is_refused_with_a_way_out(stage: str, gemm: str, message: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        compiled(gemm, stage)
    (told,) = refused.value.diagnostics
    assert told.message == f"{message} (NVIDIA H200)"
    assert told.span.line == 11


SCALED = """\
schedule with_scales
param M = 256
param N = 256
param K = 256
type A = fp8_e4m3 scaled 1x128
type B = fp8_e4m3 scaled 128x128
type R = bf16
input   X[M, K] : A
input   Y[N, K] : B
input   z[N]    : R
input   Z[M, N] : R
output  C[M, N] : R unproven
queue lib {{ engine = sm  kernel = vendor }}
stage mm on lib {{ {gemm} }}
"""


def scaled(gemm: str = "gemm C = X * Y.T", machine: str = "h200-switch", **params: object) -> Plan:
    return plan_of(build(ficco_dsl.parse(SCALED.format(gemm=gemm), "scaled.ficco"), 2, params), profile(machine, 2))


@pytest.mark.parametrize(
    ("gemm", "machine", "params", "message"),
    [
        ("gemm C = X * Y", "h200-switch", {"A": "fp8_e4m3", "B": "fp8_e4m3"},
         "operands of fp8_e4m3 lie along K, and the right one does not; store it [N, K]"),
        ("gemm C = X.T * Y.T", "h200-switch", {"A": "fp8_e4m3", "B": "fp8_e4m3"},
         "operands of fp8_e4m3 lie along K, and the left one does not; store it [M, K]"),
        ("gemm C = X * Y.T", "h200-switch", {"A": "fp8_e4m3 scaled 128x128"},
         "both operands are scaled 128x128, and one at least is to be 1x128"),
        ("gemm C = X * Y.T", "h200-switch", {"R": "fp8_e4m3"}, "it stores no fp8_e4m3; take a result of another type"),
        ("gemm C = X * Y.T", "h200-switch", {"M": 255},
         "a piece of M is 255, and cuBLASLt multiplies fp8_e4m3 in multiples of 4; cut so"),
        ("gemm C = X * Y.T", "h200-switch", {"N": 252},
         "a piece of N is 252, and cuBLASLt multiplies fp8_e4m3 in multiples of 8; cut so"),
        ("gemm C = X * Y.T", "h200-switch", {"K": 264},
         "a piece of K is 264, and cuBLASLt multiplies fp8_e4m3 in multiples of 16; cut so"),
        ("gemm C = X * Y.T gemm C += X * Y.T", "h200-switch", {},
         "it rounds a sum to bf16 before it adds a matrix; add by a reduce, or to an fp32 tensor"),
        ("gemm C = X * Y.T", "b200-switch", {},
         "operands are scaled 1x128 and 128x128, which cuBLASLt takes on sm_90 alone; "
         "scale both by tensor, or take a Hopper GPU"),
        ("gemm C = X * Y.T", "b200-switch", {"A": "fp8_e4m3 scaled row", "B": "fp8_e4m3 scaled row"},
         "operands are scaled row and row, which cuBLASLt takes on sm_90 alone; "
         "scale both by tensor, or take a Hopper GPU"),
        ("gemm C = X * Y.T", "a100-switch", {"A": "fp8_e4m3", "B": "fp8_e4m3"},
         "operands are fp8_e4m3, which cuBLASLt takes since sm_89"),
        ("gemm C = X * Y.T", "mi300x-mesh", {},
         "operands are fp8_e4m3, which nobody has tried with hipBLASLt; take bf16 or fp16 operands"),
    ],
)  # fmt: skip
def test_scaled_products_that_the_library_does_not_make_are_refused_with_the_reason(
    gemm: str, machine: str, params: dict[str, object], message: str
) -> None:
    with pytest.raises(ScheduleError) as refused:
        scaled(gemm, machine, **params)
    (told,) = refused.value.diagnostics
    assert told.message.startswith(f"kernel = vendor does not do this: {message}")


def test_a_call_tells_of_its_scales() -> None:
    made = on_device(scaled("gemm C[:, 0:128] = X * Y[0:128].T gemm C[:, 128:256] = X * Y[128:256].T"))
    check(made)
    assert from_json(to_json(made)) == made
    calls = [line for line in to_text(made).splitlines() if line.startswith("  matmul")]
    assert calls[1] == (
        "  matmul 256 × 128 × 256 fp8_e4m3 to bf16, alpha 1, beta 0: left at 0 pitch 256, right at 32768 pitch 256 "
        "transposed, out at 128 pitch 256, left_scales at 0 pitch 4, right_scales at 4 pitch 4; scaled 1x128 "
        "and 128x128"
    )
    (converted,) = vendor_gemm.conversions(made.launches[1].config.matmuls[0])
    assert (converted.rows, converted.columns, converted.turned, converted.size) == (256, 2, True, 2048)
    assert made.launches[1].config.workspace == vendor_gemm.WORKSPACE + 2048
    row = {"A": "fp8_e4m3 scaled row", "B": "fp8_e5m2 scaled row"}
    (call,) = on_device(scaled(**row, fast=1)).launches[0].config.matmuls
    assert (call.scaling, call.fast, call.right_dtype) == (("row", "row"), True, "fp8_e5m2")
    assert not vendor_gemm.conversions(call)


@pytest.mark.parametrize(
    ("scaling", "fast", "measured"),
    [
        (("tensor", "tensor"), 0, (240.4, 193.4, 18.2)), (("row", "row"), 0, (248.7, 199.7, 22.1)),
        (("row", "row"), 1, (229.9, 185.1, 23.4)), (("1x128", "128x128"), 0, (270.8, 218.7, 24.2)),
    ],
)  # fmt: skip
def test_prices_of_scaled_products_are_near_what_an_h200_took(
    scaling: tuple[str, str], fast: int, measured: tuple[float, ...]
) -> None:
    """Of calls in a graph, which come 2.5 µs after one another."""
    types = {name: f"fp8_e4m3 scaled {by}" for name, by in zip("AB", scaling, strict=True)}
    for (m, n, k), time in zip(((8192, 2560, 8192), (4096, 4608, 7168), (256, 4608, 7168)), measured, strict=True):
        plan = scaled(M=m, N=n, K=k, fast=fast, **types)
        converted = 5.0 if scaling[0] == "1x128" else 0.0
        spent = simulate(plan, plan.target).duration - plan.target.device.launch_time - 4.0  # begin and end of the run
        assert spent - converted + 2.5 == pytest.approx(time, rel=0.13)


def test_what_the_library_would_round_before_is_a_sum_of_its_own() -> None:
    for gemm, kernels in (
        ("gemm C = X * Y.T + sum(z)", ["vendor_gemm"]),
        ("gemm C = X * Y.T + sum(Z)", ["vendor_gemm", "naive_reduce"]),
    ):
        assert [launch.kernel for stream, launch in scaled(gemm).launches() if stream.rank] == kernels


@pytest.mark.parametrize(
    ("gemm", "value"),
    [
        ("gemm C = A * B + sum(Z, Z)", 258),
        ("gemm C = A * B + sum(Z @ 0)", 257),
        ("gemm C = gelu(A * B)", 256),
        ("gemm C = gelu_tanh(A.cols(1..4 of 128) * B.rows(1..4 of 128) + sum(Z))", 7),
    ],
)
def test_what_the_library_does_not_add_or_apply_is_a_sum_of_its_own(gemm: str, value: int) -> None:
    plan = compiled(gemm)
    assert [launch.kernel for stream, launch in plan.launches() if stream.rank] == ["vendor_gemm", "naive_reduce"]
    ones, made = ([np.full((256, 256), n, bfloat16) for _ in range(2)] for n in (1, 0))
    with Executor(plan) as executor:
        executor.run(A=ones, B=ones, Z=ones, C=made)
    assert all((array == value).all() for array in made)


def test_a_call_stands_in_the_device_plan_with_all_that_it_is_made_with() -> None:
    plan = compiled("gemm C = A * B gemm C.rows([0, 2] of 4) += A.rows([0, 2] of 4).cols(1 of 2) * B.rows(1 of 2)")
    made = on_device(plan)
    check(made)
    lines = to_text(made).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("launch 1"))
    assert lines[at : at + 3] == [
        "launch 1 vendor_gemm: 2 calls of the vendor's library, workspace 33554432; may hold 132 multiprocessors, "
        "begins where 8 are free  :11",
        "  matmul 64 × 256 × 128 bf16 to bf16, alpha 1, beta 1: left at 128 pitch 256, right at 32768 pitch 256, "
        "out at 0 pitch 256",
        "  matmul 64 × 256 × 128 bf16 to bf16, alpha 1, beta 1: left at 32896 pitch 256, right at 32768 pitch 256, "
        "out at 32768 pitch 256",
    ]
    assert from_json(to_json(made)) == made


def test_cublaslt_is_asked_for_fewer_multiprocessors_and_hipblaslt_cannot_be() -> None:
    made = on_device(compiled("gemm C = A * B", " with sms = 100"))
    check(made)
    assert {m.sms for launch in made.launches for m in launch.config.matmuls} == {100}
    assert "alpha 1, beta 0, for 100 multiprocessors: " in to_text(made)
    with pytest.raises(ScheduleError) as refused:
        compiled("gemm C = A * B", " with sms = 100", "mi300x-mesh")
    assert "sms = 100 cannot be had of the vendor's kernels" in refused.value.diagnostics[0].message


@pytest.mark.parametrize(
    "calls",
    [
        lambda calls: (replace(calls[0], k=64), *calls[1:]),
        lambda calls: calls[:1] * 2,
        lambda calls: (),
    ],
)
def test_calls_that_are_not_the_works_are_no_device_plan(calls: Callable[[Any], Any]) -> None:
    two = "gemm C.rows([0, 2] of 4) = A.rows([0, 2] of 4) * B gemm C.rows([1, 3] of 4) = A.rows(0 of 2) * B"
    made = on_device(compiled(two))
    launch = made.launches[0]
    config = replace(launch.config, matmuls=calls(launch.config.matmuls))
    with pytest.raises(PlanError) as refused:
        check(replace(made, launches=(replace(launch, config=config), *made.launches[1:])))
    asked = f"vendor_gemm: its works on {made.device.name} ask for another launch; {COMPILE}"
    assert refused.value.diagnostics[0].message == asked


def test_the_host_driver_runs_it_as_any_product() -> None:
    text = TEXT.format(gemm="gemm C = A * B", stage="").replace(" unproven", "\ncomputes C = A * B")
    plan = plan_of(build(ficco_dsl.parse(text, "one.ficco"), 2, {}), profile("h200-switch", 2))
    with Executor(plan) as executor:
        assert verified_run(executor, values="exact").ok
        assert verified_run(executor).ok


@pytest.mark.parametrize("sizes", [(8192, 8192, 8192), (5000, 1000, 3000), (64, 7168, 4096)], ids=str)
def test_the_virtual_clock_prices_it_about_as_our_own_kernel(sizes: tuple[int, int, int]) -> None:
    params = dict(zip("MNK", sizes, strict=True))
    ours = TEXT.replace("  kernel = vendor", "").format(gemm="gemm C = A * B", stage="")
    own = plan_of(build(ficco_dsl.parse(ours, "one.ficco"), 2, params), profile("h200-switch", 2))
    assert {launch.kernel for _, launch in own.launches()} != {"vendor_gemm"}
    times = [simulate(plan, plan.target).duration for plan in (compiled("gemm C = A * B", **params), own)]
    assert times[0] == pytest.approx(times[1], rel=0.25)


def test_where_no_gemm_of_ours_is_made_for_the_gpu_the_library_does_what_it_can() -> None:
    assert [arch for arch in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a") if tuned(arch)] == [
        "sm_80",
        "sm_86",
        "sm_90a",
    ]
    assert [arch for arch in ("gfx90a", "gfx942", "gfx950", "gfx1100") if tuned(arch)] == ["gfx90a", "gfx942"]
    both = "gemm C.rows(0 of 2) = A.rows(0 of 2) * B }\nqueue held { engine = sm  sms = 120 }\n"
    both += "stage rest on held streamed { gemm C.rows(1 of 2) = A.rows(1 of 2) * B"
    text = TEXT.replace("  kernel = vendor", "").format(gemm=both, stage="")
    for machine, library, kernels in (
        ("b200-switch", True, {"vendor", "sm80"}),
        ("b200-switch", False, {"sm80"}),
        ("h200-switch", True, {"sm90"}),
    ):
        plan = plan_of(build(ficco_dsl.parse(text, "one.ficco"), 2, {}), profile(machine, 2))
        made = on_device(plan, library)
        check(made)
        assert {launch.config.family for launch in made.launches} == kernels
        assert "vendor_gemm" not in {launch.kernel for _, launch in plan.launches()}  # the plan is as it was
    assert on_device(plan).features == usual("sm_90a")


def test_explain_says_which_products_the_library_makes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "one.ficco"
    both = "gemm C = A * B }\nqueue own { engine = sm }\nstage rest on own { "
    both += "gemm C.rows(0 of 2) = A.rows(0 of 2) * B with kernel = vendor gemm C.rows(1 of 2) = A.rows(1 of 2) * B"
    path.write_text(TEXT.format(gemm=both, stage=""))
    assert explain(str(path), 2, (), None, False) == 0
    told = capsys.readouterr().out
    assert "1 GEMM of 256 × 256 × 256 (m × n × k), 33.6 MFLOP, by the vendor's library\n" in told
    assert "2 GEMMs of 128 × 256 × 256 (m × n × k), 33.6 MFLOP, 1 of them by the vendor's library\n" in told


@pytest.mark.parametrize("case", on_gpus.CASES, ids=str)
def test_the_tools_cases_are_schedules(case: on_gpus.Case) -> None:
    machine = profile("h200-switch", 1)
    library, own = (case.plan(machine, kernel) for kernel in ("  kernel = vendor", ""))
    assert {launch.kernel for _, launch in library.launches()} == {"vendor_gemm"}
    assert len(list(own.launches())) == (1 if case.gathered else case.pieces)


def test_set_kernel_says_it_of_a_whole_schedule() -> None:
    sizes = {"M": 256, "N": 256, "K": 256}
    plan = compile_schedule("gemm_rs/serial", 2, {**sizes, "kernel": "vendor"})
    assert {launch.kernel for _, launch in plan.launches() if isinstance(launch.works[0].body, Gemm)} == {"vendor_gemm"}
    assert plan.params[-1] == ("kernel", "vendor")
    assert parse_settings(["kernel = vendor", "M=256"]) == {"kernel": "vendor", "M": 256}
    named = "sm90_gemm_64x64_c1"
    assert parse_settings([f"compute.kernel={named}"]) == {"compute.kernel": named}
    choices = parse_choices([f"kernel=vendor,{named}", f"q.kernel=vendor,{named}"], "--sweep")
    assert choices == dict.fromkeys(("kernel", "q.kernel"), ("vendor", named))
    with pytest.raises(UsageError, match="kernel = 4: it is vendor, or the name of a kernel for products"):
        compile_schedule("gemm_rs/serial", 2, {**sizes, "kernel": 4})
    with pytest.raises(ScheduleError, match="kernel = ours: no kernel for products is called so; leave it out"):
        compile_schedule("gemm_rs/serial", 2, {**sizes, "kernel": "ours"})
    with pytest.raises(ScheduleError, match="the stage is streamed"):
        compile_schedule("gemm_rs/streamed", 2, {**sizes, "kernel": "vendor"})


def test_a_device_plan_tells_which_last_tiles_overlap() -> None:
    sizes = {"M": 270, "N": 2360, "K": 2048, "transb": 1, "kernel": "sm90_gemm_96x64_c1_swapped"}
    made = on_device(compile_schedule("ag_gemm/serial", 1, sizes, profile("h200-switch", 1)))
    check(made)
    assert from_json(to_json(made)) == made
    assert ", last tiles of rows and columns overlap the ones before" in to_text(made)
    config = replace(made.launches[0].config, level=(True, False))
    with pytest.raises(PlanError, match="its works on NVIDIA H200 ask for another launch"):
        check(replace(made, launches=(replace(made.launches[0], config=config),)))


@pytest.mark.parametrize("machine", ["h200-switch", "a100-switch", "mi300x-mesh"])
def test_a_schedule_takes_the_kernel_that_is_named(machine: str) -> None:
    """Each of a family that has enough rows, in a launch that waits, and in one that does not."""
    family, others = {"h2": (SM90, SM80), "a1": (SM80, SM90), "mi": (MFMA, SM80)}[machine[:2]]
    sizes = {"M": 1024, "N": 1024, "K": 1024}
    for name, kernel in product(("serial", "streamed"), [v.name for v in family.variants][:4]):
        plan = compile_schedule(f"ag_gemm/{name}", 2, {**sizes, "kernel": kernel}, profile(machine, 2))
        assert {launch.kernel for _, launch in plan.launches()} == {kernel}
    other = others.variants[0].name
    with pytest.raises(ScheduleError, match=f"kernel = {other}: .*; leave it out, and one is chosen"):
        compile_schedule("ag_gemm/serial", 2, {**sizes, "kernel": other, "K": 1023}, profile(machine, 2))

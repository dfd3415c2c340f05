"""A product that gets a plain kernel, or one for older devices, is dear on the virtual clock, and told of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

import ficco_dsl
from ficco_dsl.diagnostics import Diagnostic
from ficco_rt.compiler import build, lint, plan_of
from ficco_rt.kernels.families import family_of
from ficco_rt.machine.model import Machine
from ficco_rt.machine.profiles import profile
from ficco_rt.sim.simulate import simulate

TEXT = """
schedule one
param K = 4096
type T = bf16
input  A[4096, K] : T
input  B[K, 4096] : T
output C[4096, 4096] : T
computes C = A * B
queue compute { engine = smASKED }
stage mm on compute {
  gemm C.rows(0 of 2) = A.rows(0 of 2) * B
  gemm C.rows(1 of 2) = A.rows(1 of 2) * B
}
"""


def compiled(
    machine: Machine, asked: str = "", params: Mapping[str, object] | None = None
) -> tuple[float, tuple[Diagnostic, ...], set[str]]:
    """The modelled time, the warnings and the kernels of a schedule of two products."""
    graph = build(ficco_dsl.parse(TEXT.replace("ASKED", asked), "one.ficco"), 1, dict(params or {}))
    plan = plan_of(graph, machine)
    return simulate(plan, machine).duration, lint(graph, machine), {launch.kernel for _, launch in plan.launches()}


def of(name: str, arch: str | None = None) -> Machine:
    machine = profile(name, 1)
    return machine if arch is None else replace(machine, device=replace(machine.device, arch=arch))


def test_a_residency_that_only_the_plain_kernel_has_does_not_pay() -> None:
    """On the mesh of MI300X it was modelled 12 % faster than the matrix cores' kernel."""
    tuned, nothing, kernels = compiled(of("mi300x-mesh"))
    plain, told, naive = compiled(of("mi300x-mesh"), "\n residency = 4")
    assert (nothing, naive) == ((), {"naive_gemm"})
    assert all(kernel.startswith("mfma") for kernel in kernels)
    assert plain > 10 * tuned
    assert len(told) == 1  # for both statements of the stage


@pytest.mark.parametrize(
    ("machine", "asked", "params", "kernel", "reason", "way_out"),
    [
        (of("mi300x-mesh"), "\n residency = 4", {}, "a plain kernel (naive_gemm)", "no variant fits 16384 bytes of LDS "
         "and residency = 4", "leave out residency = 4"),
        (of("h200-switch"), "\n residency = 2", {}, "sm80_gemm_", "its blocks take all registers, so that residency "
         "= 2 cannot be", "leave out residency = 2"),
        (of("h200-switch"), "", {"K": 4090}, "sm80_gemm_", "the left operand's address or pitch is no "
         "multiple of 16 bytes", "let pieces of K and of columns start at multiples of 8"),
        (of("h200-switch"), "", {"T": "fp32"}, "sm80_gemm_", "operands are fp32",
         "write within tf32 behind all claims, or take bf16 or fp16 operands"),
        (of("mi300x-mesh"), "", {"T": "fp32"}, "a plain kernel (naive_gemm)", "operands are fp32", "take bf16 or fp16"),
        (of("mi300x-mesh", "gfx908"), "", {}, "without the vendor's library a plain kernel (naive_gemm)", "no GEMM of "
         "ours is made for the tensor cores of gfx908", 'pip install "hip-python[libraries]>=10" where it runs'),
        (of("b200-switch"), "", {}, "without the vendor's library sm80_gemm_256x128", "no GEMM of ours is made for the "
         "tensor cores of sm_100a", 'pip install "nvmath-python>=1.0"'),
        (of("h200-switch", "sm_89"), "", {"T": "fp32"}, "without the vendor's library sm80_gemm_",
         "no GEMM of ours is made for the tensor cores of sm_89", 'pip install "nvmath-python>=1.0"'),
    ],
)  # fmt: skip
def test_who_takes_a_slower_kernel_is_told_why(
    machine: Machine, asked: str, params: Mapping[str, object], kernel: str, reason: str, way_out: str
) -> None:
    _, (told,), _ = compiled(machine, asked, params)
    assert told.message.startswith(kernel)
    assert f"of the rate of large GEMMs: {reason} ({machine.device.name})" in told.message
    assert told.help is not None
    assert told.help.startswith(way_out)


UNPROVEN = "input Z[4096, 4096] : T\noutput C[4096, 4096] : T unproven"


@pytest.mark.parametrize(
    ("line", "obstacle", "change"),
    [
        ("stage mm on compute streamed { gemm C = A * B }", "the stage is streamed, and the library's kernels wait for "
         "no pieces", "leave out 'streamed'"),
        ("stage mm on compute { gemm C = A * B + sum(Z, Z) }", "it adds one matrix and one row at most, of bf16 as "
         "the result is", "add other terms by a reduce"),
    ],
)  # fmt: skip
def test_where_the_library_is_hindered_the_help_says_what_to_change(line: str, obstacle: str, change: str) -> None:
    machine = of("b200-switch")
    text = TEXT.replace("ASKED", "").replace("output C[4096, 4096] : T\ncomputes C = A * B", UNPROVEN)
    text = text[: text.index("stage")] + line + "\n"
    (told,) = lint(build(ficco_dsl.parse(text, "one.ficco"), 1, {}), machine)
    assert told.message.endswith(f"the vendor's library does not do this: {obstacle} ({machine.device.name})")
    assert told.help == f"{change}: the vendor's library then takes such products"


SCALED = """schedule one
input  A[4096, 4096] : fp8_e4m3 scaled 1x128
input  B[4096, 4096] : fp8_e4m3 scaled 128x128
output C[4096, 4096] : bf16
computes C = A * B.T
queue compute { engine = sm }
stage mm on compute { gemm C = A * B.T }
"""


@pytest.mark.parametrize(
    ("machine", "obstacle", "help_"),
    [
        (of("b200-switch"), "operands are scaled 1x128 and 128x128, which cuBLASLt takes on sm_90 alone",
         "scale both by tensor, or take a Hopper GPU: the vendor's library then takes such products"),
        (of("h200-switch", "sm_89"), "operands are scaled 1x128 and 128x128, which cuBLASLt takes on sm_90 alone",
         "scale both by tensor, or take a Hopper GPU: the vendor's library then takes such products"),
        (of("mi300x-mesh", "gfx908"), "operands are fp8_e4m3, which nobody has tried with hipBLASLt",
         "take bf16 or fp16 operands: the vendor's library then takes such products"),
    ],
)  # fmt: skip
def test_nobody_is_sent_to_a_library_that_takes_no_such_scales(machine: Machine, obstacle: str, help_: str) -> None:
    (told,) = lint(build(ficco_dsl.parse(SCALED, "one.ficco"), 1, {}), machine)
    assert told.message.endswith(f"the vendor's library does not do this: {obstacle} ({machine.device.name})")
    assert told.help == help_


@pytest.mark.parametrize(
    ("product", "reason", "way_out"),
    [
        ("A * B", "the right one is stored [K, N]",
         "store it [N, K], declared 'transposed' (in shipped schedules: --set transb=1)"),
        ("A.T * B.T", "the left one is stored transposed", "store it [M, K]"),
    ],
)  # fmt: skip
def test_fp8_operands_that_do_not_lie_along_k_are_told_how_to(product: str, reason: str, way_out: str) -> None:
    machine = of("h200-switch")
    text = re.sub(r" scaled \w+", "", SCALED).replace("A * B.T", product)
    (told,) = lint(build(ficco_dsl.parse(text, "one.ficco"), 1, {}), machine)
    assert told.message.endswith(
        f" of the rate of large GEMMs: fp8 operands lie along K, and {reason} ({machine.device.name})"
    )
    assert told.help == way_out


def test_the_kernel_that_is_made_for_the_device_is_told_of_by_nobody() -> None:
    for machine in (of("h200-switch"), of("mi300x-mesh"), of("h200-switch", "sm_80"), of("h200-switch", "sm_86")):
        assert compiled(machine)[1] == ()


def test_a_plain_kernel_reaches_a_few_percent_of_the_tensor_cores_rate() -> None:
    for name in ("h200-switch", "mi300x-mesh"):
        assert 0.02 < family_of("naive_gemm").reached(of(name).device, "bf16") < 0.06
    assert 0.45 < family_of("sm80_gemm_256x128").reached(of("h200-switch").device, "bf16") < 0.6
    assert family_of("sm90_gemm_128x256_c2").reached(of("h200-switch").device, "bf16") == 1.0

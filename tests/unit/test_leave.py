"""`leave`: what launches keep free for kernels of other queues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ficco_dsl.format import format_text
from ficco_dsl.parser import parse
from ficco_rt.compiler import build, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.features import usual
from ficco_rt.device.fit_table import blocks_left, fit_table, too_little_left
from ficco_rt.device.ir import DeviceLaunch, Placement
from ficco_rt.device.text import to_text as device_text
from ficco_rt.errors import ScheduleError
from ficco_rt.graph.ir import Leave
from ficco_rt.kernels.block_fit import Footprint, Several, fit, fits
from ficco_rt.kernels.catalogue import COPY, REDUCE
from ficco_rt.kernels.collective_blocks import planned
from ficco_rt.kernels.leaving import crowded_out, footprint_of
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.codec import content_hash, from_json, to_json
from ficco_rt.plan.ir import Plan
from ficco_rt.plan.text import to_text

TEXT = """
schedule beside
param M = 1024
input   A[M, M] : bf16
input   X[M, M] : bf16
output  C[M, M] : bf16
output  Y[M, M] : bf16
output  Z[M, M] : bf16
output  W[M, M] : bf16
computes C = A * A
computes Y = all_reduce(X)
computes Z = A
computes W = A

queue comm    { engine = nccl  THREADS }
queue compute { engine = sm  ASKED }

stage sum on comm   { all_reduce Y <- X }
stage mm on compute { gemm C = A * A }
stage move on compute { copy Z <- A }
stage add on compute { reduce W = sum(A) }
"""


def plan(asked: str, threads: str = "threads = 256", machine: str = "h200-switch", text: str = TEXT) -> Plan:
    source = text.replace("ASKED", asked).replace("THREADS", threads)
    return plan_of(build(parse(source, "x.ficco"), 2, {}), profile(machine, 2))


def launches(made: Plan) -> dict[str, list[DeviceLaunch]]:
    """By kernel, as a GPU would make them."""
    device = made.target.device
    layout = layout_of(made, device, Placement((0, 1)), usual(device.arch))
    found: dict[str, list[DeviceLaunch]] = {}
    for launch in layout.launches:
        if "sum" in launch.stages:  # of the collective, where no library makes it
            continue
        found.setdefault(launch.config.kernel, []).append(launch)
    return found


def leaves(launch: DeviceLaunch, other: Footprint, limits: Limits) -> bool:
    """Whether the launch's blocks, as many as fit by their shared memory, leave room for another kernel's."""
    own = footprint_of(launch.config)
    most = fit(replace(own, registers=0), (), limits).blocks
    return fits((Several(own, most), Several(other)), limits)


PRODUCT = TEXT.replace("stage move on compute", "queue plain { engine = sm }\nstage move on plain").replace(
    "add on compute", "add on plain"
)


@pytest.mark.parametrize("asked", ["leave = nccl", "leave = 64 KiB", "leave = 100 * 1024"])
def test_whatever_fits_on_a_multiprocessor_leaves_the_room(asked: str) -> None:
    made = plan(asked, text=PRODUCT if "nccl" in asked else TEXT)
    limits = Limits.of(made.target.device)
    others = planned({"all_reduce"}, 256, limits.arch) if "nccl" in asked else (Footprint("", 0, 0, 0, 64 << 10),)
    found = launches(made)
    assert {COPY, REDUCE} < set(found)
    for launch in (launch for of_kernel in found.values() for launch in of_kernel):
        if "nccl" in asked and launch.config.kernel in (COPY, REDUCE):
            continue
        assert all(leaves(launch, other, limits) for other in others)
        assert launch.config.resident >= 1


def test_beside_nccl_hopper_takes_a_lean_variant_and_bytes_take_any() -> None:
    (nccl,) = set(launches(plan("leave = nccl", text=PRODUCT))) - {COPY, REDUCE}
    assert nccl[:10] + nccl[-5:] == "sm90_gemm__lean"
    (by_bytes,) = set(launches(plan("leave = 64 KiB"))) - {COPY, REDUCE}
    assert (by_bytes[:10], by_bytes.endswith("_lean")) == ("sm90_gemm_", False)
    (ampere,) = set(launches(plan("leave = nccl", "threads = 384", text=PRODUCT))) - {COPY, REDUCE}
    assert ampere.startswith("sm80_gemm_")


def test_multiprocessors_left_are_sms_from_the_other_side() -> None:
    assert content_hash(plan("leave = 8 sms", text=PRODUCT)) == content_hash(plan("sms = 124", text=PRODUCT))
    assert content_hash(plan("leave = 8 sms  sms = 100")) == content_hash(plan("sms = 100"))
    copies, usual = (launches(plan(asked))[COPY] for asked in ("leave = 8 sms", ""))
    assert [launch.sms for launch in copies] == [launch.sms for launch in usual]  # none is wider
    with pytest.raises(ScheduleError, match="132 sms, but the device has 132"):
        plan("leave = 132 sms")


def test_plans_keep_what_was_asked_and_their_text_without_it() -> None:
    made = plan("leave = nccl", text=PRODUCT)
    assert from_json(to_json(made)) == made
    assert "leave nccl" in to_text(made)
    assert "leave" not in to_json(plan("sms = 100")) + to_text(plan(""))


def test_a_statement_may_leave_as_much_as_it_says() -> None:
    text = TEXT.replace("gemm C = A * A", "gemm C = A * A with leave = 40 KiB * (1 + rank)")
    smem = {
        stream.rank: c.attributes.leave
        for stream, c in plan("", text=text).launches()
        if c.kernel not in (COPY, REDUCE)
    }
    assert smem == {0: Leave("bytes", 40 << 10), 1: Leave("bytes", 80 << 10)}


def test_a_kernel_of_the_users_promises_nothing() -> None:
    text = TEXT.replace("queue comm", 'kernel k(read x) from "k.cu" entry "k" { grid = 4 }\nqueue comm')
    text = text.replace("gemm C = A * A }", "gemm C = A * A  launch k(A) with leave = nccl }")
    with pytest.raises(ScheduleError, match="kernel 'k', whose registers only a GPU knows"):
        plan("", text=text)
    plan("", text=text.replace("leave = nccl }", "leave = 8 sms }"))


@pytest.mark.parametrize("machine", ["mi250x", "mi300x-mesh"])
def test_amds_blocks_leave_local_memory(machine: str) -> None:
    made = plan("leave = 20 KiB", machine=machine)
    limits = Limits.of(made.target.device)
    for of_kernel in launches(made).values():
        assert all(leaves(launch, Footprint("", 0, 0, 0, 20 << 10), limits) for launch in of_kernel)


def test_the_layout_of_the_text() -> None:
    text = TEXT.replace("ASKED", "leave =   8    sms   sms = 4").replace("THREADS", "ctas = 8 priority = low")
    assert "leave = 8 sms  sms = 4" in format_text(text, "x.ficco")
    made = parse(TEXT.replace("ASKED", "smem = 8 sms = 4").replace("THREADS", ""), "x.ficco")
    assert [a.name for a in made.queues[1].attributes] == ["engine", "smem", "sms"]


def test_a_launch_that_cannot_leave_is_told_of_its_own_block() -> None:
    with pytest.raises(ScheduleError, match="naive_copy takes 512 threads × 128 registers"):
        plan("leave = nccl")


def test_the_device_plan_prints_what_a_launch_leaves() -> None:
    kept = [line for line in TEXT.splitlines() if not any(word in line for word in ("move", "add", " Z", " W"))]
    made = plan("leave = nccl", text="\n".join(kept))
    device = made.target.device
    text = device_text(device_plan(layout_of(made, device, Placement((0, 1)), usual(device.arch)), "streams"))
    (line, other) = [line for line in text.splitlines() if line.startswith("launch") and "lean" in line]
    assert ", leaves nccl  :" in line
    assert ", leaves nccl  :" in other


def test_beside_the_vendors_gemm_the_plan_keeps_what_a_gpu_has_to_check() -> None:
    made = plan("leave = nccl  kernel = vendor", text=PRODUCT)
    launch = launches(made)["vendor_gemm"][0]
    assert str(launch.leave) == "nccl"
    assert from_json(to_json(made)) == made
    device = made.target.device
    layout = layout_of(made, device, Placement((0, 1)), usual(device.arch))
    assert too_little_left(made, layout.launches, Limits.of(device), "NCCL 2.28") is None  # it is the driver's to say
    asked = next(t for t in fit_table(made, device, layout.launches).kernels if t.kernel == "vendor_gemm")
    assert asked.source == "leave = nccl: the driver is asked on a GPU, and a kernel that leaves less is refused"
    assert launch.leave is not None
    assert blocks_left(made, launch.leave, device.arch, "NCCL 2.28.9") == planned({"all_reduce"}, 256, device.arch)
    fewer = plan("leave = 8 sms  kernel = vendor", text=PRODUCT)
    layout = layout_of(fewer, device, Placement((0, 1)), usual(device.arch))
    names = [t.kernel for t in fit_table(fewer, device, layout.launches).kernels]
    assert "vendor_gemm, asked for 124 multiprocessors" in names


def test_what_a_librarys_blocks_crowd_out_is_told_with_numbers() -> None:
    limits = Limits.of(profile("h200-switch", 1).device)
    nccl = planned({"all_reduce"}, 256, limits.arch)
    large = Footprint("", 384, 168, 0, 200000)
    told = crowded_out(large, nccl, limits)
    assert "(1, each 384 threads × 168 registers, 200000 bytes of shared memory) leave 1024 registers" in told
    assert told.endswith("; NCCL takes 27648 and 104832")
    assert crowded_out(Footprint("", 128, 200, 0, 60000), (Footprint("16 KiB", 0, 0, 0, 16 << 10),), limits) == ""


def test_nobody_can_ask_what_amds_library_takes() -> None:
    text = PRODUCT.replace("threads = 256", "")
    with pytest.raises(ScheduleError, match="leave cannot be had of hipBLASLt's kernels, as nobody can ask"):
        plan("leave = 16 KiB  kernel = vendor", "", machine="mi300x-mesh", text=text)

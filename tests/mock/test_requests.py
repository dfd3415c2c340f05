"""What the drivers ask of the vendors' libraries, as the stand-in notes it.

Launches are those of the device plan. The default stream holds no stream up. Events take times only where times are
wanted. Other threads' calls spoil no capture."""

from __future__ import annotations

import re
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ficco_dsl
from ficco_rt.compiler import build, load, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.ir import DeviceLaunch, Mode, Placement, RecordEvent
from ficco_rt.driver.gpu.driver import GpuDriver
from ficco_rt.driver.gpu.gpus import Gpus
from ficco_rt.driver.gpu.vendor import LinearCopy
from ficco_rt.driver.hip.vendor import Hip
from ficco_rt.driver.registry import VENDORS, discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import CopyAsync, Launch, Plan
from tests import cases
from tests.mock.standin import NO_PRIORITY, Asked, StandIn

RANKS = 2
PRIORITIES = """
schedule priorities
param M = 128 * ranks
input  A[M / ranks, 128] : bf16
input  B[128, 128]       : bf16
output C[M, 128]         : bf16
output D[M / ranks, 128] : bf16
scratch G[M, 128]        : bf16
computes C = all_gather(A, rows) * B
computes D = A * B
queue dma     { engine = copy }
queue compute { engine = sm }
queue beside  { engine = sm  sms = 3 }
stage own on beside with priority = high  smem = 60 KiB { gemm D = A * B }
stage push on dma { for p in peers, c in 0..2 { copy G.rows(rank of ranks, c of 2) @ p <- A.rows(c of 2) } }
stage mm on compute streamed with priority = low {
  gemm C.rows(rank of ranks) = A * B
  for p in peers, c in 0..2 { gemm C.rows(p of ranks, c of 2) = G.rows(p of ranks, c of 2) * B }
}
"""
NUMBERS = {"high": -5, "normal": -3, "low": 0}  # of the stand-in's CUDA


def planned(library: StandIn, options: str = "") -> Plan:
    library.reset(f"devices {RANKS}; {options}")
    return plan_of(build(ficco_dsl.parse(PRIORITIES, "priorities.ficco"), RANKS, {}), discover(library.face, RANKS))


def wanted(launch: DeviceLaunch, face: str) -> Asked:
    c = launch.config
    priority = NO_PRIORITY if launch.priority is None or face == "hip" else NUMBERS[launch.priority]
    return Asked(c.entry, c.blocks, c.threads, c.smem, c.cluster, priority, launch.early)


@pytest.mark.parametrize(
    ("face", "arch"), [("cuda", "sm_90"), ("cuda", "sm_80"), ("cuda", "sm_75"), ("hip", "gfx942"), ("hip", "gfx908")]
)
@pytest.mark.parametrize("mode", ["streams", "graph"])
@pytest.mark.parametrize("name", [None, "gemm_ar/streamed", "ag_gemm/oneshot"])
def test_launches_are_those_of_the_device_plan(
    request: pytest.FixtureRequest, face: str, arch: str, mode: Mode, name: str | None
) -> None:
    """Blocks, threads, shared memory, clusters, priorities, early starts."""
    library: StandIn = request.getfixturevalue(face)
    plan = planned(library, f"arch {arch}")
    machine = discover(library.face, RANKS)
    if name is not None:
        plan = plan_of(build(cases.schedule(name), RANKS, {"M": 256, "N": 256, "K": 256}), machine)
    features = VENDORS[library.face]().features(machine.device.arch)
    made = device_plan(layout_of(plan, machine.device, Placement((0, 1)), features), mode)
    with Executor(plan, library.face, machine=machine, graph=mode == "graph", timeout=30) as executor:
        assert verified_run(executor, values="exact").ok
        library.calm()
        executor.run()
        executor.synchronize()
        asked = library.launches()
        if mode == "graph":  # a replay asks for none: the capture has
            assert not asked
            driver = executor.driver
            assert isinstance(driver, GpuDriver)
            (binding,) = driver._binder.bindings
            driver._binder.drop_graphs(binding)
            driver.capture(binding)
            asked = library.launches()
    if name is None:
        assert {launch.priority for launch in made.launches} == {"high", "low"}
    assert Counter(asked) == Counter(wanted(launch, face) for launch in made.launches)
    assert not library.violations()


def test_the_default_stream_holds_nothing_up(library: StandIn) -> None:
    """A caller's work on a default stream may wait for the run: the plan's streams do not wait for it."""
    plan = planned(library)
    vendor = VENDORS[library.face]()
    gpus = Gpus(vendor, Placement((0, 1)), 30)
    word = gpus.alloc(gpus.first, 4, "a test")
    gpus.put(gpus.first, word, np.zeros(1, np.uint32))
    default = vendor.cu.CUstream(0) if library.face == "cuda" else None  # type: ignore[attr-defined]
    with Executor(plan, library.face, timeout=60) as executor:
        assert verified_run(executor, values="exact").ok
        with gpus.inside(gpus.first):
            function, arguments = vendor.wait_flag_action(word, default)
            assert not function(*arguments)[0]
        for executor.graph in (False, True):
            executor.run()
            executor.synchronize()
        with gpus.inside(gpus.first):
            assert not vendor.idle(default)
            vendor.force(word, gpus.control[0])
    gpus.close()
    assert not library.violations()


def test_only_events_of_which_times_are_taken_take_times(library: StandIn) -> None:
    """The others are quicker to record and to wait for."""
    plan = planned(library)
    machine = discover(library.face, RANKS)
    features = VENDORS[library.face]().features(machine.device.arch)
    layout = layout_of(plan, machine.device, Placement((0, 1)), features)
    timed = {
        mode: {a.event for a in device_plan(layout, mode).actions if isinstance(a, RecordEvent) and a.event.timing}
        for mode in ("streams", "traced")
    }
    with Executor(plan, library.face, machine=machine, timeout=30) as executor:
        assert verified_run(executor).ok
        assert executor.duration >= 0
        assert library.timed() == 2 * RANKS == len(timed["streams"])
        executor.traced = True
        executor.run()
        executor.synchronize()
        assert library.timed() == len(timed["streams"] | timed["traced"])
    assert not library.violations()


WIDE = """
schedule wide
input   A[64, 32 / ranks] : fp32
input   B[32, 64]         : fp32
output  C[64, 64]         : fp32
scratch G[64, 32]         : fp32
computes C = all_gather(A, cols) * B
queue dma     { engine = copy }
queue compute { engine = sm }
stage gather on dma { for p in all { copy G.cols(rank of ranks) @ p <- A } }
stage mm on compute { gemm C = G * B }
"""


def test_rows_go_from_one_pitch_to_another(library: StandIn) -> None:
    library.reset(f"devices {RANKS}")
    plan = plan_of(build(ficco_dsl.parse(WIDE, "wide.ficco"), RANKS, {}), discover(library.face, RANKS))
    with Executor(plan, library.face, timeout=30) as executor:
        for executor.graph in (False, True):
            assert verified_run(executor, values="exact").rel_err == 0
    assert not library.violations()


def test_a_traced_run_tells_of_every_copy_and_launch(library: StandIn) -> None:
    plan = planned(library)
    with Executor(plan, library.face, timeout=30) as executor:
        executor.traced = True
        assert verified_run(executor, values="exact").ok
        spans = executor.trace.spans
    done = Counter((s.stream, s.kind) for s in spans if s.kind != "wait")
    wanted = Counter[tuple[int, str]]()
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, CopyAsync):
                wanted[stream.id, "copy"] += len(command.transfers)
            elif isinstance(command, Launch):
                wanted[stream.id, "gemm"] += len(command.works)
                wanted[stream.id, "launch"] += command.streamed  # and as a whole
    assert done == wanted
    for stream in plan.streams:
        mine = [s for s in spans if s.stream == stream.id and (s.kind == "launch" or not s.ops)]
        assert all(a.stop <= b.start for a, b in pairwise(mine))
        assert all(s.start < s.stop for s in mine)


def test_another_threads_calls_spoil_no_capture(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data loader may take memory meanwhile."""
    plan = planned(library)
    kind = type(VENDORS[library.face]())
    end_capture, codes = kind.end_capture, []

    def taking(self: Any, stream: Any) -> Any:
        def take() -> None:
            self.enter(contexts[0])
            self.free(self.alloc(64, "a data loader"))
            codes.append("taken")

        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        return end_capture(self, stream)

    monkeypatch.setattr(kind, "end_capture", taking)
    with Executor(plan, library.face, graph=True, timeout=30) as executor:
        assert isinstance(executor.driver, GpuDriver)
        contexts = [device.context for device in executor.driver._gpus.devices.values()]
        assert verified_run(executor, values="exact").ok
    assert codes == ["taken"] * RANKS
    assert not library.violations()


def test_batches_of_copies_read_in_order_and_leave_multiprocessors_alone(cuda: StandIn) -> None:
    cuda.set("devices 1")
    vendor = VENDORS["cuda"]()
    cu = vendor.cu  # type: ignore[attr-defined]
    _, (_, _, sizes, count, (attributes,), *_) = vendor.copy_batch(
        [LinearCopy(512, 256, 4), LinearCopy(1024, 768, 8)], cu.CUstream(7)
    )
    assert (sizes, count) == ([4, 8], 2)
    assert attributes.srcAccessOrder == cu.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    assert attributes.flags == int(cu.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)


@pytest.mark.parametrize("bytes_left", [0, -1])
def test_a_block_that_only_the_device_knows_not_to_fit_is_refused_when_bound(
    hip: StandIn, bytes_left: int, tmp_path: Path
) -> None:
    """What a user's kernel takes of its own is known when it is loaded: here four bytes."""
    smem = (64 << 10) - 4 - bytes_left
    hip.reset("devices 1; arch gfx942")
    (tmp_path / "mine.hip").write_text(SOURCE)
    (tmp_path / "users.ficco").write_text(USERS.format(smem=smem))
    plan = plan_of(build(load(tmp_path / "users.ficco"), 1, {}), discover("hip", 1))
    with Executor(plan, "hip", timeout=30) as executor:
        executor.write("A", 0, np.arange(8, dtype=np.float32))
        if bytes_left < 0:
            message = f"kernel mine, {smem} bytes of shared memory: a block does not fit stand-in (device 0)"
            with pytest.raises(DeviceError, match=re.escape(message)):
                executor.run()
        else:
            executor.run()
            assert executor.read("C", 0).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert not hip.violations()


@pytest.mark.parametrize("more", [0, 1, -1])
def test_room_that_the_driver_counts_otherwise_is_refused(
    hip: StandIn, more: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hip.reset("devices 1; arch gfx942")
    (tmp_path / "leaving.ficco").write_text(LEAVING)
    plan = plan_of(build(load(tmp_path / "leaving.ficco"), 1, {}), discover("hip", 1))
    real = Hip.blocks_per_sm
    monkeypatch.setattr(Hip, "blocks_per_sm", lambda *of: real(*of) + more)
    with Executor(plan, "hip", timeout=30) as executor:
        executor.write("A", 0, np.arange(8, dtype=np.float32).reshape(1, 8))
        if more:
            message = f"leave = 20480 bytes counts on 2 of its blocks a multiprocessor, and the driver says {2 + more}"
            with pytest.raises(DeviceError, match=re.escape(message)):
                executor.run()
        else:
            executor.run()
            assert executor.read("C", 0).tolist() == [list(range(8))]
    assert not hip.violations()


LEAVING = """schedule leaving
input  A[1, 8] : fp32
output C[1, 8] : fp32
computes C = A
queue move { engine = sm  leave = 20 KiB }
stage mm on move { copy C <- A }
"""
SOURCE = """
extern "C" __global__ void double_it(float *out, const float *in, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = 2 * in[i];
}
"""
USERS = """schedule users
input  A[8] : fp32
output C[8] : fp32 unproven
kernel mine(write y, read x, int n) from "mine.hip" entry "double_it" {{ grid = 1  block = 64  smem = {smem} }}
queue compute {{ engine = sm }}
stage mm on compute {{ launch mine(C, A, 8) }}
"""

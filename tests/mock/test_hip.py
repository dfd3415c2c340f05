"""The HIP driver where it differs from CUDA's: kinds of copies, signals, packed arguments, machine facts, errors."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ficco_rt.cli.main import execute
from ficco_rt.compiler import build, load, plan_of
from ficco_rt.device.ir import Placement
from ficco_rt.driver.gpu.gpus import Gpus
from ficco_rt.driver.gpu.vendor import Grid, LinearCopy, PitchedCopy
from ficco_rt.driver.hip.call import call
from ficco_rt.driver.hip.vendor import Hip, _packed
from ficco_rt.driver.registry import device_count, discover
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.kernels.kernel_compiler import HIPRTC, compile_text
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.mock.standin import StandIn

SOURCE = """
extern "C" __global__ void double_it(float *out, const float *in, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = 2 * in[i];
}
"""


def plan(name: str, ranks: int) -> Plan:
    graph = build(cases.schedule(name), ranks, cases.sizes(name, ranks, True) | cases.few_chunks(name))
    return plan_of(graph, discover("hip", ranks))


@pytest.fixture(autouse=True)
def _mi300x(hip: StandIn) -> None:
    hip.set("arch gfx942; name AMD Instinct MI300X; wavefront 64")


def test_what_the_runtime_says_of_devices(hip: StandIn) -> None:
    hip.set("devices 4; sms 304")
    made = discover("hip", 4).device
    assert (made.name, made.arch, made.sms) == ("AMD Instinct MI300X", "gfx942", 304)
    assert (made.warp, made.max_warps, made.max_residency) == (64, 32, 16)
    assert (made.smem_per_block, made.smem_per_sm, made.smem_reserved) == (65536, 65536, 0)
    assert device_count("hip") == 4
    hip.set("name AMD Instinct MI250X; arch gfx90a")
    other = discover("hip", 4)
    assert other.device.arch == "gfx90a"
    assert dict(other.device.gemm_rate)["bf16"] > dict(other.device.gemm_rate)["fp32"]


def test_a_status_that_the_bindings_cannot_read_is_no_capture(hip: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that fails writes none, and they look at whatever is there."""
    vendor = Hip()

    def raises(stream: object) -> None:
        raise ValueError("32730 is not a valid hipStreamCaptureStatus")

    monkeypatch.setattr(vendor, "hip", SimpleNamespace(hipStreamIsCapturing=raises))
    assert not vendor.capturing([7])
    assert vendor.capture_of(7) is None


def test_copies_between_devices_leave_compute_units_alone(hip: StandIn) -> None:
    hip.set("devices 2")
    vendor = Hip()
    kinds = vendor.hip.hipMemcpyKind
    gpus = Gpus(vendor, Placement((0, 1)), 30)
    a, b = (gpus.alloc(device, 4096, "a test") for device in gpus.devices.values())
    stream = gpus.control[1]
    assert vendor.copy(LinearCopy(b, a, 64), stream)[1][3] == kinds.hipMemcpyDeviceToDeviceNoCU
    assert vendor.copy_rows(PitchedCopy(b, a, 64, 2, 128, 128), stream)[1][6] == kinds.hipMemcpyDeviceToDeviceNoCU
    assert vendor.copy(LinearCopy(a, a + 64, 64), stream)[1][3] == kinds.hipMemcpyDeviceToDevice
    # a signal is such a copy too, to its own device as well: of a word that its stream's device has
    for flag in (a, b):
        function, arguments = vendor.signal_action(flag, stream)
        assert function is vendor.hip.hipMemcpyAsync
        assert arguments[2:4] == (4, kinds.hipMemcpyDeviceToDeviceNoCU)
        assert vendor.owner(arguments[1], "the word") == 1
    gpus.close()
    assert not hip.violations()
    assert not hip.live()


def test_copies_that_do_not_arrive_are_seen_at_the_start(hip: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    hip.set("devices 3; copies_lost 1")
    with caplog.at_level(logging.WARNING), Executor(plan("ag_gemm/streamed", 3), "hip", timeout=30) as executor:
        assert verified_run(executor, values="exact").ok
    (said,) = caplog.messages
    mine, other = (f"AMD Instinct MI300X (device {i})" for i in (0, 1))
    assert said == (
        f"copies between {mine} and {other} that use no compute units do not arrive on this ROCm; ordinary ones are "
        "used, which take compute units from GEMMs"
    )
    assert not hip.live()
    caplog.clear()
    hip.set("copies_lost 0")
    with caplog.at_level(logging.WARNING), Executor(plan("ag_gemm/streamed", 3), "hip", timeout=30) as executor:
        assert verified_run(executor, values="exact").ok
    assert not caplog.messages


def test_packed_arguments_lie_where_kernels_look(hip: StandIn, tmp_path: Path) -> None:
    hip.set("devices 1")
    vendor = Hip()
    code = compile_text(SOURCE, "x.hip", ["--offload-arch=gfx942"], tmp_path, HIPRTC).code
    module = vendor.load(code, "a test")
    function = vendor.function(module, "double_it", "a test")
    values = np.arange(5, dtype=np.float32)
    source, target = vendor.alloc(20, "a test"), vendor.alloc(20, "a test")
    stream = vendor.new_stream(0)
    vendor.to_device(source, values.ctypes.data, 20, stream)
    arguments = [bytes(ctypes.c_uint64(target)), bytes(ctypes.c_uint64(source)), bytes(ctypes.c_int(5))]
    launch, given = vendor.launch_action(function, Grid((1,), (64,), 0), arguments, stream)
    assert launch.__name__ == "hipModuleLaunchKernel"
    call(launch, *given)
    call(vendor.hip.hipStreamSynchronize, stream)
    found = np.empty(5, np.float32)
    vendor.to_host(found.ctypes.data, target, 20)
    assert found.tolist() == [0, 2, 4, 6, 8]
    assert vendor.peek(target + 4, stream) == found.view(np.uint32)[1]
    number, address = bytes(ctypes.c_int(1)), bytes(ctypes.c_uint64(2))
    assert _packed([number, address, number]) == number + bytes(4) + address + number
    with pytest.raises(DeviceError, match=r"hipModuleLoadData \(a test\): hipErrorNoBinaryForGpu: .*architecture"):
        vendor.load(compile_text(SOURCE, "x.hip", ["--offload-arch=gfx90a"], tmp_path, HIPRTC).code, "a test")


USERS = """# a user's kernel
schedule users

param N = 8
input  A[N] : fp32
output C[N] : fp32 unproven
kernel mine(write y, read x, int n) from "{file}" entry "double_it" {{ grid = 1  block = 64 }}
queue compute {{ engine = sm }}
stage mm on compute {{ launch mine(C, A, N) }}
"""


def test_a_users_hip_source(hip: StandIn, tmp_path: Path) -> None:
    hip.set("devices 1")
    (tmp_path / "mine.hip").write_text(SOURCE)
    (tmp_path / "wrong.hip").write_text("// no kernel")
    (tmp_path / "mine.hsaco").write_bytes(compile_text(SOURCE, "x", ["--offload-arch=gfx942"], tmp_path, HIPRTC).code)
    (tmp_path / "mine.ptx").write_text("// not AMD's")
    machine = discover("hip", 1)

    def doubled(file: str) -> Any:
        path = tmp_path / "users.ficco"
        path.write_text(USERS.format(file=file))
        made = plan_of(build(load(path), 1, {}), machine)
        with Executor(made, "hip", machine=machine, timeout=30) as executor:
            executor.write("A", 0, np.arange(8, dtype=np.float32))
            executor.run()
            return executor.read("C", 0).tolist()

    wanted = [0, 2, 4, 6, 8, 10, 12, 14]
    assert doubled("mine.hip") == wanted
    assert doubled("mine.hsaco") == wanted
    with pytest.raises(UsageError, match=r"users\.ficco:7: kernel 'mine': .*wrong\.hip does not compile"):
        doubled("wrong.hip")
    with pytest.raises(UsageError, match=r"'mine\.ptx' is nothing that the hip driver loads; source is \.hip, \.cu"):
        doubled("mine.ptx")
    assert not hip.live()


def test_the_command_line(hip: StandIn, cuda: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    cuda.set("devices 0")  # loaded: the bindings would keep in mind that there is no such library
    sizes = ("--set", "M=64", "--set", "N=64", "--set", "K=64")
    hip.set("devices 2")
    for words in (("--backend", "hip"), ("--backend", "hip", "--graph"), ()):  # auto: the GPUs that there are
        assert execute("ficco-run", ["ag_gemm/serial", "--gpus", "2", *sizes, *words]) == 0
        assert "hip: 2 ranks on 2 × AMD Instinct MI300X" in capsys.readouterr().out
    assert not hip.live()
    assert execute("ficco-run", ["ag_gemm/serial", "--backend", "hip", "--gpus", "3", *sizes]) == 3
    assert "3 ranks need 3 GPUs and this machine has 2 GPUs; --ranks-per-gpu 2 lets" in capsys.readouterr().err
    hip.set("link 0 1 0")
    assert execute("ficco-run", ["ag_gemm/serial", "--backend", "hip", "--gpus", "2", *sizes]) == 3
    said = capsys.readouterr().err
    assert "set HIP_VISIBLE_DEVICES to GPUs that reach each other (rocm-smi --showtopoaccess shows them)" in said
    hip.set("devices 0")
    assert execute("ficco-run", ["ag_gemm/serial", "--backend", "hip", "--gpus", "2", *sizes]) == 3
    assert "hip" in capsys.readouterr().err


def test_without_rocm_is_said() -> None:
    """In a process of its own: in this one the stand-in may be loaded."""
    words = ["ag_gemm/serial", "--backend", "hip", "--gpus", "2"]
    program = f"from ficco_rt.cli.main import execute; raise SystemExit(execute('ficco-run', {words!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "the HIP runtime library is not on this machine (failed to dlopen" in done.stderr
    assert "install ROCm, or take --backend host" in done.stderr


def test_the_stand_in_is_no_place_where_other_bindings_look(hip: StandIn) -> None:
    """It has the calls of NVIDIA's libraries, too, which bindings look for among the process's global symbols. Some
    other library may have them there."""
    hip.gemms()
    own, process = ctypes.CDLL("libamdhip64.so"), ctypes.CDLL(None)
    for name in ("cublasLtCreate", "ncclGetVersion"):
        found = getattr(process, name, None)
        assert found is None or _address(found) != _address(getattr(own, name))


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value

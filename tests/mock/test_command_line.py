"""What goes wrong on a user's machine, through the command line, each in a process of its own: exit code, place, way
out, nothing left. The cache of kernels outlives a process: after an interrupt the next run works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ficco_rt.driver.registry import VENDORS
from ficco_rt.kernels.kernel_compiler import compile_text
from tests import warm
from tests.mock import standin
from tests.mock.standin import Face

ROOT = Path(__file__).parents[2]
LONG = 300  # seconds that no process takes, however busy the machine is
SIZES = ("--set", "M=96", "--set", "N=48", "--set", "K=96", "--set", "T=fp32")

USERS = """\
schedule users

input  X[64, 64] : fp32
output Y[64, 64] : fp32 unproven

queue compute { engine = sm }

kernel mine(write y, read x, int n) from "FILE" entry "ENTRY" { grid = 1  block = 128 }

stage work on compute {
  launch mine(Y, X, 64)
}
"""
SOURCE = """\
extern "C" __global__ void double_it(float *y, const float *x, int n) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
extern "C" __global__ void faults(float *y, const float *x, int n) { *(volatile float *)8 = 1; }
extern "C" __global__ void never_ends(float *y, const float *x, int n) { while (*(volatile const float *)x == *x); }
"""


# A given-up run gets less time to end; and a file says when the run of number `turn` is about to be issued.
PROGRAM = """\
import os, pathlib
from ficco_rt.driver.gpu import runs
from ficco_rt.cli.main import ficco_run
turns, make, runs.DRAIN = int(os.environ["TURN"]), runs.make, 0.5
def told(*arguments):
    global turns
    turns -= 1
    if not turns:
        pathlib.Path(os.environ["BEGUN"]).touch()
    make(*arguments)
runs.make = told
ficco_run()
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str
    left: Mapping[str, int]  # live objects
    violations: str


class Machine:
    """A machine with stand-in GPUs of a vendor. `library` decides whether the driver is installed at all."""

    def __init__(self, folder: Path, face: Face = "cuda", library: bool = True) -> None:
        self.face = face
        self.report, self.begun = folder / "report", folder / "begun"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("STANDIN", "FICCO"))}
        self.environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "dsl")])
        self.environment["FICCO_CACHE"] = os.environ["FICCO_CACHE"]
        self.environment["STANDIN_REPORT"] = str(self.report)
        if library:
            self.environment["LD_LIBRARY_PATH"] = str(standin.folder(face))

    def start(self, setting: str, *arguments: str, turn: int = 0) -> warm.Process:
        """A process; from turn 1 on, one that is about to issue its run of that number."""
        for file in (self.report, self.begun):
            file.unlink(missing_ok=True)
        settings = {"STANDIN": f"{standin.USUAL[self.face]}; {setting}", "TURN": str(turn), "BEGUN": str(self.begun)}
        process = warm.start(PROGRAM, *arguments, environment=self.environment | settings)
        while turn and not self.begun.exists() and process.poll() is None:
            time.sleep(0.01)
        return process

    def end(self, process: warm.Process) -> Ended:
        try:
            out, err = process.communicate(timeout=LONG)
        except subprocess.TimeoutExpired:
            process.kill()  # it would hold a core for the tests behind it
            raise AssertionError(process.communicate()[1]) from None
        assert process.returncode is not None
        lines = self.report.read_text().splitlines() if self.report.exists() else []
        counts = {name: int(n) for name, n in (line.split() for line in lines[: len(standin.KINDS)])}
        violations = "\n".join(lines[len(standin.KINDS) + 1 :])
        ended = Ended(process.returncode, out, err, {k: n for k, n in counts.items() if n}, violations)
        assert "Traceback" not in err, err
        assert not ended.violations, ended
        return ended

    def run(self, setting: str, *arguments: str) -> Ended:
        return self.end(self.start(setting, *arguments))

    def fails(self, setting: str, *arguments: str) -> str:
        """Exit code 3 and nothing left; what was said."""
        ended = self.run(setting, *arguments)
        assert ended.code == 3, ended
        assert not ended.left, ended
        assert not ended.out
        return ended.err

    def on(self, gpus: int, *more: str, schedule: str = "ag_gemm/hetero_fused_1d") -> tuple[str, ...]:
        """A command line."""
        return (schedule, "--backend", self.face, "--gpus", str(gpus), *SIZES, *more)

    def user(self, folder: Path, entry: str, *more: str) -> tuple[str, ...]:
        return (users(folder, entry), "--backend", self.face, "--gpus", "1", *more)

    def works(self) -> None:
        ended = self.run("devices 2", *self.on(2, "--json", schedule="ag_gemm/serial"))
        assert ended.code == 0, ended
        assert json.loads(ended.out)["verified"] is True
        assert not ended.left


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """If whoever started us has them ignored, so it would be in children."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(params=sorted(VENDORS))
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


CODE = {
    "cuda": {"memory": "CUDA_ERROR_OUT_OF_MEMORY", "address": "CUDA_ERROR_ILLEGAL_ADDRESS"},
    "hip": {"memory": "hipErrorOutOfMemory", "address": "hipErrorIllegalAddress"},
}
ALLOCATION = {"cuda": "cuMemAlloc", "hip": "hipMalloc"}


def on(gpus: int, *more: str, schedule: str = "ag_gemm/hetero_fused_1d") -> tuple[str, ...]:
    return (schedule, "--backend", "cuda", "--gpus", str(gpus), *SIZES, *more)


def users(folder: Path, entry: str, file: str = "kernel.cu") -> str:
    (folder / "users.ficco").write_text(USERS.replace("FILE", file).replace("ENTRY", entry))
    if file.endswith(".cu"):
        (folder / file).write_text(SOURCE)
    return str(folder / "users.ficco")


def test_no_driver(tmp_path: Path) -> None:
    ended = Machine(tmp_path, library=False).run("", *on(2))
    assert ended.code == 3
    assert "CUDA driver library is not on this machine" in ended.err
    assert "--backend host" in ended.err


def test_no_gpu(machine: Machine) -> None:
    text = machine.fails("devices 0", *on(2))
    assert "cuInit: CUDA_ERROR_NO_DEVICE: this machine has no NVIDIA GPU; take --backend host" in text


def test_a_driver_that_does_not_start(machine: Machine) -> None:
    text = machine.fails("init 803", *on(2))
    assert "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" in text


def test_no_gpu_is_no_error_where_the_host_will_do(machine: Machine) -> None:
    ended = machine.run("devices 0", "ag_gemm/serial", "--gpus", "2", "--json", *SIZES)
    assert ended.code == 0
    assert json.loads(ended.out)["backend"] == "host"


def test_too_few_gpus(machine: Machine) -> None:
    text = machine.fails("devices 2", *on(4))
    assert "4 ranks need 4 GPUs and this machine has 2 GPUs; --ranks-per-gpu 2 lets 2 ranks share each GPU" in text
    assert machine.run("devices 2", *on(4, "--ranks-per-gpu", "2")).code == 0


def test_no_peer_access(machine: Machine) -> None:
    text = machine.fails("devices 3; link 0 2 0", *on(3))
    assert "(device 0) has no direct access to the memory of stand-in (device 2)" in text
    assert "CUDA_VISIBLE_DEVICES" in text
    assert "--ranks-per-gpu" in text


def test_a_gpu_that_the_compiler_does_not_know(machine: Machine) -> None:
    text = machine.fails("devices 2; arch sm_60", *on(2))
    assert "makes no code for this GPU's architecture, sm_60" in text
    assert "older nvidia-cuda-nvrtc" in text


def test_a_users_cubin_for_another_gpu(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "kernel.cubin").write_bytes(compile_text(SOURCE, "kernel.cu", ["-arch=sm_80"]).code)
    text = machine.fails("devices 1", users(tmp_path, "double_it", "kernel.cubin"), "--backend", "cuda", "--gpus", "1")
    assert "users.ficco:11: " in text
    assert "cuModuleLoadData" in text
    assert "kernel 'mine' of kernel.cubin, declared at " in text
    assert "users.ficco:8, stand-in (device 0)): CUDA_ERROR_NO_BINARY_FOR_GPU" in text


def test_a_users_kernel_runs(machine: Machine, tmp_path: Path) -> None:
    schedule = users(tmp_path, "double_it")
    assert machine.run("devices 1", schedule, "--backend", "cuda", "--gpus", "1", "--no-verify").code == 0
    text = machine.fails("devices 1", users(tmp_path, "halve_it"), "--backend", "cuda", "--gpus", "1")
    assert "users.ficco:11: " in text
    assert "entry 'halve_it'" in text
    assert "CUDA_ERROR_NOT_FOUND" in text


def test_out_of_memory(either: Machine) -> None:
    text = either.fails("devices 2; memory 85536", *either.on(2))
    assert "need" in text
    assert "and stand-in (device 0) has" in text
    assert "--set" in text
    text = either.fails(f"devices 2; fail {ALLOCATION[either.face]} 5 2", *either.on(2))
    assert ALLOCATION[either.face] in text
    assert "(device " in text
    assert f"{CODE[either.face]['memory']}: the GPU's memory is full; take smaller sizes with --set" in text


def test_a_kernel_that_faults(either: Machine, tmp_path: Path) -> None:
    text = either.fails("devices 1", *either.user(tmp_path, "faults"))
    assert f"stand-in (device 0)): {CODE[either.face]['address']}: a kernel touched memory that is not its own" in text
    assert "pending is launch of stage 'work' (mine)" in text
    assert "users.ficco:11" in text


def test_a_fault_on_another_gpu_than_the_first_is_told_at_once(machine: Machine) -> None:
    """The first GPU waits for ever for what the other one would have recorded, so that nothing can be given back."""
    limit = ("--timeout", str(2 * LONG))
    ended = machine.run("devices 2; fail cuCtxEnablePeerAccess 2 704", *on(2, *limit))  # code: it was enabled before
    assert ended.code == 3
    assert "(device 1)): CUDA_ERROR_ILLEGAL_ADDRESS" in ended.err


def test_a_kernel_that_never_ends(either: Machine, tmp_path: Path) -> None:
    ended = either.run("devices 1", *either.user(tmp_path, "never_ends", "--timeout", "1"))
    assert ended.code == 3
    assert "the run did not end within 1 s (--timeout)" in ended.err
    assert "rank 0 stream compute (stand-in (device 0))" in ended.err
    assert "pending is launch of stage 'work' (mine)" in ended.err
    assert "users.ficco:11" in ended.err
    assert "still run it: this process can use them no more" in ended.err


@pytest.mark.parametrize("graph", ["--graph", "--no-graph"])
def test_ctrl_c_in_mid_run(either: Machine, graph: str) -> None:
    """In one of a great many runs: the one at hand is let through, all is given back."""
    process = either.start("devices 2", *either.on(2, "--iters", "1000000", graph), turn=50)
    process.send_signal(signal.SIGINT)
    ended = either.end(process)
    assert ended.code == 130, ended
    assert ended.err.rstrip().endswith("ficco-run: interrupted")
    assert sum(ended.left.values()) <= 1, "a call's result may be lost on its way"
    either.works()


def test_ctrl_c_while_a_kernel_never_ends(either: Machine, tmp_path: Path) -> None:
    process = either.start("devices 1", *either.user(tmp_path, "never_ends"), turn=1)
    process.send_signal(signal.SIGINT)
    ended = either.end(process)
    assert ended.code == 130
    either.works()


def test_wrong_bytes_are_wrong_numbers(either: Machine) -> None:
    checked = 8 if either.face == "hip" else 0  # copies that show at the start that copies arrive
    ended = either.run(f"devices 2; corrupt {checked + 1}", *either.on(2))
    assert ended.code == 4, ended
    assert "wanted" in ended.err
    assert not ended.left

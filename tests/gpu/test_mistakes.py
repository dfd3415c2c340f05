"""What a user of GPUs can do wrong, done: each gives a clear error and its exit code, and the next run works.

Cases are run through `ficco-run` in processes of their own. Where a GPU has begun a run, another run follows, which
must be right.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from ficco_rt.kernels.kernel_compiler import compile_text
from tests.gpu.apart import environment

SCHEDULE = """schedule user_kernel

param M = 64

input  X[M, 16] : fp32
output Y[M, 16] : fp32 unproven

queue compute { engine = sm }

kernel k(write y, read x, int n) from "FILE" entry "ENTRY" { grid = 1  block = 32  host = "twin.py:k" }

stage work on compute {
  launch k(Y, X, 1024)
}
"""
TWIN = "def k(y, x, n):\n    y[:] = 2 * x\n"  # a file that a schedule names must be there, also for a run on GPUs
BODIES = {  # of kernels, by their entries
    "double_it": "y[i] = 2 * x[i];",
    "faults": "*(volatile float *)8 = x[i] + y[i];",
    "never_ends": "while (*(volatile const float *)x == *(volatile const float *)x) y[0] = 1;",
    "broken": "y[i] = nothing;",
}
SOURCE = """extern "C" __global__ void ENTRY(float *y, const float *x, int n) {
    for (int i = threadIdx.x; i < n; i += 32) { BODY }
}
"""
SIZES = ("--set", "M=512", "--set", "N=512", "--set", "K=512")
LIMIT = 60.0  # seconds of a case


@dataclass(frozen=True)
class Case:
    """A command line, and what it must answer."""

    name: str
    arguments: tuple[str, ...]
    code: int
    says: tuple[str, ...] = ()  # all of these, on stderr
    variables: tuple[tuple[str, str], ...] = ()
    interrupt_after: float | None = None  # seconds

    @property
    def begins(self) -> bool:
        """Whether a GPU begins a run that does not end well."""
        return "never_ends" in self.arguments[0] or "faults" in self.arguments[0] or self.interrupt_after is not None


def cases(at: Path, gpus: int) -> tuple[Case, ...]:
    """With files in the folder `at`, which `written` makes."""

    def user(name: str, *more: str) -> tuple[str, ...]:
        return (str(at / f"{name}.ficco"), "--gpus", "1", "--backend", "cuda", *more)

    huge = ("--set", "M=4194304", "--set", "N=65536", "--set", "K=65536")
    many = str(8 * gpus)
    long = ("ag_gemm/streamed", "--gpus", str(gpus), *SIZES, "--iters", "1000000", "--backend", "cuda")
    return (
        Case("a user's kernel", user("double_it"), 0),
        Case("no GPU", ("ag_gemm/serial", "--backend", "cuda", "--gpus", "2"), 3,
             ("no NVIDIA GPU", "--backend host"), (("CUDA_VISIBLE_DEVICES", ""),)),
        Case("too few GPUs", ("ag_gemm/serial", "--backend", "cuda", "--gpus", many), 3,
             ("GPU", "--ranks-per-gpu 8", "--backend host")),
        Case("out of memory", ("ag_gemm/serial", "--backend", "cuda", "--gpus", str(gpus), *huge), 3,
             ("GiB", "free", "--set")),
        Case("another architecture", user("other"), 3, ("other.ficco:10", "CUDA_ERROR_NO_BINARY_FOR_GPU")),
        Case("source that is wrong", user("broken"), 2, ("broken.ficco:10", "nothing")),
        Case("a kernel that faults", user("faults"), 3, ("CUDA_ERROR", "faults.ficco:13")),
        Case("a kernel that never ends", user("never_ends", "--timeout", "3"), 3,
             ("did not end within 3 s", "launch of stage 'work'", "never_ends.ficco:13")),
        Case("the same as a graph", user("never_ends", "--timeout", "3", "--graph", "--no-verify"), 3,
             ("did not end within 3 s",)),
        Case("Ctrl-C in mid-run", long, 130, interrupt_after=6.0),
        Case("Ctrl-C, a graph", (*long, "--graph"), 130, interrupt_after=6.0),
        Case("Ctrl-C, an endless kernel", user("never_ends"), 130, interrupt_after=6.0),
    )  # fmt: skip


NAMES = tuple(case.name for case in cases(Path(), 1))


def written(at: Path) -> None:
    """The schedules of users' kernels, with the files that they name beside them."""
    (at / "twin.py").write_text(TWIN, encoding="utf-8")
    for entry, body in BODIES.items():
        (at / f"{entry}.cu").write_text(SOURCE.replace("ENTRY", entry).replace("BODY", body), encoding="utf-8")
        schedule = SCHEDULE.replace("FILE", f"{entry}.cu").replace("ENTRY", entry)
        (at / f"{entry}.ficco").write_text(schedule, encoding="utf-8")
    source = SOURCE.replace("ENTRY", "double_it").replace("BODY", BODIES["double_it"])
    other = compile_text(source, "other.cu", ("-std=c++17", "-arch=sm_75")).code  # for a GPU of long ago
    (at / "other.cubin").write_bytes(other)
    schedule = SCHEDULE.replace("FILE", "other.cubin").replace("ENTRY", "double_it")
    (at / "other.ficco").write_text(schedule, encoding="utf-8")


def answers(case: Case, variables: Mapping[str, str]) -> None:
    """Run it, where these variables are set, too; it must answer as the case says."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from ficco_rt.cli.main import ficco_run; ficco_run()", *case.arguments],
        env={**variables, **dict(case.variables)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if case.interrupt_after is not None:
            time.sleep(case.interrupt_after)
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == case.code, f"{case.name}: exit code {process.returncode}, wanted {case.code}:\n{said}"
    assert [part for part in case.says if part not in said] == [], said
    assert "Traceback" not in said


def works(gpus: int, variables: Mapping[str, str]) -> None:
    """A run that must be right."""
    command = ("ag_gemm/streamed", "--gpus", str(gpus), "--backend", "cuda", *SIZES)
    answers(Case("a run after it", command, 0), variables)


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """If whoever started us has them ignored, so it would be in children."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("name", NAMES)
def test_answer(name: str, gpus: int, tmp_path: Path) -> None:
    written(tmp_path)
    (case,) = (case for case in cases(tmp_path, gpus) if case.name == name)
    answers(case, environment())
    if case.begins:
        works(gpus, environment())

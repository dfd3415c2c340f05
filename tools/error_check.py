"""What a user of GPUs can do wrong, done: each gives a clear error and its exit code, and the next run works.

    python tools/error_check.py        # needs one NVIDIA GPU or more; a minute

Cases are run through `ficco-run` in processes of their own, each followed by a run that must be right. Exit code 4 if
any answer is not as it should be.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ficco_rt.driver.registry import device_count

SCHEDULE = """schedule user_kernel

param M = 64

input  X[M, 16] : fp32
output Y[M, 16] : fp32 unproven

queue compute { engine = sm }

kernel k(read x, write y) from "FILE" entry "k" { grid = 1  block = 32  host = "twin.py:k" }

stage work on compute {
  launch k(X, Y)
}
"""
KERNELS = {
    "good.cu": "y[i] = 2 * x[i];",
    "fault.cu": "*(volatile float *)8 = x[i] + y[i];",
    "endless.cu": "while (*(volatile float *)x == *(volatile float *)x) y[0] = 1;",
    "broken.cu": "y[i] = nothing;",
}
SOURCE = (
    'extern "C" __global__ void k(const float *x, float *y) { for (int i = threadIdx.x; i < 1024; i += 32) { BODY } }'
)


@dataclass(frozen=True)
class Case:
    """A command line, and what it must answer."""

    name: str
    arguments: tuple[str, ...]
    code: int
    says: tuple[str, ...]  # all of these, on stderr
    variables: tuple[tuple[str, str], ...] = ()
    interrupt_after: float | None = None  # seconds


def main() -> int:
    """Print the table; the process's exit code."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    gpus = device_count("cuda")
    if not gpus:
        sys.stderr.write("error_check: no NVIDIA GPU, or its driver or cuda-bindings is missing\n")
        return 3
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        for name, body in KERNELS.items():
            (at / name).write_text(SOURCE.replace("BODY", body), encoding="utf-8")
        for file in (*KERNELS, "other.cubin"):
            (at / f"{Path(file).stem}.ficco").write_text(SCHEDULE.replace("FILE", file), encoding="utf-8")
        (at / "other.cubin").write_bytes(other_architecture(SOURCE.replace("BODY", KERNELS["good.cu"])))
        after = Case("a run after it", ("ag_gemm/streamed", "--gpus", str(gpus), *SIZES), 0, ())
        for case in cases(at, gpus):
            print(f"{case.name:26}", end=" ", flush=True)
            verdict = tried(case)
            follow = tried(after)
            wrong += verdict.startswith("WRONG") or follow.startswith("WRONG")
            print(f"{verdict}; the next run: {follow}", flush=True)
    print("all as they should be" if not wrong else f"{wrong} wrong")
    return 4 if wrong else 0


SIZES = ("--set", "M=512", "--set", "N=512", "--set", "K=512")


def cases(at: Path, gpus: int) -> list[Case]:
    def user(name: str, *more: str) -> tuple[str, ...]:
        return (str(at / f"{name}.ficco"), "--gpus", "1", "--backend", "cuda", *more)

    huge = ("--set", "M=4194304", "--set", "N=65536", "--set", "K=65536")
    many = str(8 * gpus)
    long = ("ag_gemm/streamed", "--gpus", str(gpus), *SIZES, "--iters", "1000000", "--backend", "cuda")
    return [
        Case("a user's kernel", user("good"), 0, ()),
        Case("no GPU", ("ag_gemm/serial", "--backend", "cuda", "--gpus", "2"), 3,
             ("no NVIDIA GPU", "--backend host"), (("CUDA_VISIBLE_DEVICES", ""),)),
        Case("too few GPUs", ("ag_gemm/serial", "--backend", "cuda", "--gpus", many), 3,
             ("GPU", "--ranks-per-gpu 8", "--backend host")),
        Case("out of memory", ("ag_gemm/serial", "--backend", "cuda", "--gpus", str(gpus), *huge), 3,
             ("GiB", "free", "--set")),
        Case("another architecture", user("other"), 3, ("other.ficco:10", "CUDA_ERROR_NO_BINARY_FOR_GPU")),
        Case("source that is wrong", user("broken"), 2, ("broken.ficco:10", "nothing")),
        Case("a kernel that faults", user("fault"), 3, ("CUDA_ERROR", "fault.ficco:13")),
        Case("a kernel that never ends", user("endless", "--timeout", "3"), 3,
             ("did not end within 3 s", "launch of stage 'work'", "endless.ficco:13")),
        Case("the same as a graph", user("endless", "--timeout", "3", "--graph", "--no-verify"), 3,
             ("did not end within 3 s",)),
        Case("Ctrl-C in mid-run", long, 130, (), (), 6.0),
        Case("Ctrl-C, a graph", (*long, "--graph"), 130, (), (), 6.0),
        Case("Ctrl-C, an endless kernel", user("endless"), 130, (), (), 6.0),
    ]  # fmt: skip


def tried(case: Case) -> str:
    """Run it: "ok …" or "WRONG …" with what it said."""
    start = "from ficco_rt.cli.main import ficco_run; ficco_run()"
    command = [sys.executable, "-c", start, *case.arguments]
    begun = time.monotonic()
    process = subprocess.Popen(
        command, env={**os.environ, **dict(case.variables)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        if case.interrupt_after is not None:
            time.sleep(case.interrupt_after)
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "WRONG: still running after 60 s"
    took = time.monotonic() - begun
    missing = [part for part in case.says if part not in said]
    if process.returncode == case.code and not missing and "Traceback" not in said:
        return f"ok, exit code {case.code}, {took:.1f} s"
    return f"WRONG: exit code {process.returncode}, wanted {case.code}; not said: {missing}; said:\n{said}"


def other_architecture(source: str) -> bytes:
    """The kernel for a GPU of long ago."""
    from ficco_rt.kernels.compiler import compile_text

    return compile_text(source, "other.cu", ("-std=c++17", "-arch=sm_75")).code


if __name__ == "__main__":
    sys.exit(main())

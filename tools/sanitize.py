"""Our kernels under compute-sanitizer, at small sizes: memcheck, racecheck, or what is asked for.

    python tools/sanitize.py                            # memcheck and racecheck of all
    python tools/sanitize.py --tools memcheck --kernels sm80 sm90

`sm80` and `sm90` run random cases of tools/gemm_bench; `naive` and `copies` schedules of tests/gpu, whose
copies and sums on multiprocessors are the naive kernels'. NOTE racecheck knows neither TMA
nor the barriers that it completes, so it sees little of `sm90`. A run that outlasts `--limit` is said to be unfinished.
Exit code 4 if anything is reported or unfinished, 3 without compute-sanitizer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES = ("tools.gemm_bench", "--check-only", "--cases", "1")


def schedules(only: str) -> tuple[str, str]:
    """A check of shipped schedules on two ranks, each once, at small sizes."""
    asked = ["tests.gpu.schedules", "right", 600, ["cuda", "small", 2, 1, only, [0, 1], 120]]
    return "tests.gpu.apart", json.dumps(asked)


TARGETS: dict[str, tuple[str, ...]] = {
    "sm80": (*CASES, "--kernel", "sm80"),
    "sm90": (*CASES, "--kernel", "sm90"),
    "naive": schedules("gemm_rs/streamed"),
    "copies": schedules("oneshot"),
}
NAMES = {"sm80": "sm80_gemm", "sm90": "sm90_gemm", "copies": "naive"}  # of kernels, but for what is called as they are


def main() -> int:
    """Run them all; the process's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", default=["memcheck", "racecheck"])
    parser.add_argument("--kernels", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--variants", default="", help="a part of the names of the variants that are checked")
    parser.add_argument("--most", type=int, default=300, help="the greatest M, N and K of a random case (300)")
    parser.add_argument("--limit", type=float, default=600, help="seconds that each may take")
    options = parser.parse_args()
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        print("sanitize: there is no compute-sanitizer; it comes with the CUDA toolkit", file=sys.stderr)
        return 3
    failed = False
    for tool in options.tools:
        for kernel in options.kernels:
            arguments = [*TARGETS[kernel]]
            if arguments[0] == CASES[0]:
                arguments += ["--most", str(options.most), "--variants", options.variants]
            # drivers are asked for calls that they lack: those errors of the API are none of ours; nor are PyTorch's
            # kernels, which make the references, and which it would take most of the time to check
            ours = ["--kernel-name", f"kns={NAMES.get(kernel, kernel)}_"]
            command = [sanitizer, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9", *ours]
            try:
                ran = subprocess.run(
                    [*command, sys.executable, "-m", *arguments], cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "dsl")])},
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=options.limit, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                failed = True
                print(f"{tool} {kernel}: unfinished after {options.limit:.0f} s", flush=True)
                continue
            lines = [line for line in ran.stdout.splitlines() if line.startswith("=========")]
            print(f"{tool} {kernel}: exit code {ran.returncode}; {lines[-1] if lines else 'no report'}", flush=True)
            if ran.returncode:
                failed = True
                print("\n".join(ran.stdout.splitlines()[-40:]), flush=True)
    return 4 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

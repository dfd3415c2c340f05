"""What verifying a run costs, in seconds: the run on integers beside the run on normal data, at the sizes of layers.

    python tools/verify_bench.py                          # on the NVIDIA GPUs there are, some minutes
    python tools/verify_bench.py --backend host --scale 8 # an eighth of each size, without a GPU

data: inputs are made. run: they are copied to the executor's tensors, the plan runs, outputs are copied back.
compare: with what is claimed; integers by products with random vectors, normal data with the whole product.
Exit code 3 without a GPU, 4 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import pairwise

import ficco_rt
from ficco_rt.driver.registry import device_count, discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.inputs import InputValues, fresh_inputs
from ficco_rt.exec.verify import Verification, compare

LAYERS = (  # schedule, M, N, K
    ("ag_gemm/streamed", 8192, 10240, 8192),
    ("gemm_rs/streamed", 8192, 8192, 28672),
    ("gemm_ar/streamed", 8192, 8192, 8192),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("cuda", "hip", "host"), default="cuda")
    parser.add_argument("--ranks", type=int, default=0, help="as many as GPUs, or 4 on the host")
    parser.add_argument("--scale", type=int, default=1, help="sizes are divided by it")
    options = parser.parse_args()
    on_host = options.backend == "host"
    ranks = options.ranks or (4 if on_host else device_count(options.backend))
    if ranks < 1:
        sys.stderr.write(f"verify_bench: no GPU for {options.backend}; take --backend host --scale 8\n")
        return 3
    machine = None if on_host else discover(options.backend, ranks)
    wrong = False
    print(f"{'schedule':18} {'M × N × K':22} {'values':7} {'data':>7} {'run':>7} {'compare':>7} {'all':>7}  result")
    for schedule, *sizes in LAYERS:
        m, n, k = (size // options.scale for size in sizes)
        plan = ficco_rt.compile(schedule, ranks, machine, M=m, N=n, K=k)
        with Executor(plan, options.backend, machine=machine, timeout=60) as executor:
            for values in ("exact", "normal", "exact", "normal"):
                seconds, found = verified(executor, values)
                wrong = wrong or not found.ok
                spent = " ".join(f"{s:7.2f}" for s in (*seconds, sum(seconds)))
                error = f"error {found.rel_err:.1e} of {found.tolerance:.1e}" if found.tolerance else "equal"
                result = error if found.ok else f"WRONG: {found.worst}"
                print(f"{schedule:18} {f'{m} × {n} × {k}':22} {values:7} {spent}  {result}", flush=True)
    return 4 if wrong else 0


def verified(executor: Executor, values: InputValues) -> tuple[list[float], Verification]:
    """As `verified_run`, with the seconds of its parts. The first run of an executor binds its tensors."""
    plan, marks = executor.plan, [time.perf_counter()]
    inputs = fresh_inputs(plan, 0, values)
    marks.append(time.perf_counter())
    for name, arrays in inputs.items():
        for rank, array in enumerate(arrays):
            executor.write(name, rank, array)
    executor.poison()
    executor.run()
    names = [t.name for t in plan.tensors if t.kind == "output"]
    outputs = {name: [executor.read(name, r) for r in range(plan.ranks)] for name in names}
    marks.append(time.perf_counter())
    found = compare(plan, inputs, outputs, values)
    marks.append(time.perf_counter())
    return [b - a for a, b in pairwise(marks)], found


if __name__ == "__main__":
    sys.exit(main())

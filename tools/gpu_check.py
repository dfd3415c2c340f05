"""Run every shipped schedule on the GPUs of this machine, on streams and as a graph, verified with fresh data.

    python tools/gpu_check.py                          # 4 ranks on the GPUs there are, all sizes, 3 repeats
    python tools/gpu_check.py --ranks 8 --repeats 20 --only ag_gemm

Even sizes divide among ranks and chunks, uneven ones do not. "exact" data are integers that no order of summing
rounds: the result must be the reference's, bit for bit. Exit code 4 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from ficco_rt import compiler, library
from ficco_rt.driver.registry import device_count, discover
from ficco_rt.errors import DeviceError, NumbersError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import Values, check_replay, verified_run
from ficco_rt.plan.ir import Plan

Params = dict[str, object]


def main() -> int:
    """Print the table; the process's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="a part of the schedules' names")
    parser.add_argument("--timeout", type=float, default=20.0)
    options = parser.parse_args()
    gpus = device_count("cuda")
    if not gpus:
        sys.stderr.write("gpu_check: no NVIDIA GPU, or its driver or cuda-bindings is missing\n")
        return 3
    each = -(-options.ranks // gpus)
    machine = discover("cuda", options.ranks, each)
    print(f"{options.ranks} ranks on {machine.name}, {options.repeats} runs each on streams and as a graph")
    print(
        f"{'schedule':32} {'sizes':22} {'data':7} {'rel err':>8} {'tolerance':>9} {'streams':>10} {'graph':>10}  result"
    )
    wrong = 0
    for entry in library.entries():
        if options.only not in entry.name:
            continue
        for label, params in sizes(entry.name, options.ranks):
            plan = compiler.plan_of(compiler.build(compiler.load(entry.name), options.ranks, params), machine)
            for values in ("exact", "normal"):
                try:
                    facts = check(plan, each, values, options.repeats, options.timeout)
                except (DeviceError, NumbersError) as error:
                    wrong += 1
                    facts = f"{'':>8} {'':>9} {'':>10} {'':>10}  FAILED: {error}"
                print(f"{entry.name:32} {label:22} {values:7} {facts}", flush=True)
    print("all right" if not wrong else f"{wrong} wrong")
    return 4 if wrong else 0


def check(plan: Plan, ranks_per_gpu: int, values: Values, repeats: int, timeout: float) -> str:
    """Run a plan `repeats` times on streams, each followed by its replay as a graph, with fresh data."""
    worst, limit = 0.0, 0.0
    streams, graphs = [], []
    with Executor(plan, "cuda", ranks_per_gpu=ranks_per_gpu, timeout=timeout) as executor:
        for seed in range(repeats):
            executor.graph = False
            result = verified_run(executor, seed=seed, values=values)
            if not result.ok:
                raise NumbersError(f"{result.worst} (relative error {result.rel_err}, seed {seed})")
            worst, limit = max(worst, result.rel_err or 0.0), max(limit, result.tolerance)
            streams.append(executor.duration)
            check_replay(executor)
            graphs.append(executor.duration)
    return f"{worst:8.1e} {limit:9.1e} {min(streams):7.0f} µs {min(graphs):7.0f} µs  ok"


def sizes(name: str, ranks: int) -> Iterator[tuple[str, Params]]:
    """The sizes that a schedule is checked on."""
    declared = {p.name for p in compiler.load(name).params}
    for label, m, n, k, dtype in (
        ("small fp32", 16, 8, 16, "fp32"),
        ("uneven fp32", 5, 3, 7, "fp32"),
        ("uneven bf16", 37, 29, 43, "bf16"),
        ("middle fp16", 256, 96, 192, "fp16"),
        ("large bf16", 512, 256, 512, "bf16"),
    ):
        params: Params = {"M": m * ranks, "N": n * ranks, "K": k * ranks, "T": dtype}
        if "counts" in declared:
            params["counts"] = [[m // 4 + (s + 2 * e) % 4 for e in range(ranks)] for s in range(ranks)]
        yield label, {p: v for p, v in params.items() if p in declared or p == "T"}


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(code)

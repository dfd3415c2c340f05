"""Run every shipped schedule on the GPUs of this machine, on streams and as a graph, verified with fresh data.

    python tools/gpu_check.py                          # 4 ranks on the GPUs there are, all sizes, 20 repeats
    python tools/gpu_check.py --sizes small --ranks 8 --repeats 3 --only ag_gemm
    python tools/gpu_check.py --backend hip            # on AMD GPUs

small: the sizes of the tests, even ones that divide among ranks and chunks and uneven ones that do not, in all types,
against a numpy reference. real: the layers of tools/bench/scenarios.json on PyTorch tensors and streams, against
cuBLAS in fp32 on the GPU. "exact" data are integers that no order of summing rounds: the result must be the
reference's, bit for bit; "normal" data must come within the stated tolerance. All that a run writes is NaN before.
Exit code 4 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from math import isqrt, sqrt
from pathlib import Path
from typing import Any

from ficco_rt import compiler, library
from ficco_rt.driver.api import DriverName
from ficco_rt.driver.registry import VENDORS, device_count, discover
from ficco_rt.errors import DeviceError, NumbersError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.reference import Arithmetic, evaluate, extent, take
from ficco_rt.exec.verify import EXACT_LIMIT, Values, check_replay, tolerance, verified_run
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan

Params = dict[str, object]
SCENARIOS = Path(__file__).with_name("bench") / "scenarios.json"
NORMAL_EVERY = 10  # of the real sizes' repeats on exact data, how many for each on normal data


def main() -> int:
    """Print the table; the process's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=tuple(VENDORS), default="cuda")
    parser.add_argument("--ranks", type=positive, default=4)
    parser.add_argument("--repeats", type=positive, default=20)
    parser.add_argument("--only", default="", help="a part of the schedules' names")
    parser.add_argument("--sizes", choices=("all", "small", "real"), default="all")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds that a run may take")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no further row is begun")
    options = parser.parse_args()
    backend: DriverName = options.backend
    gpus = device_count(backend)
    if not gpus:
        sys.stderr.write(f"gpu_check: no GPU for {backend}, or its driver or bindings are missing\n")
        return 3
    if options.sizes != "small" and find_spec("torch") is None:
        sys.stderr.write("gpu_check: real sizes are checked with PyTorch: pip install torch, or take --sizes small\n")
        return 3
    each = -(-options.ranks // gpus)
    machine = discover(backend, options.ranks, each)
    print(f"{options.ranks} ranks on {machine.name}, {options.repeats} runs each on streams and as a graph")
    print(
        f"{'schedule':28} {'sizes':26} {'data':7} {'rel err':>8} {'tolerance':>9} {'streams':>10} {'graph':>10}  result"
    )
    rows = [
        row
        for kind, table in (("small", small_rows), ("real", real_rows))
        if options.sizes in ("all", kind)
        for row in table(options.ranks)
        if options.only in row[0]
    ]
    started = time.monotonic()
    wrong = done = 0
    keep = None
    for name, label, params, values, check in rows:
        if time.monotonic() - started > options.budget:
            break
        try:
            plan = compiled(name, options.ranks, params, machine)
            if keep is None:  # an executor that stays open keeps the devices' contexts
                keep = Executor(plan, backend, ranks_per_gpu=each)
            facts = check(plan, backend, each, values, options.repeats, options.timeout)
        except (DeviceError, NumbersError, UsageError) as error:
            wrong += 1
            facts = f"{'':>8} {'':>9} {'':>10} {'':>10}  FAILED: {error}"
        done += 1
        print(f"{name:28} {label:16} {values:7} {facts}", flush=True)
    if keep is not None:
        keep.close()
    left = f", {len(rows) - done} not run" if done < len(rows) else ""
    print(f"{done - wrong} of {done} rows right{left}; {time.monotonic() - started:.0f} s")
    return 4 if wrong else 0


def positive(text: str) -> int:
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1")
    return number


def compiled(name: str, ranks: int, params: Params, machine: Machine) -> Plan:
    return compiler.plan_of(compiler.build(compiler.load(name), ranks, params), machine)


def declared(name: str, params: Params) -> Params:
    """Those of the params that the schedule has."""
    known = {p.name for p in compiler.load(name).params} | {"T"}
    return {p: v for p, v in params.items() if p in known}


# ---------------------------------------------------------------- small sizes, with numpy


def small_rows(ranks: int) -> Iterator[tuple[str, str, Params, Values, Any]]:
    """(schedule, label, params, data, check)"""
    for entry in library.entries():
        for label, m, n, k, dtype in (
            ("small fp32", 16, 8, 16, "fp32"),
            ("uneven fp32", 5, 3, 7, "fp32"),
            ("uneven bf16", 37, 29, 43, "bf16"),
            ("middle fp16", 256, 96, 192, "fp16"),
            ("large bf16", 512, 256, 512, "bf16"),
        ):
            params: Params = {"M": m * ranks, "N": n * ranks, "K": k * ranks, "T": dtype}
            params["counts"] = [[m // 4 + (s + 2 * e) % 4 for e in range(ranks)] for s in range(ranks)]
            for values in ("exact", "normal"):
                yield entry.name, label, declared(entry.name, params), values, check_small


def check_small(
    plan: Plan, backend: DriverName, ranks_per_gpu: int, values: Values, repeats: int, timeout: float
) -> str:
    """Run a plan `repeats` times on streams, each followed by its replay as a graph, with fresh data."""
    worst, limit = 0.0, 0.0
    streams, graphs = [], []
    with Executor(plan, backend, ranks_per_gpu=ranks_per_gpu, timeout=timeout) as executor:
        for seed in range(repeats):
            executor.graph = False
            result = verified_run(executor, seed=seed, values=values)
            if not result.ok:
                raise NumbersError(f"{result.worst} (relative error {result.rel_err}, seed {seed})")
            worst, limit = max(worst, result.rel_err or 0.0), max(limit, result.tolerance)
            streams.append(executor.duration)
            check_replay(executor)
            graphs.append(executor.duration)
    return facts_of(worst, limit, streams, graphs)


def facts_of(worst: float, limit: float, streams: list[float], graphs: list[float]) -> str:
    return f"{worst:8.1e} {limit:9.1e} {min(streams):7.0f} µs {min(graphs):7.0f} µs  ok"


# ---------------------------------------------------------------- real sizes, with PyTorch


def real_rows(ranks: int) -> Iterator[tuple[str, str, Params, Values, Any]]:
    """(schedule, label, params, data, check): every schedule of an operation on every layer of it."""
    layers: dict[str, list[dict[str, Any]]] = json.loads(SCENARIOS.read_text(encoding="utf-8"))
    layers["gemm_ar"] = layers["gemm_rs"]
    layers["a2a_gemm"] = layers["ag_gemm"]
    for entry in library.entries():
        for layer in layers.get(entry.name.split("/")[0], ()):
            params: Params = {p: layer[p] for p in "MNK"}
            if "counts" in {p.name for p in compiler.load(entry.name).params}:  # experts: uneven loads
                even = layer["M"] // ranks**2
                params["counts"] = [[even + 16 * ((s + 2 * e) % 4) for e in range(ranks)] for s in range(ranks)]
                params["N"] = layer["N"] // ranks
            yield entry.name, layer["name"], declared(entry.name, params), "exact", check_real


def check_real(
    plan: Plan, backend: DriverName, ranks_per_gpu: int, values: Values, repeats: int, timeout: float
) -> str:
    """As `check_small`, on PyTorch's tensors and streams. Every tenth repeat is followed by one on normal data."""
    import torch

    devices = [torch.device("cuda", rank // ranks_per_gpu) for rank in range(plan.ranks)]
    streams = [torch.cuda.Stream(device) for device in devices]
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    tensors = {
        t.name: [torch.empty(s, dtype=dtypes[t.dtype], device=d) for s, d in zip(t.shapes, devices, strict=True)]
        for t in plan.tensors
        if t.kind != "scratch"
    }
    inputs = {t.name: tensors[t.name] for t in plan.tensors if t.kind == "input"}
    outputs = {t.name: tensors[t.name] for t in plan.tensors if t.kind == "output"}
    terms = max(extent(c.value).terms for c in plan.claims)
    worst, limit = 0.0, 0.0
    eager: list[float] = []
    graphed: list[float] = []

    def run(graph: bool) -> None:
        for arrays in outputs.values():
            for array in arrays:
                array.fill_(float("nan"))
        executor.poison()
        for device in set(devices):
            torch.cuda.synchronize(device)
        executor.graph = graph
        executor.run(executor.bind(**tensors), streams=streams)
        executor.synchronize()
        (graphed if graph else eager).append(executor.duration)

    with Executor(plan, backend, ranks_per_gpu=ranks_per_gpu, timeout=timeout) as executor:
        for seed in range(repeats):
            for kind in ("exact", "normal") if seed % NORMAL_EVERY == 0 else ("exact",):
                torch.backends.cuda.matmul.allow_tf32 = kind == "exact"  # holds the integers, and their sums, exactly
                for number, arrays in enumerate(inputs.values()):
                    for rank, array in enumerate(arrays):
                        fill(torch, array, kind, terms, seed * 1000 + number * 100 + rank)
                run(graph=False)
                error, allowed = compare_on_gpu(torch, plan, inputs, outputs, kind, seed)
                worst, limit = max(worst, error), max(limit, allowed)
                kept = {name: [a.clone() for a in arrays] for name, arrays in outputs.items()}
                run(graph=True)
                for name, arrays in outputs.items():
                    for rank, (a, b) in enumerate(zip(arrays, kept[name], strict=True)):
                        if not torch.equal(a.view(torch.int16), b.view(torch.int16)):
                            raise NumbersError(f"{name} of rank {rank}: the graph's result differs (seed {seed})")
    return facts_of(worst, limit, eager, graphed)


def fill(torch: Any, array: Any, kind: str, terms: int, seed: int) -> None:
    """Fresh values; see `fresh_inputs` of ficco_rt/exec/verify.py for the bounds of exact ones. Here they are eight
    standard deviations: outputs have up to 10⁹ elements."""
    make = torch.Generator(array.device).manual_seed(seed)
    limit = EXACT_LIMIT["bf16"]
    if kind == "normal":
        array.normal_(0, terms**-0.25, generator=make)
    elif terms <= limit:
        bound = min(8, isqrt(limit // terms))
        array.random_(-bound, bound + 1, generator=make)
    else:
        density = limit / (8 * sqrt(terms))
        uniform = torch.rand(array.shape, generator=make, device=array.device)
        array.copy_((uniform < density / 2).to(torch.int8) - (uniform > 1 - density / 2).to(torch.int8))


def compare_on_gpu(torch: Any, plan: Plan, inputs: Any, outputs: Any, kind: str, seed: int) -> tuple[float, float]:
    """The relative error and what it may be; NumbersError if it is more."""
    first = outputs[plan.claims[0].targets[0].tensor][0].device
    on_first = Arithmetic(lambda a: a.to(first, torch.float32), torch.cat)
    worst, limit = 0.0, 0.0
    for claim in plan.claims:
        allowed = 0.0 if kind == "exact" else tolerance(plan, claim, plan.tensor(claim.targets[0].tensor).dtype)
        for target, wanted in zip(claim.targets, evaluate(claim.value, inputs, on_first), strict=True):
            if not wanted.numel():
                continue
            got = take(outputs[target.tensor][target.rank], target, torch.cat).to(first, torch.float32)
            largest = float(wanted.abs().max())
            error = float((got - wanted).abs().max()) / (largest or 1.0)
            if not error <= allowed or (kind == "exact" and largest > EXACT_LIMIT["bf16"]):
                raise NumbersError(
                    f"{target.tensor} of rank {target.rank}: relative error {error:.2e}, allowed {allowed:.2e}, "
                    f"largest {largest:g} ({kind} data, seed {seed})"
                )
            worst, limit = max(worst, error), max(limit, allowed)
    return worst, limit


if __name__ == "__main__":
    sys.exit(main())

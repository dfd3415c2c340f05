"""Hierarchical schedules on GPUs of one machine that stand for nodes: messages by NCCL over sockets, no peer access.

    python tools/nodes_check.py                      # two NVIDIA GPUs, nccl4py; one GPU a node; below 90 s
    python tools/nodes_check.py --gpus 4 --node 2    # two nodes of two GPUs

NCCL may use neither peer access nor shared memory (NCCL_P2P_DISABLE, NCCL_SHM_DISABLE), as between nodes. Each schedule
runs on streams and as graphs, on integers and on random data, several times. The times are those of sockets: they say
nothing of a network. Exit code 4 if a number is wrong, 3 without GPUs or NCCL.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "dsl")]

from ficco_rt import compiler
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.machine.model import Machine

SIZES: Mapping[str, Mapping[str, object]] = {
    "ag_gemm": {"M": 4096, "N": 4096, "K": 2048},
    "gemm_rs": {"M": 4096, "N": 2048, "K": 4096},
    "a2a_gemm": {"N": 1024, "K": 1024},
}
OVER_SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


def right(
    machine: Machine, node: int, driver: str = "cuda", sizes: Mapping[str, object] | None = None, repeats: int = 5
) -> bool:
    """Every hierarchical schedule with nodes of `node` GPUs; prints a line for each, and says whether all are right."""
    fine = True
    for operation, usual in SIZES.items():
        for chunks in (1, 4):
            given = {**usual, **(sizes or {}), "node": node, "chunks": chunks}
            names = {p.name for p in compiler.load(f"{operation}/hierarchical").params}
            given = {name: value for name, value in given.items() if name in names}
            plan = compiler.compile_schedule(f"{operation}/hierarchical", machine.ranks, given, machine)
            with Executor(plan, driver, machine=machine, collectives="library", timeout=60) as executor:  # type: ignore[arg-type]
                for executor.graph in (False, True):
                    fine &= _one(executor, f"{operation} chunks={chunks}", repeats)
    return fine


def _one(executor: Executor, name: str, repeats: int) -> bool:
    exact = [verified_run(executor, seed=seed, values="exact") for seed in range(repeats)]
    normal = verified_run(executor)
    began = time.monotonic()
    executor.run()
    took = 1e3 * (time.monotonic() - began)
    ok = normal.ok and all(result.ok for result in exact)
    mode = "graph" if executor.graph else "streams"
    print(f"{'right' if ok else 'WRONG'}  {name:20} {mode:8} {executor.driver.collectives}  {took:8.2f} ms", flush=True)
    return ok


def main(check: Callable[[Machine, int], bool] = right) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--node", type=int, default=1, help="GPUs of a node")
    asked = parser.parse_args()
    os.environ |= OVER_SOCKETS
    try:
        return 0 if check(discover("cuda", asked.gpus), asked.node) else 4
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())

"""What four processes do: `mpirun -n 4 python -m tests.host.in_processes`. Process 0 prints what was found, as JSON.

One start has many checks, because a start costs more than a check.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from hashlib import sha256

from mpi4py import MPI

import ficco_rt as ficco
from ficco_rt import compiler
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import Plan
from ficco_rt.process.group import Group
from tests import cases

LIMIT = 60.0


def plan_of(name: str, ranks: int, group: Group) -> Plan:
    """A plan of the library in small sizes, which one process of the group compiles: all would take all processors."""
    made = pickle.dumps(compiled(name, ranks)) if group.rank == 0 else b""
    plan: Plan = pickle.loads(group.exchange(made, LIMIT)[0])
    return plan


def compiled(name: str, ranks: int) -> Plan:
    sizes = cases.sizes(name, ranks, True) | cases.few_chunks(name)
    return compiler.compile_schedule(name, ranks, sizes)


def result(plan: Plan, group: object = None) -> tuple[dict[str, str], str]:
    """Hashes of this process's outputs after a verified run in a random order, and the verdict."""
    with Executor(plan, order="random(7)", group=group, timeout=LIMIT) as executor:
        verdict = verified_run(executor, seed=5, values="normal")
        outputs = [(t.name, rank) for t in plan.tensors if t.kind == "output" for rank in executor.ranks]
        return {f"{name}@{rank}": sha256(executor.read(name, rank)).hexdigest() for name, rank in outputs}, str(verdict)


def same_bits(plan: Plan, group: Group) -> bool:
    """Whether processes give what one process alone gives, of which the first of them sees to."""
    found, verdict = result(plan, group)
    everywhere = {
        k: v for data in group.exchange(json.dumps(found).encode(), LIMIT) for k, v in json.loads(data).items()
    }
    return group.rank != 0 or ((everywhere, verdict) == result(plan) and "ok=True" in verdict)


def told(call: Callable[[], object]) -> str:
    try:
        call()
    except (DeviceError, UsageError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main() -> None:
    world = Group.from_env()
    found: dict[str, object] = {"world": repr(world)}
    found["differ"] = [name for name in cases.SCHEDULES if not same_bits(plan_of(name, 4, world), world)]
    found["two ranks each"] = same_bits(plan_of("gemm_ar/serial", 8, world), world)
    pair = [2, 0] if world.rank % 2 == 0 else [3, 1]
    beside = ficco.Group(MPI.COMM_WORLD, ranks=pair)
    right = beside.rank == pair.index(world.rank) and same_bits(plan_of("gemm_rs/streamed", 2, beside), beside)
    split = Group(MPI.COMM_WORLD.Split(world.rank // 2, -world.rank))
    right = right and same_bits(plan_of("ag_gemm/streamed", 2, split), split)
    found["side by side"] = [data == b"1" for data in world.exchange(b"1" if right else b"0", LIMIT)]
    other = compiled("ag_gemm/serial", 4 if world.rank != 3 else 8)
    found["another plan"] = told(lambda: Executor(other, group=Group(world)))
    late = Group(world)
    found["late"] = told(lambda: late.barrier(0.2)) if world.rank != 3 else ""
    if world.rank == 3:  # the others wait for it once more, in the same creation
        time.sleep(1)
    else:
        found["missing"] = told(lambda: Group(MPI.COMM_WORLD, timeout=0.2))
    found["met"] = [text.decode() for text in Group(MPI.COMM_WORLD, timeout=LIMIT).exchange(b"met", LIMIT)]
    if world.rank == 0:
        print(json.dumps(found))
    world.barrier(LIMIT)


if __name__ == "__main__":
    main()

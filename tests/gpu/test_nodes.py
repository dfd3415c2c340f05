"""Hierarchical schedules on GPUs of one machine that stand for nodes: messages by NCCL over sockets, no peer access.

NCCL may use neither peer access nor shared memory (NCCL_P2P_DISABLE, NCCL_SHM_DISABLE), as between nodes. Each schedule
runs on streams and as graphs, on integers and on random data, several times. The times are those of sockets: they say
nothing of a network. Half of the GPUs are a node: `--ranks 4` is two nodes of two GPUs.

Of several processes each drives a GPU, and sees the GPUs of its node alone. Processes of different nodes share no
memory. They are told of their nodes as torchrun tells it (LOCAL_WORLD_SIZE). Besides the hierarchical schedules all
collectives of NCCL run; then all of it once more on one node, where NCCL may use what it likes. In between a process is
killed in the midst of runs, and the other one must end with an error.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple, TypeAlias

import pytest

from ficco_rt import compiler
from ficco_rt.driver.api import DriverName
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan
from ficco_rt.process.group import Group
from tests.gpu.apart import apart
from tests.gpu.collectives import every_plan
from tests.pipes import Pipes, between

Sizes: TypeAlias = Mapping[str, object]
Part: TypeAlias = Literal["nodes", "killed", "one node"]

SIZES: Mapping[str, Sizes] = {
    "ag_gemm": {"M": 4096, "N": 4096, "K": 2048},
    "gemm_rs": {"M": 4096, "N": 2048, "K": 4096},
    "a2a_gemm": {"N": 1024, "K": 1024},
}
OVER_SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
PARTS: tuple[Part, ...] = ("nodes", "killed", "one node")
LIMIT = 180.0  # seconds of a part
TIMEOUT = 60.0  # seconds of a run
KILLED_AFTER = 1.0  # seconds
LEFT_ALONE = 20.0  # seconds of a run of which a process was killed
REPEATS = 5  # runs on integers, each on fresh data

pytestmark = [pytest.mark.gpus2, pytest.mark.nccl]


def test_one_process(ranks: int, long: int) -> None:
    apart(on_nodes, ranks, ranks // 2, REPEATS * long, limit=LIMIT * long, variables=OVER_SOCKETS)


@pytest.mark.parametrize("part", PARTS)
def test_processes(part: Part, ranks: int, long: int) -> None:
    apart(in_processes, Asked(part, ranks // 2, REPEATS * long), ranks, limit=LIMIT * long)


def on_nodes(gpus: int, node: int, repeats: int) -> bool:
    return right(discover("cuda", gpus), node, repeats=repeats)


def plan_of(operation: str, machine: Machine, node: int, chunks: int, sizes: Sizes | None = None) -> Plan:
    """A hierarchical schedule with nodes of `node` GPUs."""
    given = {**SIZES[operation], **(sizes or {}), "node": node, "chunks": chunks}
    names = {p.name for p in compiler.load(f"{operation}/hierarchical").params}
    given = {name: value for name, value in given.items() if name in names}
    return compiler.compile_schedule(f"{operation}/hierarchical", machine.ranks, given, machine)


def right(
    machine: Machine,
    node: int,
    driver: DriverName = "cuda",
    sizes: Sizes | None = None,
    repeats: int = 5,
    group: Group | None = None,
) -> bool:
    """Every hierarchical schedule with nodes of `node` GPUs; prints a line for each, and says whether all are right."""
    fine = True
    for operation in SIZES:
        for chunks in (1, 4):
            plan = plan_of(operation, machine, node, chunks, sizes)
            fine &= _runs(plan, machine, driver, f"{operation} chunks={chunks}", repeats, group)
    return fine


def collectives(machine: Machine, driver: DriverName, repeats: int, group: Group, rows: int = 2048) -> bool:
    """All collectives of NCCL in a schedule."""
    plan = every_plan(machine.ranks, driver, rows, machine=machine)
    return _runs(plan, machine, driver, "all collectives", repeats, group)


def _runs(plan: Plan, machine: Machine, driver: DriverName, name: str, repeats: int, group: Group | None) -> bool:
    fine = True
    with Executor(
        plan,
        driver,
        machine=machine,
        collectives="library",
        timeout=TIMEOUT,
        group=group,
    ) as executor:
        for executor.graph in (False, True):
            fine &= _one(executor, name, repeats)
    return fine


def _one(executor: Executor, name: str, repeats: int) -> bool:
    exact = [verified_run(executor, seed=seed, values="exact") for seed in range(repeats)]
    normal = verified_run(executor)
    began = time.monotonic()
    executor.run()
    took = 1e3 * (time.monotonic() - began)
    ok = normal.ok and all(result.ok for result in exact)
    mode = "graph" if executor.graph else "streams"
    if executor.group is None or executor.group.rank == 0:
        verdict = "right" if ok else "WRONG"
        print(f"{verdict}  {name:20} {mode:8} {executor.driver.collectives}  {took:8.2f} ms", flush=True)
    return ok


# ---------------------------------------------------------------- a process for each GPU


def killed(machine: Machine, node: int, driver: DriverName, sizes: Sizes | None, group: Group) -> bool:
    """The last process is killed in the midst of runs: the others end with an error, within the timeout."""
    plan = plan_of("ag_gemm", machine, node, 1, sizes)
    dies = group.rank == group.size - 1
    with Executor(
        plan,
        driver,
        machine=machine,
        collectives="library",
        timeout=LEFT_ALONE,
        group=group,
    ) as executor:
        verified_run(executor, values="exact")
        until = time.monotonic() + KILLED_AFTER
        try:
            while True:
                executor.run()
                if dies and time.monotonic() > until:
                    os.kill(os.getpid(), signal.SIGKILL)
        except DeviceError as error:
            took = time.monotonic() - until
            if group.rank == 0:
                print(f"told   a process was killed: after {took:.1f} s: {str(error).splitlines()[0]}", flush=True)
            return took < LEFT_ALONE + 5


def as_started(part: Part, place: int, gpus: int, node: int) -> dict[str, str]:
    """The environment of a process: of a launcher that knows of nodes, or of one node."""
    if part == "one node":
        return {"LOCAL_RANK": str(place), "LOCAL_WORLD_SIZE": str(gpus)}
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(",")
    first = place // node * node
    mine = ",".join(visible[first : first + node])
    told = {"LOCAL_RANK": str(place % node), "LOCAL_WORLD_SIZE": str(node), "CUDA_VISIBLE_DEVICES": mine}
    return told | OVER_SOCKETS


class Asked(NamedTuple):
    """What the processes of a part do. `sizes`: of the schedules, in place of the usual ones. `stand_in`: on the tests'
    library in place of the vendor's."""

    part: Part
    node: int
    repeats: int
    sizes: Sizes | None = None
    stand_in: bool = False


def process(asked: Asked, place: int, pipes: Sequence[Connection | None], control: Any) -> None:
    """One process's side of a part; tells whether all was right, or what has failed."""
    part, node, repeats, sizes, stand_in = asked
    gpus = len(pipes)
    os.environ |= as_started(part, place, gpus, node)
    if stand_in:
        from tests.mock import standin

        seen = f"devices {gpus}" if part == "one node" else f"devices {node}; uuid {place // node * node}"
        standin.cuda().reset(f"{seen}; sms 132; nccl 22809; apart 1; query_steps 3000; seed {place + 1}")
    try:
        group = Group(Pipes(place, pipes))
        machine = discover("cuda", gpus, processes=gpus)
        if part == "killed":
            control.send(killed(machine, node, "cuda", sizes, group))
        else:
            fine = right(machine, node, "cuda", sizes, repeats, group)
            control.send(collectives(machine, "cuda", repeats, group, 4 if stand_in else 2048) and fine)
    except (DeviceError, UsageError) as error:
        control.send(f"process {place}: {error}")


def in_processes(asked: Sequence[Any], gpus: int) -> bool:
    """A part in a process for each GPU; `asked` has what is in `Asked`. DeviceError: a process has failed."""
    asked = Asked(*asked)
    context = mp.get_context("spawn")
    pipes = between(gpus)
    controls, started = [], []
    for place in range(gpus):
        mine, theirs = context.Pipe()
        started.append(context.Process(target=process, args=(asked, place, pipes[place], theirs), daemon=True))
        started[-1].start()
        theirs.close()
        controls.append(mine)
    for pipe in (pipe for of in pipes for pipe in of if pipe is not None):
        pipe.close()
    print(f"{asked.part}:", flush=True)
    until = time.monotonic() + LIMIT * max(1, asked.repeats // REPEATS)
    answers = [_answer(control, until) for control in controls]
    for one in started:
        one.join(5)
        one.kill()
    expected = answers[:-1] if asked.part == "killed" else answers
    failed = [answer for answer in expected if isinstance(answer, str)]
    if failed:
        raise DeviceError("\n".join(failed))
    return all(expected)


def _answer(control: Connection, until: float) -> bool | str:
    try:
        if control.poll(max(0.0, until - time.monotonic())):
            answer: bool | str = control.recv()
            return answer
    except EOFError:
        return "a process has ended without a word"
    return f"no end within {LIMIT:.0f} s"

"""Schedules for several nodes: proven and right with nodes of several sizes, and no rank touches another node."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check as check_device_plan
from ficco_rt.device.features import usual
from ficco_rt.device.ir import CallCollective, DevicePlan, Placement
from ficco_rt.errors import PlanError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.graph.prove import prove
from ficco_rt.machine.model import Machine
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.check import check
from ficco_rt.plan.codec import from_json, to_json
from ficco_rt.plan.ir import CollectiveCall, Launch, Plan, WaitEvent
from ficco_rt.plan.prove import prove as prove_plan
from tests import cases

NAMES = [name for name in cases.SCHEDULES if name.endswith("/hierarchical")]
NODES = [(4, 2), (8, 4), (8, 2), (6, 3), (2, 1)]  # ranks, GPUs of a node


def machine(ranks: int, node: int) -> Machine:
    whole = profile("h200-nodes", ranks)
    return replace(whole, links=replace(whole.links, ranks=node))


def plan(name: str, ranks: int, node: int, even: bool = True, **more: object) -> Plan:
    sizes = cases.sizes(name, ranks, even) | cases.few_chunks(name) | {"node": node, **more}
    return plan_of(build(cases.schedule(name), ranks, sizes), machine(ranks, node))


@pytest.mark.parametrize(("ranks", "node"), NODES)
@pytest.mark.parametrize("name", NAMES)
def test_right_on_nodes_of_every_size(name: str, ranks: int, node: int) -> None:
    """Even sizes, and pieces of which some are empty. The machine has such nodes: what it cannot do is refused."""
    for even in (True, False):
        made = plan(name, ranks, node, even)
        with Executor(made) as executor:
            for order in ("fifo", "adversarial", *(f"random({seed})" for seed in range(4))):
                executor.order = order
                result = verified_run(executor, values="exact")
                assert result.ok, f"{order}: {result.worst}"
        read = from_json(to_json(made))
        prove_plan(read, check(read))


@pytest.mark.parametrize("name", NAMES)
def test_proven_on_eight_nodes_of_eight(name: str) -> None:
    sizes: dict[str, object] = {"M": 1024, "N": 1024, "K": 1024, "chunks": 1, "node": 8}
    if name.startswith("a2a"):
        sizes = {"N": 64, "K": 64, "chunks": 1, "node": 8}
    graph = build(cases.schedule(name), 64, sizes)
    prove(graph)
    made = plan_of(graph, profile("h200-nodes", 64), trusted=True)
    check(made)


@pytest.mark.parametrize("name", NAMES)
def test_the_network_carries_each_byte_once_a_node(name: str) -> None:
    """Each rank sends messages to the GPUs of its own place alone."""
    calls = [c for _, c in plan(name, 8, 4).commands() if isinstance(c, CollectiveCall)]
    assert calls
    assert {c.kind for c in calls} == {"send_recv"}
    assert all(c.to % 4 == c.by % 4 == c.src.rank % 4 and c.to // 4 != c.src.rank // 4 for c in calls)


def without(made: Plan, stream: int, position: int) -> Plan:
    commands = made.streams[stream].commands
    left = replace(made.streams[stream], commands=(*commands[:position], *commands[position + 1 :]))
    return replace(made, streams=(*made.streams[:stream], left, *made.streams[stream + 1 :]))


@pytest.mark.parametrize("name", NAMES)
def test_no_wait_is_wasted(name: str) -> None:
    """The end of a message tells nothing of the rank that it was sent to: each wait that is taken away is a race."""
    made = plan(name, 4, 2, chunks=1)
    waits = [(s.id, p) for s in made.streams for p, c in enumerate(s.commands) if isinstance(c, WaitEvent)]
    assert waits
    for place in waits:
        with pytest.raises(PlanError, match="race on"):
            check(without(made, *place))


FROM_BEHIND = """schedule from_behind
input   A[4, 4] : fp32
output  C[4, 4] : fp32 unproven
scratch H[4, 4] : fp32
scratch X[4, 4] : fp32
queue dma     { engine = copy }
queue net     { engine = nccl }
queue compute { engine = sm }
stage begin on dma { copy H <- A }
stage push  on dma { copy X @ (rank - 1) % ranks <- H }
stage send  on net { copy H @ (rank + 1) % ranks <- A }
stage add   on compute { reduce C = sum(H, X) }
"""


def test_a_message_tells_of_its_sender_alone() -> None:
    """The rank that a message is sent to has pushed X before it receives. Its sender does not hear of that, and waits
    for X itself."""
    made = plan_of(build(ficco_dsl.parse(FROM_BEHIND, "behind.ficco"), 3), profile("h200-switch", 3))
    for stream in made.streams:
        if stream.queue == "compute":
            assert [type(c) for c in stream.commands] == [WaitEvent, WaitEvent, Launch]
            for position in (0, 1):
                with pytest.raises(PlanError, match="race on"):
                    check(without(made, stream.id, position))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"to": 0}, "rank 0 sends to rank 0, which does not receive from it"),
        ({"by": 1}, "rank 2 sends to rank 0, which does not receive from it"),
    ],
)
def test_messages_that_nobody_receives_are_refused(changed: dict[str, int], said: str) -> None:
    made = plan("ag_gemm/hierarchical", 4, 2, chunks=1)
    at = next(s for s in made.streams if s.rank == 0 and s.engine == "nccl")
    commands = tuple(replace(c, **changed) if isinstance(c, CollectiveCall) else c for c in at.commands)
    streams = tuple(replace(s, commands=commands) if s is at else s for s in made.streams)
    with pytest.raises(PlanError, match=said):
        check(replace(made, streams=streams))


def by_library(made: Plan) -> DevicePlan:
    features = replace(usual(made.target.device.arch), collectives="NCCL")
    return device_plan(layout_of(made, made.target.device, Placement(tuple(range(made.ranks))), features), "streams")


def test_a_device_plan_with_a_lost_message_is_refused() -> None:
    found = by_library(plan("gemm_rs/hierarchical", 4, 2, chunks=1))
    check_device_plan(found)
    for changed in ({"to": 0}, {"by": 1}):
        body = list(found.body)
        at, call = next((i, a) for i, a in enumerate(body) if isinstance(a, CallCollective))
        body[at] = replace(call, **changed)  # type: ignore[arg-type]
        with pytest.raises(PlanError, match="which does not receive from it"):
            check_device_plan(replace(found, body=tuple(body)))


def test_a_plan_that_leaves_its_node_is_refused() -> None:
    """A stored plan may say that it was made for a machine of nodes; what it does is judged all the same."""
    sizes = cases.sizes("ag_gemm/serial", 4, even=True)
    flat = plan_of(build(cases.schedule("ag_gemm/serial"), 4, sizes), profile("h200-switch", 4))
    held = machine(4, 2)
    with pytest.raises(PlanError, match=r"rank 0 writes G@2, the memory of another node: .* whose nodes have 2 GPUs"):
        check(replace(flat, machine=held.name, made_for=held))

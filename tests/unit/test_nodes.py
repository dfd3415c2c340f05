"""Device plans of processes on several nodes: messages alone lead from one node to another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.codec import from_json, to_json
from ficco_rt.device.features import usual
from ficco_rt.device.ir import DevicePlan, Mode, Placement
from ficco_rt.device.multi_node import nodes_of
from ficco_rt.device.text import to_text
from ficco_rt.errors import DeviceError, PlanError
from ficco_rt.machine.discover import DeviceFacts
from ficco_rt.machine.discover import machine as discovered
from ficco_rt.process.transports import local
from tests.host.test_hierarchical import NAMES, plan

FOUR = Placement((0, 1, 2, 3), (0, 1, 2, 3), (0, 0, 1, 1))


def made(name: str, placement: Placement, mode: Mode = "streams", library: str = "NCCL") -> DevicePlan:
    whole = plan(name, 4, 2, chunks=1)
    features = replace(usual(whole.target.device.arch), collectives=library)
    return device_plan(layout_of(whole, whole.target.device, placement, features), mode)


@pytest.mark.parametrize("name", NAMES)
def test_no_semaphore_leads_to_another_node(name: str) -> None:
    """Two processes on each of two nodes, and one: no deadlock and no race in several runs in a row, either way."""
    modes: tuple[Mode, ...] = ("streams", "graph", "traced")
    for mode in modes:
        found = made(name, FOUR, mode)
        check(found)
        barriers = {(w.device, w.point.number) for w in found.semaphores if w.point is not None and w.tells_runs}
        assert barriers == {(0, 1), (1, 0), (2, 3), (3, 2)}
    found = made(name, Placement((0, 1, 2, 3), (0, 0, 1, 1), (0, 0, 1, 1)))
    check(found)
    assert not any(w.tells_runs and w.used == "always" for w in found.semaphores)
    assert from_json(to_json(found)) == found
    assert "  ranks on nodes 0 0 1 1\n" in to_text(found)


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        (replace(FOUR, nodes=(0, 1, 0, 1)), "it touches S@1 on another node"),
        (replace(FOUR, nodes=(0, 1, 0, 1)), r"the begin of a run: it signals semaphore \d+ on another node"),
        (replace(FOUR, processes=(0, 0, 1, 1), nodes=(0, 1, 0, 1)), "process 0 is on the nodes 0 and 1"),
        (replace(FOUR, nodes=(0, 1)), "4 ranks, and the nodes of 2 of them"),
    ],
)
def test_what_leads_to_another_node_is_refused(placement: Placement, said: str) -> None:
    found = made("gemm_rs/hierarchical", FOUR, "traced")  # whose runs begin with a barrier
    with pytest.raises(PlanError, match=said):
        check(replace(found, placement=placement))


def test_a_wait_for_another_node_is_refused() -> None:
    with pytest.raises(
        PlanError, match=r"hierarchical.ficco:\d+:\d+: device 1 waits for event 4 of device 0 on another"
    ):
        made("gemm_rs/hierarchical", replace(FOUR, nodes=(0, 1, 0, 1)))


def test_messages_to_another_node_need_the_library() -> None:
    why = r"hierarchical.ficco:\d+: between nodes NCCL or RCCL alone makes send_recv, and here it does not: no library"
    with pytest.raises(DeviceError, match=why):
        made("gemm_rs/hierarchical", FOUR, library="")


@pytest.mark.parametrize(
    ("processes", "node", "nodes"),
    [
        ((0, 1, 2, 3), 2, (0, 0, 1, 1)),
        ((0, 0, 1, 1), 1, (0, 0, 1, 1)),  # a process is on one machine
        ((0, 0, 0, 1, 1, 1), 2, ()),  # the node in the middle joins them
        ((0, 1, 2, 3), 4, ()),
        ((0, 1, 2, 3), 8, ()),
        ((), 2, ()),
    ],
)
def test_which_ranks_are_on_a_node(processes: tuple[int, ...], node: int, nodes: tuple[int, ...]) -> None:
    assert nodes_of(processes, node) == nodes


def test_a_machine_of_nodes_is_discovered(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = DeviceFacts("NVIDIA H200", "sm_90a", 132, 1, 1, 1, 1, 32, 64, 1, 1, 1, 1)
    found = discovered([facts] * 2, 8, ranks_per_gpu=2, node=2)
    assert (found.name, found.node, found.tiers[-1].reach) == ("2 nodes of 2×NVIDIA H200, 2 ranks each", 4, "messages")
    assert discovered([facts] * 2, 4, ranks_per_gpu=2, node=2).node == 4
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    assert local(8) == 8
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "4(x2)")
    assert local(8) == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert local(8) == 2

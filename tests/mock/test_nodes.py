"""NCCL in several processes on the stand-in: of one node, where semaphores in memory order the rest, and on several
nodes, where messages alone lead from one to another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import cases
from tests.gpu import processes, test_nodes
from tests.mock.processes import Processes
from tests.mock.test_processes import _right

THERE = "sms 132; nccl 22809; apart 1; query_steps 3000"
SMALL: dict[str, object] = {"M": 32, "N": 16, "K": 32, "T": "fp32", "counts": [[3, 5], [4, 2]]}
OURS = ("GroupStart", "CommInitRankConfig", "AllReduce", "AllGather", "Send", "GroupEnd", "CommDestroy")


@pytest.fixture(scope="module")
def both() -> Iterator[Processes]:
    with Processes(2, settings=THERE) as started:
        yield started


def test_rccl_carries_messages_of_processes_too() -> None:
    with Processes(2, "hip", settings=THERE) as started:
        for right, _, left in started.ask("nodes", 1, SMALL, True):
            assert right
            assert left == ""


@pytest.mark.parametrize("collectives", [False, True])
@pytest.mark.parametrize("node", [1, 2])
def test_messages_and_collectives_are_right(both: Processes, node: int, collectives: bool) -> None:
    """Nothing is exported where each process is a node."""
    for right, exported, left in both.ask("nodes", node, SMALL, collectives):
        assert right
        assert left == ""
        assert (exported == "0 exported") == (node == 1)


def test_a_killed_process_of_another_node_is_told_by_the_library(both: Processes) -> None:
    """No page and no lock tell of it there. And the next start works: the next case asks again."""
    told, gone = both.ask("alone_on_a_node", 100, once=True)
    assert gone == "gone"
    assert "NCCL tells of ncclRemoteError on stand-in (device 0), queue 'net': send_recv (" in told
    assert "LEFT" not in told


def test_each_call_of_the_library_fails_once(both: Processes) -> None:
    """Process 1 tells what has failed, process 0 that the other one does not come; then all is well."""
    functions = [f"nccl{name}" for name in OURS]
    theirs, mine = both.ask("library_fails", functions)
    for function, told, said in zip(functions, theirs, mine, strict=False):
        assert said.startswith(f"{function} {function} ("), said
        assert "ncclInternalError" in said
        if function == "ncclCommDestroy":  # all was over
            assert told == "no error"
        elif function in ("ncclGroupStart", "ncclCommInitRankConfig", "ncclGroupEnd"):
            left = f"process 1 of 2 has left: {function} (the communicators of queue 'vendor'" in told
            assert left or told.startswith("ncclCommInitRankConfig (the communicators of queue 'vendor', "), told
            assert left or told.endswith("ncclRemoteError: another rank failed, or left"), told
        else:
            assert "ncclRemoteError" in told or f"process 1 of 2 has left: {function}" in told, told
        assert "LEFT" not in said + told, (said, told)
    assert (theirs[-1], mine[-1]) == ("no error", "no error")


def test_a_process_without_the_library_is_named(both: Processes) -> None:
    for answer in both.ask("engine", "gemm_ar/serial", settings="nccl PLACE22809"):
        assert answer == "copies and sums: process 0 has NCCL 2.28.9, process 1 has NCCL 12.28.9"
    for answer in both.ask("engine", "gemm_ar/serial", settings="nccl 0"):
        assert answer.startswith("copies and sums: NCCL does not tell its version")


@pytest.mark.parametrize("name", ["gemm_ar/serial", "ag_gemm/hierarchical"])
def test_callers_graphs_hold_runs_with_collectives(both: Processes, name: str) -> None:
    """A graph in each process, replayed twice at each one's own pace."""
    _right(name, both.ask("captured", name, 4))


@pytest.mark.parametrize("node", [1, 2])
def test_collectives_alone_stand_in_callers_graphs(both: Processes, node: int) -> None:
    """The capture comes before any run of the host; then runs of the host stand among replays."""
    assert both.ask("captured_calls", node, "right") == [(["right"] * 6, "")] * 2


def test_a_collective_of_a_replay_that_fails_is_told(both: Processes) -> None:
    """The communicators are aborted, and given back when the caller has dropped his graph."""
    for (right, told), left in both.ask("captured_calls", 2, "lost"):
        assert right == "right"
        assert "NCCL tells of ncclRemoteError on stand-in (device " in told
        assert "queue 'vendor': all_gather (every.ficco:12), all_reduce" in told
        assert left == ""


@pytest.mark.parametrize(("node", "call"), [(1, 50), (2, 100)])
def test_a_process_is_killed_among_replays_of_callers_graphs(both: Processes, node: int, call: int) -> None:
    told, gone = both.ask("captured_calls", node, "killed", call, once=True)
    assert gone == "gone"
    assert ("ended in the midst of a run" in told[0][1]) or ("NCCL tells of ncclRemoteError" in told[0][1]), told
    assert told[1] == ""


def test_graphs_of_callers_are_dropped_before_the_executor_is_closed(both: Processes) -> None:
    """NCCL keeps a communicator while a graph holds its calls: that is told, and what remains goes with the graph."""
    for (right, told), left in both.ask("captured_calls", 2, "kept"):
        assert right == "right"
        assert told.startswith("the communicators stay: graphs of yours hold runs of this executor; drop them before")
        assert left == ""


FOUR: dict[str, object] = {"M": 64, "N": 16, "K": 32, "T": "fp32", "counts": [[3, 5, 1, 2], [4, 2, 0, 3]] * 2}


@pytest.mark.skipif(not cases.ALL, reason="half a minute: it opens processes of its own, and runs back to back")
def test_the_tool_for_two_gpus_finds_callers_graphs_right() -> None:
    assert processes.started({"driver": "stand-in", "parts": ["capture", "ways"], "scale": 1})


@pytest.mark.skipif(not cases.ALL, reason="a minute: two nodes of two processes, by the tool for GPUs")
@pytest.mark.parametrize("part", test_nodes.PARTS)
def test_the_tool_for_gpus_finds_all_right(part: test_nodes.Part) -> None:
    assert test_nodes.in_processes(test_nodes.Asked(part, 2, 1, FOUR, True), 4)

"""Memory that passes as fabric handles: where descriptors do not pass, and between machines of one NVLink domain."""

from __future__ import annotations

import gc

import pytest

import ficco_rt as ficco
from tests import cases
from tests.mock.processes import Processes
from tests.mock.standin import StandIn
from tests.mock.test_processes import COMMAND, _right, _tensors

pytestmark = pytest.mark.parametrize("both", ["cuda"], indirect=True)
NAME = "gemm_rs/streamed"
NO_SOCKETS = ("refusing", "abstract path")
TRY = (
    "(to see that memory passes as fabric handles, stand-in (device 0)): CUDA_ERROR_NOT_PERMITTED: fabric handles need"
)


@pytest.mark.parametrize("name", cases.few(cases.SCHEDULES, 2, 5))
def test_right_between_machines(both: Processes, name: str) -> None:
    """In any order of streams, and nothing is left at either side."""
    _right(name, both.ask("apart", "shipped", name, 2, settings="fabric 7; devices 1; uuid PLACE"))


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ("fabric 1", "fabric handles"),
        ("fabric 1; way 0", "fabric handles"),  # GPUs without descriptors
        ("fabric -1; shared 1", "IPC handles"),  # the device has them, and the process may use none
        ("fabric 1PLACE; shared 1", "IPC handles"),  # the processes have different channels
        ("shared 1", "IPC handles"),
    ],
)
def test_they_pass_where_descriptors_do_not(both: Processes, settings: str, way: str) -> None:
    assert both.ask(*NO_SOCKETS, "opened", NAME, settings=settings) == [way] * 2


def test_descriptors_pass_first(both: Processes) -> None:
    assert both.ask("opened", NAME, settings="fabric 1") == ["file descriptors"] * 2


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("fabric 0", "the GPUs have none. Or compile for a machine of nodes"),
        ("fabric PLACE", "the GPUs have none. Or compile for a machine of nodes"),
        ("fabric -1", f"process 0: cuMemCreate {TRY} an IMEX channel"),
        ("fabric 1PLACE", f"process 0: cuMemImportFromShareableHandle {TRY}"),
    ],
)
def test_machines_between_which_nothing_passes(both: Processes, settings: str, why: str) -> None:
    for place, answer in enumerate(both.ask("apart", "opened", NAME, settings=settings)):
        said = f"UsageError: processes {place} and {1 - place} are on different machines, and the plan has their ranks"
        assert answer.startswith(said), answer
        assert f"as fabric handles alone, and here it does not: {why}" in answer
        assert "LEFT" not in answer


def test_the_last_way_tells_why_the_one_before_it_failed(both: Processes) -> None:
    settings = "fabric -1; shared 1; fail cuIpcOpenMemHandle 1 201"
    for answer in both.ask(*NO_SOCKETS, "opened", NAME, settings=settings):
        assert f"--pid=host. As fabric handles memory does not pass: process 0: cuMemCreate {TRY}" in answer, answer
        assert "LEFT" not in answer


def test_each_call_fails_once(both: Processes) -> None:
    """When it is tried, the next way is taken; later on, both processes tell."""
    calls = ("cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemMap", "cuMemUnmap")
    numbers = (1, 2, 2, 3, 3)  # of the first call behind the trial
    functions = [*calls[:4], *(f"{call} {n + 1}" for call, n in zip(calls[:4], numbers, strict=False))]
    mine, theirs = both.ask(*NO_SOCKETS, "faults", NAME, functions, settings="fabric 1; shared 1", limit=120)
    for function, said, told in zip(functions, mine, theirs, strict=True):
        call, _, later = function.partition(" ")
        if not later:
            assert (said, told) == (f"{call}: no error", "no error")
            continue
        assert said.startswith(f"{call}: {call}"), said
        assert "CUDA_ERROR_UNKNOWN" in said
        assert f"process 0 failed: {call}" in told or f"process 0 of 2 has left: {call}" in told, told
        assert "LEFT" not in said + told, (said, told)


def test_a_handle_of_a_process_that_has_ended(both: Processes) -> None:
    """It keeps no memory: whoever maps it then is told."""
    told, gone = both.ask("apart", "orphaned", NAME, settings="fabric 1", once=True)
    assert gone == "gone"
    assert told.startswith("Refused: cuMemImportFromShareableHandle (memory of process 1"), told
    assert "has process 1 ended? fabric handles need an IMEX channel" in told
    assert "LEFT" not in told


def test_tensors_of_callers_between_machines(both: Processes) -> None:
    """Those of `ficco_rt.empty` pass, whose memory leaves either way. Ordinary memory does not leave the machine."""
    _tensors(both.ask("apart", "given", "empty", settings="fabric 1"))
    for answer in both.ask("apart", "given", "ordinary", settings="fabric 1; shared 1"):
        assert "cannot be given to processes of another machine; take tensors of ficco_rt.empty(" in answer, answer
        assert "LEFT" not in answer


@pytest.mark.parametrize(("more", "code"), [(("--node", "2"), 0), ((), 1)])
def test_the_command_line_says_that_machines_are_one_node(both: Processes, more: tuple[str, ...], code: int) -> None:
    """The launcher says that each machine has one GPU: then nothing but messages leads from one to another."""
    words = (*COMMAND, "--backend", "cuda", *more)
    (found, said), _ = both.ask("launched_apart", words, settings="fabric 1; devices 1; uuid PLACE", once=True)
    assert found == code, said


@pytest.mark.parametrize("fabric", [0, 1, -1])
def test_tensors_are_made_where_fabric_handles_may_not_be_used(cuda: StandIn, fabric: int, both: Processes) -> None:
    cuda.set(f"devices 1; fabric {fabric}")
    tensor = ficco.empty(4, "fp32", driver="cuda")
    assert cuda.live()["physicals"] == 1
    assert cuda.called()["cuMemCreate"] == (2 if fabric < 0 else 1)
    del tensor
    gc.collect()
    assert not cuda.live()
    assert not cuda.violations()

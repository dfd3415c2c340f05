"""A plan in two processes, each with a GPU of its own: right in any order, and every trouble told in both."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from ficco_rt.exec.inputs import fresh_inputs
from ficco_rt.exec.verify import compare
from tests import cases
from tests.mock.processes import Processes, claimed

DRAWN = [
    (face, name, number)
    for face, names in (("cuda", cases.few(cases.SCHEDULES, 6, 1)), ("hip", cases.few(cases.SCHEDULES, 3, 2)))
    for number, name in enumerate(names)
]
SEEDS = 20 if cases.ALL else 4
MODERN = "version 70100000"  # of HIP: all memory goes as file descriptors, which imports take by value


def _right(name: str, answers: list[Any]) -> None:
    """Both processes' outputs of each seed are what the schedule claims, and nothing is left."""
    for answer in answers:
        assert not isinstance(answer, str), answer
        assert answer[1] == ""
    plan = claimed(name)
    for seed, parts in enumerate(zip(*(found for found, _ in answers), strict=True)):
        got = {key: array for part in parts for key, array in part.items()}
        names = [t.name for t in plan.tensors if t.kind == "output"]
        outputs = {name: [got[name, rank] for rank in range(2)] for name in names}
        result = compare(plan, fresh_inputs(plan, seed, "exact"), outputs, "exact")
        assert result.ok, (seed, result.worst)


@pytest.mark.parametrize(("both", "name", "number"), DRAWN, indirect=["both"])
def test_right_in_every_order(both: Processes, name: str, number: int) -> None:
    settings = ("", {"cuda": "flush 1", "hip": MODERN}[both.face])[number % 2]
    _right(name, both.ask("shipped", name, SEEDS, settings=settings))


@pytest.mark.parametrize(("both", "name"), [("cuda", n) for n in cases.few(cases.SCHEDULES, 1, 3)], indirect=["both"])
def test_graphs_of_callers_are_replayed_in_each_process(both: Processes, name: str) -> None:
    """HIP takes no part in callers' graphs."""
    _right(name, both.ask("captured", name, SEEDS))


@pytest.mark.parametrize(("both", "name", "number"), DRAWN, indirect=["both"])
def test_right_where_processes_take_turns_on_a_gpu(both: Processes, name: str, number: int) -> None:
    settings = ("", {"cuda": "way 0; shared 1", "hip": MODERN}[both.face])[number % 2]
    _right(name, both.ask("sharing", "shipped", name, SEEDS, settings=settings))


def test_device_plans_know_which_processes_share_a_gpu(both: Processes) -> None:
    """Copies between such processes take a multiprocessor."""
    assert both.ask("sharing", "gpus_of", "concurrent/ar_streamed") == [[0, 0]] * 2
    assert both.ask("gpus_of", "concurrent/ar_streamed") == [[]] * 2


def test_graphs_of_callers_on_a_gpu_of_two_processes(cuda_pair: Processes) -> None:
    _right("gemm_ar/streamed", cuda_pair.ask("sharing", "captured", "gemm_ar/streamed", SEEDS))
    answers = cuda_pair.ask("sharing", "mixed", "ag_gemm/oneshot", 5)
    _right("ag_gemm/oneshot", [answer if isinstance(answer, str) else answer[::2] for answer in answers])


def test_the_command_line_lets_processes_share_a_gpu(cuda_pair: Processes) -> None:
    sizes = ("--set", "M=64", "--set", "N=64", "--set", "K=64")
    words = ["gemm_rs/streamed", "--gpus", "2", "--ranks-per-gpu", "2", *sizes, "--no-baselines", "--backend", "cuda"]
    answers = cuda_pair.ask("command", words, 0, "", settings="devices 1")
    assert [code for code, _ in answers] == [0, 0], answers
    assert "(1×stand-in, 2 ranks each)" in answers[0][1]


def test_what_processes_cannot_do_on_one_gpu(cuda_pair: Processes) -> None:
    copies = ["copies and sums: no library lets processes share a GPU"] * 2
    assert cuda_pair.ask("sharing", "engine", "gemm_ar/serial", settings="nccl 22809") == copies
    for answer in cuda_pair.ask("sharing", "engine", "gemm_ar/serial", "library", settings="nccl 22809"):
        assert answer == (
            "UsageError: collectives of a library: no library lets processes share a GPU; take copies and sums "
            "(--collectives copies)"
        )
    for answer in cuda_pair.ask("sharing", "engine", "gemm_ar/serial", settings="exclusive 1"):
        assert re.fullmatch(
            r"UsageError: processes 0 and 1 have the same GPU \([0-9a-f]+\), which is in an exclusive compute mode; "
            "`nvidia-smi -c DEFAULT` ends that",
            answer,
        )


@pytest.mark.parametrize(
    ("both", "name"),
    [("cuda", name) for name in ("ag_gemm/oneshot", "gemm_rs/oneshot", "gemm_ar/oneshot")],
    indirect=["both"],
)
def test_runs_take_two_sets_by_turns(both: Processes, name: str) -> None:
    """Whatever kinds of runs there are."""
    answers = both.ask("mixed", name, 10)
    _right(name, [answer if isinstance(answer, str) else answer[::2] for answer in answers])
    assert [sets for _, sets, _ in answers] == [[1, 0, 1, 0, 1, 0, 1, 0]] * 2


def test_one_process_replays_what_the_other_one_calls(cuda_pair: Processes) -> None:
    """Both tell that their runs differ, when their time is up."""
    answers = cuda_pair.ask("half_replayed", "ag_gemm/oneshot", 2.0)
    late = "the run did not end within 2 s (--timeout)"  # the other one hears of it, or is late by itself
    assert any(answer.startswith(f"DeviceError: {late}") for answer in answers), answers
    for place, answer in enumerate(answers):
        told = f"DeviceError: process {1 - place} gave up run {2 - place}: {late}"
        assert answer.startswith((told, f"DeviceError: {late}")), answers
    assert any("all run the same" in answer for answer in answers)
    assert not any("LEFT" in answer for answer in answers), answers


@pytest.mark.parametrize(
    ("refused", "settings", "way"),
    [
        ("abstract", "", "file descriptors over a path"),  # containers with network namespaces of their own
        ("abstract path", "shared 1", "IPC handles"),  # and with folders of their own
        ("", "way 0; shared 1", "IPC handles"),
    ],
)
def test_memory_goes_by_the_way_that_there_is(both: Processes, refused: str, settings: str, way: str) -> None:
    assert both.ask("refusing", refused, "opened", "ag_gemm/streamed", settings=settings) == [way] * 2


@pytest.mark.parametrize(
    "settings",
    [
        "devices 1; uuid PLACE",  # each process sees its own GPU alone
        f"devices 2; uuid PLACE; {MODERN}",  # and the second one's GPU stands first in the second one alone
    ],
)
def test_processes_see_other_gpus(both: Processes, settings: str) -> None:
    assert both.ask("opened", "gemm_rs/streamed", settings=settings) == ["file descriptors"] * 2


@pytest.mark.parametrize(
    ("both", "kind", "settings"),
    [
        ("cuda", "ordinary", "way 0; shared 1; reuse 1"),
        ("cuda", "ordinary", "shared 1; reuse 1"),
        ("cuda", "mapped", ""),
        ("hip", "ordinary", "shared 1; reuse 1"),
    ],
    indirect=["both"],
)
def test_memory_that_is_made_anew_at_its_address(both: Processes, kind: str, settings: str) -> None:
    """All processes bind it again, in step; a process that alone does so hears of it, and the others do."""
    answers = both.ask("stale", kind, (0, 1), 15.0, settings=settings)
    for answer in answers:
        assert not isinstance(answer, str), answer
        assert answer[1] == ""
    plan = claimed("gemm_ar/streamed")
    inputs = fresh_inputs(plan, 3, "exact")
    for turn in range(3):
        outputs = {"C": [answers[rank][0][turn]["C", rank] for rank in range(2)]}
        assert compare(plan, inputs, outputs, "exact").ok, turn
    for answer in both.ask("stale", kind, (1,), 1.0, settings=settings, once=True):
        assert answer.startswith(("DeviceError: ", "LeftError: ")), answer


def test_memory_behind_ipc_handles_is_freed_when_all_have_closed_them(hip_pair: Processes) -> None:
    (freed, left), (closing, other_left) = hip_pair.ask("parts", "gemm_rs/streamed", 0.4)
    assert freed >= closing  # process 0 frees its memory only when process 1 has closed what it had open of it
    assert left == other_left == ""


def test_groups_that_are_not_the_job(both: Processes) -> None:
    assert both.ask("alone", "ag_gemm/streamed") == ["GPU 0", "GPU 1"]
    _right("gemm_rs/streamed", both.ask("reversed", "gemm_rs/streamed"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("devices 1", "UsageError: processes 0 and 1 have the same GPU"),
        ("link 0 1 0", "has no direct access to the memory of process"),
        # a GPU that the other process does not see, and cannot reach: a part of a GPU (MIG), say
        ("devices 1; uuid PLACE; link 0 63 0", "take whole GPUs, no parts of them (MIG), that reach each other"),
        ("way 0; shared 0", "neither as file descriptors nor as fabric or IPC handles; run all ranks in one process"),
        ("way 0; shared 1; fail IPC 1 201", "or start them with --ipc=host and --pid=host"),
    ],
)
def test_gpus_that_do_not_go_together(both: Processes, settings: str, said: str) -> None:
    opened = {"cuda": "cuIpcOpenMemHandle", "hip": "hipIpcOpenMemHandle"}[both.face]
    for answer in both.ask("opened", "ag_gemm/streamed", settings=settings.replace("IPC", opened)):
        assert said in answer or "process 0 failed" in answer or "all but 0" in answer, answer
        assert "LEFT" not in answer


def test_another_plan_is_told_with_both(both: Processes) -> None:
    for answer in both.ask("other_plans"):
        assert answer.startswith(
            "UsageError: the processes do not run the same: schedule is ag_gemm_streamed in process 0 and "
            "ag_gemm_oneshot in process 1; "
        ), answer
        assert "plan is " not in answer  # a hash says nothing more
        assert "LEFT" not in answer


@pytest.mark.parametrize("both", ["cuda", "hip"], indirect=True)
@pytest.mark.parametrize("waits", [0.0, 0.3])
@pytest.mark.parametrize("interrupted", [True, False])
def test_the_other_hears_why_a_process_has_left(both: Processes, interrupted: bool, waits: float) -> None:
    told, left = both.ask("leaves", "ag_gemm/streamed", interrupted, waits)
    why = "interrupted" if interrupted else "C: wanted 3 columns"
    assert told.splitlines()[0] == f"DeviceError: process 1 gave up run 1: {why}"  # where it stands comes behind it
    assert left == ("" if interrupted else f"UsageError: {why}")


def test_another_order_is_told(both: Processes) -> None:
    answers = both.ask("other_orders")
    assert answers[0].startswith(
        "UsageError: processes do different things: process 0 is at capture, process 1 at bind"
    )
    assert answers[1].startswith("UsageError: processes do different things: process 1 is at bind tensors, process 0")
    assert not any("LEFT" in answer for answer in answers)


FUNCTIONS = {
    "cuda": (
        "cuMemCreate",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuMemGetAllocationGranularity",
        "cuDeviceGetUuid",
    ),
    "hip": (
        "hipMemCreate",
        "hipMemAddressReserve",
        "hipMemMap",
        "hipMemSetAccess",
        "hipMemExportToShareableHandle",
        "hipMemImportFromShareableHandle",
        "hipMemGetAllocationGranularity",
        "hipMemGetAddressRange",
        "hipPointerGetAttribute",
        "hipIpcGetMemHandle",
        "hipIpcOpenMemHandle",
        "hipDeviceGetUuid",
    ),
}
UNKNOWN = {"cuda": "CUDA_ERROR_UNKNOWN", "hip": "hipErrorUnknown"}


def test_each_call_of_the_exchange_fails_once(both: Processes) -> None:
    """The process whose call fails tells it; the other one tells that the first has failed; then all is well."""
    functions = FUNCTIONS[both.face]
    mine, theirs = both.ask("faults", "ag_gemm/streamed", functions, limit=120)
    for function, said, told in zip(functions, mine, theirs, strict=True):
        assert said.startswith(f"{function}: {function}"), said
        assert UNKNOWN[both.face] in said
        assert f"process 0 failed: {function}" in told or f"process 0 of 2 has left: {function}" in told, told
        assert "LEFT" not in said + told, (said, told)


ABSENT = range(24)
TRIED = 6  # where it is tried whether descriptors pass: no other way is then tried


@pytest.mark.parametrize(
    ("both", "step"),
    sorted({(face, n) for turn, face in enumerate(("cuda", "hip")) for n in (TRIED, *cases.few(ABSENT, 2, turn))}),
    indirect=["both"],
)
def test_a_process_that_does_not_come_to_an_exchange(both: Processes, step: int) -> None:
    told, absent = both.ask("absent", "ag_gemm/streamed", step, 0.4)
    assert absent == "absent" or absent.startswith(("DeviceError: process 1 has waited", "LeftError: ")), absent
    assert (step != TRIED) or told.startswith("DeviceError: process 0 has waited 0.4 s for tell sockets' names"), told
    if told.startswith(("LeftError: process 1 of 2", "DeviceError: process 1 gave up")) and "_AbsentError" in told:
        return  # the `with` of its executor, once there is one, tells the others
    gone = "memory of another process cannot be opened by its IPC handle. Has that process ended?"
    assert told.startswith("DeviceError: process 0 has waited") or gone in told, told
    assert told.endswith(", and process 1 of 2 has not come") or gone in told, told


@pytest.mark.parametrize(("kind", "settings"), [("empty", ""), ("ordinary", "shared 1"), ("empty", "way 0; shared 1")])
def test_tensors_of_callers(both: Processes, kind: str, settings: str) -> None:
    _tensors(both.ask("given", kind, settings=settings))


@pytest.mark.parametrize("both", ["cuda"], indirect=True)
def test_expandable_segments_that_were_made_for_sharing(both: Processes) -> None:
    _tensors(both.ask("given", "expandable"))


def _tensors(answers: list[Any]) -> None:
    for answer in answers:
        assert not isinstance(answer, str), answer
        assert answer[1] == ""
    name = "gemm_ar/streamed"  # whose outputs other ranks write
    plan = claimed(name)
    got = {key: array for found, _ in answers for key, array in found.items()}
    outputs = {"C": [got["C", rank] for rank in range(2)]}
    result = compare(plan, fresh_inputs(plan, 3, "exact"), outputs, "exact")
    assert result.ok, result.worst


@pytest.mark.parametrize(
    ("both", "kind"),
    [("cuda", "mapped"), ("cuda", "pooled"), ("hip", "mapped"), ("hip", "expandable")],
    indirect=["both"],
)
def test_memory_that_cannot_leave_the_process(both: Processes, kind: str) -> None:
    """HIP's runtimes do not all count handles of mapped memory."""
    answers = both.ask("given", kind, settings="shared 1")
    assert any("cannot be given to other processes; take tensors of ficco_rt.empty" in answer for answer in answers), (
        answers
    )
    assert not any("LEFT" in answer for answer in answers), answers


@pytest.mark.parametrize("both", ["hip"], indirect=True)
def test_copies_to_the_other_process_that_do_not_arrive(both: Processes) -> None:
    """They are seen at the start, and made by compute units."""
    assert both.ask("kinds", "gemm_rs/chunked") == [["hipMemcpyDeviceToDeviceNoCU"] * 2] * 2
    assert both.ask("kinds", "gemm_rs/chunked", settings="copies_lost 1") == [["hipMemcpyDeviceToDevice"] * 2] * 2


def test_a_trace_has_the_spans_of_all_processes(both: Processes) -> None:
    (mine, left), (theirs, _) = both.ask("traced", "ag_gemm/streamed")
    assert left == ""
    assert mine == theirs
    assert {span.rank for span in mine.spans if span.kind == "gemm"} == {0, 1}
    assert min(span.start for span in mine.spans) >= 0
    assert mine.within > 0


@pytest.mark.parametrize(("both", "runs"), [("cuda", 100), ("hip", 20)], indirect=["both"])
def test_runs_leave_nothing(both: Processes, runs: int) -> None:
    for before, after in both.ask("flat", "gemm_rs/ring", runs):
        assert before == after


def test_new_tensors_leave_nothing(both: Processes) -> None:
    """What one process gives back the other one unmaps when it hears of it."""
    for before, after in both.ask("rebound", 6):
        assert before == after


def test_one_process_may_replay_graphs_while_the_other_issues_streams(both: Processes) -> None:
    _right("ag_gemm/streamed", both.ask("unequal", "ag_gemm/streamed", "graphs", 15.0))


def test_numbers_of_runs_and_bindings_that_differ_are_told(both: Processes) -> None:
    told, right = both.ask("unequal", "ag_gemm/streamed", "runs", 0.5)
    assert told.startswith("DeviceError: the run did not end within 0.5 s (--timeout)\nprocess 1 runs nothing, since ")
    assert "1 runs issued, 1 seen to end (this process, 0, has issued 2: all run the same)" in told
    assert right[1] == ""
    # others write to callers' tensors, so that a run that is given up stays blocked
    binds, runs = both.ask("unequal", "gemm_ar/streamed", "binds", 0.5, once=True)
    absent = "process 0 has waited 0.5 s for bind tensors, and process 1 of 2 has not come"
    late = "the run did not end within 0.5 s (--timeout)\nprocess 0 runs nothing, "
    # each is late by itself, unless the other one has told before
    assert binds == f"DeviceError: {absent}" or binds.startswith(f"LeftError: process 1 of 2 has left: {late}"), binds
    assert runs.startswith((f"DeviceError: {late}", f"DeviceError: process 0 gave up run 1: {absent}\n")), runs
    assert "1 runs issued, 1 seen to end (this process, 1, has issued 2: all run the same)" in runs


KILLS = {"cuda": [(1, 61, True), (0, 37, False), (0, 5, True)], "hip": [(0, 61, False), (1, 5, True)]}


@pytest.mark.parametrize(
    ("both", "dies", "call", "graph"),
    [(face, *kill) for face, kills in KILLS.items() for kill in (kills if cases.ALL else kills[:1])],
    indirect=["both"],
)
def test_a_killed_process_ends_the_other(both: Processes, dies: int, call: int, graph: bool) -> None:
    answers = both.ask("doomed", "ag_gemm/streamed", dies, call, graph, once=True)
    assert answers[dies] == "gone"
    assert answers[1 - dies].startswith(f"DeviceError: process {dies} ended in the midst of a run\n"), answers[1 - dies]
    assert f"process {dies} is gone; when it ended: it" in answers[1 - dies]
    assert "LEFT" not in answers[1 - dies]


# Calls of a life by their numbers: devices and streams, memory and its exchange, kernels and graphs, the run, the end.
STEPS = [1, *range(20, 460, 20), 600, 1000]


@pytest.mark.parametrize(
    ("both", "call"),
    [(face, call) for turn, face in enumerate(("cuda", "hip")) for call in cases.few(STEPS, 3, turn)],
    indirect=["both"],
)
def test_a_process_is_killed_at_any_step(both: Processes, call: int, tmp_path: Path) -> None:
    """The other one ends, and says so if it had to wait; nothing is left, and the next start works."""
    dies = call // 20 % 2
    told = both.ask("life", "ag_gemm/streamed", dies, call, str(tmp_path), 0.8, once=True)
    other = told[1 - dies]
    assert other.isdecimal() or other.startswith(("DeviceError: process", "DeviceError: the run did not end")), other
    # on a busy machine the other one may give up before
    assert told[dies] == "gone" or told[dies].isdecimal() or other.startswith("DeviceError"), told
    assert "LEFT" not in other + told[dies], told
    assert not list(tmp_path.iterdir())
    assert not [name for name in os.listdir("/dev/shm") if "ficco" in name]


COMMAND = ("ag_gemm/streamed", "--set", "M=64", "--set", "N=64", "--set", "K=64", "--timeout", "2")


@pytest.mark.parametrize(
    ("both", "settings", "said"),
    [
        ("cuda", "", ""),
        ("hip", f"fail hipMemCreate 2 2; {MODERN}", r"\[process 1\] ficco-run: hipMemCreate \(.*take smaller sizes"),
        (
            "cuda",
            "fail cuMemImportFromShareableHandle 1 999",
            r"\[process 1\] ficco-run: cuMemImportFromShareableHandle",
        ),
        ("hip", "kill 60", "and process 1 of 2 has not come"),
        ("cuda", "kill 600", "process 1 (ended in the midst of a run|of 2 has not come)"),
    ],
    indirect=["both"],
)
def test_the_command_line_tells_each_fault_once(both: Processes, settings: str, said: str) -> None:
    words = (*COMMAND, "--backend", both.face)
    (code, told), other = both.ask("command", words, 1, settings, once=True)
    assert code == (3 if said else 0), told
    assert re.search(said, told), told
    assert told.count("ficco-run: ") == bool(said), told
    assert other == ("gone" if "kill" in settings else (code, "")), other

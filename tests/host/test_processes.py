"""The host driver in several processes: right, and none hangs when another one is killed, fails or goes astray."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest

import ficco_rt
from ficco_rt.driver.api import Array
from ficco_rt.driver.host import peers, segment
from ficco_rt.driver.host.peers import Peers
from ficco_rt.errors import DeviceError, LeftError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import Verification, verified_run
from ficco_rt.plan.ir import Plan
from ficco_rt.process.group import Group
from ficco_rt.types import numpy_dtype
from tests.host.handmade import MACHINE, array, blank, gather_plan, plan, record, tensor, wait
from tests.host.processes import dies, group_of, several
from tests.unit.threads import together

A = [np.arange(8).reshape(2, 4), np.ones((2, 4))]
B = [np.ones((4, 3)), np.arange(12).reshape(4, 3)]


def executor_of(folder: Path, place: int, made: Plan | None = None, timeout: float = 20.0) -> Executor:
    """Of a plan of two ranks, one in each process."""
    return Executor(made or gather_plan(), machine=MACHINE, group=group_of(folder, 2, place), timeout=timeout)


def ran(executor: Executor) -> Array:
    """The result of a run on this process's rank."""
    [rank] = executor.ranks
    c = blank(4, 3)
    executor.run(A=[array(A[rank])], B=[array(B[rank])], C=[c])
    return c


def is_right(results: list[Array]) -> bool:
    return all(np.array_equal(c, np.vstack(A) @ B[rank]) for rank, c in enumerate(results))


def test_each_process_gives_and_gets_its_own_ranks_tensors(tmp_path: Path) -> None:
    def body(place: int) -> object:
        with executor_of(tmp_path, place) as executor:
            told = []
            for wrong in (
                lambda: executor.run(A=list(map(array, A))),
                lambda: executor.read("C", 1 - place),
            ):
                with pytest.raises(UsageError) as caught:
                    wrong()
                told.append(str(caught.value))
            return repr(executor), executor.ranks, told, [ran(executor) for _ in range(3)]

    found = several(tmp_path, 2, body)
    for place, (name, ranks, told, _) in enumerate(found):
        assert (name, ranks) == ("<Executor of x: 1 of 2 ranks by the host driver>", (place,))
        assert told == [
            "input A: wanted a list of 1 arrays, one a rank of this process; given 2 arrays",
            f"C of rank {1 - place} is in another process; this one has the ranks {place}",
        ]
    assert all(is_right([runs[number] for *_, runs in found]) for number in range(3))


def test_an_executor_that_nobody_closed_is_closed_when_it_is_freed(tmp_path: Path) -> None:
    def body(place: int) -> object:
        executor = executor_of(tmp_path, place)
        ran(executor)
        if place:
            with pytest.warns(ResourceWarning, match="an executor of schedule 'x' was not closed"):
                del executor
            beats = [thread for thread in threading.enumerate() if "beat" in thread.name]
            for thread in beats:
                thread.join(20)
            return len(beats) <= 1 and not any(thread.is_alive() for thread in beats)
        with executor, pytest.raises(UsageError) as caught:
            ran(executor)
        return str(caught.value)

    told, is_over = several(tmp_path, 2, body)
    assert str(told).startswith("process 0 begins run 2 of x, and process 1 has closed its executor after run 1: all")
    assert is_over


# Where a process is killed: the method that it begins, and which call of it.
STEPS = [
    *((Group, "exchange", call) for call in range(7)),
    (Peers, "enter", 0),
    *((Peers, "at", call) for call in range(3)),  # a copy and two products
    (Peers, "tell", 0),
    (Peers, "end", 0),
    (Peers, "enter", 1),
    (Peers, "at", 4),
    (Peers, "close", 0),
]


@pytest.mark.parametrize(("owner", "name", "call"), STEPS, ids=[f"{n}-{c}" for _, n, c in STEPS])
def test_a_killed_process_ends_the_other(tmp_path: Path, owner: type, name: str, call: int) -> None:

    def body(place: int) -> object:
        if place == 1:
            dies(owner, name, call)
        with pytest.raises(DeviceError) as caught:
            runs(place)
        return str(caught.value)

    def runs(place: int) -> None:
        with executor_of(tmp_path, place, timeout=0.5) as executor:
            ran(executor)
            if name != "close" or place == 0:
                ran(executor)

    message, killed = several(tmp_path, 2, body)
    assert killed is None
    assert not [name for name in os.listdir("/dev/shm") if "ficco" in name]
    if name == "exchange":
        passing = ("tell sockets' names", "pass descriptors")
        step = ("the same facts", "memory to share", *passing, *passing, "memory that is shared")[call]
        waited = 1 if step == "pass descriptors" else 0.5
        assert message == f"process 0 has waited {waited} s for {step}, and process 1 of 2 has not come"
        return
    where = {
        ("enter", 0): "has not begun run 1; it has begun none yet",
        ("at", 0): "has begun run 1 and has done nothing of it",
        ("at", 1): "was last at a copy (x.ficco:10) on rank 1 stream dma in run 1",
        ("at", 2): "was last at work 0 of stage 'mm' (x.ficco:20) on rank 1 stream compute in run 1",
        ("tell", 0): "was last at a copy (x.ficco:10) on rank 1 stream dma in run 1",
        ("end", 0): "was last at work 0 of stage 'mm' (x.ficco:30) on rank 1 stream compute in run 1",
        ("enter", 1): "has not begun run 2; the last that it began was run 1",
        ("at", 4): "was last at a copy (x.ficco:10) on rank 1 stream dma in run 2",
        ("close", 0): "has not begun run 2; the last that it began was run 1",
    }[name, call]
    assert message == f"process 1 has ended: it {where}"


def test_a_process_that_fails_tells_the_other_and_both_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(place: int) -> object:
        def broken(self: Peers, job: object) -> None:
            raise DeviceError("this is broken")

        with executor_of(tmp_path, place) as executor:
            first = ran(executor)
            if place == 1:
                right, Peers.at = Peers.at, broken
            with pytest.raises(DeviceError) as caught:
                ran(executor)
            if place == 1:
                Peers.at = right
            return first, (type(caught.value), str(caught.value)), ran(executor)

    first, told, last = zip(*several(tmp_path, 2, body), strict=True)
    assert is_right(list(first))
    assert is_right(list(last))
    assert told[1] == (DeviceError, "this is broken")
    assert told[0] == (LeftError, "process 1 has given up run 2: this is broken")


def test_a_deadlock_is_told_at_once(tmp_path: Path) -> None:
    made = plan(
        [tensor("S", "scratch", (1, 1), (1, 1))],
        [(0, "copy", [wait(1, 12), record(0, 13)]), (1, "copy", [wait(0, 20), record(1, 21)])],
        events=2,
    )

    def body(place: int) -> str:
        with executor_of(tmp_path, place, made) as executor:
            with pytest.raises(DeviceError) as caught:
                executor.run()
            return str(caught.value)

    lines = [
        "deadlock: rank 0 stream dma waits for event 1 (x.ficco:12), which rank 1 stream dma of process 1 records "
        "(x.ficco:21)",
        "deadlock: rank 1 stream dma waits for event 0 (x.ficco:20), which rank 0 stream dma of process 0 records "
        "(x.ficco:13)",
    ]
    told = several(tmp_path, 2, body)
    for place in range(2):  # each finds it by itself, unless the other has told before
        assert told[place] in (lines[place], f"process {1 - place} has given up run 1: {lines[1 - place]}")
    assert any(told[place] == lines[place] for place in range(2))


def test_a_process_that_does_not_come_is_named(tmp_path: Path) -> None:
    def body(place: int) -> str:
        with executor_of(tmp_path, place, timeout=0.3) as executor:
            time.sleep(0.6 * place)
            with pytest.raises(DeviceError) as caught:
                ran(executor)
            return str(caught.value)

    late = (
        "no process has moved for 0.3 s (timeout) in run 1 of x\nprocess 1 has not begun run 1; it has begun none yet"
    )
    assert several(tmp_path, 2, body) == [late, f"process 0 has given up run 1: {late}"]


def test_a_process_shows_that_it_works_on_a_long_job(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.0, 1.25])
    monkeypatch.setattr(peers.time, "process_time", lambda: next(times))
    mine, working, seen = np.zeros(peers.OWN, np.int64), Event(), []

    class Over:
        def wait(self, seconds: float) -> bool:
            seen.append(int(mine[peers.BEAT]))
            working.set() if len(seen) < 4 else working.clear()
            return len(seen) == 6

    peers._beat(mine, working, Over())
    assert seen == [0, 100, 100, 125, 125, 125]  # not while it hangs, and not while it waits for others


def test_processes_that_cannot_share_memory_are_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(group: Group) -> str:
        with pytest.raises(UsageError) as caught:
            segment.Segment(group, 4096, 10.0)
        return str(caught.value)

    monkeypatch.setattr(segment, "descriptors_pass", lambda *_: None)
    assert (
        together(2, refused)
        == [
            "the processes cannot share memory: file descriptors do not pass between them; give containers a common "
            "network namespace, or a common folder for temporary files (TMPDIR)"
        ]
        * 2
    )
    hosts = iter(["left", "right"])
    monkeypatch.setattr(segment.socket, "gethostname", lambda: next(hosts))
    monkeypatch.setattr(segment.Path, "read_text", lambda path: threading.current_thread().name)
    [said, same] = together(2, refused)
    assert said == same
    assert re.fullmatch(
        "the processes cannot share memory: process 1: it is on (left|right) and process 0 on (left|right); the host "
        "driver runs all ranks on one machine",
        said,
    )


def test_a_forked_process_does_nothing_in_its_parents_name(tmp_path: Path) -> None:
    def body(place: int) -> object:
        with executor_of(tmp_path, place) as executor:
            ran(executor)
            child = os.fork()
            if not child:
                code = 1
                with suppress(BaseException), executor:
                    with pytest.raises(DeviceError, match=f"process {os.getppid()} has made this executor, of a group"):
                        ran(executor)
                    code = 7
                    raise KeyError("the others hear of no error of a child")
                os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            return ran(executor)

    assert is_right(several(tmp_path, 2, body))


def test_different_numbers_of_runs_are_told(tmp_path: Path) -> None:
    def body(place: int) -> str:
        with executor_of(tmp_path, place) as executor:
            ran(executor)
            if place == 1:
                return ""
            with pytest.raises(UsageError) as caught:
                ran(executor)
            return str(caught.value)

    assert several(tmp_path, 2, body)[0] == (
        "process 0 begins run 2 of x, and process 1 has closed its executor after run 1: "
        "all processes make the same runs"
    )


def test_different_plans_are_told_with_both_hashes(tmp_path: Path) -> None:
    def body(place: int) -> str:
        with pytest.raises(UsageError) as caught:
            executor_of(tmp_path, place, gather_plan(n=3 + place))
        return str(caught.value)

    told = several(tmp_path, 2, body)
    assert told[0] == told[1]
    assert re.fullmatch(
        "the processes do not run the same: plan is [0-9a-f]{64} in process 0 and [0-9a-f]{64} in process 1; "
        "give every process the same",
        told[0],
    )


def test_other_sizes_are_told_by_name(tmp_path: Path) -> None:
    def body(place: int) -> str:
        made = ficco_rt.compile("ag_gemm/serial", 2, M=64 * (place + 1), N=32, K=32)
        with pytest.raises(UsageError) as caught:
            Executor(made, group=group_of(tmp_path, 2, place), timeout=20.0)
        return str(caught.value)

    wanted = "the processes do not run the same: M is 64 in process 0 and 128 in process 1; give every process the same"
    assert several(tmp_path, 2, body) == [wanted, wanted]


def _three() -> Plan:
    return ficco_rt.compile("ag_gemm/serial", 3, M=96, N=96, K=32)


@pytest.mark.parametrize("kind", ["wrong shape", "Ctrl-C between runs", "Ctrl-C at the end of a run"])
def test_the_others_hear_why_a_process_has_left(tmp_path: Path, kind: str) -> None:
    """Whatever makes it leave its `with`: the cause once, with its process, and no word of a closed executor."""

    def body(place: int) -> object:
        made = _three()
        group = group_of(tmp_path, 3, place)
        try:
            with Executor(made, group=group, timeout=20.0) as executor:
                given = {
                    t.name: [np.zeros(t.shapes[place], np.float32).astype(numpy_dtype(t.dtype))]
                    for t in made.tensors
                    if t.kind != "scratch"
                }
                executor.run(**given)
                if place == 1:
                    if kind == "wrong shape":
                        given["B"] = [given["B"][0][1:]]
                    elif kind == "Ctrl-C between runs":
                        raise KeyboardInterrupt
                    else:
                        Peers.end = _interrupted(Peers.end)
                        executor.run(**given)
                executor.run(**given)
                executor.run(**given)
        except (DeviceError, UsageError) as error:
            return type(error).__name__, str(error)
        except KeyboardInterrupt:
            return "KeyboardInterrupt", ""
        return "nothing"

    found = several(tmp_path, 3, body)
    text = {
        "wrong shape": (
            "process 1 has left after run 1: input B, rank 1: wanted bfloat16 of shape [32, 32]; given "
            "bfloat16 of shape [31, 32]"
        ),
        "Ctrl-C between runs": "process 1 has left after run 1: interrupted",
        "Ctrl-C at the end of a run": "process 1 has left after run 2: interrupted",
    }[kind]
    assert found[0] == found[2] == ("LeftError", text)
    assert found[1][0] == ("UsageError" if kind == "wrong shape" else "KeyboardInterrupt")


def _interrupted(end: Callable[[Peers], None]) -> Callable[[Peers], None]:
    """Ctrl-C comes when the others know that this process has ended its run."""

    def interrupted(self: Peers) -> None:
        end(self)
        raise KeyboardInterrupt

    return interrupted


def test_an_error_that_was_there_before_is_no_cause(tmp_path: Path) -> None:
    """A program may do all its work while it handles an error, and close as usual."""

    def body(place: int) -> str:
        try:
            raise KeyError("no cache")
        except KeyError:
            with executor_of(tmp_path, place) as executor:
                ran(executor)
                if place == 1:
                    return ""
                with pytest.raises(UsageError) as caught:
                    ran(executor)
        return str(caught.value)

    assert several(tmp_path, 2, body)[0].startswith(
        "process 0 begins run 2 of x, and process 1 has closed its executor"
    )


@pytest.mark.parametrize("right", [True, False])
def test_the_verdict_is_that_of_all_processes(tmp_path: Path, right: bool) -> None:
    made = gather_plan() if right else _wrong_on_rank_1()
    with Executor(made, machine=MACHINE) as executor:
        alone = verified_run(executor, seed=3)

    def body(place: int) -> Verification:
        with executor_of(tmp_path, place, made) as executor:
            return verified_run(executor, seed=3)

    assert several(tmp_path, 2, body) == [alone, alone]
    assert alone.ok == right


def _wrong_on_rank_1() -> Plan:
    """Rank 1 takes rank 0's rows for its own."""
    made = gather_plan()
    *others, stream = made.streams
    own, waits, far = stream.commands
    work = far.works[0]
    wrong = replace(far, works=(replace(work, body=replace(work.body, left=own.works[0].body.left)),))
    return replace(made, streams=(*others, replace(stream, commands=(own, waits, wrong))))

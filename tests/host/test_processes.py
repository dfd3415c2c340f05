"""The host driver in several processes: right, and none hangs when another one is killed, fails or goes astray."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from ficco_rt.driver.api import Array
from ficco_rt.driver.host import peers, segment
from ficco_rt.driver.host.peers import Peers
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import Verification, verified_run
from ficco_rt.group import Group, LeftError
from ficco_rt.plan.ir import Plan
from tests.host.handmade import MACHINE, array, blank, gather_plan, plan, record, tensor, wait
from tests.host.processes import dies, group_of, several

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


# Where a process is killed: the method that it begins, and which call of it.
STEPS = [
    *((Group, "exchange", call) for call in range(3)),
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
        step = ("the same facts", "memory to share", "memory that is shared")[call]
        assert message == f"process 0 has waited 0.5 s for {step}, and process 1 of 2 has not come"
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


def test_processes_that_cannot_share_memory_are_told_why() -> None:
    here = {"machine": "a", "host": "left", "namespace": "pid:[1]"}
    with pytest.raises(UsageError) as caught:
        segment._opened({**here, "machine": "b", "host": "right"}, here)
    assert str(caught.value) == ("it is on left and process 0 on right; the host driver runs all ranks on one machine")
    with pytest.raises(UsageError) as caught:
        segment._opened({**here, "namespace": "pid:[2]", "pid": str(os.getpid()), "file": "0", "name": "ficco-0"}, here)
    assert str(caught.value) == (
        "it does not see process 0, as they are in different PID namespaces (another process has its number); "
        "start all processes as one user, in one container or with --pid=host"
    )


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
    assert told[0].startswith("the processes do not run the same: plan is ")
    assert " in process 0 and " in told[0]
    assert told[0].endswith(" in process 1")


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

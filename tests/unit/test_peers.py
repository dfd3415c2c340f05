"""What the processes of a group find out about each other before they share memory: here threads, of a vendor that has
nothing but names."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ficco_rt.device.features import usual
from ficco_rt.driver.gpu import devices, peers
from ficco_rt.driver.gpu.peers import Peers
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.machine.discover import DeviceFacts
from ficco_rt.process.group import Group, LeftError
from tests.unit.threads import together

FACTS = DeviceFacts("G", "sm_90", 132, 1, 1, 0, 32, 32, 64, 1 << 30, 1, 1, 1)


def vendor(uuids: Sequence[str] = ("a", "b"), chosen: int | None = None, **more: Any) -> Any:
    named = {"name": "cuda", "visible": "CUDA_VISIBLE_DEVICES", "topology": "topo"}
    asked = {
        "count": lambda: len(uuids),
        "uuid": uuids.__getitem__,
        "chosen": lambda: chosen,
        "facts": lambda ordinal: FACTS,
        "can_access": lambda a, b: a != b,
        "exclusive": lambda ordinal: "",
    }
    return SimpleNamespace(**(named | asked | more))


def placed(*vendors: Any, ranks: int = 2, ranks_per_gpu: int = 1) -> list[Any]:
    """Where each process finds its ranks, and which of its devices it takes."""

    def body(group: Group) -> Any:
        made = Peers(vendors[group.rank], group, "x", ranks, ranks, 10)
        placement, locals_, facts = made.place(ranks_per_gpu)
        assert facts == [FACTS] * len(placement.ordinals)
        return placement.devices, placement.processes, locals_

    return together(len(vendors), body)


def told(answers: Sequence[object]) -> list[str]:
    assert all(isinstance(answer, DeviceError | UsageError) for answer in answers), answers
    return [f"{type(answer).__name__}: {answer}" for answer in answers]


def test_processes_of_different_nodes_may_be_on_different_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """And their GPUs need not reach each other."""
    here: dict[int, str] = {}
    monkeypatch.setattr(peers, "_host", lambda: here[threading.get_ident()])

    def body(group: Group) -> Any:
        here[threading.get_ident()] = f"machine {group.rank // 2}"
        group.barrier(10)
        near = vendor("abcd", chosen=group.rank, can_access=lambda a, b: a // 2 == b // 2)
        made = Peers(near, group, "x", 4, 2, 10)
        return made.place(1)[0].nodes, made.machines

    machines = ("machine 0", "machine 0", "machine 1", "machine 1")
    assert together(4, body) == [((0, 0, 1, 1), machines)] * 4


def test_each_process_takes_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in devices.LOCAL_RANKS:
        monkeypatch.delenv(variable, raising=False)
    free = [((0, 1), (0, 1), {0: 0}), ((0, 1), (0, 1), {1: 1})]
    assert placed(vendor(), vendor()) == free
    # the current one counts before those that nobody has
    assert placed(vendor(chosen=1), vendor()) == [((0, 1), (0, 1), {0: 1}), ((0, 1), (0, 1), {1: 0})]
    # each sees others, by other numbers
    assert placed(vendor(["a"]), vendor(["b"])) == [((0, 1), (0, 1), {0: 0}), ((0, 1), (0, 1), {1: 0})]
    # two ranks on a GPU; two GPUs in a process, of which the current one is but one
    assert placed(vendor(), vendor(), ranks=4, ranks_per_gpu=2) == [
        ((0, 0, 1, 1), (0, 0, 1, 1), {0: 0}),
        ((0, 0, 1, 1), (0, 0, 1, 1), {1: 1}),
    ]
    four = ["a", "b", "c", "d"]
    assert placed(vendor(four, chosen=3), vendor(four), ranks=4) == [
        ((0, 1, 2, 3), (0, 0, 1, 1), {0: 0, 1: 1}),
        ((0, 1, 2, 3), (0, 0, 1, 1), {2: 2, 3: 3}),
    ]
    # processes take turns on a GPU: as many as so many ranks make, and no more
    one = [((0, 1), (0, 1), {0: 0}), ((0, 1), (0, 1), {1: 0})]
    assert placed(vendor("a"), vendor("a"), ranks_per_gpu=2) == one
    assert placed(vendor(), vendor(), ranks_per_gpu=2) == one
    assert [locals_ for *_, locals_ in placed(*[vendor()] * 4, ranks=8, ranks_per_gpu=4)] == [
        {0: 0}, {1: 0}, {2: 1}, {3: 1}
    ]  # fmt: skip
    assert placed(vendor(chosen=0), vendor(chosen=1), ranks_per_gpu=2) == free
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert placed(vendor("ab"), vendor("ba"), ranks_per_gpu=2)[0][2] == {0: 1}
    monkeypatch.setenv("LOCAL_RANK", "1")  # of both, and too large for the second
    assert placed(vendor(), vendor(["c"])) == [((0, 1), (0, 1), {0: 1}), ((0, 1), (0, 1), {1: 0})]


def test_gpus_that_do_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in devices.LOCAL_RANKS:
        monkeypatch.delenv(variable, raising=False)
    same = told(placed(vendor(["a"], 0), vendor(["a"], 0)))
    assert same[0] == same[1]
    assert same[0] == (
        "UsageError: processes 0 and 1 have the same GPU (a); give each process GPUs of its own (CUDA_VISIBLE_DEVICES, "
        "or make its GPU current before), run several ranks in one process with --ranks-per-gpu, or, to see whether a "
        "run is right, let these processes take turns on the GPU with --ranks-per-gpu 2"
    )
    three = told(placed(*[vendor("a", 0)] * 3, ranks=3, ranks_per_gpu=2))
    assert three[0].startswith("UsageError: processes 0, 1 and 2 have the same GPU (a); give")
    assert three[0].endswith(" with --ranks-per-gpu 3")
    alone = told(placed(*[vendor("a", 0, exclusive=lambda _: "end it")] * 2, ranks_per_gpu=2))
    wanted = "UsageError: processes 0 and 1 have the same GPU (a), which is in an exclusive compute mode; `end it` ends"
    assert alone == [f"{wanted} that"] * 2
    few = told(placed(vendor(["a"]), vendor(["a"])))
    assert few[1] == (
        "DeviceError: process 1 needs 1 GPU of its own and sees 1, of which other processes have all but 0; "
        "--backend host runs without any"
    )
    assert few[0].startswith("LeftError: tell about GPUs: process 1 failed: process 1 needs 1 GPU of its own")
    apart = told(placed(vendor(can_access=lambda a, b: (a, b) != (0, 1)), vendor(["b"]))[:1])
    assert apart == [
        "DeviceError: device 0 of process 0 has no direct access to the memory of process 1's GPU; set "
        "CUDA_VISIBLE_DEVICES to GPUs that reach each other (topo shows them)"
    ]


def test_the_driver_does_what_all_drivers_do() -> None:
    mine = usual("sm_90")

    def body(group: Group) -> Any:
        made = Peers(vendor(), group, "x", 2, 2, 10)
        return made.common(replace(mine, queues=(8, 32)[group.rank], copy_batches=bool(group.rank)))

    for found in together(2, body):
        assert found == replace(mine, queues=8, copy_batches=False)


def test_what_fails_in_one_process_fails_in_all() -> None:
    def body(group: Group) -> Mapping[str, str]:
        made = Peers(vendor(), group, "x", 2, 2, 10)

        def fails() -> object:
            if group.rank:
                raise DeviceError("out of memory")
            return "mine"

        said: dict[str, str] = {}
        for way in ("agreed", "in step", "alone"):
            try:
                if way == "agreed":
                    made.agreed("make it", fails)
                elif way == "in step":
                    with made.in_step("make it"):
                        fails()
                else:
                    with made.alone():
                        fails()
                    made.agree("go on")
            except DeviceError as error:
                said[way] = f"{type(error).__name__}: {error}"
        return said

    assert together(2, body) == [
        {
            "agreed": "LeftError: make it: process 1 failed: out of memory",
            "in step": "LeftError: make it: process 1 failed: out of memory",
            "alone": "LeftError: process 1 of 2 has left: out of memory",
        },
        dict.fromkeys(("agreed", "in step", "alone"), "DeviceError: out of memory"),
    ]
    assert issubclass(LeftError, DeviceError)


# ---------------------------------------------------------------- giving up


def giving_up(page: Any, near: int, size: int, left: str = "", fails: bool = False) -> tuple[Any, list[str]]:
    told: list[str] = []

    def leave(why: str) -> None:
        told.append(why)
        if fails:
            raise DeviceError("the store is gone")

    made = object.__new__(Peers)
    made.board, made._near = page, list(range(near))  # type: ignore[assignment]
    made.group = SimpleNamespace(size=size, leave=leave, left=lambda: left)  # type: ignore[assignment]
    return made, told


def page(verdict: str = "", gone: tuple[int, ...] = ()) -> Any:
    said: list[str] = []
    return SimpleNamespace(
        publish=said.append, said=said, gone=lambda: gone, any_verdict=bool(verdict), verdict=lambda: verdict
    )


def test_who_gives_up_tells_those_on_the_page_and_by_messages_the_others() -> None:
    for near, told in ((2, []), (1, ["late"])):
        of, messages = giving_up(page(gone=(1,)), near, 2)
        assert of.give_up("late") == (1,)
        assert (of.board.said, messages) == (["late"], told)
    of, messages = giving_up(None, 0, 2)
    assert (of.give_up("late"), messages) == ((), ["late"])


def test_a_store_that_is_gone_keeps_nobody_from_giving_up() -> None:
    of, messages = giving_up(page(), 1, 2, fails=True)
    assert (of.give_up("late"), messages) == ((), ["late"])


def test_a_verdict_is_read_from_the_page_and_far_ones_are_asked_for() -> None:
    assert giving_up(page("gave up"), 2, 2)[0].verdict() == "gave up"
    assert giving_up(page(), 2, 2, left="far")[0].verdict() == ""
    assert giving_up(page(), 1, 2, left="far")[0].verdict() == "far"
    assert giving_up(page(), 1, 2, left="far")[0].verdict(far=False) == ""
    assert giving_up(None, 0, 2, left="far")[0].verdict() == "far"


def test_others_have_one_time_to_close_however_often_it_is_waited_for() -> None:
    of, _ = giving_up(page(), 2, 2)
    of.lost, of._closing, of._areas, of.name = False, time.monotonic() - 60, {0: SimpleNamespace(ipc=True)}, "it"
    of.board.say, of.board.all_closed = of.board.said.append, lambda: False
    begun = time.monotonic()
    of.part()
    assert not of.parted(30)
    assert time.monotonic() - begun < 1
    assert of.board.said == ["closed", "closed"]
    of._closing = 0.0
    assert not of.parted(0.1)
    assert time.monotonic() - begun >= 0.1

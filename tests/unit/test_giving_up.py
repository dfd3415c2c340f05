"""How runs are given up, step by step: what is published, what is forced, and who hears of it. Devices are made up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from ficco_rt.device.ir import EventName, Placement, Semaphore
from ficco_rt.driver.gpu import board, runs, watchdog
from ficco_rt.driver.gpu.board import Board
from ficco_rt.driver.gpu.issue_order import ISSUE_ORDER, LOOKS, Client, IssueOrder, Submission
from ficco_rt.driver.gpu.resources import PlanResources, RunResources, _entries
from ficco_rt.driver.gpu.runs import Runs
from ficco_rt.driver.gpu.watchdog import Watchdog
from ficco_rt.errors import DeviceError
from ficco_rt.process.descriptors import made

# ---------------------------------------------------------------- the page of a group


@pytest.fixture
def boards() -> Iterator[list[Board]]:
    file = made(board.SIZE)
    found = [Board(os.dup(file), place, (4, 5, 6)) for place in range(3)]
    yield found
    for one in found:
        one.close()
    os.close(file)


def test_all_others_hear_a_verdict_and_its_author_does_not(boards: list[Board]) -> None:
    assert not any(one.any_verdict or one.verdict() for one in boards)
    boards[1].publish("it is late")
    assert all(one.any_verdict for one in boards)
    assert [one.verdict() for one in boards] == ["process 5 gave up run 1: it is late", "", boards[0].verdict()]


def test_a_verdict_names_the_run_and_is_never_taken_back(boards: list[Board]) -> None:
    for _ in range(3):
        boards[0].issues()
    boards[0].publish("the first")
    boards[0].issues()
    boards[0].publish("the second")
    boards[2].publish("another's")
    assert boards[1].verdict() == "process 4 gave up run 3: the first"
    assert boards[0].verdict() == "process 6 gave up run 1: another's"


def test_a_long_reason_keeps_to_its_place(boards: list[Board]) -> None:
    boards[0].publish("a" + "ü" * 2000)
    said = boards[1].verdict().partition(": ")[2]
    assert 100 < len(said) < 300
    assert set(said) == {"a", "ü"}
    assert [boards[2].said(place).doing for place in range(3)] == ["opens"] * 3
    assert boards[0].verdict() == ""


def test_a_forked_process_publishes_nothing(boards: list[Board], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "forks", board.forks + 1)
    boards[0].publish("of a child")
    assert not boards[1].any_verdict


# ---------------------------------------------------------------- semaphores


def semaphore(index: int, kind: Any = None, number: int = 0, behind: bool = False, **more: Any) -> Semaphore:
    point = None if kind is None else EventName(kind, number, rank=number, behind=behind)
    return Semaphore(0, index, None if kind else index, point, more.pop("reset", "completion"), **more)


SEMAPHORES = (
    semaphore(0),
    semaphore(1, "entry", 1),
    semaphore(2, "barrier", 1),
    semaphore(3, "barrier", 1, behind=True),
    semaphore(4, "exit", 1),
    semaphore(5, "entry", 1, used="traced"),
    semaphore(6, "entry", 2),  # of the same process
    Semaphore(0, 7, None, None, "never"),
    # device 0 touches tensors of other devices' callers
    Semaphore(1, 0, None, EventName("exit", 0), "never"),
    Semaphore(2, 0, None, EventName("exit", 0), "never"),
)
HERE = 8  # of them on device 0
PLACEMENT = Placement((0, 1, 2), (0, 1, 0))


def forced(gone: tuple[int, ...], fails: bool = False) -> list[int]:
    """The places of the semaphores that are forced up, of two sets of semaphores of the first of two processes."""
    found: list[int] = []

    def force(address: int, stream: object) -> None:
        found.append((address - 4096) // 4)
        if fails:
            raise DeviceError("a semaphore that cannot be written")

    gpus: Any = SimpleNamespace(placement=PLACEMENT, devices={0: "a device"})
    made: Any = object.__new__(RunResources)
    plan: Any = object.__new__(PlanResources)
    plan._semaphores, plan._of_set = {0: (4096, 2 * HERE)}, {0: HERE}
    plan._entries = _entries(gpus, SEMAPHORES)
    made.plans = [plan]
    made._force = lambda ordinal, address: force(address, None)
    if fails:
        with pytest.raises(DeviceError):
            made.force_up(gone)
    else:
        made.force_up(gone)
    return found


def test_entries_of_living_processes_and_counts_of_runs_are_not_forced() -> None:
    assert forced(()) == [0, 3, 4, 5, 6, 8, 11, 12, 13, 14]
    assert forced((1,)) == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14]


def test_entries_alone_are_forced_where_no_callers_tensors_are_touched() -> None:
    gpus: Any = SimpleNamespace(placement=PLACEMENT, devices={0: "a device"})
    assert (0, 1) in _entries(gpus, SEMAPHORES)
    assert (0, 1) not in _entries(gpus, SEMAPHORES[:HERE])


def test_a_semaphore_that_cannot_be_forced_keeps_back_no_other() -> None:
    assert len(forced((), fails=True)) == 10


# ---------------------------------------------------------------- clients and the watchdog


def client(timeout: float | None = 1.0, **more: Any) -> tuple[Client, list[str]]:
    released: list[str] = []
    vendor: Any = SimpleNamespace(name="made up", ended=lambda event: event != "under way")
    return Client("it", vendor, timeout, release=released.append, number=1, **more), released


def test_who_comes_too_late_gives_nothing_up() -> None:
    of, released = client()
    of.generation = 3
    assert not of.give_up("late", 2)
    assert (of.overdue, released) == ("", [])
    assert of.give_up("first", 3)
    assert of.give_up("second", 3)
    assert (of.overdue, released) == ("first", ["first", "first"])


def test_a_run_is_not_given_up_while_its_thread_looks() -> None:
    of, released = client()
    other = threading.Thread(target=of.give_up, args=("late", 0))
    with of.lock:
        other.start()
        time.sleep(0.05)
        assert not released
        of.generation += 1
    other.join()
    assert not released


@pytest.mark.parametrize(("timeout", "ill", "told"), [(1.0, False, 1), (None, False, 0), (None, True, 1)])
def test_who_has_no_limit_is_let_go_if_ill(timeout: float | None, ill: bool, told: int) -> None:
    of, released = client(timeout)
    watchdog.let_go(of, "why", 0, ill=ill)
    assert len(released) == told


def replaying(of: Client, now: list[tuple[int, ...]], looks: int, nap: float) -> None:
    submission = Submission({}, {}, {})
    of.replayed, of.replaying = submission, lambda: now[0]
    dog = Watchdog(IssueOrder())
    for _ in range(looks):
        dog._look_at_replays(of)
        time.sleep(nap)
        now[:] = now[1:] + now[:1]


def test_a_replay_that_does_not_end_is_given_up_once() -> None:
    of, released = client(0.04)
    replaying(of, [(7,)], 6, 0.02)
    assert released == ["it: a replay of a graph that holds its run did not end within 0.04 s (--timeout)"]


def test_replays_one_after_another_are_not_given_up() -> None:
    of, released = client(0.05)
    replaying(of, [(7,), (8,)], 6, 0.02)
    assert not released
    for now in ([(7,), ()], [()]):
        replaying(of, now, 6, 0.02)
        assert not released
    of.timeout = 30.0
    replaying(of, [(7,)], 2, 0.0)
    assert not released


def test_a_replay_that_ends_while_the_watchdog_asks_is_not_given_up() -> None:
    of, released = client(0.01)
    of.replayed = Submission({}, {}, {})

    def ends() -> tuple[int, ...]:
        of.generation += 1
        return (7,)

    of.replaying = ends
    dog = Watchdog(IssueOrder())
    for _ in range(3):
        dog._look_at_replays(of)
        time.sleep(0.02)
    assert not released


def test_a_device_that_fails_while_replays_are_looked_at() -> None:
    of, released = client(0.0)
    of.replayed = Submission({}, {}, {})

    def fails() -> tuple[int, ...]:
        raise DeviceError("the device is lost")

    of.replaying = fails
    Watchdog(IssueOrder())._look_at_replays(of)
    assert not released


def test_health_is_asked_of_who_runs_and_has_not_been_told() -> None:
    for over, overdue, said, told in (
        (False, "", "an error of the library", ["an error of the library"]),
        (True, "", "an error of the library", []),
        (False, "told", "an error of the library", []),
        (False, "", "", []),
    ):
        of, released = client(None, ill=lambda said=said: said)
        of.seen, of.overdue = int(over), overdue
        Watchdog(IssueOrder())._ask_health(of)
        assert released == told


def test_an_error_of_asking_for_health_is_told() -> None:
    def fails() -> str:
        raise DeviceError("a device is lost")

    of, released = client(None, ill=fails)
    Watchdog(IssueOrder())._ask_health(of)
    assert released == ["a device is lost"]


def in_flight(of: Client, event: str, error: bool = False) -> Client:
    def ended(event: str) -> bool:
        if error:
            raise DeviceError("lost")
        return event != "under way"

    of.vendor = SimpleNamespace(name="made up", ended=ended)  # type: ignore[assignment]
    of.submission = Submission({}, {}, {0: (event, "stream"), 1: ("ended", "stream")})
    return of


def blocked(monkeypatch: pytest.MonkeyPatch, back: bool) -> tuple[list[str], list[list[str]]]:
    """A call of a client does not come back, or does while the watchdog asks; others are under way, through, lost, and
    without a limit. What is said, and by client what it is released with."""
    said: list[str] = []
    monkeypatch.setattr(watchdog, "say", said.append)
    order = IssueOrder()
    made = [client(0.01) for _ in range(4)] + [client(None)]
    first, *others = [of for of, _ in made]
    for of, event in zip(others, ("under way", "ended", "under way", "under way"), strict=True):
        order.in_flight[in_flight(of, event)] = None
    in_flight(others[2], "under way", error=True)
    monkeypatch.setattr(Client, "patience", property(lambda of: of.timeout))
    order.held = (first, time.monotonic() - 9.0, threading.get_ident())
    if back:
        first.report = lambda issued: [setattr(order, "held", None) or "it is here"]  # type: ignore[func-returns-value]
    dog = Watchdog(order)
    dog._look()
    dog._look()
    return said, [released for _, released in made]


def test_a_call_that_blocks_lets_go_all_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    said, released = blocked(monkeypatch, back=False)
    assert [len(one) for one in released] == [1, 1, 0, 1, 0]
    assert sum("the host has been in" in line for line in said) == 1


def test_a_call_that_comes_back_meanwhile_lets_nothing_go(monkeypatch: pytest.MonkeyPatch) -> None:
    said, released = blocked(monkeypatch, back=True)
    assert [len(one) for one in released] == [0] * 5
    assert "it is here" in said


def test_a_call_in_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "say", pytest.fail)
    order = IssueOrder()
    of, _ = client(60.0)
    order.held = (of, time.monotonic(), 0)
    Watchdog(order)._look()


def test_who_is_ahead_has_not_ended() -> None:
    of, _ = client()
    others = [in_flight(client()[0], event) for event in ("under way", "ended", "under way", "under way")]
    for other in others:
        other.number = 4
    others[3].over = True
    of.behind[0] = {others[0]: 4, others[1]: 4, others[2]: 3, others[3]: 4}
    assert IssueOrder().ahead(of) == [others[0]]


# ---------------------------------------------------------------- runs


class Lock:
    """A lock that says whether it is held."""

    def __init__(self) -> None:
        self.held = 0
        self.free = True

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.held += self.free
        return self.free

    def release(self) -> None:
        self.held -= 1

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class World:
    """Runs whose devices, semaphores and communicators write down what is done with them."""

    def __init__(self, *, group: bool = False, verdict: str = "", timeout: float | None = 0.05) -> None:
        self.log: list[Any] = []
        self.ended: bool | DeviceError = True
        self.through: tuple[bool, DeviceError | None] = (True, None)
        self.verdict, self.gone, self.force_fails = verdict, [], False
        self.lock = Lock()
        vendor: Any = SimpleNamespace(
            name="made up", ended=self._ended, capturing=lambda callers: False, uncaptured=nullcontext
        )
        self.client = Client("it", vendor, timeout, lock=self.lock, number=1)  # type: ignore[arg-type]
        did = self.did
        self.board = SimpleNamespace(
            any_verdict=True,
            say=did("say"),
            issues=did("issues"),
            ends=did("ends"),
            gone=lambda: self.gone,
            lines=lambda: ["others"],
        )
        self.peers: Any = None
        if group:
            self.peers = SimpleNamespace(board=self.board, give_up=self._give_up, verdict=lambda far=True: self.verdict)
        device = SimpleNamespace(ordinal=0, local=0)
        self.gpus: Any = SimpleNamespace(
            client=self.client, peers=self.peers, devices={0: device}, hung=False, timeout=timeout, vendor=vendor,
            idle=lambda: self.through, well=lambda: None, busy=lambda: ("a device",),
            begin_issue=did("begin"), end_issue=did("end"), ranks=(0,), control={0: "control"}, put=did("put"),
        )  # fmt: skip
        self.gpus.hang = lambda: setattr(self.gpus, "hung", True)
        resources: Any = SimpleNamespace(
            under_way=lambda: (), force_up=self._force, clear=self._clear, event=lambda name, of: name,
        )  # fmt: skip
        communicators: Any = SimpleNamespace(
            abort=did("abort"), ready=did("ready"), aborted=False, unfinished=None, ill=lambda: "", calls=list,
            lent=False,
        )  # fmt: skip
        binder: Any = SimpleNamespace(bindings=(), calls=lambda binding, manner: self.calls, clear=did("put"))
        self.calls = SimpleNamespace(steps=(), inside=(), enters=False, submission=Submission({}, {}, {}))
        self.runs = Runs(self.gpus, resources, binder, communicators)
        self.runs._running = True

    def did(self, what: str) -> Callable[..., None]:
        return lambda *_: self.log.append(what)

    def _ended(self, event: object) -> bool:
        if isinstance(self.ended, DeviceError):
            raise self.ended
        return self.ended

    def _give_up(self, why: str) -> tuple[int, ...]:
        self.log.append(f"publish {why}")
        return (1,)

    def _force(self, gone: tuple[int, ...]) -> None:
        self.log.append(f"force {list(gone)}{'' if self.lock.held else ' without the lock'}")
        if self.force_fails:
            raise DeviceError("semaphores")

    def _clear(self) -> None:
        self.log.append("clear")

    def issue(self) -> None:
        binding: Any = SimpleNamespace(more=(), number=0, latest=None, of=None, plans=None, complete=True)
        self.runs.run(binding, (), "streams")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "DRAIN", 0.02)
    monkeypatch.setattr(runs, "ALIVE", 0.01)
    monkeypatch.setattr(runs, "SPIN", 0.0)


def test_it_is_published_first_and_forced_then() -> None:
    world = World(group=True)
    assert world.runs._release("late")
    assert world.log == ["publish late", "force [1]", "abort"]
    assert world.runs.lost
    assert (world.runs._running, world.client.over, world.runs._dirty) == (False, True, True)
    alone = World()
    assert alone.runs._release("late")
    assert (alone.log, alone.runs.lost) == (["force []", "abort"], False)


def test_communicators_are_aborted_though_semaphores_cannot_be_forced() -> None:
    world = World()
    world.force_fails = True
    world.runs._release("late")
    assert world.log == ["force []", "abort"]


def test_what_does_not_end_takes_the_devices_with_it() -> None:
    world = World()
    world.through = (False, None)
    assert not world.runs._release("late")
    assert (world.gpus.hung, world.runs.lost, world.runs._running) == (True, True, True)
    with pytest.raises(
        DeviceError, match=r"nothing since an earlier error \(late\); make a new executor, in a new pro"
    ):
        world.runs.answers()


def test_an_error_that_stays_loses_the_devices() -> None:
    world = World()
    world.through = (True, DeviceError("an error of the device"))
    assert world.runs._release("late")
    assert (world.runs.lost, world.gpus.hung) == (True, False)


def test_a_lock_that_is_never_free_loses_the_devices() -> None:
    world = World()
    world.lock.free = False
    with pytest.raises(DeviceError, match="another thread has signalled semaphores for 5 s"), world.runs._locked():
        pytest.fail("it is free")
    assert (world.runs.lost, world.gpus.hung) == (True, True)


def test_a_replay_may_come_at_once_after_a_run_is_given_up() -> None:
    world = World()
    world.runs.replays = True
    world.runs._release("late")
    assert world.log == ["force []", "abort", "ready", "clear", "put"]


def test_clearing_semaphores_makes_everyone_else_come_too_late() -> None:
    world = World()
    world.client.overdue, world.runs._dirty = "told", True
    world.runs._clear()
    assert (world.client.generation, world.client.overdue, world.runs._dirty) == (1, "", False)
    assert world.log == ["ready", "clear", "put"]


@pytest.mark.parametrize("ask", ["check", "synchronize", "issue", "settle"])
def test_what_another_thread_said_is_told_once(ask: str) -> None:
    world = World()
    world.client.overdue = "it: a call did not come back"
    call = world.issue if ask == "issue" else getattr(world.runs, ask)
    with pytest.raises(DeviceError, match="a call did not come back"):
        call()
    assert world.client.overdue == ""
    assert world.log[:2] == ["force []", "abort"]
    world.runs.check()
    assert world.runs._dirty


@pytest.mark.parametrize("ask", ["check", "synchronize", "issue", "settle"])
def test_a_verdict_of_another_process_condemns_what_is_not_checked(ask: str) -> None:
    world = World(group=True, verdict="process 1 gave up run 3: late")
    call = world.issue if ask == "issue" else getattr(world.runs, ask)
    with pytest.raises(DeviceError, match="process 1 gave up run 3: late"):
        call()
    assert world.log[:2] == ["publish process 1 gave up run 3: late", "force [1]"]
    assert world.runs.lost
    with pytest.raises(DeviceError, match="new processes"):
        world.issue()


@pytest.mark.parametrize("how", ["verdict", "overdue"])
def test_a_run_that_has_ended_is_right_only_if_nobody_gave_it_up(how: str) -> None:
    """Somebody does, behind the first look."""
    world = World(group=True)
    world.runs.check()

    def ended() -> bool:
        world.verdict = "process 1 gave up run 1: late" if how == "verdict" else ""
        world.client.overdue = "gave up run 1" if how == "overdue" else ""
        return True

    world.runs._ended = lambda everywhere=False: ended()  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="gave up run 1"):
        world.runs.synchronize()
    assert world.client.generation == 0
    assert "ends" not in world.log or how == "overdue"


def test_a_run_that_has_ended_well_is_over() -> None:
    world = World(group=True)
    world.runs.synchronize()
    assert (world.client.generation, world.client.over, world.runs._running) == (1, True, False)
    assert world.log == ["ends"]
    assert not world.client.give_up("late", 0)


def test_a_run_that_does_not_end_is_given_up_at_its_limit() -> None:
    world = World(group=True)
    world.ended = False
    begun = time.monotonic()
    with pytest.raises(DeviceError, match=r"the run did not end within 0\.05 s \(--timeout\)\nothers"):
        world.runs.synchronize()
    assert 0.05 <= time.monotonic() - begun < 5
    assert "publish the run did not end within 0.05 s (--timeout)" in world.log


def test_a_verdict_ends_the_wait_for_a_run() -> None:
    world = World(group=True, timeout=30)
    world.ended = False
    threading.Timer(0.05, lambda: setattr(world, "verdict", "process 1 gave up")).start()
    begun = time.monotonic()
    with pytest.raises(DeviceError, match="process 1 gave up"):
        world.runs.synchronize()
    assert time.monotonic() - begun < 10
    assert "say" in world.log


def test_the_end_of_a_process_ends_the_wait_unless_its_part_is_done() -> None:
    world = World(group=True, timeout=30)
    world.ended, world.gone = False, [1]
    with pytest.raises(DeviceError, match="process 1 ended in the midst of a run"):
        world.runs.synchronize()
    world = World(group=True)
    world.gone = [1]
    world.runs._look_for_others(1.0)
    assert not any(str(entry).startswith("publish") for entry in world.log)
    assert world.runs.ill() == ""
    world.ended = False
    assert world.runs.ill().splitlines()[0] == "process 1 ended in the midst of a run"


def test_a_verdict_of_another_process_ends_what_nobody_waits_for() -> None:
    """A replay, or a run on callers' streams: the watchdog asks."""
    world = World(group=True, verdict="process 1 gave up run 3: late")
    world.ended = False
    assert world.runs.ill().splitlines() == ["process 1 gave up run 3: late", "others"]
    world.ended = True
    assert world.runs.ill() == ""


def test_devices_are_busy_with_runs_and_replays() -> None:
    order = IssueOrder()
    other, _ = client()
    order.in_flight[other] = None
    for event, residencies, busy in (("under way", {0}, True), ("ended", {0}, False), ("under way", {1}, False)):
        other.seen, other.submission, other.residencies = (
            0,
            Submission({}, {}, {0: (event, None)}),
            dict.fromkeys(residencies),
        )  # type: ignore[arg-type]
        assert order.busy("made up", {0}) is busy
    assert not order.busy("another", {1})
    order.embed(other, Submission({}, {}, {0: ("under way", None), 1: ("ended", None)}))
    other.over = True
    assert order.busy("made up", {0, 1})
    assert not order.busy("made up", {1})
    in_flight(other, "under way", error=True)  # calls tell that at once
    assert not order.busy("made up", {0})


def test_an_error_of_a_device_is_published_and_loses_it() -> None:
    world = World(group=True)
    world.ended = DeviceError("an illegal address\nin a kernel")
    with pytest.raises(DeviceError, match="an illegal address"):
        world.runs.synchronize()
    assert world.runs.lost
    assert "publish an illegal address" in world.log


def test_the_first_error_of_a_device_is_told_to_whoever_comes_later() -> None:
    world = World()
    world.ended = DeviceError("an illegal address\nin a kernel")
    with pytest.raises(DeviceError):
        world.runs.synchronize()
    with pytest.raises(DeviceError, match=r"since an earlier error \(an illegal address\)"):
        world.runs.answers()


def test_ctrl_c_in_a_wait_gives_the_run_up() -> None:
    world = World()

    def interrupted(everywhere: bool = False) -> bool:
        raise KeyboardInterrupt

    world.runs._ended = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        world.runs.synchronize()
    assert world.log == ["force []", "abort"]
    assert (world.runs._dirty, world.runs._running) == (True, False)
    assert runs._reason(KeyboardInterrupt()) == "it was interrupted (Ctrl-C)"


def test_a_run_that_is_issued_in_part_is_given_up_behind_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(group=True)

    def fails(gpus: object, steps: object) -> None:
        raise DeviceError("a launch fails\nfor a reason")

    monkeypatch.setattr(runs, "make", fails)
    world.ended = False
    threading.Timer(0.005, lambda: world.log.append("the last has ended") or setattr(world, "ended", True)).start()
    with pytest.raises(DeviceError, match="a launch fails"):
        world.issue()
    assert world.log == ["issues", "the last has ended", "publish a launch fails", "force [1]", "abort", "end"]
    assert world.runs._issued == 0
    with pytest.raises(DeviceError, match="a launch fails"):
        world.runs.answers()


def test_a_verdict_ends_the_wait_for_the_run_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "DRAIN", 5.0)
    world = World(group=True, verdict="gave up")
    world.ended = False
    begun = time.monotonic()
    world.runs._await_last()
    assert time.monotonic() - begun < 2


def test_what_is_told_while_a_run_is_issued_is_raised_then(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr(runs, "make", lambda gpus, steps: setattr(world.client, "overdue", "a call blocked"))
    with pytest.raises(DeviceError, match="a call blocked"):
        world.issue()


def test_semaphores_are_cleared_once_before_the_next_run() -> None:
    world = World()
    world.runs._release("late")
    world.log.clear()
    for _ in range(2):
        world.issue()
        ISSUE_ORDER.remove(world.client)
    assert world.log == ["ready", "clear", "put"]


def test_closing_gives_up_what_does_not_end_and_checks_what_did(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    through = iter([False] * (LOOKS + 1))
    world.gpus.idle = lambda: (next(through, True), None)
    monkeypatch.setattr(runs, "DRAIN", 0.0)
    world.runs.settle()
    assert world.log == ["force []", "abort"]
    failed = World()
    failed.through = (True, DeviceError("a device is lost"))
    with pytest.raises(DeviceError, match="a device is lost"):
        failed.runs.settle()
    lost = World()
    lost.runs.lost, lost.through = True, (False, None)
    lost.runs.settle()
    assert (lost.gpus.hung, lost.log) == (True, [])

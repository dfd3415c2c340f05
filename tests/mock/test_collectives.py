"""NCCL and RCCL on the stand-in libraries: every collective right, on streams and in graphs; errors are told, answered,
and leave nothing behind."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ficco_dsl
from ficco_rt import compiler
from ficco_rt.driver.gpu import collectives, issue_order, owner, watchdog
from ficco_rt.driver.gpu.collective_library import PENDING, Member
from ficco_rt.driver.gpu.driver import GpuDriver
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError, PlanError, ScheduleError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.fuzz.schedules import Memory, Orders
from tests.fuzz.test_orders import inputs, same
from tests.gpu import test_nccl
from tests.mock import several, standin
from tests.mock.test_callers import Callers
from tests.mock.test_callers_graphs import Captures
from tests.mock.test_command_line import Ended, Machine

THERE = "nccl 22809"
TEXT = """schedule every
input   A[ranks * 2, 16] : {dtype}
output  G[2 * ranks * ranks, 16] : {dtype}
output  S[2 * ranks, 16] : {dtype}
output  R[2, 16] : {dtype}
output  X[2 * ranks, 16] : {dtype}
computes G = all_gather(A, rows)
computes S = all_reduce(A)
computes R = reduce_scatter(A, rows)
computes X = all_to_all(A, rows)
queue vendor {{ engine = nccl  {asked} }}
queue second {{ engine = nccl }}
stage gather   on vendor {{ all_gather G <- A }}
stage total    on second {{ all_reduce S <- A }}
stage scatter  on vendor {{ reduce_scatter R <- A }}
stage exchange on second {{ all_to_all X <- A }}
"""


@cache
def plan_of(ranks: int = 2, dtype: str = "bf16", asked: str = "") -> Plan:
    schedule = ficco_dsl.parse(TEXT.format(dtype=dtype, asked=asked), "every.ficco")
    return compiler.plan_of(compiler.build(schedule, ranks), profile("h200-switch", ranks))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own reads the threads anew; communicators are looked at often."""
    monkeypatch.setattr(collectives, "_READ", [])
    monkeypatch.setattr(watchdog, "HEALTH", 0.01)


def executor(
    library: standin.StandIn, plan: Plan, *, timeout: float | None = 60, setting: str = "", **more: object
) -> Executor:
    library.set(setting)
    machine = discover(library.face, plan.ranks)  # type: ignore[arg-type]
    return Executor(plan, library.face, machine=machine, timeout=timeout, **more)  # type: ignore[arg-type]


def fresh(library: standin.StandIn, setting: str = "") -> None:
    library.reset(f"devices 3; sms 132; {THERE}; {setting}")


def at_rest(library: standin.StandIn) -> None:
    assert (library.live(), library.violations()) == ({}, "")


@pytest.mark.parametrize("dtype", cases.FLOATS)
def test_every_collective_is_right(library: standin.StandIn, dtype: str) -> None:
    for seed in range(3):
        fresh(library, f"seed {seed}; query_steps 3000")
        with executor(library, plan_of(3, dtype)) as made:
            assert made.driver.collectives == f"{'NCCL' if library.face == 'cuda' else 'RCCL'} 2.28.9"
            assert made.driver.holdings().communicators == 6
            assert verified_run(made, values="exact").ok
            assert verified_run(made).ok
            assert library.collectives() >= 2 * 4
            made.traced = True
            assert verified_run(made, values="exact").ok
            assert [span.kind for span in made.trace.spans] == ["collective"] * 12
            made.traced, made.gated = False, True
            assert verified_run(made, values="exact").ok
            assert made.held
            made.gated, made.graph = False, True
            for _ in range(2):
                assert verified_run(made, values="exact").ok
            assert made.driver.holdings().communicators == 6
        at_rest(library)


def values(made: Executor, given: Memory) -> Memory:
    """All tensors after a run."""
    for (name, rank), array in given.items():
        made.write(name, rank, array)
    made.poison()
    made.run()
    return {(t.name, r): made.read(t.name, r) for t in made.plan.tensors for r in range(made.plan.ranks)}


def test_random_schedules_mean_what_they_mean_on_the_host(library: standin.StandIn) -> None:
    """Collectives among copies, products, sums and streamed launches. In the first ones another rank comes first."""
    for seed in (78, 118, *range(100 if cases.ALL else 6)):
        program = Orders(random.Random(seed), bounded=True)
        if "on vendor" not in program.text:
            continue
        library.reset(f"devices {program.ranks}; sms 132; {THERE}; seed {seed}; query_steps 3000")
        try:
            graph = compiler.build(ficco_dsl.parse(program.text, "orders.ficco"), program.ranks)
            plan = compiler.plan_of(graph, discover(library.face, program.ranks))  # type: ignore[arg-type]
        except (PlanError, ScheduleError):
            continue
        given = {(name, r): a for name, arrays in inputs(plan, seed).items() for r, a in enumerate(arrays)}
        with Executor(plan, "host") as host:
            wanted = values(host, given)
        with executor(library, plan) as made:
            for made.graph, made.traced in ((False, False), (True, False), (False, True)):
                assert same(values(made, given), wanted), f"{program.text}\ngraph {made.graph}"
        at_rest(library)


def test_what_a_queue_asks_for_reaches_the_library(cuda: standin.StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    from nccl.bindings import nccl

    seen: list[tuple[int, int]] = []
    policies: list[int] = []
    real = nccl.comm_init_rank_config

    def init(ranks: int, unique: object, rank: int, config: int) -> object:
        found = nccl.Config.from_ptr(config)
        seen.append((found.min_ctas, found.max_ctas))
        policies.append(found.cta_policy)
        assert found.blocking == 0
        return real(ranks, unique, rank, config)

    monkeypatch.setattr(nccl, "comm_init_rank_config", init)
    undefined = -(2**31)
    for asked, ctas, policy in (("ctas = 8", (1, 8), undefined), ("ctas = 0", (undefined, undefined), 2)):
        fresh(cuda)
        seen.clear(), policies.clear()
        with executor(cuda, plan_of(asked=asked)) as made:
            assert verified_run(made, values="exact").ok
        assert (seen[0], policies[0]) == (ctas, policy)
        assert seen[-1] == (undefined, undefined)  # the other queue asks for nothing
        at_rest(cuda)


def test_threads_are_one_number_a_process(cuda: standin.StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(cuda)
    with pytest.raises(
        DeviceError, match=r"threads = its own choice: the first communicators of this process have 256"
    ):
        executor(cuda, plan_of(asked="threads = 256"))  # its second queue asks for none
    monkeypatch.setattr(collectives, "_READ", [])
    monkeypatch.setenv("NCCL_NTHREADS", "128")
    with pytest.raises(DeviceError, match="threads = 256, and the environment says NCCL_NTHREADS=128"):
        executor(cuda, plan_of(asked="threads = 256"))
    at_rest(cuda)


LEAVING = """schedule leaving
input  A[256, 256] : bf16
input  X[256, 256] : bf16
output C[256, 256] : bf16
output Y[256, 256] : bf16
computes C = A * A
computes Y = all_reduce(X)
queue vendor  { engine = nccl  threads = 256 }
queue compute { engine = sm  leave = nccl }
stage sum on vendor { all_reduce Y <- X }
stage mm on compute { gemm C = A * A }
"""


def test_room_is_left_for_the_library_that_is_there(cuda: standin.StandIn) -> None:
    plan = compiler.plan_of(compiler.build(ficco_dsl.parse(LEAVING, "leaving.ficco"), 2), profile("h200-switch", 2))
    fresh(cuda, "arch sm_90")
    with executor(cuda, plan) as made:
        assert verified_run(made, values="exact").ok
        asked = cuda.called()["cuFuncSetAttribute"]
    assert asked == 4  # of two kernels: how much shared memory, and that it is split for others too
    fresh(cuda, "arch sm_90; nccl 23203")
    message = r"leaving.ficco:11: leave = nccl: a block of NCCL 2.32.3 takes 27648 registers and 120064 bytes"
    with pytest.raises(DeviceError, match=message):
        executor(cuda, plan)
    at_rest(cuda)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"collectives": "copies"}, "copies and sums: they were asked for"),
        ({"ranks_per_gpu": 2}, "copies and sums: no library of collectives is in use"),
    ],
)
def test_copies_and_sums_where_they_must_be(library: standin.StandIn, more: dict[str, object], said: str) -> None:
    fresh(library)
    with executor(library, plan_of(), **more) as made:
        assert made.driver.collectives == said
        assert made.driver.holdings().communicators == 0
        assert verified_run(made, values="exact").ok
    assert library.collectives() == 0
    at_rest(library)


def test_a_library_that_is_not_there(cuda: standin.StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.reset("devices 2")  # the library is there, and does not work
    with executor(cuda, plan_of()) as made:
        assert made.driver.collectives.startswith("copies and sums: NCCL does not tell its version")
    monkeypatch.setitem(sys.modules, "nccl.bindings", None)
    why = (
        'engine = nccl needs the package nccl4py: pip install "nccl4py>=0.6,<0.7"; without it collectives are '
        "copies and sums"
    )
    with executor(cuda, plan_of()) as made:
        assert made.driver.collectives == f"copies and sums: {why}"
        assert verified_run(made, values="exact").ok
    with pytest.raises(DeviceError) as refused:
        executor(cuda, plan_of(), collectives="library")
    assert str(refused.value) == why
    at_rest(cuda)


def test_a_library_that_cannot(cuda: standin.StandIn) -> None:
    fresh(cuda)
    with pytest.raises(UsageError, match=r"collectives: 'nccl' is none of 'auto', 'library', 'copies'"):
        executor(cuda, plan_of(), collectives="nccl")
    with pytest.raises(UsageError, match="the host driver has none"):
        Executor(plan_of(), collectives="library")
    with pytest.raises(UsageError, match="ranks share a GPU, and NCCL takes one rank a GPU"):
        executor(cuda, plan_of(), collectives="library", ranks_per_gpu=2)
    at_rest(cuda)


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("timeout", [60, None])
def test_an_asynchronous_error_is_told_and_answered(
    library: standin.StandIn, graph: bool, timeout: float | None
) -> None:
    fresh(library, "query_steps 3000")
    with executor(library, plan_of(), timeout=timeout, graph=graph) as made:
        assert verified_run(made, values="exact").ok
        library.set("lose_collective 2 6")  # a remote error
        with pytest.raises(DeviceError) as told:
            made.run()
        text = str(told.value)
        assert "CL tells of ncclRemoteError on stand-in (device 0)" in text
        assert "all_gather (every.ficco:13)" in text or "all_reduce (every.ficco:14)" in text
        assert graph or "pending is all_" in text
        assert made.driver.holdings().communicators == 0
        assert verified_run(made, values="exact").ok  # with communicators that were made again
        assert made.driver.holdings().communicators == 4
    at_rest(library)


@pytest.mark.parametrize("graph", [False, True])
def test_a_peer_that_never_comes(library: standin.StandIn, graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(library, "query_steps 3000")
    with executor(library, plan_of(), graph=graph) as made:
        assert verified_run(made, values="exact").ok
        library.set("lose_collective 1 0")  # it hangs, and no error is told
        assert isinstance(made.driver, GpuDriver)
        with monkeypatch.context() as patience:
            patience.setattr(made.driver._gpus, "timeout", 0.1)
            with pytest.raises(DeviceError, match=r"the run did not end within 0\.1 s") as told:
                made.run()
        assert "every.ficco:13" in str(told.value) or "every.ficco:14" in str(told.value)
        assert verified_run(made, values="exact").ok
    at_rest(library)


@pytest.mark.parametrize("ends", [True, False])
def test_an_abort_waits_for_the_thread_of_a_call(
    cuda: standin.StandIn, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """However long it takes: an abort frees what the call still uses. A call that does not end by itself is given up
    by its own thread first."""
    fresh(cuda)
    inside, go_on = threading.Event(), threading.Event()
    order: list[str] = []
    with executor(cuda, plan_of()) as made:
        assert verified_run(made, values="exact").ok
        communicators, library = parts(made)
        call, abort, state = library.call, library.abort, library.state

        def slow(*arguments: Any) -> None:
            inside.set()
            assert not ends or go_on.wait(10)
            call(*arguments)
            order.append("call")

        def pending(communicator: int) -> str:
            return state(communicator) if ends else PENDING

        def told(communicator: int) -> None:
            order.append("abort")
            refused = communicators.collective(0, "all_reduce", ())[0]  # no later call waits for the abort
            assert refused is not None
            assert refused.code == "aborted"
            abort(communicator)

        with monkeypatch.context() as patch:
            patch.setattr(library, "call", slow)
            patch.setattr(library, "state", pending)
            patch.setattr(library, "abort", told)
            running = threading.Thread(target=lambda: suppressed(made.run))
            running.start()
            assert inside.wait(10)
            communicators.abort()
            if ends:
                time.sleep(0.7)
                assert order == []
                go_on.set()
            running.join(20)
            communicators.settle()
        assert order[:2] == ["call", "call"]
        assert order.count("abort") == 4
        assert verified_run(made, values="exact").ok
    at_rest(cuda)


@pytest.mark.parametrize("graph", [False, True])
def test_a_call_that_is_interrupted_is_asked_about_no_more(
    library: standin.StandIn, monkeypatch: pytest.MonkeyPatch, graph: bool
) -> None:
    """While it is polled, in a capture too. Its communicators are made again."""
    fresh(library)
    with executor(library, plan_of()) as made:
        assert verified_run(made, values="exact").ok
        communicators, vendors = parts(made)
        state, asked, caller = vendors.state, 0, threading.get_ident()

        def interrupted(communicator: int) -> str:
            nonlocal asked
            if not asked and threading.get_ident() != caller:  # a look that a watchdog had begun
                return str(state(communicator))
            asked += 1
            if asked == 1:
                assert not communicators.ill()  # somebody is in the call
                raise KeyboardInterrupt
            return str(state(communicator))

        made.graph = graph
        with monkeypatch.context() as patch:
            patch.setattr(made.driver._gpus.client, "ill", None)  # type: ignore[attr-defined]  # no watchdog asks first
            patch.setattr(vendors, "state", interrupted)
            patch.setattr(collectives, "ANSWER", 10.0)
            release = made.driver._runs._release  # type: ignore[attr-defined]

            def released(why: str) -> bool:
                assert (asked, communicators.unfinished) == (1, 0)
                assert not communicators.ill()  # nor is anybody now, but the call goes on in the library
                assert asked == 1
                return bool(release(why))

            patch.setattr(made.driver._runs, "_release", released)  # type: ignore[attr-defined]
            with pytest.raises(KeyboardInterrupt):
                made.run()
        for _ in range(2):
            assert verified_run(made, values="exact").ok
        assert communicators.unfinished is None
    at_rest(library)


def parts(made: Executor) -> tuple[collectives.Communicators, Any]:
    assert isinstance(made.driver, GpuDriver)
    return made.driver._communicators, made.driver._communicators._library


def test_one_thread_opens_aborts_and_destroys(library: standin.StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """And polls, except for calls: of two executors, one of which is given up while the other one runs."""
    fresh(library)
    with executor(library, plan_of()) as made, executor(library, plan_of()) as other:
        seen: set[tuple[str, str]] = set()
        assert verified_run(other, values="exact").ok
        for one in (made, other):
            _, vendors = parts(one)
            for name in ("open", "abort", "close", "state"):
                monkeypatch.setattr(vendors, name, noting(getattr(vendors, name), name, seen))
        stop = threading.Event()

        def runs() -> None:
            while not stop.is_set():
                other.run()
                other.synchronize()

        running = threading.Thread(target=runs, name="runs")
        running.start()
        try:
            for _ in range(3):
                parts(made)[0].abort()
                parts(made)[0].ready()
                assert verified_run(made, values="exact").ok
        finally:
            stop.set()
            running.join()
    owned = {(name, "ficco communicators") for name in ("open", "abort", "close", "state")}
    assert owned <= seen <= owned | {("state", "MainThread"), ("state", "runs")}
    at_rest(library)


def noting(call: Callable[..., Any], name: str, seen: set[tuple[str, str]]) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        seen.add((name, threading.current_thread().name))
        return call(*arguments)

    return noted


def test_an_abort_between_two_queues_misnumbers_none(cuda: standin.StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(cuda)
    with executor(cuda, plan_of()) as made:
        communicators, library = parts(made)
        communicators.abort()
        number, real = 0, library.open

        def opens(*arguments: Any) -> Any:
            nonlocal number
            number += 1
            if number == 3:  # the first of the second queue
                communicators.abort()
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(library, "open", opens)
            with pytest.raises(DeviceError) as told:
                communicators.ready()
        assert str(told.value) == (
            "the communicators of queue 'second' were aborted while they were opened: an earlier error has ended them"
        )
        assert communicators.count == 0
        communicators.ready()
        assert verified_run(made, values="exact").ok
        assert communicators.count == 4
    at_rest(cuda)


def test_communicators_that_do_not_open_have_a_time_limit(
    cuda: standin.StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, too. They are aborted by the thread that has opened them."""
    fresh(cuda)
    with executor(cuda, plan_of(), timeout=0.1) as made:
        communicators, library = parts(made)
        communicators.abort()
        with monkeypatch.context() as patch:
            patch.setattr(issue_order, "LEAST", 0.1)
            patch.setattr(library, "state", lambda communicator: PENDING)
            with pytest.raises(DeviceError) as told:
                communicators.ready()
        assert str(told.value) == (
            "the communicators of queue 'vendor': the library did not come to an end within 0.1 s (--timeout)"
        )
        communicators.ready()
        assert verified_run(made, values="exact").ok
    at_rest(cuda)


def test_each_communicator_gets_its_time_to_leave(cuda: standin.StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave one after another, slower where a host is busy: six take three times as long as one may."""
    fresh(cuda)
    with executor(cuda, plan_of(3)) as made:
        assert verified_run(made, values="exact").ok
        _, library = parts(made)
        close = library.close

        def slowly(communicator: Any) -> None:
            time.sleep(0.25)
            close(communicator)

        monkeypatch.setattr(collectives, "SETTLE", 0.5)
        monkeypatch.setattr(library, "close", slowly)
    at_rest(cuda)


def test_an_abort_that_waits_keeps_no_other_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "RELIEF", 0.05)
    one, graph = owner.Owner(), threading.Event()
    first = one.begin(graph.wait, lasts=True)
    began = time.monotonic()
    assert one.begin(lambda: None, lasts=True).done.wait(10)
    one.do(lambda: None)
    assert 0.05 <= time.monotonic() - began < 5
    assert not first.done.is_set()
    graph.set()
    assert first.done.wait(10)


def test_there_is_nothing_to_ask_where_no_library_makes_collectives(cuda: standin.StandIn) -> None:
    """The watchdog asks executors of groups, too, that have none."""
    cuda.reset("devices 2; sms 2")
    with Executor(several.plan_for("cuda", "gemm_rs/streamed", 2), "cuda") as made:
        driver = made.driver
        assert isinstance(driver, GpuDriver)
        assert driver._runs.ill() == ""


def test_the_thread_of_communicators_does_not_live_on_in_a_forked_process() -> None:
    script = """if True:
        import os, sys
        from ficco_rt.driver.gpu.owner import OWNER
        OWNER.do(lambda: None)
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        OWNER.do(lambda: None)
        """
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert re.search(
        r"DeviceError: process \d+ has opened communicators and has forked this process, in which they do not work; "
        r"start processes by another way than fork \(multiprocessing: the method spawn\)",
        ended.stderr,
    )


def test_the_stand_in_refuses_two_threads_in_a_communicator(cuda: standin.StandIn) -> None:
    """Also an abort in the midst of a call, a second abort on a device, and what comes while a call is in progress."""

    def elsewhere(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    fresh(cuda)
    made = executor(cuda, plan_of())
    communicators, library = parts(made)
    gpus = made.driver._gpus  # type: ignore[attr-defined]
    first = communicators._open[0]
    words = {rank: gpus.alloc(gpus.device(rank), 64, "words") for rank in first}

    def call(rank: int) -> None:
        word = words[rank]
        library.call("all_reduce", first[rank], rank, 2, Member(word, word, 1, "fp32", gpus.control[rank]))

    with library.group():
        for rank in first:
            call(rank)
        elsewhere(lambda: library.state(first[0]))
    assert cuda.violations() == "ncclCommGetAsyncError: two threads are in one communicator at the same time\n"
    with pytest.raises(DeviceError, match="ncclInvalidArgument"), library.group():
        call(0)  # the one before is in progress
    assert cuda.violations().endswith("ncclAllReduce: the communicator is in progress\n")
    while any(library.state(communicator) for communicator in first.values()):
        pass
    with library.group():
        call(0)
        elsewhere(lambda: library.abort(first[0]))
    assert cuda.violations().endswith("ncclCommAbort: a call of another thread is under way\n")
    library.abort(first[1])
    del communicators._open[0]
    made.close()
    assert cuda.live() == {}


def test_the_stand_in_refuses_two_threads_that_abort_on_a_device(cuda: standin.StandIn) -> None:
    two = "ncclCommAbort: two threads give communicators of device 0 back at the same time"
    for _ in range(100):  # until they meet
        if two in aborted_by_two_threads(cuda, together=True):
            break
    else:
        raise AssertionError("no violation")
    assert aborted_by_two_threads(cuda, together=False) == ""


def aborted_by_two_threads(cuda: standin.StandIn, *, together: bool) -> str:
    """A thread for each queue. The violations."""
    fresh(cuda)
    with executor(cuda, plan_of()) as made:
        communicators, library = parts(made)
        start = threading.Barrier(2 if together else 1)

        def abort(number: int) -> None:
            start.wait(10)
            for communicator in communicators._open[number].values():
                library.abort(communicator)

        threads = [threading.Thread(target=abort, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
            if not together:
                thread.join()
        for thread in threads:
            thread.join()
        communicators._open.clear()
    assert cuda.live() == {}
    return cuda.violations()


def suppressed(run: Callable[[], object]) -> None:
    with suppress(DeviceError):
        run()


def test_callers_graphs_hold_no_collectives_of_several_gpus_of_a_process(cuda: standin.StandIn) -> None:
    """NVIDIA says that the launch of one GPU's graph may wait for the others' graphs. The capture stays usable."""
    fresh(cuda)
    message = r"takes one GPU a process: start a process for each GPU, or make the executor with collectives='copies'"
    with executor(cuda, plan_of()) as made:
        assert verified_run(made, values="exact").ok
        callers = Callers(made.plan, 1, default=False)
        captures = Captures(callers, joined=True)
        with captures.capturing(), pytest.raises(UsageError, match=message):
            made.run(streams=[int(stream) for stream in callers.streams])
        captures.close()
        callers.close()
    at_rest(cuda)


@pytest.mark.parametrize(
    "name",
    [
        *("GetVersion", "GetUniqueId", "GroupStart", "CommInitRankConfig", "AllReduce", "AllGather", "ReduceScatter"),
        *("Send", "Recv", "GroupEnd", "CommDestroy", "CommGetAsyncError"),
    ],
)
def test_each_call_that_fails_is_told(library: standin.StandIn, name: str) -> None:
    """The first of each fails, then the first in a run; and then all is well."""
    for after in (0, 1):
        fresh(library, "query_steps 3000")
        if not after:
            library.set(f"fail nccl{name} 1 3")
        told = ""
        try:
            with executor(library, plan_of()) as made:
                if after:
                    library.set(f"fail nccl{name} 1 3")
                told = "copies" if made.driver.collectives.startswith("copies") else ""
                assert verified_run(made, values="exact").ok
        except DeviceError as error:
            told = str(error)
        late = library.fired() == "ncclCommGetAsyncError"  # the watchdog may ask when the run is over
        assert "ncclInternalError" in told or told == "copies" or late or not library.fired(), told
        library.calm()
        at_rest(library)
        with executor(library, plan_of()) as made:
            assert verified_run(made, values="exact").ok
        at_rest(library)


def test_the_tool_for_real_gpus_finds_all_right(cuda: standin.StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    fresh(cuda, "query_steps 3000")
    assert test_nccl.right(2, "cuda", rows=4, replays=2)
    said = capsys.readouterr().out
    assert said.count("graph after 2 replays right") == 5
    assert "NCCL 2.28.9, bf16, ctas = 0: streams, exact right" in said
    one = test_nccl.every_plan(2, "cuda", 4, only="all_to_all")
    assert [t.name for t in one.tensors] == ["A", "X"]
    at_rest(cuda)


# ---------------------------------------------------------------- the command line

SIZES = ("--set", "M=64", "--set", "N=32", "--set", "K=64", "--set", "T=fp32")
COMMAND = ("gemm_ar/serial", "--gpus", "2", "--no-baselines", "--timeout", "10", *SIZES)


def ended(tmp_path: Path, setting: str, *more: str) -> Ended:
    """`ficco-run` in a process of its own."""
    machine = Machine(tmp_path)
    return machine.end(machine.start(f"devices 2; sms 132; query_steps 3000; {setting}", *COMMAND, *more))


def test_a_run_says_what_made_its_collectives(tmp_path: Path) -> None:
    told = ended(tmp_path, THERE, "--graph")
    assert (told.code, told.left) == (0, {})
    assert "  collectives  by NCCL 2.28.9\n" in told.out


def test_a_collective_that_fails_ends_with_code_3(tmp_path: Path) -> None:
    told = ended(tmp_path, f"{THERE}; lose_collective 2 6")  # the first one warms the library up
    assert (told.code, told.left) == (3, {})
    assert "NCCL tells of ncclRemoteError on stand-in (device 0), queue 'vendor': all_reduce (" in told.err
    assert "serial.ficco:32)" in told.err

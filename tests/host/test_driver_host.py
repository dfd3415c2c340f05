"""The host driver: in which orders it steps, when, and what it says when a run cannot end."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from ficco_rt.driver.api import Binding
from ficco_rt.driver.host.driver import HostDriver
from ficco_rt.driver.host.order import ready_pool
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.kernels import vendor_gemm
from ficco_rt.machine import durations
from ficco_rt.plan.ir import Command, Plan
from ficco_rt.sim.prices import READ
from tests.host.handmade import (
    MACHINE,
    array,
    blank,
    box,
    collective,
    copy,
    gemm_work,
    launch,
    message,
    plan,
    record,
    run,
    signal,
    tensor,
    wait,
    wait_flag,
)

ORDERS = ["fifo", "adversarial", *(f"lazy({s})" for s in range(2)), *(f"random({s})" for s in range(20))]


# ---------------------------------------------------------------- stepping


def push_then_multiply(*, waits: bool) -> Plan:
    """Rank 0 pushes X to Y of rank 1, which then computes Z = Y · I."""
    there: list[Command] = [wait(0, 20)] if waits else []
    there.append(
        launch(gemm_work(box("Z", 1, (0, 2), (0, 2)), box("Y", 1, (0, 2), (0, 2)), box("I", 1, (0, 2), (0, 2)), 20))
    )
    return plan(
        [
            tensor("X", "input", (2, 2), (2, 2)),
            tensor("I", "input", (2, 2), (2, 2)),
            tensor("Y", "output", (2, 2), (2, 2)),
            tensor("Z", "output", (2, 2), (2, 2)),
        ],
        [
            (0, "copy", [copy(box("Y", 1, (0, 2), (0, 2)), box("X", 0, (0, 2), (0, 2)), 10), record(0, 10)]),
            (1, "sm", there),
        ],
        events=1,
    )


def product_of(made: Plan, order: str) -> list[list[float]]:
    x = [array([[1, 2], [3, 4]]), blank(2, 2)]
    z = [blank(2, 2), blank(2, 2)]
    run(made, order, X=x, I=[np.eye(2, dtype=np.float32)] * 2, Y=[blank(2, 2), blank(2, 2)], Z=z)
    result: list[list[float]] = z[1].tolist()
    return result


@pytest.mark.parametrize("order", ORDERS)
def test_a_wait_holds_in_every_order(order: str) -> None:
    assert product_of(push_then_multiply(waits=True), order) == [[1, 2], [3, 4]]


@pytest.mark.parametrize("order", ["adversarial", "lazy(0)"])
def test_a_missing_wait_shows_as_wrong_data(order: str) -> None:
    made = push_then_multiply(waits=False)
    assert np.isnan(product_of(made, order)).all()
    assert product_of(made, "fifo") == [[1, 2], [3, 4]]  # as issued, it happens to be right
    outcomes = {str(product_of(made, f"random({seed})")) for seed in range(20)}
    assert outcomes == {"[[nan, nan], [nan, nan]]", "[[1.0, 2.0], [3.0, 4.0]]"}


def test_lazy_finds_what_adversarial_misses() -> None:
    """The racing write (line 5, stream 0) stands later than what its reader's stream does first (line 3), so
    the latest-first order runs it in time."""
    made = plan(
        [
            tensor("X", "input", (1, 1)),
            tensor("Y", "output", (1, 1)),
            tensor("Z", "output", (1, 1)),
            tensor("W", "output", (1, 1)),
        ],
        [
            (0, "copy", [copy(box("Y", 0, (0, 1), (0, 1)), box("X", 0, (0, 1), (0, 1)), 5)]),
            (
                0,
                "sm",
                [
                    copy(box("W", 0, (0, 1), (0, 1)), box("X", 0, (0, 1), (0, 1)), 3),
                    copy(box("Z", 0, (0, 1), (0, 1)), box("Y", 0, (0, 1), (0, 1)), 9),
                ],
            ),
        ],
    )
    results = {}
    for order in ("adversarial", "lazy(0)"):
        z = [blank(1, 1)]
        run(made, order, X=[array([[7]])], Y=[blank(1, 1)], Z=z, W=[blank(1, 1)])
        results[order] = z[0].item()
    assert results["adversarial"] == 7
    assert np.isnan(results["lazy(0)"])


def test_a_seed_gives_the_same_run_again() -> None:
    made = push_then_multiply(waits=False)
    for seed in range(10):
        assert str(product_of(made, f"random({seed})")) == str(product_of(made, f"random({seed})"))


def test_unknown_order() -> None:
    for text in ("lifo", "random", "random(x)", "lazy()", "fifo(1)"):
        with pytest.raises(UsageError) as caught:
            ready_pool(text)
        assert str(caught.value) == (
            f"order {text}: there are fifo, random:SEED, adversarial and lazy:STREAM, such as random:7"
        )


# ---------------------------------------------------------------- deadlocks


def idle_plan(streams: list[tuple[int, list[Command]]], events: int = 0, flags: tuple[int, ...] = ()) -> Plan:
    return plan(
        [tensor("S", "scratch", (1, 1), (1, 1))], [(r, "copy", c) for r, c in streams], events=events, flag_homes=flags
    )


def test_deadlock_of_two_streams() -> None:
    made = idle_plan([(0, [wait(1, 12), record(0, 13)]), (1, [wait(0, 20), record(1, 21)])], events=2)
    assert message(made) == (
        "deadlock: rank 0 stream dma waits for event 1 (x.ficco:12), which rank 1 stream dma records (x.ficco:21)"
        " after its own wait for event 0 (x.ficco:20)\n"
        "deadlock: rank 1 stream dma waits for event 0 (x.ficco:20), which rank 0 stream dma records (x.ficco:13)"
        " after its own wait for event 1 (x.ficco:12)"
    )


def test_a_wait_that_nothing_ends() -> None:
    made = idle_plan([(0, []), (1, [wait(0, 20)])], events=1)
    assert message(made) == "deadlock: rank 1 stream dma waits for event 0 (x.ficco:20), which nothing records"
    made = idle_plan([(0, []), (1, [wait_flag(0, 20)])], flags=(1,))
    assert message(made) == "deadlock: rank 1 stream dma waits for flag 0 (x.ficco:20), which nothing raises"


def without_the_first(binding: Binding) -> Binding:
    """A binding that issues all tasks but the first."""
    bound = cast(Any, binding)
    return Binding(replace(bound, tasks=bound.tasks[1:]))


def test_a_record_that_is_bound_but_not_issued() -> None:
    made = idle_plan([(0, [record(0, 10)]), (1, [wait(0, 20)])], events=1)
    driver = HostDriver(made)
    driver.run(without_the_first(driver.bind({})))
    with pytest.raises(DeviceError) as caught:
        driver.synchronize()
    assert str(caught.value) == (
        "deadlock: rank 1 stream dma waits for event 0 (x.ficco:20), which rank 0 stream dma records (x.ficco:10),"
        " but that command was never issued"
    )


def test_deadlock_inside_a_streamed_launch() -> None:
    one = box("S", 0, (0, 1), (0, 1))
    works = [
        gemm_work(one, one, one, 30, signals=(1,)),
        gemm_work(one, one, one, 31, waits=(1, 0)),
        gemm_work(one, one, one, 32, waits=(0,)),
    ]
    made = plan(
        [tensor("S", "scratch", (1, 1))],
        [(0, "sm", [launch(*works, streamed=True)]), (0, "copy", [wait(0, 40), signal(0, 41)])],
        events=1,
        flag_homes=(0, 0),
    )
    assert message(made) == (
        "deadlock: rank 0 stream compute waits in the launch of stage 'mm': its work 1 (x.ficco:31) waits for flag 0,"
        " which rank 0 stream dma raises (x.ficco:41) after its own wait for event 0 (x.ficco:40);"
        " 1 more works of the launch wait\n"
        "deadlock: rank 0 stream dma waits for event 0 (x.ficco:40), which nothing records"
    )


def test_a_collective_that_a_rank_does_not_call() -> None:
    cell = [box("S", r, (0, 1), (0, 1)) for r in range(2)]
    made = plan(
        [tensor("S", "scratch", (1, 1), (1, 1))],
        [(0, "nccl", [collective("all_reduce", 4, cell[0], cell[0], 8)]), (1, "nccl", [])],
    )
    assert message(made) == (
        "deadlock: rank 0 stream nccl waits in all_reduce, collective 4 (x.ficco:8), for rank 1 to call it"
    )


def test_the_next_run_works_after_a_deadlock() -> None:
    """The first run is stuck on an unissued record; the second issues everything."""
    made = idle_plan([(0, [record(0, 10)]), (1, [wait(0, 20)])], events=1)
    driver = HostDriver(made)
    binding = driver.bind({})
    without_record = without_the_first(binding)
    driver.run(without_record)
    with pytest.raises(DeviceError, match="never issued"):
        driver.synchronize()
    for _ in range(2):
        driver.run(binding)
        driver.synchronize()
    driver.run(without_record)  # the event of the run before does not count
    with pytest.raises(DeviceError, match="never issued"):
        driver.synchronize()


# ---------------------------------------------------------------- streamed launches


def streamed_plan() -> Plan:
    """Rank 0 sends two rows; rank 1's one launch multiplies each by 2 when its flag is up, and a third work
    adds them when both are done. The sum goes home by a copy that waits for its flag."""
    rows = [box("Y", 1, (i, i + 1), (0, 2)) for i in range(2)]
    out = [box("Z", 1, (i, i + 1), (0, 2)) for i in range(2)]
    two = box("D", 1, (0, 2), (0, 2))
    ones = box("O", 1, (0, 1), (0, 2))
    total = box("T", 1, (0, 1), (0, 2))
    return plan(
        [
            tensor("X", "input", (2, 2), (2, 2)),
            tensor("D", "input", (2, 2), (2, 2)),
            tensor("O", "input", (1, 2), (1, 2)),
            tensor("Y", "output", (2, 2), (2, 2)),
            tensor("Z", "output", (2, 2), (2, 2)),
            tensor("T", "output", (1, 2), (1, 2)),
        ],
        [
            (
                0,
                "copy",
                [
                    copy(rows[1], box("X", 0, (1, 2), (0, 2)), 10),
                    signal(1, 10),
                    copy(rows[0], box("X", 0, (0, 1), (0, 2)), 11),
                    signal(0, 11),
                    wait_flag(4, 40),
                    copy(box("T", 0, (0, 1), (0, 2)), total, 40),
                ],
            ),
            (
                1,
                "sm",
                [
                    launch(
                        gemm_work(out[0], rows[0], two, 20, waits=(0,), signals=(2,)),
                        gemm_work(out[1], rows[1], two, 21, waits=(1,), signals=(3,)),
                        gemm_work(total, ones, box("Z", 1, (0, 2), (0, 2)), 22, waits=(2, 3), signals=(4,)),
                        streamed=True,
                    )
                ],
            ),
        ],
        flag_homes=(1, 1, 1, 1, 0),
    )


def streamed_tensors() -> dict[str, list[np.ndarray]]:
    return {
        "X": [array([[1, 2], [3, 4]]), blank(2, 2)],
        "D": [array([[2, 0], [0, 2]])] * 2,
        "O": [array([[1, 1]])] * 2,
        "Y": [blank(2, 2), blank(2, 2)],
        "Z": [blank(2, 2), blank(2, 2)],
        "T": [blank(1, 2), blank(1, 2)],
    }


@pytest.mark.parametrize("order", ORDERS)
def test_streamed_works_wait_for_their_flags(order: str) -> None:
    tensors = streamed_tensors()
    run(streamed_plan(), order, **tensors)
    assert tensors["Z"][1].tolist() == [[2, 4], [6, 8]]
    assert tensors["T"][0].tolist() == [[8, 12]]


def test_streamed_works_run_as_their_flags_come_on_the_virtual_clock() -> None:
    trace = run(streamed_plan(), **streamed_tensors())
    mine = [(s.kind, s.place, s.start, s.stop) for s in trace.spans if s.stream == 1 and s.kind != "launch"]
    # a row is 8 bytes: 9 + 0.8 µs; it is seen 4 µs later, the second one first. Each work is a tile on one
    # of three multiprocessors, which has a third of the memory: its operands' way takes 0.63 µs, of 2 + 4 + 2 elements,
    # of which the 4 of the right operand are read once for all three (10.7 of 16 bytes less, rounded).
    # Each multiprocessor takes a tile, and waits for that one's flags alone: the second row is multiplied while the
    # first one is on its way. The third work waits for the first one's flag.
    way = 0.63 / READ  # a product reaches that share of the memory
    assert mine == [
        ("wait", "x.ficco:21", 3.0, pytest.approx(13.8)),
        ("gemm", "x.ficco:21", pytest.approx(13.8), pytest.approx(13.8 + way)),
        ("wait", "x.ficco:20", pytest.approx(13.8 + way), pytest.approx(23.6)),
        ("gemm", "x.ficco:20", pytest.approx(23.6), pytest.approx(23.6 + way)),
        ("gemm", "x.ficco:22", pytest.approx(23.6 + way), pytest.approx(23.6 + 2 * way)),
    ]
    back = [(s.kind, s.start, s.stop) for s in trace.spans if s.stream == 0][-2:]
    assert back == [
        ("wait", pytest.approx(19.6), pytest.approx(27.6 + 2 * way)),
        ("copy", pytest.approx(27.6 + 2 * way), pytest.approx(37.4 + 2 * way)),
    ]


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_missing_flag_shows(missing: int) -> None:
    made = streamed_plan()
    stream = made.streams[1]
    (command,) = stream.commands
    works = tuple(replace(w, waits=tuple(f for f in w.waits if f != missing)) for w in command.works)  # type: ignore[union-attr]
    broken = replace(made, streams=(made.streams[0], replace(stream, commands=(replace(command, works=works),))))  # type: ignore[call-arg]
    wrong = []
    for order in ORDERS:
        tensors = streamed_tensors()
        run(broken, order, **tensors)
        wrong.append(bool(np.isnan(tensors["T"][0]).any()))
    assert any(wrong)


# ---------------------------------------------------------------- the virtual clock


TILE = vendor_gemm._ENDS  # the machine has no GEMM of ours


def test_the_clock_is_the_machines_and_not_the_orders() -> None:
    made = push_then_multiply(waits=True)
    spans = set()
    for order in ORDERS:
        x = [array([[1, 2], [3, 4]])] * 2
        outputs = {"Y": [blank(2, 2), blank(2, 2)], "Z": [blank(2, 2), blank(2, 2)]}
        trace = run(made, order, X=x, I=[np.eye(2, dtype=np.float32)] * 2, **outputs)
        assert (trace.clock, trace.machine, trace.schedule) == ("virtual", "toy", "x")
        assert [(lane.rank, lane.name, lane.engine) for lane in trace.lanes] == [
            (0, "dma", "copy"),
            (1, "compute", "sm"),
        ]
        spans.add(trace.spans)
    ((push, waiting, product),) = spans
    # 16 bytes at 10 bytes a microsecond and a copy's 9; seen 4 later; launch 3, operands' 48 bytes at 100
    assert (push.start, push.stop, push.bytes, push.peer) == (0, pytest.approx(10.6), 16, 1)
    assert (push.kind, push.label, push.place) == ("copy", "move  X → Y@1 rows 0–1, columns 0–1", "x.ficco:10")
    assert (waiting.kind, waiting.start, waiting.stop) == ("wait", 0, pytest.approx(14.6))
    assert (waiting.label, waiting.stage) == ("waits for event 0 of rank 0 stream dma", "mm")
    assert (product.start, product.stop) == (pytest.approx(14.6), pytest.approx(14.6 + 3 + TILE + 0.48 / READ))
    assert (product.kind, product.flops, product.bytes) == ("gemm", 16, 48)
    assert trace.duration == pytest.approx(14.6 + 3 + TILE + 0.48 / READ)


def test_costs() -> None:
    assert durations.transfer_time(MACHINE, 0, 1, 1000) == 9 + 100
    assert durations.transfer_time(MACHINE, 1, 1, 1000) == 9 + 20
    ring = replace(MACHINE, ranks=6, links=replace(MACHINE.links, kind="ring"))
    assert durations.transfer_time(ring, 0, 4, 1000) == 9 + 200
    # 2 · 100 · 100 · 100 operations at 1000; half the multiprocessors take twice as long
    assert durations.gemm_time(MACHINE, 100, 100, 100, "bf16") == 2000
    assert durations.gemm_time(MACHINE, 100, 100, 100, "bf16", 5) == 4000
    # a vector: 1 · 1000 + 1000 · 1000 + 1000 elements of 2 bytes at 100 bytes a microsecond
    assert durations.gemm_time(MACHINE, 1, 1000, 1000, "bf16") == pytest.approx(2 * 1_002_000 / 100)
    assert durations.kernel_time(MACHINE, 100, 1) == 10
    assert durations.collective_time(MACHINE, "all_gather", 100) == 3 + 4 + 5
    assert durations.collective_time(MACHINE, "all_reduce", 100) == 3 + 8 + 10
    mesh = replace(MACHINE, ranks=5, links=replace(MACHINE.links, kind="mesh"))
    assert durations.collective_time(mesh, "all_to_all", 100) == 3 + 16 + 2
    assert durations.collective_time(replace(MACHINE, ranks=1), "all_reduce", 100) == 3 + 2


def test_terms_cost_their_bytes() -> None:
    out = box("C", 0, (0, 2), (0, 2))
    work = gemm_work(
        out, box("A", 0, (0, 2), (0, 2)), box("B", 0, (0, 2), (0, 2)), 5, addends=(box("F", 0, (0, 2), (0, 2)),)
    )
    tensors = [tensor(n, "output", (2, 2)) for n in "ABCF"]
    made = plan(tensors, [(0, "sm", [launch(work)])])
    (span,) = run(made, **{n: [array([[1, 2], [3, 4]])] for n in "ABCF"}).spans
    # launch 3, four times 16 bytes at 100, a tile's ends; and one of ten multiprocessors adds 48 bytes for all
    shown = 10 * durations.ADDED * 0.48
    assert (span.start, span.stop, span.bytes) == (0, pytest.approx(3 + 0.64 / READ + TILE + shown), 64)


# ---------------------------------------------------------------- what opens closes


def test_close_lets_go_of_everything() -> None:
    made = push_then_multiply(waits=True)
    x, i = [array([[1, 2], [3, 4]])] * 2, [array([[1, 0], [0, 1]])] * 2
    y, z = [blank(2, 2), blank(2, 2)], [blank(2, 2), blank(2, 2)]
    executor = Executor(made, machine=MACHINE)
    executor.run(X=x, I=i, Y=y, Z=z)
    driver = weakref.ref(executor.driver)
    watched = [weakref.ref(a) for a in (*x, *i, *y, *z)]
    executor.close()
    executor.close()
    del x, i, y, z
    gc.collect()
    assert [w() for w in watched] == [None] * 8
    del executor
    gc.collect()
    assert driver() is None

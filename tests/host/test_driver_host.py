"""The host driver: what it computes, in which orders, when, and what it says when a run cannot end."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from ficco_rt.driver.api import Binding
from ficco_rt.driver.host.driver import HostDriver
from ficco_rt.driver.host.order import parse_order
from ficco_rt.driver.host.views import HostView
from ficco_rt.errors import DeviceError, PlanError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.graph.ir import Argument, Kernel, KernelCall
from ficco_rt.machine import cost
from ficco_rt.plan.ir import Command, Plan, Work
from ficco_rt.region import Axis, Interval, Region
from ficco_rt.trace import Trace
from tests.host.handmade import (
    MACHINE,
    array,
    blank,
    box,
    collective,
    copy,
    gemm_work,
    launch,
    line,
    plan,
    record,
    reduce,
    segments,
    signal,
    tensor,
    wait,
    wait_flag,
)

ORDERS = ["fifo", "adversarial", *(f"lazy({s})" for s in range(2)), *(f"random({s})" for s in range(20))]


def run(made: Plan, order: str = "fifo", **tensors: object) -> Trace:
    with Executor(made, machine=MACHINE, order=order) as executor:
        executor.run(**tensors)
        return executor.trace


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
            parse_order(text)
        assert str(caught.value) == (
            f"'{text}' is no order; there are fifo, adversarial, random(SEED) and lazy(STREAM), e.g. random(7)"
        )


# ---------------------------------------------------------------- deadlocks


def message(made: Plan, order: str = "fifo", **tensors: object) -> str:
    with pytest.raises(DeviceError) as caught:
        run(made, order, **tensors)
    return str(caught.value)


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


def test_a_record_that_is_bound_but_not_issued() -> None:
    made = idle_plan([(0, [record(0, 10)]), (1, [wait(0, 20)])], events=1)
    driver = HostDriver(made)
    tasks = cast(tuple[object, ...], driver.bind({}))
    driver.run(Binding(tasks[1:]))
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
    without_record = Binding(cast(tuple[object, ...], binding)[1:])
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


def test_streamed_works_run_in_their_order_on_the_virtual_clock() -> None:
    trace = run(streamed_plan(), **streamed_tensors())
    mine = [(s.kind, s.place, s.start, s.stop) for s in trace.spans if s.stream == 1 and s.kind != "launch"]
    # a row is 8 bytes: 9 + 0.8 µs; it is seen 4 µs later, the second one first. Each work is a tile on one
    # of three multiprocessors, which has a third of the memory: its operands' way (2 + 4 + 2 elements) takes 0.96 µs.
    # Two are made side by side, which the lane shows as the first one's time; the third waits for the first one's flag.
    assert mine == [
        ("wait", "x.ficco:20", 3.0, pytest.approx(23.6)),
        ("gemm", "x.ficco:20", pytest.approx(23.6), pytest.approx(24.56)),
        ("gemm", "x.ficco:21", pytest.approx(24.56), pytest.approx(24.56)),
        ("gemm", "x.ficco:22", pytest.approx(24.56), pytest.approx(25.52)),
    ]
    back = [(s.kind, s.start, s.stop) for s in trace.spans if s.stream == 0][-2:]
    assert back == [
        ("wait", pytest.approx(19.6), pytest.approx(29.52)),
        ("copy", pytest.approx(29.52), pytest.approx(39.32)),
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


# ---------------------------------------------------------------- arithmetic


def one_rank(commands: list[Command], **arrays: np.ndarray) -> None:
    """Run commands of a single rank on the arrays, all bound as outputs."""
    names = {np.dtype(np.float32): "fp32", np.dtype(np.float16): "fp16"}
    tensors = [tensor(n, "output", a.shape, dtype=names.get(a.dtype, "bf16")) for n, a in arrays.items()]  # type: ignore[arg-type]
    run(plan(tensors, [(0, "sm", commands)]), **{n: [a] for n, a in arrays.items()})


def test_products_are_summed_in_float32_and_rounded_once() -> None:
    # 256 + 1 + 1: in bf16, whose integers above 256 are even, 256 + 1 rounds back to 256
    c = blank(1, 1, dtype="bf16")
    a, b = array([[256, 1, 1]], "bf16"), array([[1], [1], [1]], "bf16")
    one_rank(
        [launch(gemm_work(box("C", 0, (0, 1), (0, 1)), box("A", 0, (0, 1), (0, 3)), box("B", 0, (0, 3), (0, 1)), 5))],
        A=a,
        B=b,
        C=c,
    )
    assert c.item() == 258
    c = blank(1, 1, dtype="bf16")
    one_rank(
        [reduce(box("C", 0, (0, 1), (0, 1)), tuple(box("A", 0, (0, 1), (i, i + 1)) for i in range(3)), 5)], A=a, C=c
    )
    assert c.item() == 258


def test_terms_are_added_to_the_product_and_rounded_once() -> None:
    # 256 + 1 + 1 again: the product, a term of either type, and the result itself
    c, f = array([[1]], "bf16"), array([[1]], "fp32")
    out = box("C", 0, (0, 1), (0, 1))
    work = gemm_work(
        out, box("A", 0, (0, 1), (0, 1)), box("B", 0, (0, 1), (0, 1)), 5, addends=(out, box("F", 0, (0, 1), (0, 1)))
    )
    one_rank([launch(work)], A=array([[256]], "bf16"), B=array([[1]], "bf16"), C=c, F=f)
    assert c.item() == 258


def test_accumulation_reads_the_stored_value() -> None:
    # two launches of += 1 onto 256 lose both, one of += 2 does not
    c = array([[256]], "bf16")
    a, b = array([[1, 1]], "bf16"), array([[1], [1]], "bf16")
    out = box("C", 0, (0, 1), (0, 1))
    halves = [
        launch(gemm_work(out, box("A", 0, (0, 1), (i, i + 1)), box("B", 0, (i, i + 1), (0, 1)), 5 + i, accumulate=True))
        for i in range(2)
    ]
    one_rank([*halves], A=a, B=b, C=c)
    assert c.item() == 256
    whole = gemm_work(out, box("A", 0, (0, 1), (0, 2)), box("B", 0, (0, 2), (0, 1)), 5, accumulate=True)
    one_rank([launch(whole)], A=a, B=b, C=c)
    assert c.item() == 258


def test_fp16_and_fp32_keep_what_they_can() -> None:
    for dtype, exact in (("fp16", 2**11 - 1), ("fp32", 2**24 - 1)):
        c = blank(1, 1, dtype=dtype)  # type: ignore[arg-type]
        a = array([[exact - 1, 1]], dtype)  # type: ignore[arg-type]
        b = array([[1], [1]], dtype)  # type: ignore[arg-type]
        one_rank(
            [
                launch(
                    gemm_work(box("C", 0, (0, 1), (0, 1)), box("A", 0, (0, 1), (0, 2)), box("B", 0, (0, 2), (0, 1)), 5)
                )
            ],
            A=a,
            B=b,
            C=c,
        )
        assert c.item() == exact


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_regions_of_segments_and_transposed_operands(
    dtype: str, accumulate: bool, transposed: tuple[bool, bool]
) -> None:
    rng = np.random.default_rng(0)
    a = array(rng.integers(-3, 4, (6, 5)), dtype)  # type: ignore[arg-type]
    b = array(rng.integers(-3, 4, (5, 7)), dtype)  # type: ignore[arg-type]
    c = array(rng.integers(-3, 4, (6, 7)), dtype)  # type: ignore[arg-type]
    rows, inner, columns = [(4, 6), (0, 1)], [(3, 5), (1, 2)], [(0, 2), (5, 7)]
    pick = [list(np.concatenate([np.arange(s, e) for s, e in axis])) for axis in (rows, inner, columns)]
    want = c.astype(np.float32)
    product = a.astype(np.float32)[np.ix_(pick[0], pick[1])] @ b.astype(np.float32)[np.ix_(pick[1], pick[2])]
    want[np.ix_(pick[0], pick[2])] = product + (want[np.ix_(pick[0], pick[2])] if accumulate else 0)

    left = segments("A", 0, inner, rows) if transposed[0] else segments("A", 0, rows, inner)
    right = segments("B", 0, columns, inner) if transposed[1] else segments("B", 0, inner, columns)
    work = gemm_work(segments("C", 0, rows, columns), left, right, 5, transposed=transposed, accumulate=accumulate)
    stored_a, stored_b = (a.T.copy() if transposed[0] else a), (b.T.copy() if transposed[1] else b)
    one_rank([launch(work)], A=stored_a, B=stored_b, C=c)
    assert c.astype(np.float32).tolist() == want.tolist()


def test_an_indexed_dimension_is_dropped() -> None:
    x = array(np.arange(12).reshape(3, 2, 2))
    c = blank(2, 2)
    expert = Region("X", 0, (Axis((Interval(1, 2),), dropped=True), Axis((Interval(0, 2),)), Axis((Interval(0, 2),))))
    one = array([[1, 0], [0, 1]])
    one_rank([launch(gemm_work(box("C", 0, (0, 2), (0, 2)), expert, box("I", 0, (0, 2), (0, 2)), 5))], X=x, I=one, C=c)
    assert c.tolist() == [[4, 5], [6, 7]]


def test_one_box_is_the_memory_itself() -> None:
    memory = np.zeros((4, 4), np.float32)
    view = HostView(memory, box("X", 0, (1, 3), (0, 2)), line(1))
    assert np.shares_memory(view.load(), memory)
    assert np.shares_memory(view.load32(), memory)
    scattered = HostView(memory, segments("X", 0, [(3, 4), (0, 1)], [(0, 4)]), line(1))
    assert not np.shares_memory(scattered.load(), memory)
    scattered.store(np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32))
    assert memory.tolist() == [[5, 6, 7, 8], [0, 0, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4]]


def test_copies_keep_bits() -> None:
    bits = np.array([[0x7FC1, 0x8000], [0x0001, 0xFF80]], np.uint16)  # a NaN with a payload, −0, a denormal, −inf
    x = bits.view(array(0, "bf16").dtype)
    y = blank(2, 2, dtype="bf16")
    one_rank([copy(box("Y", 0, (0, 2), (0, 2)), box("X", 0, (0, 2), (0, 2)), 3)], X=x, Y=y)
    assert y.view(np.uint16).tolist() == bits.tolist()


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            copy(box("C", 0, (0, 3), (0, 2)), box("A", 0, (0, 3), (0, 2)), 5),
            "x.ficco:5:3: C@0[0:3, 0:2] does not lie in a tensor of shape [2, 2]",
        ),
        (
            copy(box("C", 0, (0, 1), (0, 2)), box("A", 0, (0, 2), (0, 2)), 5),
            "x.ficco:5:3: A@0[0:2, 0:2] float32 cannot be copied to C@0[0:1, 0:2] float32",
        ),
        (
            launch(gemm_work(box("C", 0, (0, 2), (0, 2)), box("A", 0, (0, 2), (0, 1)), box("A", 0, (0, 2), (0, 2)), 6)),
            "x.ficco:6:3: shapes do not fit: C@0[0:2, 0:2] = A@0[0:2, 0:1] · A@0[0:2, 0:2]",
        ),
        (
            reduce(box("C", 0, (0, 2), (0, 2)), (box("A", 0, (0, 1), (0, 2)),), 7),
            "x.ficco:7:3: the terms of a sum must have the shape of C@0[0:2, 0:2]",
        ),
    ],
)
def test_a_malformed_plan_is_refused(command: Command, text: str) -> None:
    with pytest.raises(PlanError) as caught:
        one_rank([command], A=blank(3, 2)[:3], C=blank(2, 2))
    assert str(caught.value) == text


# ---------------------------------------------------------------- collectives


def on_all_ranks(
    kind: str, src: list[np.ndarray], dst_rows: list[int], order: str = "fifo", in_place: bool = False
) -> list[list[list[float]]]:
    n = len(src)
    width = src[0].shape[1]
    whole = [box("S", r, (0, src[r].shape[0]), (0, width)) for r in range(n)]
    into = whole if in_place else [box("D", r, (0, dst_rows[r]), (0, width)) for r in range(n)]
    made = plan(
        [
            tensor("S", "output", *(s.shape for s in src)),
            tensor("D", "output", *((rows, width) for rows in dst_rows)),
        ],
        [(r, "nccl", [collective(kind, 0, into[r], whole[r], 4)]) for r in range(n)],
    )
    dst = [blank(rows, width) for rows in dst_rows]
    if in_place:
        for d in dst:
            d.fill(0)
    run(made, order, S=src, D=dst)
    return [a.tolist() for a in (src if in_place else dst)]


@pytest.mark.parametrize("order", ["fifo", "adversarial", "random(3)"])
def test_collectives(order: str) -> None:
    def ranks() -> list[np.ndarray]:
        return [array([[1], [2], [3], [4]]), array([[10], [20], [30], [40]])]

    assert on_all_ranks("all_gather", [r[:2] for r in ranks()], [4, 4], order) == [[[1], [2], [10], [20]]] * 2
    assert on_all_ranks("all_reduce", ranks(), [4, 4], order) == [[[11], [22], [33], [44]]] * 2
    assert on_all_ranks("all_reduce", ranks(), [4, 4], order, in_place=True) == [[[11], [22], [33], [44]]] * 2
    assert on_all_ranks("reduce_scatter", ranks(), [2, 2], order) == [[[11], [22]], [[33], [44]]]
    assert on_all_ranks("reduce_scatter", ranks(), [1, 3], order) == [[[11]], [[22], [33], [44]]]
    assert on_all_ranks("all_to_all", ranks(), [4, 4], order) == [[[1], [2], [10], [20]], [[3], [4], [30], [40]]]
    assert on_all_ranks("all_to_all", ranks(), [4, 4], order, in_place=True) == [
        [[1], [2], [10], [20]],
        [[3], [4], [30], [40]],
    ]
    # shards need not be equal
    assert on_all_ranks("all_gather", [ranks()[0][:1], ranks()[1][:3]], [4, 4], order) == [[[1], [10], [20], [30]]] * 2


def test_a_collective_begins_when_all_ranks_are_there() -> None:
    """Rank 1 is late by a copy: rank 0 waits for it before its part, and rank 1 for rank 0 behind its own."""
    cell = [box("S", r, (0, 2), (0, 1)) for r in range(2)]
    made = plan(
        [tensor("S", "output", (2, 1), (2, 1)), tensor("X", "input", (2, 1), (2, 1))],
        [
            (0, "nccl", [collective("all_reduce", 0, cell[0], cell[0], 4)]),
            (
                1,
                "nccl",
                [copy(cell[1], box("X", 1, (0, 2), (0, 1)), 2), collective("all_reduce", 0, cell[1], cell[1], 4)],
            ),
        ],
    )
    trace = run(made, S=[array([[1], [2]]), blank(2, 1)], X=[array([[5], [6]])] * 2)
    # The local copy of 8 bytes: 9 + 2 · 8 / 100. A rank sees the other one's signal 4 later. Its part is a sum of one
    # of two rows, launch 3 and 4 bytes that it reads from the other rank at 8, and a copy of the sum to that rank: 9
    # and 4 bytes at 10.
    here = 9.16
    late = here + 4
    assert [(s.rank, s.kind, s.start, s.stop) for s in trace.spans] == [
        (0, "wait", 0.0, pytest.approx(late)),
        (0, "collective", pytest.approx(late), pytest.approx(late + 3.5)),
        (0, "collective", pytest.approx(late + 3.5), pytest.approx(late + 12.9)),
        (1, "copy", 0.0, pytest.approx(here)),
        (1, "collective", pytest.approx(here), pytest.approx(here + 3.5)),
        (1, "collective", pytest.approx(here + 3.5), pytest.approx(here + 12.9)),
        (1, "wait", pytest.approx(here + 12.9), pytest.approx(late + 12.9 + 4)),
    ]


# ---------------------------------------------------------------- user kernels

TWIN = """
def scale(x, y, factor):
    y[...] = x * factor

def bump(x):
    assert x.shape == (2, 2), x.shape
    x += 1

def fail(x):
    raise ValueError("no such luck")
"""


def kernel_plan(host: str | None, folder: Path, arguments: tuple[Argument, ...]) -> Plan:
    place = line(7, str(folder / "x.ficco"))
    work = Work(KernelCall("k", arguments, (1,), (1,)), (), (), 9, line(9, str(folder / "x.ficco")))
    return plan(
        [tensor("X", "output", (4, 2)), tensor("Y", "output", (4, 2))],
        [(0, "sm", [launch(work, kernel="k")])],
        kernels=(Kernel("k", "k.cu", "entry", host, place),),
    )


def test_a_user_kernel_runs_its_host_function(tmp_path: Path) -> None:
    (tmp_path / "twin.py").write_text(TWIN)
    x, y = array([[1, 2], [3, 4], [5, 6], [7, 8]]), blank(4, 2)
    scale = (
        Argument("x", "read", box("X", 0, (1, 3), (0, 2))),
        Argument("y", "write", box("Y", 0, (0, 2), (0, 2))),
        Argument("factor", "int", 10),
    )
    run(kernel_plan("twin.py:scale", tmp_path, scale), X=[x], Y=[y])
    assert y[:2].tolist() == [[30, 40], [50, 60]]
    assert np.isnan(y[2:]).all()
    updated = (Argument("x", "update", box("X", 0, (2, 4), (0, 2))),)
    run(kernel_plan("twin.py:bump", tmp_path, updated), X=[x], Y=[y])
    assert x.tolist() == [[1, 2], [3, 4], [6, 7], [8, 9]]


def test_a_host_function_cannot_write_what_its_kernel_reads(tmp_path: Path) -> None:
    (tmp_path / "twin.py").write_text(TWIN)
    reads = (Argument("x", "read", box("X", 0, (0, 2), (0, 2))),)
    x = array([[1, 2], [3, 4], [5, 6], [7, 8]])
    assert message(kernel_plan("twin.py:bump", tmp_path, reads), X=[x], Y=[blank(4, 2)]) == (
        f"{tmp_path}/x.ficco:9: kernel 'k' failed on rank 0: ValueError: output array is read-only"
    )
    assert x.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


@pytest.mark.parametrize(
    ("host", "text"),
    [
        (
            None,
            "kernel 'k' has no host function, so the host driver cannot run it; declare a numpy twin with "
            'host = "file.py:function", called with one array a region and ints, in the order of '
            "the kernel's arguments",
        ),
        ("twin.py:absent", "kernel 'k': '{folder}/twin.py' has no function 'absent'"),
        (
            "other.py:scale",
            "kernel 'k': there is no file '{folder}/other.py'; host is written \"file.py:function\", "
            "the file relative to the schedule's folder",
        ),
        ("broken.py:scale", "kernel 'k': '{folder}/broken.py' does not load: ZeroDivisionError: division by zero"),
    ],
)
def test_a_user_kernel_that_cannot_run_here(tmp_path: Path, host: str | None, text: str) -> None:
    (tmp_path / "twin.py").write_text(TWIN)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    made = kernel_plan(host, tmp_path, (Argument("x", "read", box("X", 0, (0, 1), (0, 2))),))
    with pytest.raises(UsageError) as caught:
        Executor(made, machine=MACHINE)
    assert str(caught.value) == f"{tmp_path}/x.ficco:7: " + text.replace("{folder}", str(tmp_path.resolve()))


def test_a_user_kernel_that_fails(tmp_path: Path) -> None:
    (tmp_path / "twin.py").write_text(TWIN)
    made = kernel_plan("twin.py:fail", tmp_path, (Argument("x", "read", box("X", 0, (0, 1), (0, 2))),))
    assert message(made, X=[blank(4, 2)], Y=[blank(4, 2)]) == (
        f"{tmp_path}/x.ficco:9: kernel 'k' failed on rank 0: ValueError: no such luck"
    )


# ---------------------------------------------------------------- the virtual clock


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
    assert (product.start, product.stop) == (pytest.approx(14.6), pytest.approx(14.6 + 3 + 0.48))
    assert (product.kind, product.flops, product.bytes) == ("gemm", 16, 48)
    assert trace.duration == pytest.approx(18.08)


def test_costs() -> None:
    assert cost.transfer_time(MACHINE, 0, 1, 1000) == 9 + 100
    assert cost.transfer_time(MACHINE, 1, 1, 1000) == 9 + 20
    ring = replace(MACHINE, ranks=6, links=replace(MACHINE.links, kind="ring"))
    assert cost.transfer_time(ring, 0, 4, 1000) == 9 + 200
    # 2 · 100 · 100 · 100 operations at 1000; half the multiprocessors take twice as long
    assert cost.gemm_time(MACHINE, 100, 100, 100, "bf16") == 2000
    assert cost.gemm_time(MACHINE, 100, 100, 100, "bf16", 5) == 4000
    # a vector: 1 · 1000 + 1000 · 1000 + 1000 elements of 2 bytes at 100 bytes a microsecond
    assert cost.gemm_time(MACHINE, 1, 1000, 1000, "bf16") == pytest.approx(2 * 1_002_000 / 100)
    assert cost.reduce_time(MACHINE, 3, 100) == 4
    assert cost.kernel_time(MACHINE, 100, 1) == 10
    assert cost.collective_time(MACHINE, "all_gather", 100) == 3 + 4 + 5
    assert cost.collective_time(MACHINE, "all_reduce", 100) == 3 + 8 + 10
    mesh = replace(MACHINE, ranks=5, links=replace(MACHINE.links, kind="mesh"))
    assert cost.collective_time(mesh, "all_to_all", 100) == 3 + 16 + 2
    assert cost.collective_time(replace(MACHINE, ranks=1), "all_reduce", 100) == 3 + 2


def test_terms_cost_their_bytes() -> None:
    out = box("C", 0, (0, 2), (0, 2))
    work = gemm_work(
        out, box("A", 0, (0, 2), (0, 2)), box("B", 0, (0, 2), (0, 2)), 5, addends=(box("F", 0, (0, 2), (0, 2)),)
    )
    tensors = [tensor(n, "output", (2, 2)) for n in "ABCF"]
    made = plan(tensors, [(0, "sm", [launch(work)])])
    (span,) = run(made, **{n: [array([[1, 2], [3, 4]])] for n in "ABCF"}).spans
    # launch 3, four times 16 bytes at 100
    assert (span.start, span.stop, span.bytes) == (0, pytest.approx(3 + 0.64), 64)


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

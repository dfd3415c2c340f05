"""The host driver: what products, sums, copies, collectives and user kernels compute, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ficco_rt.driver.host.views import HostView
from ficco_rt.errors import PlanError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.graph.ir import Argument, Kernel, KernelCall
from ficco_rt.machine.durations import PUSHED
from ficco_rt.plan.ir import Command, Plan, Work
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
    message,
    plan,
    reduce,
    run,
    segments,
    tensor,
)

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
    # of two rows, launch 3 and 4 bytes that it reads from the other rank at 8.7, and a copy of the sum to that rank: 9
    # and 4 bytes at 10.
    here = 9.16
    late = here + 4
    part = 3 + 4 / (10 * PUSHED)
    assert [(s.rank, s.kind, s.start, s.stop) for s in trace.spans] == [
        (0, "wait", 0.0, pytest.approx(late)),
        (0, "collective", pytest.approx(late), pytest.approx(late + part)),
        (0, "collective", pytest.approx(late + part), pytest.approx(late + part + 9.4)),
        (1, "copy", 0.0, pytest.approx(here)),
        (1, "collective", pytest.approx(here), pytest.approx(here + part)),
        (1, "collective", pytest.approx(here + part), pytest.approx(here + part + 9.4)),
        (1, "wait", pytest.approx(here + part + 9.4), pytest.approx(late + part + 9.4 + 4)),
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
        ("exits.py:scale", "kernel 'k': '{folder}/exits.py' does not load: SystemExit: 0"),
    ],
)
def test_a_user_kernel_that_cannot_run_here(tmp_path: Path, host: str | None, text: str) -> None:
    (tmp_path / "twin.py").write_text(TWIN)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(0)\n")
    made = kernel_plan(host, tmp_path, (Argument("x", "read", box("X", 0, (0, 1), (0, 2))),))
    with pytest.raises(UsageError) as caught:
        Executor(made, machine=MACHINE)
    assert str(caught.value) == f"{tmp_path}/x.ficco:7: " + text.replace("{folder}", str(tmp_path.resolve()))


@pytest.mark.parametrize("error", ["ValueError", "SystemExit"])
def test_a_user_kernel_that_fails(tmp_path: Path, error: str) -> None:
    (tmp_path / "twin.py").write_text(TWIN.replace("ValueError", error))
    made = kernel_plan("twin.py:fail", tmp_path, (Argument("x", "read", box("X", 0, (0, 1), (0, 2))),))
    assert message(made, X=[blank(4, 2)], Y=[blank(4, 2)]) == (
        f"{tmp_path}/x.ficco:9: kernel 'k' failed on rank 0: {error}: no such luck"
    )

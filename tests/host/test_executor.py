"""The executor, verification and its reference, and the yardsticks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest

from ficco_rt.driver.host import driver as host_driver
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.ideal import ideal
from ficco_rt.exec.reference import evaluate, extent, take
from ficco_rt.exec.verify import compare, fresh_inputs, tolerance, verified_run
from ficco_rt.graph.ir import Claim, ClaimValue, Combined, Operand, Product
from ficco_rt.plan.ir import Command, Plan
from ficco_rt.plan.issue import issue_order
from ficco_rt.region import Axis, Interval, Region, whole
from ficco_rt.types import Dtype
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
    segments,
    signal,
    tensor,
    wait,
    wait_flag,
)


def gather_plan(dtype: Dtype = "fp32", m: int = 2, k: int = 4, n: int = 3) -> Plan:
    """Two ranks: C = all_gather(A) · B by pushes, own rows first."""
    a = [whole("A", r, (m, k)) for r in range(2)]
    b = [whole("B", r, (k, n)) for r in range(2)]
    streams: list[tuple[int, str, list[Command]]] = []
    for r in range(2):
        other = 1 - r
        here = box("G", other, (r * m, (r + 1) * m), (0, k))
        streams.append((r, "copy", [copy(here, a[r], 10), record(r, 10)]))
        own = gemm_work(box("C", r, (r * m, (r + 1) * m), (0, n)), a[r], b[r], 20)
        far = gemm_work(
            box("C", r, (other * m, (other + 1) * m), (0, n)),
            box("G", r, (other * m, (other + 1) * m), (0, k)),
            b[r],
            30,
        )
        streams.append((r, "sm", [launch(own), wait(other, 30), launch(far)]))
    value = Product(Combined("all_gather", Operand(tuple(a), False), 0, None), Operand(tuple(b), False))
    claim = Claim(tuple(whole("C", r, (2 * m, n)) for r in range(2)), value, "all_gather(A, rows) * B", line(5))
    return plan(
        [
            tensor("A", "input", (m, k), (m, k), dtype=dtype),
            tensor("B", "input", (k, n), (k, n), dtype=dtype),
            tensor("C", "output", (2 * m, n), (2 * m, n), dtype=dtype, unproven=False),
            tensor("G", "scratch", (2 * m, k), (2 * m, k), dtype=dtype),
        ],
        streams,  # type: ignore[arg-type]
        events=2,
        claims=(claim,),
    )


def arrays(dtype: Dtype = "fp32", *, seed: int = 0) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return {
        "A": [array(rng.integers(-4, 5, (2, 4)), dtype) for _ in range(2)],
        "B": [array(rng.integers(-4, 5, (4, 3)), dtype) for _ in range(2)],
        "C": [blank(4, 3, dtype=dtype) for _ in range(2)],
    }


def wanted(given: dict[str, list[np.ndarray]], rank: int) -> list[list[float]]:
    product = np.concatenate(given["A"]).astype(np.float32) @ given["B"][rank].astype(np.float32)
    result: list[list[float]] = product.tolist()
    return result


def executor_of(made: Plan, order: str = "fifo") -> Executor:
    return Executor(made, machine=MACHINE, order=order)


# ---------------------------------------------------------------- running


def test_outputs_are_written_in_place_again_and_again() -> None:
    given = arrays()
    c = given["C"]
    with executor_of(gather_plan()) as executor:
        for seed in range(3):  # new values in the same arrays
            for name, fresh in arrays(seed=seed).items():
                for old, new in zip(given[name], fresh, strict=True):
                    old[...] = new
            executor.run(**given)
            assert [x.tolist() for x in c] == [wanted(given, r) for r in range(2)]
        other = arrays(seed=9)  # other arrays: the first ones keep their values
        kept = [x.tolist() for x in c]
        executor.run(**other)
        assert [x.tolist() for x in other["C"]] == [wanted(other, r) for r in range(2)]
        assert [x.tolist() for x in c] == kept
        executor.run(**given)
        assert [x.tolist() for x in c] == [wanted(given, r) for r in range(2)]


def test_what_was_bound_is_kept_until_it_is_released() -> None:
    with executor_of(gather_plan()) as executor, executor_of(gather_plan()) as another:
        sets = [{**arrays(seed=i), "C": [blank(4, 3), blank(4, 3)]} for i in range(3)]
        bound = [executor.bind(**given) for given in sets]
        for _ in range(2):
            for given, ready in zip(sets, bound, strict=True):
                for c in given["C"]:
                    c.fill(np.nan)
                executor.run(ready)
                assert [c.tolist() for c in given["C"]] == [wanted(given, r) for r in range(2)]
                assert executor.read("C", 1).tolist() == wanted(given, 1)
        held = executor.holdings
        executor.run(**sets[0])  # the same arrays: what is bound to them serves
        assert executor.holdings == held
        with pytest.raises(UsageError, match="alone; given arrays beside it"):
            executor.run(bound[0], A=sets[0]["A"])
        with pytest.raises(UsageError, match="another executor's"):
            another.run(bound[0])
        executor.release(bound[0])
        assert executor.holdings.size < held.size
        with pytest.raises(UsageError, match="one that is released"):
            executor.run(bound[0])
        executor.run(bound[1])


def test_strided_arrays_are_bound_as_they_are() -> None:
    given = arrays()
    together = blank(4, 6)  # both ranks' outputs side by side in one array
    given["C"] = [together[:, :3], together[:, 3:]]
    given["B"] = [np.asfortranarray(b) for b in given["B"]]
    with executor_of(gather_plan()) as executor:
        executor.run(**given)
    assert together.tolist() == [a + b for a, b in zip(wanted(given, 0), wanted(given, 1), strict=True)]


def test_tensors_that_are_not_given_are_the_executors() -> None:
    given = arrays()
    with executor_of(gather_plan()) as executor:
        for rank in range(2):
            executor.write("A", rank, given["A"][rank])
        executor.run(B=given["B"])
        assert [executor.read("C", r).tolist() for r in range(2)] == [wanted(given, r) for r in range(2)]
        assert executor.read("A", 1).tolist() == given["A"][1].tolist()
        assert executor.read("B", 1).tolist() == given["B"][1].tolist()
        executor.poison()
        assert np.isnan(executor.read("C", 0)).all()


def test_the_trace_is_that_of_the_last_run() -> None:
    with executor_of(gather_plan()) as executor:
        with pytest.raises(UsageError, match=r"^there is no trace: no run has ended$"):
            _ = executor.trace
        executor.run(**arrays())
        first = executor.trace
        assert executor.trace is first
        assert [s.kind for s in first.spans if s.rank == 0] == ["copy", "gemm", "wait", "gemm"]
        executor.run(**arrays())
        assert executor.trace is not first
        assert executor.trace == first


def a_bad_call(change: Callable[[dict[str, object]], object]) -> str:
    given: dict[str, object] = dict(arrays())
    change(given)
    with executor_of(gather_plan()) as executor, pytest.raises(UsageError) as caught:
        executor.run(**given)
    return str(caught.value)


def test_what_does_not_fit_is_named() -> None:
    assert a_bad_call(lambda g: g.update(D=[])) == (
        "'D' is none; the tensors of schedule 'x' to give are A (input), B (input), C (output)"
    )
    assert a_bad_call(lambda g: g.update(G=[])) == (
        "'G' is scratch, which the executor owns; the tensors of schedule 'x' to give are "
        "A (input), B (input), C (output)"
    )
    assert (
        a_bad_call(lambda g: g.update(A=[blank(2, 4)]))
        == "input A: wanted a list of 2 arrays, one a rank; given 1 arrays"
    )
    assert a_bad_call(lambda g: g.update(A=blank(2, 2, 4))) == (
        "input A: wanted a list of 2 arrays, one a rank; given one ndarray"
    )
    assert a_bad_call(lambda g: g.update(A=[blank(2, 4), blank(4, 2)])) == (
        "input A, rank 1: wanted float32 of shape [2, 4]; given float32 of shape [4, 2]"
    )
    assert a_bad_call(lambda g: g.update(A=[blank(2, 4, dtype="bf16"), blank(2, 4)])) == (
        "input A, rank 0: wanted float32 of shape [2, 4]; given bfloat16 of shape [2, 4]"
    )
    assert a_bad_call(lambda g: g.update(A=[[[1.0]], blank(2, 4)])) == (
        "input A, rank 0: wanted float32 of shape [2, 4]; given list, not a numpy array"
    )
    frozen = blank(4, 3)
    frozen.flags.writeable = False
    assert a_bad_call(lambda g: g.update(C=[blank(4, 3), frozen])) == (
        "output C, rank 1: wanted float32 of shape [4, 3]; given an array that cannot be written"
    )
    same = blank(4, 3)
    assert a_bad_call(lambda g: g.update(C=[same, same])) == (
        "C of rank 0 and C of rank 1 share memory; an output needs its own"
    )
    assert a_bad_call(lambda g: g.pop("A")) == (
        "input A of rank 0 has no value: give run(A=[…]), one array a rank, or set it with write('A', 0, array)"
    )


def test_inputs_may_share_memory() -> None:
    given = arrays()
    given["A"] = [given["A"][0]] * 2
    with executor_of(gather_plan()) as executor:
        executor.run(**given)
    assert given["C"][0].tolist() == wanted(given, 0)


def test_write_and_read_say_what_fits() -> None:
    with executor_of(gather_plan()) as executor:
        with pytest.raises(UsageError) as caught:
            executor.write("A", 0, blank(3, 4))
        assert str(caught.value) == "A, rank 0: wanted float32 of shape [2, 4]; given float32 of shape [3, 4]"
        with pytest.raises(UsageError) as caught:
            executor.read("A", 2)
        assert str(caught.value) == "there is no tensor 'A' of rank 2; A, B, C, G on ranks 0–1"


def test_nothing_works_after_close() -> None:
    executor = executor_of(gather_plan())
    with executor:
        executor.run(**arrays())
    uses: list[Callable[[], object]] = [
        lambda: executor.run(**arrays()),
        lambda: executor.trace,
        lambda: executor.write("A", 0, blank(2, 4)),
        lambda: executor.read("A", 0),
        executor.poison,
    ]
    for use in uses:
        with pytest.raises(UsageError) as caught:
            use()
        assert str(caught.value) == "the executor of schedule 'x' is closed; make a new one to run again"
    executor.close()


def test_memory_is_asked_for_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    made = gather_plan(m=1024, k=1024)  # G: 2 ranks · 2048 · 1024 · 4 bytes
    monkeypatch.setattr(host_driver, "available", lambda: 10 * 2**20)
    with pytest.raises(DeviceError) as caught:
        executor_of(made)
    assert str(caught.value) == (
        "G of ranks 0–1 need 16.0 MiB and this machine's memory has 10.0 MiB free; "
        "take smaller sizes with --set, or only compile the schedule with `ficco compile`"
    )
    monkeypatch.setattr(host_driver, "available", lambda: 16 * 2**20)
    executor_of(made).close()


def test_names_of_drivers_and_machines() -> None:
    with pytest.raises(UsageError, match=r"^no driver is called 'tpu'; there are: host, cuda, hip$"):
        Executor(gather_plan(), "tpu", machine=MACHINE)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no machine is called 'toy'"):
        Executor(gather_plan())


def test_a_plan_may_use_a_part_of_a_machine() -> None:
    cell = [box("S", r, (0, 1), (0, 1)) for r in range(2)]
    made = plan(
        [tensor("S", "output", (1, 1), (1, 1))],
        [(r, "nccl", [collective("all_reduce", 0, cell[r], cell[r], 4)]) for r in range(2)],
    )
    with Executor(made, machine=replace(MACHINE, ranks=8)) as executor:
        executor.run(S=[array([[1]]), array([[2]])])
        kinds = [(s.rank, s.kind) for s in executor.trace.spans]
    # of one element there is one sum to make and to send, rank 1's; rank 0 waits before it and behind it
    assert kinds == [(0, "wait"), (0, "wait"), (1, "wait"), (1, "collective"), (1, "collective")]


def test_progress_is_told() -> None:
    told: list[float] = []
    big = gather_plan(m=512, k=2048, n=2048)
    with executor_of(big) as executor:
        verified_run(executor, progress=told.append)
    assert told == sorted(told)
    assert all(0 < part <= 1 for part in told)


# ---------------------------------------------------------------- the order of issue


def test_signals_are_issued_before_their_waits() -> None:
    made = plan(
        [tensor("S", "scratch", (1, 1), (1, 1))],
        [
            (0, "sm", [wait(0, 1), record(1, 2), wait_flag(0, 3)]),
            (0, "copy", [wait(1, 4), signal(0, 5)]),
            (1, "sm", [record(0, 6)]),
        ],
        events=2,
        flag_homes=(0,),
    )
    order = issue_order(made)
    assert order == ((2, 0), (0, 0), (0, 1), (1, 0), (1, 1), (0, 2))
    assert issue_order(made) == order


def test_a_launch_counts_as_signal_and_waits_for_none() -> None:
    one = box("S", 0, (0, 1), (0, 1))
    work = gemm_work(one, one, one, 3, waits=(1,), signals=(0,))
    made = plan(
        [tensor("S", "scratch", (1, 1))],
        [(0, "copy", [wait_flag(0, 1), signal(1, 2)]), (0, "sm", [launch(work, streamed=True)])],
        flag_homes=(0, 0),
    )
    assert issue_order(made) == ((1, 0), (0, 0), (0, 1))


def test_a_plan_that_cannot_end_is_issued_all_the_same() -> None:
    made = plan(
        [tensor("S", "scratch", (1, 1))],
        [(0, "copy", [record(1, 1), wait(0, 2), record(2, 3)]), (0, "sm", [wait(2, 4), record(0, 5)])],
        events=3,
    )
    assert issue_order(made) == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))


# ---------------------------------------------------------------- verification


@pytest.mark.parametrize("order", ["fifo", "adversarial", "lazy(0)", "lazy(2)", "random(1)", "random(2)"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_right_plan_is_verified(dtype: Dtype, order: str) -> None:
    with executor_of(gather_plan(dtype), order) as executor:
        exact = verified_run(executor, seed=3, values="exact")
        assert (exact.ok, exact.rel_err, exact.tolerance, exact.unproven) == (True, 0.0, 0.0, ())
        normal = verified_run(executor, seed=3)
        unit = {"bf16": 2**-8, "fp16": 2**-11, "fp32": 2**-24}[dtype]
        assert normal.ok
        assert normal.tolerance == 2 * unit + 4 * 2**-24 * 2
        assert normal.rel_err is not None
        assert normal.rel_err <= (unit if dtype != "fp32" else 4 * unit)  # fp32: its sums round too


def test_a_missing_wait_is_named_as_never_written() -> None:
    made = gather_plan()
    streams = list(made.streams)
    streams[3] = replace(streams[3], commands=tuple(c for c in streams[3].commands if c != wait(0, 30)))
    with executor_of(replace(made, streams=tuple(streams)), "lazy(0)") as executor:
        result = verified_run(executor)
        assert not result.ok
        assert result.rel_err == inf
        assert str(result.worst) == "C of rank 1, rows 0, columns 0: NaN, never written"
        executor.order = "fifo"  # as issued: right, by chance
        assert verified_run(executor).ok


def test_the_worst_element_is_named() -> None:
    made = gather_plan("bf16")
    inputs = fresh_inputs(made, 1, "exact")
    product = [np.concatenate(inputs["A"]).astype(np.float32) @ inputs["B"][r].astype(np.float32) for r in range(2)]
    outputs = {"C": [p.astype(inputs["A"][0].dtype) for p in product]}
    assert compare(made, inputs, outputs, "exact").ok
    outputs["C"][1][2, 1] += 1
    result = compare(made, inputs, outputs, "exact")
    want = float(product[1][2, 1])
    assert not result.ok
    assert result.rel_err == 1 / max(np.abs(p).max() for p in product)
    assert str(result.worst) == f"C of rank 1, rows 2, columns 1: {want + 1:.6g}, wanted {want:.6g}"


def test_an_output_without_a_claim_is_only_looked_through() -> None:
    made = replace(gather_plan(), claims=())
    with executor_of(made) as executor:
        result = verified_run(executor)
        assert (result.ok, result.rel_err, result.worst, result.unproven) == (True, None, None, ("C",))
        inputs = fresh_inputs(made)
        holes = [blank(4, 3), blank(4, 3)]
        holes[0].fill(0)
        holes[1][:3].fill(0)
        result = compare(made, inputs, {"C": holes})
        assert not result.ok
        assert str(result.worst) == "C of rank 1, rows 3, columns 0: NaN, never written"


def test_fresh_inputs_are_exact_or_normal() -> None:
    made = gather_plan("bf16", k=100)
    values = np.concatenate([a.astype(np.float64).ravel() for a in fresh_inputs(made, 0, "exact")["A"]])
    assert set(values) == {-1.0, 0.0, 1.0}  # 100 products: 256 // 100 allows no larger
    values = np.concatenate(
        [a.astype(np.float64).ravel() for a in fresh_inputs(gather_plan("bf16", m=100), 0, "exact")["A"]]
    )
    assert values.min() == -8  # 4 products of at most 64
    assert values.max() == 8
    sparse = gather_plan("bf16", k=4096, n=64)
    inputs = fresh_inputs(sparse, 0, "exact")
    density = np.mean([np.mean(a.astype(np.float32) != 0) for a in inputs["B"]])
    assert density == pytest.approx(256 / (6 * sqrt(4096)), rel=0.05)
    normal = fresh_inputs(sparse, 0)
    spread = np.std(normal["A"][0].astype(np.float32) @ normal["B"][0].astype(np.float32))
    assert spread == pytest.approx(1, rel=0.1)
    again = fresh_inputs(sparse, 0)
    assert all((a == b).all() for a, b in zip(normal["A"], again["A"], strict=True))
    assert not (normal["A"][0] == fresh_inputs(sparse, 1)["A"][0]).all()
    assert not (normal["A"][0] == normal["A"][1]).all()


def test_tolerance_grows_with_stored_partial_sums() -> None:
    made = gather_plan("bf16")
    (claim,) = made.claims
    assert tolerance(made, claim, "bf16") == 2 * 2**-8 + 4 * 2**-24 * 2
    whole_c, a, b = (whole(n, 0, s) for n, s in (("C", (4, 3)), ("G", (4, 4)), ("B", (4, 3))))
    twice = [launch(gemm_work(whole_c, a, b, 40, accumulate=True)) for _ in range(3)]
    more = replace(made, streams=(*made.streams, replace(made.streams[1], commands=tuple(twice))))
    assert tolerance(more, claim, "bf16") == 2 * 2**-8 * 2 + 4 * 2**-24 * 2
    summed = launch(gemm_work(whole_c, a, b, 40, addends=(whole_c, whole_c)))
    more = replace(made, streams=(*made.streams, replace(made.streams[1], commands=(summed,))))
    assert tolerance(more, claim, "bf16") == 2 * 2**-8 * (1 + made.ranks) ** 0.5 + 4 * 2**-24 * 2


# ---------------------------------------------------------------- the reference


def values_of(value: ClaimValue, **inputs: list[np.ndarray]) -> list[list[object]]:
    results = [v.tolist() for v in evaluate(value, inputs)]
    assert tuple(np.shape(r) for r in results) == extent(value).shapes
    return results


def operand(name: str, *shapes: tuple[int, ...], transposed: bool = False) -> Operand:
    return Operand(tuple(whole(name, r, s) for r, s in enumerate(shapes)), transposed)


def test_reference_of_each_collective() -> None:
    x = [array([[1, 2], [3, 4]]), array([[10, 20], [30, 40]])]
    s = operand("X", (2, 2), (2, 2))
    assert values_of(Combined("all_gather", s, 0, None), X=x) == [[[1, 2], [3, 4], [10, 20], [30, 40]]] * 2
    assert values_of(Combined("all_gather", s, 1, None), X=x) == [[[1, 2, 10, 20], [3, 4, 30, 40]]] * 2
    assert values_of(Combined("all_reduce", s, 0, None), X=x) == [[[11, 22], [33, 44]]] * 2
    assert values_of(Combined("reduce_scatter", s, 0, None), X=x) == [[[11, 22]], [[33, 44]]]
    assert values_of(Combined("reduce_scatter", s, 1, ((2, 0), (2, 0))), X=x) == [[[11, 22], [33, 44]], [[], []]]
    assert values_of(Combined("all_to_all", s, 0, None), X=x) == [[[1, 2], [10, 20]], [[3, 4], [30, 40]]]
    assert values_of(Combined("all_to_all", s, 1, ((0, 2), (1, 1))), X=x) == [
        [[10], [30]],
        [[1, 2, 20], [3, 4, 40]],
    ]


def test_reference_of_vectors_and_uneven_shards() -> None:
    x = [array([1, 2, 3]), array([4])]
    s = operand("X", (3,), (1,))
    assert values_of(Combined("all_gather", s, 0, None), X=x) == [[1, 2, 3, 4]] * 2
    # cut at i · 3 // 2 and i · 1 // 2
    assert values_of(Combined("all_to_all", s, 0, None), X=x) == [[1], [2, 3, 4]]


def test_reference_of_products() -> None:
    a = [array([[1, 2]]), array([[3, 4]])]
    b = [array([[1, 1], [0, 1]]), array([[2, 0], [0, 2]])]
    product = Product(operand("A", (1, 2), (1, 2)), operand("B", (2, 2), (2, 2), transposed=True))
    assert values_of(product, A=a, B=b) == [[[3, 2]], [[6, 8]]]
    assert values_of(Combined("all_reduce", product, 0, None), A=a, B=b) == [[[9, 10]]] * 2
    assert (extent(product).terms, extent(product).operations) == (2, 16)
    assert extent(Combined("reduce_scatter", product, 0, None)).terms == 4
    experts = Product(operand("A", (2, 1, 2)), operand("B", (2, 2, 1)))
    batch = values_of(experts, A=[array([[[1, 2]], [[3, 4]]])], B=[array([[[1], [1]], [[10], [10]]])])
    assert batch == [[[[3]], [[70]]]]


def test_take_follows_segments_and_drops_indices() -> None:
    x = array(np.arange(24).reshape(2, 3, 4))
    region = Region(
        "X", 0, (Axis((Interval(1, 2),), dropped=True), Axis((Interval(2, 3), Interval(0, 1))), Axis((Interval(1, 3),)))
    )
    assert take(x, region).tolist() == [[21, 22], [13, 14]]
    assert take(x[0], segments("X", 0, [(0, 1)], [(3, 4), (0, 1)])).tolist() == [[3, 0]]


def test_the_reference_does_not_follow_the_plan() -> None:
    """A plan that swaps the pieces is not verified."""
    made = gather_plan()
    own, waiting, far = made.streams[1].commands
    (work,) = far.works  # type: ignore[union-attr]
    doubled = launch(
        replace(work, body=replace(work.body, out=box("C", 0, (0, 2), (0, 3))))
    )  # the far rows land on the own ones
    swapped = [*made.streams]
    swapped[1] = replace(made.streams[1], commands=(own, waiting, doubled))
    with executor_of(replace(made, streams=tuple(swapped))) as executor:
        result = verified_run(executor)
        assert not result.ok
        assert str(result.worst) == "C of rank 0, rows 2, columns 0: NaN, never written"


# ---------------------------------------------------------------- yardsticks


def test_ideal_of_a_gather() -> None:
    made = gather_plan(m=100, k=100, n=100)
    # 2 · 200 · 100 · 100 operations at 1000 a microsecond, one launch; 40,000 bytes each way at 10, one copy
    found = ideal(made, MACHINE)
    assert found.compute_alone == pytest.approx(4000 + 3)
    assert found.communication_alone == 4000 + 9
    assert found.time == 4009
    assert found.serial == pytest.approx(8012)
    # thin: A and G (its other half) 2 · 1 · 100, B 100 · 100 and C 2 · 100 elements of 4 bytes at 100 a microsecond
    thin = ideal(gather_plan(m=1, k=100, n=100), MACHINE)
    assert thin.compute_alone == pytest.approx(4 * (100 + 100 + 10_000 + 200) / 100 + 3)


def test_ideal_of_ports_links_and_hops() -> None:
    shape = (4, 25)  # 400 bytes
    src = [whole("X", r, shape) for r in range(4)]

    def move(pairs: list[tuple[int, int]]) -> Plan:
        return plan(
            [tensor("X", "input", *[shape] * 4), tensor("Y", "output", *[shape] * 4)],
            [(a, "copy", [copy(whole("Y", b, shape), src[a], 3)]) for a, b in pairs],
        )

    def alone(kind: str, pairs: list[tuple[int, int]]) -> float:
        machine = replace(MACHINE, links=replace(MACHINE.links, kind=kind))
        found = ideal(move(pairs), machine)
        assert found.compute_alone == 0
        return found.communication_alone

    fan_in = [(0, 3), (1, 3), (2, 3)]
    assert alone("switch", fan_in) == 3 * (40 + 9)
    assert alone("mesh", fan_in) == 40 + 9
    assert alone("ring", fan_in) == 2 * (40 + 9)  # 1 → 3 passes 2 → 3
    assert alone("switch", [(0, 1), (0, 1)]) == 80 + 9  # one pair: as if one copy
    assert alone("switch", [(2, 2)]) == 0


def test_ideal_of_collectives_is_one_call_of_each_kind() -> None:
    shape = (4, 25)
    cell = [whole("X", r, shape) for r in range(2)]
    made = plan(
        [tensor("X", "output", shape, shape)],
        [
            (
                r,
                "nccl",
                [collective("all_reduce", 0, cell[r], cell[r], 4), collective("all_reduce", 1, cell[r], cell[r], 5)],
            )
            for r in range(2)
        ],
    )
    found = ideal(made, MACHINE)
    assert found.communication_alone == 3 + 8 + 80  # launch, two passes of signals, 2 · 800 / 2 bytes at 10
    with executor_of(made) as executor:
        executor.run(X=[array(np.ones(shape))] * 1 + [array(np.ones(shape))])
        # what is launched: both ranks meet, each sums a half that it reads in part from the other, sends it, and they
        # meet again
        assert executor.trace.duration == 2 * (4 + (3 + 25) + (9 + 20) + 4)

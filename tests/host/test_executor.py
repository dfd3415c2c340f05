"""The executor, verification and its reference, and the yardsticks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ficco_rt.driver.host import driver as host_driver
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.ideal import ideal
from ficco_rt.exec.inputs import InputValues
from ficco_rt.exec.verify import RUNNING, verified_run
from ficco_rt.exec.workspace import Workspace
from ficco_rt.geometry.region import whole
from ficco_rt.machine.durations import PUSHED
from ficco_rt.plan.ir import Plan
from ficco_rt.plan.issue import issue_order
from ficco_rt.select.sized import Operation
from ficco_rt.types import Dtype
from tests.host.handmade import (
    MACHINE,
    array,
    blank,
    box,
    collective,
    copy,
    executor_of,
    gather_plan,
    gemm_work,
    launch,
    plan,
    record,
    signal,
    tensor,
    wait,
    wait_flag,
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


def test_strided_arrays_are_refused() -> None:
    """As GPUs do; a dimension of one element may have any stride."""
    given = arrays()
    gaps = "given one with gaps or another order of dimensions: take .contiguous(), of a numpy array"
    with executor_of(gather_plan()) as executor:
        for name, strided in (
            ("B", [np.asfortranarray(b) for b in given["B"]]),
            ("C", [blank(4, 6)[:, :3], blank(4, 3)]),
            ("C", [blank(4, 3)[::-1], blank(4, 3)]),
        ):
            kind = "input" if name == "B" else "output"
            with pytest.raises(UsageError) as caught:
                executor.run(**{**given, name: strided})
            wanted_ = f"{kind} {name}, rank 0: wanted float32 of shape [4, 3]"
            assert str(caught.value) == f"{wanted_}; {gaps} numpy.ascontiguousarray(…)"
        together = blank(8, 3)  # both ranks' outputs, one below the other
        executor.run(**{**given, "C": [together[:4], together[4:]]})
    assert together.tolist() == wanted(given, 0) + wanted(given, 1)


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
    with Workspace(2, "host") as workspace:
        operation = Operation(workspace, "ag_gemm", max_m=8, buckets=[8], N=4, K=4, T="fp32")
        for rows in (3, 8):
            shared = blank(2 * rows, 2)
            with pytest.raises(UsageError, match="C of rank 0 and C of rank 1 share memory"):
                operation.run(A=[blank(rows, 4)] * 2, B=[blank(4, 2)] * 2, C=[shared, shared])
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
    with Executor(gather_plan()) as executor:  # the plan holds its machine, whatever that is called
        assert executor.machine == MACHINE


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


@pytest.mark.parametrize(("values", "runs"), [("normal", 1), (None, 2)])
def test_progress_is_told(values: InputValues | None, runs: int) -> None:
    """From 0 to 1 over all runs: a share that falls back makes nonsense of the time that is left."""
    told: list[float] = []
    with executor_of(gather_plan(m=128, k=256, n=256)) as executor:
        verified_run(executor, values=values, progress=told.append)
    assert told == sorted(told)
    assert all(0 < part <= 1 for part in told)
    for end in (i + part for i in range(runs) for part in (RUNNING, 1.0)):
        assert pytest.approx(end / runs) in told


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


# ---------------------------------------------------------------- yardsticks


def test_ideal_of_a_plan_that_claims_nothing() -> None:
    made = replace(gather_plan(m=100, k=100, n=100), claims=())
    # 2 · 200 · 100 · 100 operations at 1000 a microsecond, one launch; 40,000 bytes each way at 10, one copy
    found = ideal(made, MACHINE)
    assert found.compute_alone == pytest.approx(4000 + 3)
    assert found.communication_alone == 4000 + 9
    assert found.ideal == 4009
    assert found.serial == pytest.approx(8012)
    assert found.of == "plan"
    # thin: A and G (its other half) 2 · 1 · 100, B 100 · 100 and C 2 · 100 elements of 4 bytes at 100 a microsecond
    thin = ideal(replace(gather_plan(m=1, k=100, n=100), claims=()), MACHINE)
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
        read = 200 / (10 * PUSHED)
        assert executor.trace.duration == pytest.approx(2 * (4 + (3 + read) + (9 + 20) + 4))

"""Streamed stages that go out as one launch: when they do, when not, and who knows of it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.gpu.spans import words
from ficco_rt.errors import DeviceError, PlanError, ScheduleError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.machine.profiles import profile
from ficco_rt.plan import codec
from ficco_rt.plan.check import check
from ficco_rt.plan.fuse import _longest
from ficco_rt.plan.ir import Launch, Plan, SignalFlag
from ficco_rt.sim.simulate import simulate
from tests import cases

HEAD = """
schedule joins
param S = 2
type T = bf16
input   A[64 * S, 64]  : T
input   B[64, 64]      : T
input   W[64, 128]     : T
scratch C[64 * S, 64]  : T
scratch D[64 * S, 64]  : T
scratch E[64 * S, 128] : T
scratch R[64 * S, 64]  : T
output  X[S, 64, 64]   : T unproven
queue compute { engine = sm }
queue other   { engine = sm }
queue vendor  { engine = nccl }
queue dma     { engine = copy }
stage fill on dma { copy R <- A  for s in 0..S { copy X[s] <- B } }
"""
FIRST = "stage first on compute streamed { for c in 0..2 { gemm C.rows(c of 2) = A.rows(c of 2) * B } }\n"
SECOND = "stage second on compute streamed { for c in 0..2 { gemm D.rows(c of 2) = R.rows(c of 2) * B } }\n"


def plan(text: str, ranks: int = 2, machine: str = "h200-switch", **params: object) -> Plan:
    return plan_of(build(ficco_dsl.parse(HEAD + text, "x.ficco"), ranks, params), profile(machine, ranks))


def launches(made: Plan, rank: int = 0) -> list[Launch]:
    return [c for s in made.streams if s.rank == rank for c in s.commands if isinstance(c, Launch)]


def stages(made: Plan, rank: int = 0) -> list[tuple[str, ...]]:
    """The stages of each of a rank's launches."""
    return [launch.stages for launch in launches(made, rank)]


APART = [("first",), ("second",)]


def test_streamed_products_behind_one_another_are_one_launch() -> None:
    made = plan(FIRST + SECOND)
    for rank in range(2):
        (launch,) = launches(made, rank)
        assert launch.streamed
        assert launch.stages == ("first", "second")
        assert launch.joined == ((2, "second"),)
        assert [launch.stage_of(i) for i in range(4)] == ["first", "first", "second", "second"]
        assert [bool(w.waits) for w in launch.works] == [False, False, True, True]  # each for what it reads


@pytest.mark.parametrize("machine", ["h200-switch", "mi300x-mesh"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_kernels_of_every_family(machine: str, dtype: str) -> None:
    assert stages(plan(FIRST + SECOND, machine=machine, T=dtype)) == [("first", "second")]


def test_copies_between_them_do_not_part_them() -> None:
    """What the second one needs is sent when the first one's works are done, and awaited by its own works."""
    send = "stage send on dma { for c in 0..2 { copy R.rows(c of 2) @ (rank + 1) % ranks <- C.rows(c of 2) } }\n"
    made = plan(FIRST + send + SECOND)
    (launch,) = launches(made)
    assert launch.stages == ("first", "second")
    assert all(w.signals for w in launch.works[:2])
    assert all(w.waits for w in launch.works[2:])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FIRST + SECOND.replace("streamed", "streamed after first"), APART),
        (FIRST + SECOND.replace("streamed", "streamed after fill"), APART),
        (FIRST + SECOND + "stage late on dma after first { copy R <- A }\n", APART),
        (FIRST + SECOND + "stage late on dma after second { copy R <- A }\n", APART),
        (FIRST.replace("streamed", "streamed after fill") + SECOND, [("first", "second")]),  # its begin, as before
    ],
    ids=["after it", "after another", "awaited", "last awaited", "first after another"],
)
def test_not_where_a_stage_is_ordered_as_a_whole(text: str, found: Sequence[tuple[str, ...]]) -> None:
    assert stages(plan(text)) == found


@pytest.mark.parametrize("second", ["D.rows(c of 2) = C.rows(c of 2)", "C.rows(c of 2) = A.rows(c of 2)"])
def test_not_where_it_needs_what_the_launch_makes(second: str) -> None:
    made = plan(FIRST + SECOND.replace("D.rows(c of 2) = R.rows(c of 2)", second))
    assert stages(made) == APART
    assert not any(w.signals for launch in launches(made) for w in launch.works)


def test_not_where_it_writes_what_the_launch_reads() -> None:
    text = SECOND.replace("second", "first") + FIRST.replace("first", "second").replace("C.rows", "R.rows")
    made = plan(text)
    assert stages(made) == APART


@pytest.mark.parametrize(
    "beside",
    [
        "stage beside on other { if rank == 0 { reduce X[1] = sum(B) } }\n",
        "stage beside on other streamed { if rank == 0 { gemm X[1] = B * B } }\n",
    ],
)
def test_not_beside_other_queues_of_multiprocessors(beside: str) -> None:
    """Of that rank: others may."""
    made = plan(FIRST + SECOND + beside)
    assert [s for s in stages(made) if s != ("beside",)] == APART
    assert stages(made, 1) == [("first", "second")]


def test_not_beside_collectives() -> None:
    assert stages(plan(FIRST + SECOND + "stage sum on vendor { all_reduce X[1] <- B }\n")) == APART


def test_not_with_other_resources() -> None:
    assert stages(plan(FIRST + SECOND.replace("streamed", "streamed with sms = 40"))) == APART
    both = (FIRST + SECOND).replace("streamed", "streamed with sms = 40")
    (launch,) = launches(plan(both))
    assert launch.stages == ("first", "second")
    assert launch.attributes.sms == 40


def test_not_of_other_widths() -> None:
    wide = SECOND.replace("D.rows(c of 2) = R.rows(c of 2) * B", "E.rows(c of 2) = R.rows(c of 2) * W")
    assert stages(plan(FIRST + wide)) == APART


@pytest.mark.parametrize(
    ("second", "kernels"),
    [
        # the Hopper kernel takes each, not both together
        ("D.rows(0 of 2) = R.rows(0 of 2).T * B", ["sm90", "sm90"]),
        ("D.rows(c of 2) = R.rows(c of 2) * B.T", ["sm90", "sm90"]),
    ],
)
def test_not_with_kernels_of_two_kinds(second: str, kernels: list[str]) -> None:
    made = plan(FIRST + SECOND.replace("D.rows(c of 2) = R.rows(c of 2) * B", second))
    assert stages(made) == APART
    assert [launch.kernel.split("_gemm")[0] for launch in launches(made)] == kernels


def test_a_slow_kernel_takes_no_more_than_it_must() -> None:
    """The one for Ampere would take both."""
    ragged = FIRST.replace("A.rows(c of 2) * B", "A.rows(c of 2).cols(1 of 3) * B.rows(1 of 3)")
    made = plan(ragged + SECOND)
    assert stages(made) == APART
    assert [launch.kernel.split("_gemm")[0] for launch in launches(made)] == ["sm80", "sm90"]


def test_not_with_sums_among_the_products() -> None:
    mixed = SECOND.replace("}", "reduce E.rows(c of 2).cols(0 of 2) = sum(A.rows(c of 2)) }", 1)
    assert stages(plan(FIRST + mixed, T="fp32")) == APART


def test_as_many_as_a_kernel_takes() -> None:
    """The Hopper kernel takes eight triples of operands."""
    made = plan("step s in 0..S { stage one on compute streamed { gemm X[s] = B * B } }\n", S=20)
    assert [len(launch.works) for launch in launches(made)] == [8, 8, 4]
    assert launches(made)[1].stages == tuple(f"one[{s}]" for s in range(8, 16))


@pytest.mark.parametrize(
    "between",
    [
        "stage between on compute { gemm X[1] = B * B }\n",
        "stage between on compute { reduce X[1] = sum(B) }\n",
        "stage between on compute streamed { reduce X[1] = sum(B) }\n",
        "stage between on compute streamed { copy X[1] <- B }\n",
    ],
)
def test_not_over_anything_else(between: str) -> None:
    assert stages(plan(FIRST + between + SECOND)) == [("first",), ("between",), ("second",)]


def test_a_stage_in_which_a_rank_does_nothing_parts_nothing_there() -> None:
    between = "stage between on compute { if rank == 1 { reduce X[1] = sum(B) } }\n"
    made = plan(FIRST + between + SECOND)
    assert stages(made, 0) == [("first", "second")]
    assert stages(made, 1) == [("first",), ("between",), ("second",)]


def test_all_mistakes_of_stages_are_told() -> None:
    with pytest.raises(ScheduleError) as caught:
        plan((FIRST + SECOND).replace("streamed", "streamed with sms = 1000"))
    lines = HEAD.count("\n") + 1
    assert [d.span.line for d in caught.value.diagnostics] == [lines, lines + 1]


def test_the_longest_is_found_with_few_questions() -> None:
    for most in range(1, 40):
        for limit in range(1, most + 1):
            asked: list[int] = []

            def fits(count: int, limit: int = limit, asked: list[int] = asked) -> bool:
                asked.append(count)
                return count <= limit

            assert _longest(fits, most) == limit
            assert max(asked, default=1) <= min(most, 2 * limit)
            assert len(asked) <= 2 * most.bit_length()


@pytest.mark.parametrize("name", ["gemm_rs/relay", "gemm_rs/streamed", "gemm_rs/tapered"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_right_in_every_order(name: str, ranks: int) -> None:
    made = plan_of(build(cases.schedule(name), ranks, cases.sizes(name, ranks, True)), profile("h200-switch", ranks))
    assert all(len(launches(made, r)) == 1 for r in range(ranks))
    streams = [f"lazy({s.id})" for s in made.streams]
    with Executor(made) as executor:
        for executor.order in ("fifo", "adversarial", "random(3)", *random.Random(ranks).sample(streams, 1)):
            assert verified_run(executor, values="exact").ok


def joined_plan(**params: object) -> Plan:
    return plan(FIRST + SECOND, **params)


def test_json_has_who_joined() -> None:
    made = joined_plan()
    text = codec.to_json(made)
    (command,) = next(s for s in json.loads(text)["streams"] if s["queue"] == "compute")["commands"]
    assert command["joined"] == [[2, "second"]]
    assert codec.from_json(text) == made
    assert "joined" not in codec.to_json(plan(FIRST))


@pytest.mark.parametrize("begins", [(0,), (4,), (3, 2), (2, 2), (-1,)])
def test_who_joined_has_works_of_its_own_in_order(begins: tuple[int, ...]) -> None:
    made = joined_plan()
    check(made)
    number = next(s.id for s in made.streams if s.queue == "compute")
    stream = made.streams[number]
    (launch,) = launches(made)
    damaged = replace(launch, joined=tuple((first, "second") for first in begins))
    with pytest.raises(PlanError, match="each have works of their own, in order"):
        check(with_command(made, number, damaged))
    single = replace(launch, streamed=False, works=(replace(launch.works[0], waits=(), signals=()),))
    assert stream.commands == (launch,)
    with pytest.raises(PlanError, match="each have works of their own, in order"):
        check(with_command(plan(FIRST.replace("0..2", "0..1")), number, replace(single, joined=((1, "second"),))))


def with_command(made: Plan, number: int, command: Launch) -> Plan:
    streams = list(made.streams)
    streams[number] = replace(streams[number], commands=(command,))
    return replace(made, streams=tuple(streams))


def test_the_virtual_clock_names_each_work_s_own_stage() -> None:
    made = joined_plan()
    spans = [s for s in simulate(made, profile("h200-switch", 2)).spans if s.rank == 0 and s.kind in ("gemm", "wait")]
    assert [s.stage for s in spans if s.kind == "gemm"] == ["first", "first", "second", "second"]
    assert {s.stage for s in spans if s.kind == "wait"} <= {"second"}
    assert all(s.label.startswith(s.stage) for s in spans if s.kind == "gemm")


def test_a_gpu_names_all_stages_of_a_launch() -> None:
    """It tells a launch as one thing: turns of a step are one stage there."""
    made = plan_of(build(cases.schedule("gemm_rs/relay"), 3, {"M": 96, "N": 64, "K": 192}), profile("h200-switch", 3))
    (launch,) = launches(made)
    assert launch.stages == ("mm[1]", "mm[2]", "own")
    assert words(launch).startswith("launch of stage 'mm, own' (P rows ")
    (single,) = launches(plan(FIRST))
    assert words(single).startswith("launch of stage 'first' (C rows ")


def test_a_work_that_waits_for_ever_is_told_by_its_own_stage() -> None:
    made = joined_plan(T="fp32")
    silent = tuple(
        replace(s, commands=tuple(c for c in s.commands if not isinstance(c, SignalFlag))) for s in made.streams
    )
    inputs = {t.name: [np.zeros(shape, np.float32) for shape in t.shapes] for t in made.tensors if t.kind == "input"}
    with Executor(replace(made, streams=silent)) as executor, pytest.raises(DeviceError) as caught:
        executor.run(**inputs)
    assert "waits in the launch of stage 'second': its work 2 " in str(caught.value)

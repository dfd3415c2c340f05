"""Where a run's time went: the parts add up, and each is what its name says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import ficco_rt
from ficco_rt.analysis.account import account, idle, rank_uses, stage_uses
from ficco_rt.device.build import layout_of, modelled
from ficco_rt.device.features import usual
from ficco_rt.device.ir import Placement
from ficco_rt.exec.ideal import ideal
from ficco_rt.report.account_words import lost_words
from ficco_rt.sim.simulate import simulate
from ficco_rt.trace.model import Lane, Trace, TraceSpan
from tests.unit.test_timeline import streamed

PLAN = ficco_rt.compile("ag_gemm/serial", 2, M=128, N=64, K=64)


def small() -> Trace:
    """Rank 1 ends last: copies 0–10, waits 10–12, products 12–22 and, after a gap, 24–30 beside a copy 26–32."""

    def span(stream: int, kind: str, start: float, stop: float, rank: int = 1) -> TraceSpan:
        return TraceSpan(rank, stream, kind, kind, kind, start, stop, "x:1", bytes=10, flops=20)  # type: ignore[arg-type]

    lanes = (Lane(0, 0, "dma", "copy"), Lane(1, 1, "dma", "copy"), Lane(2, 1, "compute", "sm"))
    spans = (
        span(0, "copy", 0, 9, rank=0),
        span(1, "copy", 0, 10),
        span(1, "copy", 26, 32),
        span(2, "wait", 8, 12),
        span(2, "gemm", 12, 22),
        span(2, "gemm", 24, 30),
    )
    return Trace("t", "m", "virtual", 2, lanes, spans)


def test_every_moment_of_the_rank_that_ends_last_is_told_once() -> None:
    found = account(small(), PLAN, PLAN.target, 13.0, 5.0)
    assert (found.rank, found.side, found.time) == (1, "computing", 32.0)
    assert {part.name: part.time for part in found.parts} == {
        "ideal": 13.0,
        "waves": 0.0,
        "slower": 3.0,
        "exposed": 12.0,  # 0–10 and 30–32
        "waiting": 2.0,  # 10–12: before that, data moves
        "launch": 2.0,  # 22–24
    }
    words = "computing beyond the ideal 3.00 µs, exposed communication 12.0 µs, waiting 2.00 µs, launch 2.00 µs"
    assert lost_words(found) == f"{words}; on rank 1, which ends last"


def test_the_side_is_what_the_rank_was_busy_with_for_longer() -> None:
    """Whichever side the ideal is of: pieces may make the other one longer."""
    trace = small()
    longer = replace(trace, spans=(*trace.spans[:2], trace.spans[2]._replace(start=23, stop=33), *trace.spans[3:]))
    for alone in ((13.0, 14.0), (14.0, 5.0)):
        found = account(longer, PLAN, PLAN.target, *alone)
        assert found.side == "moving"
        assert {part.name: part.time for part in found.parts} == {
            "ideal": 14.0,
            "waves": 0.0,
            "slower": 6.0,
            "exposed": 10.0,  # products with no copy beside them: 12–22
            "waiting": 2.0,
            "launch": 1.0,
        }
    assert lost_words(found).startswith("moving beyond the ideal 6.00 µs, only computing 10.0 µs, ")
    faster = account(trace, PLAN, PLAN.target, 5.0, 40.0)
    assert faster.parts[2].time == -24.0
    assert lost_words(faster).startswith("computing below the ideal −24.0 µs, ")


@pytest.mark.parametrize("schedule", ["ag_gemm/serial", "ag_gemm/streamed", "gemm_rs/streamed", "gemm_ar/serial"])
def test_parts_add_up(schedule: str) -> None:
    plan = ficco_rt.compile(schedule, 4, M=2048, N=1024, K=1024)
    trace, alone = simulate(plan, plan.target), ideal(plan, plan.target)
    found = account(trace, plan, plan.target, alone.compute_alone, alone.communication_alone)
    assert sum(part.time for part in found.parts) == pytest.approx(trace.duration)
    assert all(part.time >= -1e-9 for part in found.parts if part.name != "slower")
    assert found.parts[0].time == alone.ideal


def test_a_last_wave_has_no_tiles_for_all() -> None:
    """133 tiles on 132 groups: the second wave has work for one of them."""
    plan = ficco_rt.compile("ag_gemm/serial", 2, M=256, N=256, K=64)
    layout = layout_of(plan, plan.target.device, Placement((0, 1)), usual(plan.target.device.arch))
    launch = modelled(layout, "streams").launches[0]
    (work,) = launch.works
    config = replace(launch.config, wave=132, blocks=132, cluster=1, merged=())

    def of(rows: int, columns: int, tail: int = 1) -> float:
        split = replace(config.split_k, tail=tail)
        made = replace(launch, config=replace(config, split_k=split), works=(replace(work, tiles=(rows, columns)),))
        return idle(made)

    assert of(12, 11) == 0.0
    assert of(133, 1) == pytest.approx(1 - 133 / 264)
    assert of(133, 1, tail=4) == pytest.approx(1 - 133 / 132 / 1.25)  # the last tile in four parts at once
    assert of(66, 1) == pytest.approx(0.5)
    assert of(8, 1, tail=8) == pytest.approx(1 - 64 / 132)  # 64 parts at once, and room for more
    plain = replace(launch, config=replace(config, wave=2, blocks=2), works=(replace(work, tiles=(2, 1)),), sms=132)
    assert idle(plain) == pytest.approx(1 - 2 / 132)


def test_stages() -> None:
    copy, gemm = stage_uses(small(), {})
    assert (copy.stage, copy.kind, copy.works, copy.ranks, copy.start, copy.stop) == ("copy", "copy", 3, 2, 0, 32)
    assert (copy.busy, copy.waited, copy.bytes, copy.flops) == (12.5, 0, 30, 60)
    assert (gemm.stage, gemm.busy, gemm.start, gemm.stop) == ("gemm", 16, 12, 30)
    (mm,) = stage_uses(streamed(), {})
    assert (mm.works, mm.busy, mm.waited) == (4, pytest.approx(27), 6)


def test_the_use_of_many_ranks_takes_one_look_at_the_spans() -> None:
    """A look for each rank took 27 s of a modelled run of 256 ranks."""

    class Counted(tuple[TraceSpan, ...]):
        looks = 0

        def __iter__(self) -> Iterator[TraceSpan]:
            Counted.looks += 1
            return super().__iter__()

    trace = small()
    uses = rank_uses(replace(trace, spans=Counted(trace.spans)))
    assert [(use.compute, use.moving, use.exposed) for use in uses] == [(0, 9, 9), (16, 16, 12)]
    assert Counted.looks == 1

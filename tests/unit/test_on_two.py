"""A rank of R on two GPUs: plans of two ranks that send, wait and multiply as the plan of R does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.features import usual
from ficco_rt.device.ir import Mode, Placement
from ficco_rt.exec.executor import Executor
from ficco_rt.geometry.region import Region
from ficco_rt.graph.ir import Gemm
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import CopyAsync, Launch, Plan, Stream
from ficco_rt.sim.simulate import simulate
from tests import cases
from tools.bench.on_two import NotAlike, on_two

REFUSED = {
    "gemm_ar/serial": "schedules/gemm_ar/serial.ficco:32: all_reduce is a collective of all 4 ranks; two ranks cannot "
    "call it for all",
    "concurrent/ar_vendor": "schedules/concurrent/ar_vendor.ficco:33: all_reduce is a collective of all 4 ranks; two "
    "ranks cannot call it for all",
    "concurrent/a2a_vendor": "schedules/concurrent/a2a_vendor.ficco:33: all_to_all is a collective of all 4 ranks; two "
    "ranks cannot call it for all",
    **{
        f"{operation}/{name}": "ranks are not rotations of each other: X is 8 × 7 on rank 0 and 12 × 7 on rank 1"
        for operation in ("a2a_gemm", "a2a_gemm_backward", "gemm_a2a")
        for name in ("overlapped", "serial")
    },
    "a2a_gemm/hierarchical": "schedules/a2a_gemm/hierarchical.ficco:41: send_recv is a collective of all 4 ranks; two "
    "ranks cannot call it for all",
    "ag_gemm/hierarchical": "schedules/ag_gemm/hierarchical.ficco:36: send_recv is a collective of all 4 ranks; two "
    "ranks cannot call it for all",
    "gemm_rs/hierarchical": "schedules/gemm_rs/hierarchical.ficco:68: send_recv is a collective of all 4 ranks; two "
    "ranks cannot call it for all",
}
ALIKE = [name for name in cases.ONE_TYPE if name not in REFUSED]


@cache
def whole(name: str, ranks: int) -> Plan:
    """Of rows that the pieces divide for four ranks, and of others for other numbers."""
    sizes = cases.sizes(name, ranks, ranks == 4) | cases.few_chunks(name)
    if "counts" in sizes and ranks != 4:
        sizes["counts"] = [[3] * ranks] * ranks
    return plan_of(build(cases.schedule(name), ranks, sizes), profile("h200-switch", ranks))


def sent(plan: Plan, ranks: tuple[int, ...]) -> Counter[tuple[int, str, int]]:
    """Elements that ranks write at peers and read from peers: rank, tensor, how many."""
    found: Counter[tuple[int, str, int]] = Counter()
    for stream, command in plan.commands():
        if stream.rank in ranks:
            for part in command.parts:
                for region in (*part.writes, *part.reads):
                    if region.rank != stream.rank:
                        found[ranks.index(stream.rank), region.tensor, region.elements] += 1
    return found


def products(plan: Plan, rank: int) -> list[tuple[int, ...]]:
    return [
        (*work.body.out.shape, work.body.left.shape[-1])
        for stream, launch in plan.launches()
        for work in launch.works
        if stream.rank == rank and isinstance(work.body, Gemm)
    ]


@pytest.mark.parametrize(
    ("name", "ranks"), [*((name, 4) for name in ALIKE), *((name, 7) for name in cases.few(ALIKE, 6, 3))]
)
def test_two_ranks_do_what_they_do_among_all(name: str, ranks: int) -> None:
    """The same commands, bytes and products; and the virtual clock tells the same time."""
    plan = whole(name, ranks)
    two = on_two(plan)
    kept = (0, ranks // 2)
    assert two.ranks == 2
    assert sent(two, (0, 1)) == sent(plan, kept)
    for i, rank in enumerate(kept):
        assert products(two, i) == products(plan, rank)
        mine, original = ([s for s in p.streams if s.rank == r] for p, r in ((two, i), (plan, rank)))
        assert [[type(c) for c in s.commands] for s in mine] == [[type(c) for c in s.commands] for s in original]
    modelled = simulate(two, profile("h200-switch", 2)).duration
    assert modelled == pytest.approx(simulate(plan, profile("h200-switch", ranks)).duration, rel=0.02)


@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "streams") for name in ALIKE), *((name, "graph") for name in cases.few(ALIKE, 6, 2))]
)
def test_its_device_plan_holds(name: str, mode: Mode) -> None:
    """No deadlock, no race, nothing read that the run has not written."""
    two = on_two(whole(name, 4))
    device = profile("h200-switch", 2).device
    check(device_plan(layout_of(two, device, Placement((0, 1)), usual(device.arch)), mode))


@pytest.mark.parametrize("name", ALIKE)
def test_it_ends_with_the_same_numbers_in_every_order(name: str) -> None:
    """On the host. Which numbers these are means nothing; that all are there shows that nobody read too early."""
    two = on_two(whole(name, 4))
    results: set[bytes] = set()
    with Executor(two) as executor:
        for tensor in (t for t in two.tensors if t.kind == "input"):
            for rank, shape in enumerate(tensor.shapes):
                values = np.random.default_rng(rank).integers(-4, 5, shape).astype(np.float32)
                executor.write(tensor.name, rank, values)
        for order in ("fifo", "adversarial", "random(1)"):
            executor.order = order
            executor.poison()
            executor.run()
            outputs = [executor.read(t.name, r) for t in two.tensors if t.kind == "output" for r in range(2)]
            assert all(np.isfinite(values).all() for values in outputs), order
            results.add(b"".join(values.tobytes() for values in outputs))
    assert len(results) == 1


def test_numbers_are_not_claimed() -> None:
    two = on_two(whole("ag_gemm/streamed", 4))
    assert two.claims == ()
    assert {t.name for t in two.tensors if t.unproven} == {"C"}
    assert two.schedule == "ag_gemm_streamed (a rank of 4 on two)"


def test_two_ranks_stay_as_they_are() -> None:
    plan = whole("gemm_rs/relay", 2)
    two = on_two(plan)
    assert two.streams == plan.streams
    assert two.flag_homes == plan.flag_homes


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_no_rotation_is_refused(name: str) -> None:
    plan = plan_of(build(cases.schedule(name), 4, cases.sizes(name, 4, False)), profile("h200-switch", 4))
    with pytest.raises(NotAlike) as caught:
        on_two(plan)
    assert str(caught.value) == REFUSED[name]


def test_links_and_lonely_ranks_are_refused() -> None:
    mesh = plan_of(build(cases.schedule("ag_gemm/serial"), 4, {}), profile("mi300x-mesh", 4))
    with pytest.raises(NotAlike, match=r"^the plan has a stream for each link \(dma→0 of rank 0\); two GPUs have one "):
        on_two(mesh)
    with pytest.raises(NotAlike, match=r"^a plan of one rank has no peers to stand for$"):
        on_two(whole("ag_gemm/serial", 1))


def other_size(plan: Plan) -> Plan:
    """Rank 2 sends a row less of its first piece."""

    def moved(region: Region) -> Region:
        (rows, columns) = region.axes
        (segment,) = rows.segments
        shorter = replace(rows, segments=(segment._replace(stop=segment.stop - 1),))
        return Region(region.tensor, region.rank, (shorter, columns))

    def changed(stream: Stream) -> Stream:
        first = stream.commands[0]
        if stream.rank != 2 or not isinstance(first, CopyAsync):
            return stream
        (transfer, *rest) = first.transfers
        transfer = replace(transfer, dst=moved(transfer.dst), src=moved(transfer.src))
        return replace(stream, commands=(replace(first, transfers=(transfer, *rest)), *stream.commands[1:]))

    return replace(plan, streams=tuple(map(changed, plan.streams)))


def no_wait(plan: Plan) -> Plan:
    """Rank 1's launches wait for nothing."""

    def changed(stream: Stream) -> Stream:
        if stream.rank != 1:
            return stream
        commands = (
            replace(c, works=tuple(replace(w, waits=()) for w in c.works)) if isinstance(c, Launch) else c
            for c in stream.commands
        )
        return replace(stream, commands=tuple(commands))

    return replace(plan, streams=tuple(map(changed, plan.streams)))


def narrower(plan: Plan) -> Plan:
    """Rank 3's launches take fewer multiprocessors."""

    def changed(stream: Stream) -> Stream:
        commands = (
            replace(c, attributes=replace(c.attributes, sms=16)) if isinstance(c, Launch) and stream.rank == 3 else c
            for c in stream.commands
        )
        return replace(stream, commands=tuple(commands))

    return replace(plan, streams=tuple(map(changed, plan.streams)))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (other_size, "a copy at FILE:38, rank 2 has a copy at FILE:38; where the one has 5 × 64 of G on the rank 1 "
         "further, the other has 4 × 64 of G on the rank 1 further"),
        (no_wait, "a work at FILE:47, rank 1 has a work at FILE:47; where the one has a wait for the rank 3 further: "
         "its flag for the rank 1 further, raised behind step 1 of stream 0, the other has nothing"),
        (narrower, "a launch of sm80_gemm_64x64 at FILE:43 with 10 works, rank 3 has a launch of sm80_gemm_64x64 at "
         "FILE:43 with 10 works; where the one has sms = None, the other has sms = 16"),
    ],
)  # fmt: skip
def test_the_first_difference_is_told(damage: object, told: str) -> None:
    assert callable(damage)
    with pytest.raises(NotAlike) as caught:
        on_two(damage(whole("ag_gemm/streamed", 4)))
    told = told.replace("FILE", "schedules/ag_gemm/streamed.ficco")
    assert str(caught.value) == f"ranks are not rotations of each other: rank 0 has {told}"

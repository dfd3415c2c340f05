"""Lowering: streams by topology, rounds, batches, flat transfers, resources."""

from __future__ import annotations

import dataclasses
import logging

import pytest

import ficco_dsl
from ficco_rt.compiler import build, lint, plan_of
from ficco_rt.errors import PlanError, ScheduleError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.files import shipped
from ficco_rt.graph.ir import Copy, Gemm
from ficco_rt.kernels.catalogue import TILES
from ficco_rt.kernels.families import choose
from ficco_rt.kernels.family import Chosen, GemmRequest
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.machine.durations import gemm_time, link_time, store_time, transfer_time
from ficco_rt.machine.model import Machine
from ficco_rt.machine.profiles import profile
from ficco_rt.plan import choose_kernels as choosing
from ficco_rt.plan.check import check
from ficco_rt.plan.ir import Command, CopyAsync, Launch, Plan, Record, WaitEvent
from ficco_rt.plan.lint import incast
from ficco_rt.plan.lower import PASSES, lower
from ficco_rt.sim.simulate import simulate
from tests import cases
from tests.unit.plan_damage import without_one_wait

GATHER = """
schedule gather
param big = 4
input  A[big, 8] : fp32
output G[big * ranks, 8] : fp32
computes G = all_gather(A, rows)
queue dma { engine = copy ORDER }
stage move on dma {
  for p in 0..ranks { copy G.rows(rank of ranks) @ p <- A }
}
"""


def plan(text: str, ranks: int = 4, machine: str | Machine = "h200-switch", **params: object) -> Plan:
    target = profile(machine, ranks) if isinstance(machine, str) else machine
    return plan_of(build(ficco_dsl.parse(text, "x.ficco"), ranks, params), target)


def copies(plan: Plan, rank: int) -> list[int]:
    """Destinations of a rank's copies, in the order issued."""
    return [
        t.dst.rank
        for s in plan.streams
        if s.rank == rank
        for c in s.commands
        if isinstance(c, CopyAsync)
        for t in c.transfers
    ]


def gemms_of(launch: Command) -> list[Gemm]:
    return [w.body for w in launch.works if isinstance(w.body, Gemm)] if isinstance(launch, Launch) else []


def verified(plan: Plan) -> bool:
    with Executor(plan, order="adversarial") as executor:
        return verified_run(executor, values="exact").ok


def test_text_order_stays_and_is_warned_of() -> None:
    text = GATHER.replace("ORDER", "")
    assert [copies(plan(text), r) for r in range(4)] == [[0, 1, 2, 3]] * 4
    graph = build(ficco_dsl.parse(text, "x.ficco"), 4, {"big": 1 << 20})
    (warning,) = lint(graph, profile("h200-switch", 4))
    assert warning.message.startswith("ranks 1, 2, 3 all send to rank 0 in round 1 of 3")
    assert warning.help == "send in the order of 'peers' (rank+1, rank+2, …), or set order = auto on the queue"


def test_auto_order_takes_turns() -> None:
    text = GATHER.replace("ORDER", " order = auto")
    made = plan(text)
    rounds = [[d for d in copies(made, r) if d != r] for r in range(4)]
    for turn in range(3):
        assert len({r[turn] for r in rounds}) == 4, f"round {turn}: two ranks send to one"
    assert verified(made)
    graph = build(ficco_dsl.parse(text, "x.ficco"), 4, {"big": 1 << 20})
    assert lint(graph, profile("h200-switch", 4)) == ()


def test_auto_order_keeps_what_data_demands() -> None:
    """A copy that reads what another copy of its stage brings stays behind it."""
    text = """
schedule chain
input  A[4, 8] : fp32
output G[4, 8] : fp32
scratch S[4, 8] : fp32
computes G = all_gather(A.rows(0 of ranks), rows)
queue dma { engine = copy order = auto }
stage move on dma {
  copy S <- A
  for p in peers { copy G.rows(rank of ranks) @ p <- S.rows(0 of ranks) }
  copy G.rows(rank of ranks) <- S.rows(0 of ranks)
}
"""
    assert verified(plan(text))


def test_a_mesh_has_a_stream_a_link_and_a_ring_one_a_neighbour() -> None:
    text = GATHER.replace("ORDER", "")
    mesh = plan(text, 4, "mi300x-mesh")
    assert [(s.rank, s.link) for s in mesh.streams] == [(r, p) for r in range(4) for p in range(4)]
    ring = plan(text, 5, "h200-ring")
    assert [s.link for s in ring.streams if s.rank == 0] == [0, 1, 4]
    assert copies(ring, 0) == [0, 1, 2, 3, 4]  # 2 goes by 1, 3 by 4
    assert verified(mesh)
    assert verified(ring)


def test_copies_that_nobody_waits_for_go_out_together() -> None:
    commands = plan(GATHER.replace("ORDER", "")).streams[0].commands
    assert [len(c.transfers) for c in commands if isinstance(c, CopyAsync)] == [4]


PUSH = """
schedule push
param few = 4
input  A[4, 8] : fp32
output G[4 * ranks, 8] : fp32
computes G = all_gather(A, rows)
queue work { engine = sm }
stage move on workSTREAMED {
  for p in peers { copy G.rows(rank of ranks) @ p <- A }
  copy G.rows(rank of ranks) <- AWITH
}
"""


def test_the_time_of_a_push_is_the_links_or_the_multiprocessors() -> None:
    """As measured on four H200, 33.5 MB to each of three peers."""
    machine = profile("h200-switch", 4)
    times = [3 * store_time(machine, 0, 1, 4096 * 8192, sms) for sms in (8, 32, 64)]
    assert times == pytest.approx([370, 346, 315], rel=0.1)
    assert store_time(machine, 0, 0, 1 << 20, 8) == pytest.approx(2 * store_time(machine, 0, 1, 1 << 20, 8))


def moves(text: str, ranks: int = 4) -> list[Launch]:
    """The launches of rank 0's only stream; numbers are right, and nothing but launches is there."""
    made = plan(text, ranks)
    assert verified(made)
    commands = made.streams[0].commands
    assert all(isinstance(c, Launch) and c.kernel == "naive_copy" for c in commands)
    return [c for c in commands if isinstance(c, Launch)]


def test_copies_on_multiprocessors_go_out_as_one_launch() -> None:
    (launch,) = moves(PUSH.replace("STREAMED", "").replace("WITH", ""))
    assert [w.body.dst.rank for w in launch.works if isinstance(w.body, Copy)] == [1, 2, 3, 0]
    assert (launch.streamed, launch.attributes.sms) == (False, 64)


def test_copies_with_other_resources_are_another_launch() -> None:
    launches = moves(PUSH.replace("STREAMED", " with sms = 8").replace("WITH", " with sms = few"))
    assert [(len(c.works), c.attributes.sms) for c in launches] == [(3, 8), (1, 4)]


BESIDE = """
schedule beside
param M = 1024
input   A[M / ranks, 256] : bf16
input   B[256, 512]       : bf16
output  C[M, 512]         : bf16
scratch G[M, 256]         : bf16
computes C = all_gather(A, rows) * B
queue push    { engine = smPUSH }
queue compute { engine = sm }
queue other   { engine = sm }
stage gather on push streamed {
  copy G.rows(rank of ranks) <- A
  for p in peers { copy G.rows(rank of ranks) @ p <- A }
}
stage mm on compute streamed { gemm C = G * B }
REST
"""
OTHER = """
output D[M, 256] : bf16 unproven
stage later on other { copy D <- G }
"""


@pytest.mark.parametrize(("push", "taken"), [(" sms = 8", 8), (" sms = 131", 131), ("", 64)])
def test_a_streamed_launch_has_what_those_beside_it_leave(push: str, taken: int) -> None:
    """And waits for nothing before it begins: not for its own rank's copy either, which has room of its own."""
    made = plan(BESIDE.replace("PUSH", push).replace("REST", ""))
    pushes, product = (s.commands for s in made.streams if s.rank == 0)
    assert [type(c) for c in (*pushes, *product)] == [Launch, Launch]
    (copies,), (gemm,) = ([c for c in commands if isinstance(c, Launch)] for commands in (pushes, product))
    assert (copies.attributes.sms, gemm.attributes.sms) == (taken, 132 - taken)
    assert [len(w.waits) for w in gemm.works] == [4]
    assert verified(made)


@pytest.mark.parametrize(("push", "product", "crowded"), [(8, 124, False), (8, 125, True), (132, 132, True)])
def test_more_multiprocessors_than_there_are_between_launches_beside_one_another(
    push: int, product: int, crowded: bool
) -> None:
    text = BESIDE.replace("PUSH", f" sms = {push}").replace("REST", "")
    text = text.replace("compute streamed", f"compute streamed with sms = {product}")
    found = [str(w) for w in lint(build(ficco_dsl.parse(text, "x.ficco"), 4, {"M": 32768}), profile("h200-switch", 4))]
    wanted = (
        f"streamed stages beside one another ask for {push} of queue 'push' + {product} of queue 'compute' = "
        f"{push + product} multiprocessors; there are 132 (NVIDIA H200), and each gets its share"
    )
    assert [wanted in w for w in found] == [True] * crowded


@pytest.mark.parametrize(
    ("machine", "deep", "m", "warned"),
    [
        ("h200-switch", [1, 1, 1], 16384, True),  # pieces of K from 1365 on
        ("mi300x-mesh", [1, 1, 1], 16384, True),
        ("h200-switch", [1, 1, 2], 16384, False),
        ("h200-switch", [1, 1, 1], 512, True),  # small pieces of a large launch, which has one kernel
        ("h200-switch", [1, 1, 1], 64, False),  # too small to matter
    ],
)
def test_a_large_product_that_only_a_plain_kernel_takes(machine: str, deep: list[int], m: int, warned: bool) -> None:
    sizes = {"M": m, "N": 6144, "K": 4096, "chunks": 1, "deep": deep}
    graph = build(cases.schedule("ag_gemm/streamed"), 4, sizes)
    found = [str(w) for w in lint(graph, profile(machine, 4)) if "multiplies here" in str(w)]
    assert bool(found) == warned
    why = (
        "a piece of the left operand's columns starts at 1365" if "mi300x" in machine else "a piece of K does not start"
    )
    assert all(f"{why}" in w and "multiple of 8" in w for w in found)


PITCHES = """
schedule pitches
input  A[2048, 2048]            : bf16
input  B[2048, 2048 + 4 * rank] : bf16
output C[2048, 2048]            : bf16
computes C = A * B[:, 0:2048]
queue compute { engine = sm }
stage mm on compute { gemm C = A * B[:, 0:2048] }
"""


def test_equal_parts_of_tensors_that_differ_are_looked_at_one_by_one() -> None:
    graph = build(ficco_dsl.parse(PITCHES, "x.ficco"), 2, {})
    (found,) = map(str, lint(graph, profile("h200-switch", 2)))
    assert "the right operand's address or pitch is no multiple of 16 bytes" in found


def test_each_wait_of_launches_beside_one_another_is_needed() -> None:
    damaged = list(without_one_wait(plan(BESIDE.replace("PUSH", " sms = 8").replace("REST", ""))))
    assert len(damaged) == 16
    for damage in damaged:
        with pytest.raises(PlanError, match="race"):
            check(damage.plan)


@pytest.mark.parametrize(("push", "rest"), [(" sms = 132", ""), (" sms = 8", OTHER)])
def test_where_nobody_knows_what_is_left_it_waits_for_all_before(push: str, rest: str) -> None:
    made = plan(BESIDE.replace("PUSH", push).replace("REST", rest))
    product = next(s.commands for s in made.streams if s.rank == 0 and s.queue == "compute")
    wait, launch = product
    assert isinstance(wait, WaitEvent)
    assert isinstance(launch, Launch)
    assert launch.attributes.sms is None
    assert verified(made)


RING = """
schedule ring
input  A[4, 8] : fp32
output G[4 * ranks, 8] : fp32
computes G = all_gather(A, rows)
queue work { engine = sm }
stage move on work streamed {
  copy G.rows(rank of ranks) <- A
  step s in 1..ranks {
    let q = (rank + 1 - s) % ranks
    copy G.rows(q of ranks) @ (rank + 1) % ranks <- G.rows(q of ranks)
  }
}
"""


def test_streamed_copies_wait_and_signal_in_their_kernel() -> None:
    """A ring in one launch a rank: each turn's copy waits for what the turn before has brought."""
    (launch,) = moves(RING)
    assert launch.streamed
    assert [(len(w.waits), len(w.signals)) for w in launch.works] == [(0, 1), (1, 1), (1, 1), (1, 0)]


def test_a_copy_that_follows_another_of_its_batch_does_not_join_it() -> None:
    text = """
schedule twice
input  A[4, 8] : fp32
output G[4, 8] : fp32
scratch S[4, 8] : fp32
computes G = A
queue dma { engine = copy }
stage move on dma {
  copy S <- A
  copy G <- S
}
"""
    (stream,) = plan(text, 1).streams
    assert [len(c.transfers) for c in stream.commands if isinstance(c, CopyAsync)] == [1, 1]


def test_copies_between_tensors_of_different_dimensions() -> None:
    text = """
schedule boxes
input   A[6, 8] : fp32
output  G[6 * ranks, 8] : fp32
scratch S[ranks, 6, 8] : fp32
computes G = all_gather(A, rows)
queue dma { engine = copy }
stage push on dma {
  for p in all { copy S[rank].rows(0 of 2) @ p <- A.rows(0 of 2)  copy S[rank].rows(1 of 2) @ p <- A.rows(1 of 2) }
}
stage place on dma {
  for p in all { copy G.rows(p of ranks) <- S[p] }
}
"""
    assert verified(plan(text, 3))


def test_copies_of_three_dimensions_become_flat_ones() -> None:
    text = """
schedule cubes
input   A[3, 6, 8] : fp32
output  G[3, 6, 8] : fp32 unproven
queue dma { engine = copy }
queue other { engine = copy }
stage move on dma { copy G.rows(0 of 2).cols(1 of 2) <- A.rows(1 of 2).cols(0 of 2) }
stage rest on other {
  copy G.rows(1 of 2) <- A.rows(1 of 2)
  copy G.rows(0 of 2).cols(0 of 2) <- A.rows(0 of 2).cols(0 of 2)
}
"""
    stream = plan(text, 1).streams[0]
    (batch,) = stream.commands
    assert isinstance(batch, CopyAsync)
    assert [str(t.dst) for t in batch.transfers] == [f"G@0[{i}:{i + 1}, 0:3, 4:8]" for i in range(3)]


SUMS = """
schedule resources
input  A[256, 256] : bf16
input  B[256, 256] : bf16
output C[256, 256] : bf16
computes C = A * B
queue compute { engine = sm  priority = low QUEUE }
stage mm on compute STAGE { gemm C = A * B STATEMENT }
"""


def launch(queue: str = "", stage: str = "", statement: str = "") -> Launch:
    text = SUMS.replace("QUEUE", queue).replace("STAGE", stage).replace("STATEMENT", statement)
    (command,) = plan(text, 1).streams[0].commands
    assert isinstance(command, Launch)
    return command


def test_statement_before_stage_before_queue() -> None:
    assert launch("sms = 100").attributes.sms == 100
    assert launch("sms = 100", "with sms = 90").attributes.sms == 90
    assert launch("sms = 100", "with sms = 90", "with sms = 80").attributes.sms == 80
    assert launch().attributes.priority is None
    assert launch("", "with priority = high").attributes.priority == "high"


@pytest.mark.parametrize("residency", [1, 2, 3, 5])
def test_residency_is_solved_by_shared_memory(residency: int) -> None:
    device = profile("h200-switch", 1).device
    smem = launch(f"residency = {residency}").attributes.smem
    assert device.smem_per_sm // (smem + device.smem_reserved) == residency


def test_shared_memory_is_what_was_asked() -> None:
    assert launch("smem = 96 KiB").attributes.smem == 96 * 1024


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        ("sms = 133", "sms = 133, but the device has 132 multiprocessors (NVIDIA H200)"),
        ("residency = 33", "residency = 33, but a multiprocessor holds at most 32 blocks (NVIDIA H200)"),
        ("smem = 228 KiB", "smem = 233472 bytes, but a block has at most 232448 (NVIDIA H200)"),
        ("smem = 1 KiB", "naive_gemm needs 16384 bytes of shared memory a block; 1024 are left to it (NVIDIA H200)"),
    ],
)
def test_what_the_machine_lacks_is_an_error(queue: str, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        launch(queue)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message == message
    assert diagnostic.span.line == 8


def test_a_reduce_has_limits_too() -> None:
    text = SUMS.replace("STAGE", "").replace("gemm C = A * B STATEMENT", "reduce C = sum(A, B) with sms = 10_000")
    text = text.replace("QUEUE", "").replace("computes C = A * B\n", "")
    text = text.replace("C[256, 256] : bf16", "C[256, 256] : bf16 unproven")
    with pytest.raises(ScheduleError, match="sms = 10000, but the device has 132"):
        plan(text, 1)


def test_tiles_break_at_segments() -> None:
    graph = build(cases.schedule("ag_gemm/hetero_fused_1d"), 4, {"M": 4 * 300, "N": 4 * 200, "K": 64, "chunks": 2})
    made = plan_of(graph, profile("h200-switch", 4))
    works = [w for s in made.streams for c in s.commands if isinstance(c, Launch) for w in c.works]
    fused = [w for w in works if isinstance(w.body, Gemm) and len(w.body.out.boxes) == 3]
    (kernel,) = {
        c.kernel for s in made.streams for c in s.commands if isinstance(c, Launch) for w in c.works if w in fused
    }
    rows, columns = TILES[kernel]
    assert {w.tiles for w in fused} == {(3 * -(-150 // rows), -(-200 // columns))}  # three pieces of 150 rows


def test_passes_can_be_watched(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="ficco_rt.plan.lower"):
        plan(GATHER.replace("ORDER", ""), 2)
    shown = [r.getMessage().splitlines()[0] for r in caplog.records]
    assert shown == [f"after {step.name}" for step in PASSES]


def test_a_plan_is_the_machine_s_own() -> None:
    """Nothing of a machine stays behind in the next plan."""
    text = GATHER.replace("ORDER", "")
    small = dataclasses.replace(profile("h200-switch", 4), name="other")
    assert plan(text, 4, small).machine == "other"
    assert plan(text).machine == "h200-switch"


SENT = """
schedule sent
param M = 64
param N = 32
param K = 48
type T = fp32
input  A[M, K / ranks] : T
input  B[K / ranks, N] : T
output C[M / ranks, N] : T
scratch S[M, N] : T
computes C = reduce_scatter(A * B, rows)
queue compute { engine = sm }
stage mm on computeSTREAMED {
  for p in all { gemm S.rows(rank of ranks) @ p = A.rows(p of ranks) * B }
}
stage sum on computeSTREAMED {
  reduce C = sum(S.rows(all of ranks))
}
"""


def test_a_product_on_a_peer_is_waited_for_there_by_events() -> None:
    made = plan(SENT.replace("STREAMED", ""))
    assert verified(made)
    records = {c.event: s.rank for s in made.streams for c in s.commands if isinstance(c, Record)}
    for stream in made.streams:
        waits = [records[c.event] for c in stream.commands if isinstance(c, WaitEvent)]
        assert sorted(waits) == [r for r in range(4) if r != stream.rank]


def test_a_product_on_a_peer_raises_a_streamed_reader_s_flag_there() -> None:
    made = plan(SENT.replace("STREAMED", " streamed"))
    assert verified(made)
    for stream in made.streams:
        product, total = (c for c in stream.commands if isinstance(c, Launch))
        homes = [made.flag_homes[f] for w in product.works for f in w.signals]
        assert homes == [g.out.rank for g in gemms_of(product) if g.out.rank != stream.rank]
        assert len(total.works[0].waits) == 3


def test_a_product_on_a_peer_takes_its_way_over_the_link() -> None:
    """And hardly longer: it leaves while the rest is multiplied. Ranks send to one at the same time at first, which
    costs a fifth where the links bound."""
    machine = profile("h200-switch", 4)
    sizes = {"M": 16384, "N": 4096, "T": "bf16"}
    for k, bound in (
        (64, link_time(machine, 0, 1, 4096 * 4096 * 2)),
        (32768, gemm_time(machine, 4096, 4096, 8192, "bf16")),
    ):
        made = plan(SENT.replace("STREAMED", " streamed"), machine=machine, K=k, **sizes)
        spans = [s for s in simulate(made, machine).spans if s.kind == "gemm" and s.peer is not None and s.rank == 0]
        assert [s.label for s in spans] == [f"mm  S@{p} rows 0–4095, columns 0–4095" for p in (1, 2, 3)]
        took = max(s.stop for s in spans) - min(s.start for s in spans)
        assert 2.85 * bound < took < 3.65 * bound


def test_tensors_that_a_device_does_not_hold_are_warned_of() -> None:
    machine = profile("h200-switch", 4)
    graph = build(cases.schedule("ag_gemm/serial"), 4, {"M": 1 << 20, "N": 16384, "K": 4096})
    assert not lint(graph, machine)
    small = dataclasses.replace(machine, device=dataclasses.replace(machine.device, memory=8 << 30))
    (warning,) = lint(graph, small)
    assert (warning.message, warning.span.line) == (
        "the tensors of rank 0 take 18 GiB, and a device of h200-switch has 8 GiB: only virtual devices can run this",
        21,
    )


def test_products_that_meet_at_one_port_are_warned_of() -> None:
    machine = profile("h200-switch", 4)
    graph = build(ficco_dsl.parse(SENT.replace("STREAMED", ""), "x.ficco"), 4, {})
    (warning,) = incast(graph, machine)
    assert warning.message.startswith("ranks 1, 2, 3 all send to rank 0 in round 1 of 3")
    assert warning.help == "send in the order of 'peers' (rank+1, rank+2, …)"
    assert not list(incast(build(cases.schedule("gemm_rs/direct"), 4, {}), machine))


def test_stores_to_seven_peers_and_the_own_rows_are_one_launch_of_the_hopper_kernel() -> None:
    made = plan_of(build(cases.schedule("gemm_rs/direct"), 8, {}), profile("h200-switch", 8))
    for stream in made.streams:
        (launch,) = stream.commands
        assert isinstance(launch, Launch)
        assert launch.kernel.startswith("sm90_gemm")
        assert launch.kernel.endswith("_paced")
        assert len({g.out.rank for g in gemms_of(launch)}) == 8


def test_stores_to_peers_with_little_shared_memory_are_done_by_what_fits() -> None:
    made = plan(SENT.replace("STREAMED", "").replace("engine = sm", "engine = sm  smem = 50 KiB"), T="bf16", K=256)
    kernels = {c.kernel for s in made.streams for c in s.commands if isinstance(c, Launch) and c.stage == "mm"}
    assert kernels == {"sm90_gemm_64x64_c1", "sm90_gemm_16x64_c1_swapped"}  # at peers, and at home


PRODUCT = """
schedule product
param K = 64
param N = 64
type T = bf16
input  A[64, K] : T
input  B[K, N] : T
output C[64, N] : T
computes C = A * B
queue compute { engine = sm }
stage mm on compute { gemm C = A * B }
"""


@pytest.mark.parametrize(
    ("machine", "params", "kernel"),
    [
        ("h200-switch", {}, "sm90_gemm"),
        ("h200-switch", {"T": "fp16"}, "sm90_gemm"),
        ("h200-switch", {"T": "fp32"}, "sm80_gemm"),  # Hopper's tensor cores take 16 bits here
        ("h200-switch", {"N": 60}, "sm80_gemm"),  # columns in multiples of 8
        ("h200-switch", {"K": 68}, "sm80_gemm"),  # rows of A are no multiple of 16 bytes
        ("h200-switch", {"K": 72}, "sm90_gemm"),
        ("mi300x-mesh", {}, "mfma_gemm"),
        ("mi300x-mesh", {"T": "fp32"}, "naive_gemm"),
        ("mi300x-mesh", {"K": 68}, "naive_gemm"),
    ],
)
def test_the_tuned_kernel_where_it_fits(machine: str, params: dict[str, object], kernel: str) -> None:
    (command,) = plan(PRODUCT, 1, machine, **params).streams[0].commands
    assert isinstance(command, Launch)
    assert command.kernel.startswith(kernel)


def test_a_streamed_launch_has_one_kernel_for_all_its_works() -> None:
    graph = build(cases.schedule("ag_gemm/streamed"), 4, {"M": 4096, "N": 1024, "K": 512})
    made = plan_of(graph, profile("h200-switch", 4))
    launches = [c for s in made.streams for c in s.commands if isinstance(c, Launch)]
    assert [c.streamed for c in launches] == [True] * 4
    assert len({c.kernel for c in launches}) == 1
    assert launches[0].kernel.startswith("sm90_gemm")


def test_a_launch_waits_less_for_what_comes_while_earlier_products_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate of the last arrival is from the launch's start: kernels are chosen by it."""
    requests = []

    def noted(request: GemmRequest, limits: Limits) -> Chosen | str:
        requests.append(request)
        return choose(request, limits)

    monkeypatch.setattr(choosing, "choose", noted)
    machine = profile("h200-switch", 4)
    copies = 3 * transfer_time(machine, 0, 1, 4096 * 8192 * 2)
    products = 3 * gemm_time(machine, 4096, 8192, 1024, "bf16")
    assert copies > products
    text = shipped.find("gemm_rs/streamed").read_text()
    apart = text.replace("stage own on compute streamed", "stage own on compute streamed with sms = 132")
    for schedule, arrivals in ((text, [copies]), (apart, [0, copies - products])):
        requests.clear()
        graph = build(ficco_dsl.parse(schedule, "x.ficco"), 4, {"M": 16384, "N": 8192, "K": 4096, "chunks": 1})
        lower(graph, machine)
        found = {round(r.arrival, 6) for r in requests}
        assert sorted(found) == pytest.approx(arrivals)

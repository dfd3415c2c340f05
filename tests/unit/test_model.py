"""The virtual clock against what was measured on four H200 (docs/results/bench.md), and what it says of pieces."""

from __future__ import annotations

from statistics import median

import pytest

import ficco_rt
from ficco_rt.device.build import layout_of
from ficco_rt.device.build import modelled as modelled_plan
from ficco_rt.device.features import usual
from ficco_rt.device.ir import CopyMemory, LaunchKernel, Placement
from ficco_rt.errors import UsageError
from ficco_rt.machine.model import Machine
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from ficco_rt.sim.streams import streams_of

FOUR = profile("h200-switch", 4)

# docs/results/bench.md, "Which schedule wins where": schedule, M, N, K, parameters, mode, µs
MEASURED: list[tuple[str, int, int, int, dict[str, object], str, float]] = [
    ("ag_gemm/streamed", 8192, 10240, 8192, {"chunks": 4, "deep": [1, 1, 1, 1]}, "streams", 461.7),
    ("ag_gemm/streamed", 16384, 6144, 4096, {"chunks": 2}, "streams", 332.4),
    ("ag_gemm/hetero_fused_1d", 16384, 10240, 8192, {"chunks": 2}, "streams", 982.4),
    ("ag_gemm/uniform_fused_1d", 16384, 6144, 4096, {"chunks": 4}, "streams", 446.3),
    ("ag_gemm/uniform_fused_2d", 8192, 10240, 8192, {"chunks": 2}, "streams", 695.9),
    ("ag_gemm/uniform_fused_2d", 16384, 6144, 4096, {"chunks": 2}, "streams", 554.1),
    ("ag_gemm/oneshot", 2048, 10240, 8192, {}, "streams", 201.7),
    ("ag_gemm/serial", 8192, 10240, 8192, {}, "streams", 747.3),
    ("gemm_rs/chunked", 16384, 4096, 14336, {"chunks": 2}, "graph", 702.1),
    ("gemm_rs/shard", 16384, 8192, 8192, {}, "graph", 870.1),
    ("gemm_rs/relay", 16384, 4096, 4096, {"first": [1, 1, 2], "last": [2, 1, 1]}, "graph", 353.3),
    ("gemm_rs/ring", 16384, 8192, 8192, {}, "streams", 1147.0),
    ("gemm_rs/streamed", 16384, 8192, 8192, {"chunks": 2}, "graph", 809.0),
]


def made(name: str, machine: Machine = FOUR, **params: object) -> Plan:
    return ficco_rt.compile(name, machine.ranks, machine=machine, T="bf16", **params)


def test_the_model_is_near_what_was_measured() -> None:
    off = {}
    for name, m, n, k, params, mode, measured in MEASURED:
        modelled = ficco_rt.simulate(made(name, M=m, N=n, K=k, **params), mode=mode).duration
        off[name, m, mode] = abs(modelled / measured - 1)
    # NOTE 7.5 % before consumers alternated on tiles of 128 × 192, which two of these products were not measured with
    assert max(off.values()) < 0.085, off
    assert median(off.values()) < 0.03, off


@pytest.mark.parametrize(
    ("name", "ranks", "sizes", "params", "measured", "off"),
    [  # fitted cases of the campaign: what each adds was not counted before
        (
            "gemm_rs/oneshot",
            8,
            (152, 2880, 2880),
            {},
            24.5,
            0.05,
        ),  # the first bytes of a sum of peers' terms: 21 % less
        ("ag_gemm/stationary_a", 8, (16384, 6144, 4096), {"chunks": 4}, 282.8, 0.05),  # passed waits: 14 % less
        ("ag_gemm/oneshot", 8, (2048, 10240, 8192), {}, 155.3, 0.03),  # copies by multiprocessors: 5 % more
        ("gemm_rs/direct", 2, (2048, 4096, 1536), {"chunks": 4}, 63.6, 0.10),  # tiles of other groups: 29 % more
    ],
)
def test_what_was_fitted_to_two_gpus_is_counted(
    name: str, ranks: int, sizes: tuple[int, int, int], params: dict[str, object], measured: float, off: float
) -> None:
    given = dict(zip("MNK", sizes, strict=True)) | params
    plan = made(name, profile("h200-switch", ranks), **given)
    assert ficco_rt.simulate(plan).duration == pytest.approx(measured, rel=off)


def test_more_pieces_of_k_cost_more() -> None:
    """C is read and written once a piece, and every piece begins anew: not the least that a plan can do."""
    times = [
        ficco_rt.simulate(made("ag_gemm/uniform_fused_2d", M=8192, N=57344, K=8192, chunks=chunks)).duration
        for chunks in (1, 2, 4, 8)
    ]
    assert times == sorted(times)
    assert times[3] > 1.1 * times[0]


def test_pieces_of_k_are_not_the_best_of_all_schedules_on_a_mesh() -> None:
    machine = profile("mi300x-mesh", 8)
    sizes = {"M": 2048, "N": 10240, "K": 8192}
    pieces = ficco_rt.simulate(made("ag_gemm/uniform_fused_2d", machine, **sizes)).duration
    assert ficco_rt.simulate(made("ag_gemm/hetero_fused_1d", machine, **sizes, chunks=2)).duration < pieces


def test_a_graph_takes_a_little_longer_than_streams() -> None:
    """Flags are written by the copy streams themselves there, and ranks wait for each other by semaphores."""
    plan = made("gemm_rs/relay", M=16384, N=4096, K=4096)
    streams, graph = (ficco_rt.simulate(plan, mode=mode).duration for mode in ("streams", "graph"))
    assert streams < graph < 1.06 * streams
    with pytest.raises(UsageError, match="mode is 'streams' or 'graph', not 'embedded'"):
        ficco_rt.simulate(plan, mode="embedded")


def test_a_plan_for_amd_has_no_price_on_hopper() -> None:
    plan = ficco_rt.compile("ag_gemm/streamed", 2, machine="mi300x-mesh", M=1024, N=1024, K=1024)
    with pytest.raises(UsageError, match=r"compile the schedule for the machine that it runs on"):
        ficco_rt.simulate(plan, profile("h200-switch", 2))


def test_what_a_stream_does_next_is_found_in_one_pass() -> None:
    """The clock asks at every position; a walk from each took seconds of a run of 900 chunks."""
    plan = ficco_rt.compile("gemm_rs/chunked", 2, M=256, N=128, K=128, chunks=4)
    device = plan.target.device
    made = modelled_plan(layout_of(plan, device, Placement((0, 1)), usual(device.arch)), "streams")
    stages = set()
    for stream in streams_of(made):
        assert len(stream.following) == len(stream.actions)
        for position, (stage, launches) in enumerate(stream.following):
            ahead = [a for a in stream.actions[position:] if isinstance(a, LaunchKernel | CopyMemory)]
            assert launches == bool(ahead and isinstance(ahead[0], LaunchKernel))
            moving = next((a for a in ahead if isinstance(a, LaunchKernel) or a.moves), None)
            if isinstance(moving, LaunchKernel):
                assert stage == made.launches[moving.launch].stages[0]
            else:
                assert stage == (moving.moves[0].stage if moving is not None else "")
            stages.add(stage)
    assert {stage.split("[")[0] for stage in stages} == {"", "mm", "scatter", "own"}

"""The tuned kernels' tables on the stand-in: what the driver packs for them is what they need."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.gpu.driver import GpuDriver
from ficco_rt.driver.registry import VENDORS, discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.kernels.catalogue import TILES
from ficco_rt.kernels.sm90 import family, tables
from ficco_rt.plan.ir import Command, Launch, Plan
from tests import cases
from tests.mock.standin import StandIn

SMEM = 200 << 10
SEEDS = 10
ARCHS = [  # driver, architecture, kernels
    ("cuda", "sm_90", "sm90_gemm"),
    ("cuda", "sm_80", "sm80_gemm"),
    ("hip", "gfx90a", "mfma_gemm"),
    ("hip", "gfx942", "mfma_gemm"),
]
SERVED = [a for a in ARCHS if a[0] in VENDORS and any(k.startswith(a[2]) for k in TILES)]


def compiled(library: StandIn, name: str, ranks: int, sizes: dict[str, object]) -> Plan:
    return plan_of(build(cases.schedule(name), ranks, sizes), discover(library.face, ranks))


def kernels(plan: Plan) -> set[str]:
    return {c.kernel for s in plan.streams for c in s.commands if isinstance(c, Launch)}


def right(library: StandIn, plan: Plan, seeds: int = SEEDS) -> None:
    with Executor(plan, library.face, timeout=30) as executor:
        for executor.graph in (False, True):
            for seed in range(seeds):
                library.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
                result = verified_run(executor, seed=seed, values="exact")
                assert result.ok, f"seed {seed}, graph {executor.graph}: {result.worst}"
    assert not library.violations()
    assert not library.live()


@pytest.mark.parametrize(
    ("name", "driver", "arch", "kernel", "transb"),
    [
        pytest.param(name, *served, transb, id=f"{name}-{served[1]}-{transb}")
        for turn, name in enumerate(n for n in cases.ONE_TYPE if "a2a" not in n.split("/")[0])
        for at, served in enumerate(cases.few(SERVED, 1 + turn % 2, turn))
        for transb in cases.few((0, 1), 1, turn // 4 + at)
    ],
)
def test_every_schedule(
    request: pytest.FixtureRequest, name: str, driver: str, arch: str, kernel: str, transb: int
) -> None:
    library = request.getfixturevalue(driver)
    library.set(f"devices 3; arch {arch}; sms 12")
    sizes = cases.sizes(name, 3, True) | cases.few_chunks(name) | {"T": "bf16"}
    sizes |= {param.name: transb for param in cases.schedule(name).params if param.name in ("transb", "bias")}
    plan = compiled(library, name, 3, sizes)
    assert any(k.startswith(kernel) for k in kernels(plan))
    right(library, plan)


@pytest.mark.parametrize("variant", ["sm90_gemm_128x128_c2", "sm90_gemm_128x160_c2", "sm90_gemm_128x160_c2_pp"])
@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/streamed", "gemm_rs/relay"])
def test_other_tiles_in_clusters(cuda: StandIn, name: str, variant: str) -> None:
    """Such work is large; smaller work is done just as rightly."""
    cuda.reset("devices 2; arch sm_90; sms 12")
    chunks = {"chunks": 2} if cases.few_chunks(name) else {}
    plan = compiled(cuda, name, 2, {"M": 384, "N": 320, "K": 128, "T": "bf16"} | chunks)
    swapped = Counter[str]()

    def swap(command: Command) -> Command:
        if not isinstance(command, Launch) or not command.kernel.startswith("sm90_gemm"):
            return command
        swapped[command.kernel] += 1
        return replace(command, kernel=variant, attributes=replace(command.attributes, smem=SMEM))

    streams = tuple(replace(s, commands=tuple(map(swap, s.commands))) for s in plan.streams)
    assert swapped
    right(cuda, replace(plan, streams=streams), seeds=2)


def test_split_k_for_the_last_wave(cuda: StandIn) -> None:
    """Few tiles and a deep K: it is cut, and its parts are added up."""
    cuda.reset("devices 2; arch sm_90; sms 16")
    plan = compiled(cuda, "ag_gemm/serial", 2, {"M": 64, "N": 128, "K": 4096, "T": "bf16"})
    right(cuda, plan, seeds=3)


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
def test_launches_of_a_stream_share_the_memory_of_their_partial_sums(cuda: StandIn, arch: str) -> None:
    """Of all bindings: a model has hundreds. What is left there does not matter."""
    cuda.reset(f"devices 2; arch {arch}; sms 16")
    plan = compiled(cuda, "ag_gemm/serial", 2, {"M": 64, "N": 128, "K": 4096, "T": "bf16"})
    with Executor(plan, "cuda", timeout=30) as executor:
        assert verified_run(executor, values="exact").ok
        driver = executor.driver
        assert isinstance(driver, GpuDriver)
        partials = dict(driver._launches._partials)
        assert {device for device, _ in partials} == {0, 1}
        for (device, _), (address, size) in partials.items():
            driver._gpus.put(driver._gpus.devices[device], address, np.full(size // 4, np.nan, np.float32))
        held = executor.holdings.size
        outputs = [t for t in plan.tensors if t.kind == "output"]
        more = {(t.name, rank): driver.alloc(rank, s, t.dtype) for t in outputs for rank, s in enumerate(t.shapes)}
        held += sum(driver._buffers[buffer].size for buffer in more.values())
        bound: Any = driver.bind({**executor._owned, **more})
        driver._binder.complete(bound)
        assert driver._launches._partials == partials
        assert executor.holdings.size == held  # bindings share tables, too
        assert verified_run(executor, seed=1, values="exact").ok
    assert not cuda.violations()
    assert not cuda.live()


@pytest.mark.parametrize("sms", [12, 66])  # whole tiles, and tiles whose K is cut as well
def test_tiles_wait_along_k(cuda: StandIn, sms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of K that are added to one product are one work, which waits for each."""
    cuda.reset(f"devices 2; arch sm_90; sms {sms}")
    plan = compiled(
        cuda, "ag_gemm/streamed", 2, {"M": 256, "N": 128, "K": 1024, "T": "bf16", "chunks": 2, "deep": [2, 1, 1]}
    )
    works = [len(c.works) for s in plan.streams for c in s.commands if isinstance(c, Launch)]
    assert works == [5, 5]  # the own rows, a piece, and three of K
    made = []

    def noted(*arguments: Any, **options: Any) -> tables.PackedLaunch:
        made.append(tables.build(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(family, "build", noted)
    right(cuda, plan, seeds=4)
    assert made
    for launch in made:
        assert len(launch.table.signals) == 0  # nothing between the pieces of K is told
        assert sorted(launch.table.depth_waits["count"].tolist())[-2:] == [1, 1]


CHAINED = """
schedule chained
param M = 192
input   A[M, M] : bf16
input   B[M, M] : bf16
scratch G[M, M] : bf16
output  C[M, M] : bf16 unproven
queue compute { engine = sm }
stage one on compute { gemm G = A * B }
stage two on compute { gemm C = A * G }
"""


@pytest.mark.parametrize("lie", [False, True])
def test_a_product_that_begins_early_reads_what_the_one_before_it_writes(
    cuda: StandIn, lie: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks begin meanwhile. If they took G for an operand that nothing writes, they would read it too early."""
    cuda.reset("devices 1; arch sm_90; sms 12")
    plan = plan_of(build(ficco_dsl.parse(CHAINED, "chained.ficco"), 1, {}), discover("cuda", 1))
    if lie:
        read_only = {"read_only": (True, True)}
        monkeypatch.setattr(family, "build", lambda *given, **options: tables.build(*given, **options | read_only))
    draw = np.random.default_rng(1)
    a, b = (draw.integers(-1, 2, (192, 192)).astype(ml_dtypes.bfloat16) for _ in "AB")
    wanted = a.astype(float) @ (a.astype(float) @ b.astype(float)).astype(ml_dtypes.bfloat16).astype(float)
    for graph in (False, True):
        with Executor(plan, "cuda", timeout=30, graph=graph) as executor:
            executor.write("A", 0, a)
            executor.write("B", 0, b)
            right = []
            for seed in range(12):
                cuda.set(f"seed {seed}; query_steps 5000")
                executor.poison()
                executor.run()
                right.append(np.array_equal(executor.read("C", 0), wanted.astype(ml_dtypes.bfloat16)))
            assert cuda.early() > 0
            assert all(right) is not lie
            assert any(right)
    assert not cuda.violations()


IN_TF32 = """
schedule rounded
param K = 100
input  A[8, K] : fp32
input  B[K, 33] : fp32
output C[8 * ranks, 33] : fp32
scratch G[8 * ranks, K] : fp32
computes C = all_gather(A, rows) * B within tf32
queue dma { engine = copy }
queue compute { engine = sm }
stage gather on dma { for p in all { copy G.rows(rank of ranks) @ p <- A } }
stage mm on compute streamed { for p in all { gemm C.rows(p of ranks) = G.rows(p of ranks) * B } }
"""


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("ag_gemm/streamed", {"M": 64, "N": 40, "K": 37, "T": "bf16"}),
        ("gemm_rs/streamed", {"M": 64, "N": 21, "K": 72, "T": "fp32"}),
        ("gemm_ar/overlapped", {"M": 64, "N": 22, "K": 80, "T": "bf16"}),
        ("", {}),
    ],
)
def test_eight_ranks_with_fp32_and_rows_at_any_place(cuda: StandIn, name: str, sizes: dict[str, object]) -> None:
    cuda.reset("devices 8; arch sm_90; sms 12")
    parsed = cases.schedule(name) if name else ficco_dsl.parse(IN_TF32, "rounded.ficco")
    plan = plan_of(build(parsed, 8, sizes | (cases.few_chunks(name) if name else {})), discover(cuda.face, 8))
    assert {kernel for kernel in kernels(plan) if "gemm" in kernel} == {"sm80_gemm_64x64"}
    right(cuda, plan, seeds=1)

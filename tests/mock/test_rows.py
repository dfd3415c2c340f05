"""Plans that run with fewer rows than they have, on stand-in GPUs: every schedule that an operation may choose, in any
order of streams and blocks. What is no row of a tensor is NaN before, and stays so behind its end."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import ficco_dsl
import ficco_rt as ficco
from ficco_dsl.nodes import Schedule
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.api import DeviceArray
from ficco_rt.driver.gpu.binding import BoundPlan
from ficco_rt.driver.gpu.driver import GpuDriver
from ficco_rt.driver.registry import discover
from ficco_rt.exec import padded
from ficco_rt.exec.executor import Executor
from ficco_rt.geometry.rows import Rows
from ficco_rt.graph.ir import Tensor
from ficco_rt.plan.ir import Launch
from ficco_rt.select.sized import _ROWS
from tests import cases
from tests.mock.standin import StandIn
from tests.mock.test_library import gemms as gemms
from tests.mock.test_tuned import SERVED

SEEDS = 12 if cases.ALL else 3
FRONT, BEHIND = 128, 64  # elements before and behind each tensor
NAMES = [name for name in cases.SCHEDULES if name.split("/")[0] in _ROWS and not name.endswith("hierarchical")]
# m: tiles that lie in several blocks, and blocks of several tiles
SIZES = (24, 60, 144)


class Memory:
    """Tensors on the devices, with NaN around them."""

    def __init__(self, executor: Executor) -> None:
        driver = executor.driver
        assert isinstance(driver, GpuDriver)
        self.executor, self.gpus, self.vendor, self.driver = executor, driver._gpus, driver._vendor, driver
        self.made: dict[tuple[str, int], tuple[DeviceArray, int, int]] = {}  # with address and bytes of all of it
        self.taken: list[int] = []

    def give(self, name: str, rank: int, values: np.ndarray, dtype: str) -> DeviceArray:
        device, item = self.gpus.device(rank), values.dtype.itemsize
        around = np.full(FRONT + values.size + BEHIND, np.nan, values.dtype)
        around[FRONT : FRONT + values.size] = values.ravel()
        at = self.gpus.placed(device, around.view(np.uint8), name)
        self.taken.append(at)
        array = DeviceArray(at + FRONT * item, values.shape, dtype)
        self.made[name, rank] = array, at, around.nbytes
        return array

    def read(self, name: str, rank: int, dtype: np.dtype[Any]) -> np.ndarray:
        """What is in the tensor; around it nothing was written."""
        array, at, size = self.made[name, rank]
        found = np.empty(size, np.uint8)
        with self.gpus.inside(self.gpus.device(rank)):
            self.vendor.to_host(found.ctypes.data, at, size)
        values = found.view(dtype)
        assert np.isnan(values[:FRONT].astype(np.float32)).all(), f"{name} of rank {rank}: before it"
        assert np.isnan(values[len(values) - BEHIND :].astype(np.float32)).all(), f"{name} of rank {rank}: behind it"
        return values[FRONT : len(values) - BEHIND].reshape(array.shape)

    def free(self) -> None:
        for at in self.taken:
            self.gpus.free(at)


@contextmanager
def opened(
    library: StandIn, name: str, ranks: int, planned: int, dtype: str, text: Schedule | None = None
) -> Iterator[Executor]:
    """`text`: in place of the shipped schedule of this name."""
    sizes = cases.sized(name.split("/")[0], ranks, planned, 64 * ranks, 64 * ranks) | {"T": dtype}
    machine = discover(library.face, ranks)
    chunks = {} if text else cases.few_chunks(name)
    plan = plan_of(build(text or cases.schedule(name), ranks, sizes | chunks), machine)
    with ficco.Workspace(ranks, library.face, timeout=30) as workspace, Executor(plan, workspace=workspace) as made:
        yield made


def right(
    library: StandIn, executor: Executor, name: str, planned: int, drawn: Sequence[int], biased: bool = False
) -> None:
    """Runs with these rows, each on fresh tensors, in some orders, on streams and as graphs. `biased`: the first row of
    B is added to every row."""
    operation, plan = name.split("/")[0], executor.plan
    tensors: dict[str, Tensor] = {t.name: t for t in plan.tensors}
    n, k = (dict(plan.params)[size] for size in ("N", "K"))
    assert isinstance(n, int)
    assert isinstance(k, int)
    for m in drawn:
        rows = cases.rows(operation, plan.ranks, planned, m)
        assert not executor.driver.staged(rows)
        memory = Memory(executor)
        dtype = plan.tensors[0].dtype
        kind = np.dtype(np.float32 if dtype == "fp32" else bfloat16)
        values, wanted = cases.numbers(operation, plan.ranks, m, n, k, m, most=1)
        if biased:
            wanted["C"] = [made + b[0] for made, b in zip(wanted["C"], values["B"], strict=True)]
        given = {
            (tensor, rank): memory.give(tensor, rank, array.astype(kind), dtype)
            for tensor, arrays in values.items()
            for rank, array in enumerate(arrays)
        }
        assert all(prod(array.shape) == prod(rows.shape(t, tensors[t].shapes[r])) for (t, r), array in given.items())
        bound = executor.bind_at(given, rows)
        for seed in range(SEEDS):
            library.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
            executor.poison()
            executor.graph = seed % 2 == 1
            executor.run(bound)
            for (tensor, rank), want in ((at, (values | wanted)[at[0]][at[1]]) for at in given):
                found = memory.read(tensor, rank, kind).astype(np.float32)
                assert np.array_equal(found, want), f"{m} of {planned} rows, {tensor}, rank {rank}, seed {seed}"
        executor.release(bound)
        memory.free()


def rows_of(planned: int, name: str) -> list[int]:
    """The ends, and some between."""
    chance = random.Random(f"{planned} {name}")
    return sorted({1, planned - 1, *chance.sample(range(1, planned), 4 if cases.ALL else 1)})


CASES = [
    pytest.param(name, *served, planned, ranks, id=f"{name}-{served[1]}-{planned}-{ranks}")
    for turn, name in enumerate(NAMES)
    for i, served in enumerate(cases.few(SERVED, 1 + turn % 2, turn))
    for planned, ranks in zip(cases.few(SIZES, 1, turn + i), cases.few((3, 4), 1, turn + i), strict=False)
]


@pytest.mark.parametrize(("name", "driver", "arch", "kernel", "planned", "ranks"), CASES)
def test_every_schedule(
    request: pytest.FixtureRequest, name: str, driver: str, arch: str, kernel: str, planned: int, ranks: int
) -> None:
    library = request.getfixturevalue(driver)
    library.reset(f"devices {ranks}; arch {arch}; sms 12")
    with opened(library, name, ranks, planned, "bf16") as executor:
        kernels = {c.kernel for s in executor.plan.streams for c in s.commands if isinstance(c, Launch)}
        assert any(k.startswith(kernel) for k in kernels)
        right(library, executor, name, planned, rows_of(planned, name))
    assert not library.violations()
    assert not library.live()


@pytest.mark.parametrize("name", [n for turn in range(4) for n in cases.few(NAMES, 4, turn)][:8])
def test_plain_kernels(library: StandIn, name: str) -> None:
    library.reset("devices 3")
    with opened(library, name, 3, 24, "fp32") as executor:
        right(library, executor, name, 24, rows_of(24, name))
    assert not library.violations()
    assert not library.live()


BY_LIBRARY = """
schedule by_library
param M = 16
param N = 16
param K = 16
type T = bf16
{}
queue compute {{ engine = sm }}
queue vendor  {{ engine = nccl }}
{}
"""
GATHERED = (
    "input A[M / ranks, K] : T; input B[K, N / ranks] : T; output C[M, N / ranks] : T; scratch G[M, K] : T; "
    "computes C = all_gather(A, rows) * B",
    "stage share on vendor { all_gather G <- A }; stage mm on compute { gemm C = G * B }",
)
SCATTERED = (
    "input A[M, K / ranks] : T; input B[K / ranks, N] : T; output C[M / ranks, N] : T; scratch P[M, N] : T; "
    "computes C = reduce_scatter(A * B, rows)",
    "stage mm on compute { gemm P = A * B }; stage share on vendor { reduce_scatter C <- P }",
)


@pytest.mark.parametrize(("name", "parts"), [("ag_gemm", GATHERED), ("gemm_rs", SCATTERED), ("gemm_ar/serial", None)])
def test_the_librarys_collectives(library: StandIn, name: str, parts: tuple[str, str] | None) -> None:
    """What it reads and writes is dense, with any number of rows."""
    library.reset("devices 3; nccl 22809")
    text = parts and ficco_dsl.parse(BY_LIBRARY.format(*parts).replace("; ", "\n"), "by_library.ficco")
    with opened(library, name, 3, 40, "fp32", text) as executor:
        assert executor.driver.collectives.split()[0] in ("NCCL", "RCCL")
        right(library, executor, name, 40, (1, 17, 39))
    assert not library.violations()
    assert not library.live()


@pytest.mark.parametrize("name", ["ag_gemm/serial", "ag_gemm/hetero_fused_1d", "gemm_rs/shard", "gemm_ar/serial"])
def test_the_librarys_products(gemms: StandIn, name: str) -> None:
    """Without rows there is no call."""
    gemms.reset("devices 3")
    with opened(gemms, name, 3, 42, "fp32", cases.by_library(name)) as executor:
        right(gemms, executor, name, 42, (1, 9, 30, 41))


BIASED = (
    "input A[M / ranks, K] : T; input B[K, N / ranks] : T; output C[M, N / ranks] : T; "
    "scratch G[M, K] : T; scratch P[M, N / ranks] : T; computes C = all_gather(A, rows) * B + B[0]",
    "stage share on compute { for p in all { copy G.rows(rank of ranks) @ p <- A } }; "
    "stage mm on compute { gemm C.cols(0 of 2) = G * B.cols(0 of 2) + sum(B[0].rows(0 of 2)); gemm P = G * B; "
    "reduce C.cols(1 of 2) = sum(P.cols(1 of 2), B[0].rows(1 of 2)) }",
)


@pytest.mark.parametrize(("arch", "dtype"), [("sm_75", "fp32"), ("sm_90", "bf16"), ("sm_80", "bf16")])
def test_a_row_that_is_added_to_every_row(cuda: StandIn, arch: str, dtype: str) -> None:
    cuda.reset(f"devices 3; arch {arch}")
    text = ficco_dsl.parse(BY_LIBRARY.format(*BIASED).replace("; ", "\n"), "biased.ficco")
    with opened(cuda, "ag_gemm", 3, 128, dtype, text) as executor:
        right(cuda, executor, "ag_gemm", 128, (1, 33, 127), biased=True)
    assert not cuda.violations()
    assert not cuda.live()


SWAPPED = (
    "input A[M / ranks, K] : T; input B[K, N / ranks] : T; output C[M, N / ranks] : T; scratch G[M, K] : T; "
    "computes C = all_gather(A, rows) * B",
    "stage share on compute { for c in 0..2 { copy G.rows(rank of ranks, c of 2) <- A.rows(1 - c of 2); "
    "for p in peers { copy G.rows(rank of ranks, c of 2) @ p <- A.rows(1 - c of 2) } } }; "
    "stage mm on compute { for p in 0..ranks, c in 0..2 { "
    "gemm C.rows(p of ranks, c of 2) = G.rows(p of ranks, 1 - c of 2) * B } }",
)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_scratch_with_other_rows(cuda: StandIn, arch: str) -> None:
    """What is written from other rows of a block keeps the plan's layout."""
    cuda.reset(f"devices 3; arch {arch}")
    text = ficco_dsl.parse(BY_LIBRARY.format(*SWAPPED).replace("; ", "\n"), "swapped.ficco")
    with opened(cuda, "ag_gemm", 3, 40, "bf16", text) as executor:
        right(cuda, executor, "ag_gemm", 40, (1, 17, 30))
    assert not cuda.violations()
    assert not cuda.live()


@pytest.mark.parametrize(
    ("arch", "planned", "takes"), [("sm_75", 24, True), ("sm_90", 20, False), ("sm_90", 256, True)]
)
def test_tiles_in_several_blocks(cuda: StandIn, arch: str, planned: int, takes: bool) -> None:
    """Scratch that other tensors were copied to has all rows. A tile reads several blocks of it, and stores less."""
    cuda.reset(f"devices 3; arch {arch}")
    tensors, stages = GATHERED
    parts = (
        f"input D[M / ranks, K] : T; {tensors}",
        f"stage first on compute {{ copy G.rows(rank of ranks) <- D }}; {stages}",
    )
    text = ficco_dsl.parse(BY_LIBRARY.format(*parts).replace("; ", "\n"), "several.ficco")
    with opened(cuda, "ag_gemm", 3, planned, "bf16", text) as executor:
        assert bool(executor.driver.staged(Rows(planned, 5, {"A": 1, "C": 3}))) != takes


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
def test_bindings_of_a_plan_share_tables(cuda: StandIn, arch: str) -> None:
    """Of any rows, wherever they lie; those of another executor of the same plan do not."""
    cuda.reset(f"devices 3; arch {arch}")
    with (
        opened(cuda, "ag_gemm/shard_p2p", 3, 24, "bf16") as first,
        Executor(first.plan, workspace=first._workspace) as second,
    ):
        memory, tables = Memory(first), []
        for executor, m in ((first, 5), (first, 9), (second, 9)):
            values, _ = cases.numbers("ag_gemm", 3, m, 192, 192, 0)
            given = {
                (name, rank): memory.give(name, rank, array.astype(bfloat16), "bf16")
                for name, arrays in values.items()
                for rank, array in enumerate(arrays)
            }
            bound = executor.bind_at(given, Rows(24, m, {"A": 1, "C": 3})).binding
            assert isinstance(bound, BoundPlan)
            assert isinstance(executor.driver, GpuDriver)
            executor.driver._binder.complete(bound)
            tables.append([launch.table.address for launch in bound.launches.values() if launch.table is not None])
        assert tables[0] == tables[1]
        assert not {*tables[0]} & {*tables[2]}
        memory.free()
    assert not cuda.violations()
    assert not cuda.live()


# Of a linear layer whose input is gathered: the weight's gradient, in pieces of ranks and in halves of these, some of
# which may have no row. `swapped` reads what keeps the plan's layout, whose rows are told by D alone.
GRADIENT = """
schedule gradient
param M = 16
param N = 16
param K = 16
type T = bf16
input A[M / ranks, K] : T
input D[M, N / ranks] : T
output W[K, N / ranks] : fp32
scratch G[M, K] : T
scratch H[M, N / ranks] : T
computes W = all_gather(A.T, cols) * D
queue compute {{ engine = sm }}
{}
"""
SHARE = (
    "stage share on compute { copy G.rows(rank of ranks) <- A; for p in peers { copy G.rows(rank of ranks) @ p <- A } }"
)
GRADIENTS = {
    "whole": f"{SHARE}; stage mm on compute {{ gemm W = G.T * D }}",
    "pieces": "stage first on compute { gemm W = A.rows(1 of 2).T * D.rows(rank of ranks, 1 of 2) }; "
    f"{SHARE}; stage own on compute {{ gemm W += A.rows(0 of 2).T * D.rows(rank of ranks, 0 of 2) }}; "
    "stage rest on compute { for p in peers, c in 0..2 { "
    "gemm W += G.rows(p of ranks, c of 2).T * D.rows(p of ranks, c of 2) } }",
    "swapped": "stage share on compute { for c in 0..2 { copy G.rows(rank of ranks, c of 2) <- A.rows(1 - c of 2); "
    "for p in peers { copy G.rows(rank of ranks, c of 2) @ p <- A.rows(1 - c of 2) } } }; "
    "stage mm on compute { gemm W = G.rows(all of ranks, 0 of 2).T * D.rows(all of ranks, 1 of 2); "
    "gemm W += G.rows(all of ranks, 1 of 2).T * D.rows(all of ranks, 0 of 2) }",
    "unbounded": "stage share on compute { for c in 0..2 { copy G.rows(rank of ranks, c of 2) <- A.rows(1 - c of 2); "
    "for p in peers { copy G.rows(rank of ranks, c of 2) @ p <- A.rows(1 - c of 2) } "
    "for p in 0..ranks { copy H.rows(p of ranks, c of 2) <- D.rows(p of ranks, 1 - c of 2) } } }; "
    "stage mm on compute { gemm W = G.T * H }",
}


def gradients(
    library: StandIn, parts: str, planned: int, dtype: str, drawn: Sequence[int], staged: bool, vendor: bool = False
) -> set[str]:
    """Runs of a gradient with these rows; the kernels of its plan. `vendor`: its library makes the products."""
    text = GRADIENT.format(GRADIENTS[parts]).replace("; ", "\n").replace("{{", "{").replace("}}", "}")
    schedule = ficco_dsl.parse(text, "gradient.ficco")
    schedule = cases.by_vendor(schedule) if vendor else schedule
    made = build(schedule, 3, {"M": 3 * planned, "N": 144, "K": 80, "T": dtype})
    plan = plan_of(made, discover(library.face, 3))
    kind, rng = np.dtype(np.float32 if dtype == "fp32" else bfloat16), np.random.default_rng(0)
    with ficco.Workspace(3, library.face, timeout=30) as workspace, Executor(plan, workspace=workspace) as executor:
        for m in drawn:
            rows = Rows(planned, m, {"A": 1, "D": 3})
            assert bool(executor.driver.staged(rows)) == staged
            a, d = (rng.integers(-2, 3, (3, *shape)).astype(kind) for shape in ((m, 80), (3 * m, 48)))
            wanted = [a.reshape(-1, 80).astype(np.float32).T @ each.astype(np.float32) for each in d]
            memory = Memory(executor)
            given = {
                name: [memory.give(name, rank, array, of) for rank, array in enumerate(arrays)]
                for name, arrays, of in (("A", a, dtype), ("D", d, dtype), ("W", [w * np.nan for w in wanted], "fp32"))
            }
            for seed in range(SEEDS):
                library.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
                executor.poison()
                executor.graph = seed % 2 == 1
                padded.run(workspace, executor, given, rows, planned, None, None, {})
                executor.synchronize()
                for rank, want in enumerate(wanted):
                    found = memory.read("W", rank, np.dtype(np.float32))
                    assert np.array_equal(found, want), f"{m} of {planned} rows, rank {rank}, seed {seed}"
            memory.free()
    assert not library.violations()
    assert not library.live()
    return {c.kernel for s in plan.streams for c in s.commands if isinstance(c, Launch)}


@pytest.mark.parametrize("parts", GRADIENTS)
@pytest.mark.parametrize(
    ("served", "planned", "dtype"),
    [(served, (24, 144)[i % 2], "bf16") for i, served in enumerate(SERVED)]
    + [(("cuda", "sm_90", "naive"), 24, "fp32")],
)
def test_gradients(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    served: tuple[str, str, str],
    planned: int,
    dtype: str,
    parts: str,
) -> None:
    """Products over rows take those that are there: what is no row is NaN. A sum over rows that nothing bounds is over
    zeros in staging memory, and so is one over no rows."""
    driver, arch, kernel = served
    library = request.getfixturevalue(driver)
    library.reset(f"devices 3; arch {arch}; sms 12")
    monkeypatch.setattr(padded, "look", lambda array, wanted: array)
    staged = parts == "unbounded"
    found = gradients(library, parts, planned, dtype, (0, 1, 13, planned - 1) if not staged else (0, 9), staged)
    # pieces of columns that are no multiple of 8 are not for the Hopper kernel
    taken = kernel.replace("sm90", "sm80") if parts == "swapped" else kernel
    assert any(k.startswith(taken) for k in found), found


@pytest.mark.parametrize(("parts", "staged"), [("whole", False), ("pieces", True), ("unbounded", True)])
def test_gradients_of_the_library(gemms: StandIn, monkeypatch: pytest.MonkeyPatch, parts: str, staged: bool) -> None:
    """It is not called for products over no rows, as of a half without any."""
    gemms.reset("devices 3")
    monkeypatch.setattr(padded, "look", lambda array, wanted: array)
    found = gradients(gemms, parts, 24, "fp32", (0, 1, 13, 23) if not staged else (0, 9), staged, True)
    assert "vendor_gemm" in found


def test_messages_between_nodes_take_all_rows(cuda: StandIn) -> None:
    """The library sends parts of blocks: an operation copies rows to memory of the plan's size."""
    cuda.reset("devices 4; nccl 22809")
    with opened(cuda, "ag_gemm/hierarchical", 4, 16, "fp32") as executor:
        assert executor.driver.staged(Rows(16, 5, {"A": 1, "C": 4})) == {"A", "C"}

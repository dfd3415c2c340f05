"""The host's half of `src/sm80_gemm.cu`: variants, what they can take, the choice of one, the kernel's parameters.

Used as `sm90` is, less the tensor maps: pick a variant (`choose`), compile it, `build` a launch of the works'
geometry, put `Table.constants` into device memory with zeroed scratch beside it, launch with `Launch.parameters(…)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np

from .tiles import (
    DEPTH,
    Cuts,
    Rows,
    Table,
    Work,
    best_splits,
    common,
    defines,
    depths_of,
    entry_of,
    operand_rows,
    table,
    term_rows,
)

SOURCE = Path(__file__).with_name("src") / "sm80_gemm.cu"
MAX_STAGES = 8
PARAMETER_BYTES = 112
MAX_LINE = 2**31 // DEPTH  # bytes of a stored row: 64 of them are counted in 32 bits


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of the source, for a choice of tile."""

    name: str
    tile: tuple[int, int]  # rows, columns of a block's tile
    grid: tuple[int, int]  # warps along them
    residency: int  # blocks that a multiprocessor's registers hold

    @property
    def warps(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def registers(self) -> int:
        """Of a thread, at most."""
        return min(255, 65536 // (self.threads * self.residency) // 8 * 8)

    @property
    def stage_bytes(self) -> int:
        return 2 * DEPTH * sum(self.tile)

    def smem(self, stages: int, right_transposed: bool = False) -> int:
        """Dynamic shared memory of a block; the layout of the operands does not matter."""
        return stages * self.stage_bytes

    def stages(self, budget: int, right_transposed: bool = False) -> int:
        """The deepest pipeline that `budget` bytes of dynamic shared memory hold; under 2 the variant cannot run."""
        return min(MAX_STAGES, budget // self.stage_bytes)


def _variant(rows: int, columns: int, grid: tuple[int, int], residency: int) -> Variant:
    return Variant(f"sm80_gemm_{rows}x{columns}", (rows, columns), grid, residency)


VARIANTS: tuple[Variant, ...] = (
    _variant(256, 128, (4, 2), 1),
    _variant(128, 256, (2, 4), 1),
    _variant(128, 128, (2, 2), 2),
    _variant(128, 64, (2, 2), 3),
    _variant(64, 128, (2, 2), 3),
    _variant(64, 64, (2, 2), 4),
)


def variant(name: str) -> Variant:
    return next(v for v in VARIANTS if v.name == name)


def serves(arch: str) -> bool:
    """Is this an architecture that has the kernel's instructions?"""
    number = arch.removeprefix("sm_").rstrip("af")
    return arch.startswith("sm_") and number.isdecimal() and int(number) >= 80


def entry(
    variant: Variant, dtype: str, out_dtype: str, left_transposed: bool, right_transposed: bool, terms: bool = False
) -> str:
    """The kernel's name: of the entry point, the catalogue, the trace and the cache alike."""
    return entry_of(variant.name, dtype, out_dtype, left_transposed, right_transposed, terms)


def options(
    variant: Variant,
    dtype: str,
    out_dtype: str,
    left_transposed: bool,
    right_transposed: bool,
    arch: str,
    terms: bool = False,
) -> tuple[str, ...]:
    """What the source is compiled with."""
    name = entry(variant, dtype, out_dtype, left_transposed, right_transposed, terms)
    values = {
        **defines(name, dtype, out_dtype, (left_transposed, right_transposed), terms),
        "TILE_M": variant.tile[0],
        "TILE_N": variant.tile[1],
        "WARPS_M": variant.grid[0],
        "WARPS_N": variant.grid[1],
        "RESIDENCY": variant.residency,
    }
    return ("-std=c++17", f"-arch={arch}", *(f"-D{key}={value}" for key, value in values.items()))


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch, ready but for device addresses."""

    variant: Variant
    table: Table
    stages: int
    smem: int
    grid: int  # blocks at most

    def parameters(self, constants: int, scratch: int, epoch: int = 0, abort: int = 0) -> bytes:
        """The kernel's argument; `epoch` and `abort` are addresses of 32-bit words or 0: an up flag holds at least
        *epoch (else 1); waiting ends when *abort is not 0."""
        return parameters(self.table, self.stages, constants, scratch, epoch, abort)


def parameters(table: Table, stages: int, constants: int, scratch: int, epoch: int, abort: int) -> bytes:
    """The argument of a kernel that reads operands by address: behind the table's own constants lie `records`."""
    operands, matrices = (constants + at for at in table.offsets[7:])
    pointers = [*table.pointers(constants, scratch, epoch, abort), operands]
    sizes = np.array([len(table.tiles), stages], np.int32)
    terms = np.array([*table.term_pointers(constants), matrices], np.uint64)
    return np.array(pointers, np.uint64).tobytes() + sizes.tobytes() + terms.tobytes()


def records(works: Sequence[Work], out_dtype: str) -> tuple[Rows, Rows]:
    """Operands and matrices of terms, as such a kernel reads them."""
    return operand_rows(works, 2, 4 if out_dtype == "fp32" else 2), term_rows(works)


def refusal(
    works: Sequence[Work], dtype: str, out_dtype: str, left_transposed: bool, right_transposed: bool
) -> str | None:
    """Why these works cannot be one launch of this kernel, or None."""
    if dtype not in ("bf16", "fp16"):
        return f"operands are {dtype}"
    if out_dtype not in (dtype, "fp32"):
        return f"operands are {dtype}, the output {out_dtype}"
    reasons = (fits(w, 2, 4 if out_dtype == "fp32" else 2, left_transposed, right_transposed) for w in works)
    others = (t.dtype for w in works for t in w.terms if t.dtype not in (dtype, "fp32"))
    return next((reason for reason in reasons if reason is not None), None) or next(
        (f"operands are {dtype}, a term is {other}" for other in others), None
    )


def fits(work: Work, item: int, out_item: int, left_transposed: bool, right_transposed: bool) -> str | None:
    """Why the work cannot run here, or None. Pieces end anywhere; where they begin is what 16-byte accesses need."""
    sides = [("left", work.left, item), ("right", work.right, item), ("out", work.out, out_item)]
    for name, matrix, size in (*sides, *(("added", t.operand.matrix, t.item) for t in work.terms)):
        if matrix.address % 16 or matrix.pitch * size % 16:
            return f"the {name} operand's address or pitch is no multiple of 16 bytes"
        if matrix.pitch * size > MAX_LINE:
            return f"a row of the {name} operand has {matrix.pitch * size} bytes, more than {MAX_LINE}"
    of_terms = [t.operand for t in work.terms]
    rows = common(work.left_columns if left_transposed else work.left_rows, work.out_rows, *(o.rows for o in of_terms))
    columns = common(
        work.right_rows if right_transposed else work.right_columns, work.out_columns, *(o.columns for o in of_terms)
    )
    depths = common(*depths_of(work, left_transposed, right_transposed))
    starts = {
        "left": [piece[0] for piece in (rows if left_transposed else depths)],
        "right": [piece[1] for piece in depths] if right_transposed else [piece[0] for piece in columns],
        "out": [piece[1] for piece in columns],
        "added": [start for _, _, *starts, _ in columns for start in starts],
    }
    for name, found in starts.items():
        for start in found:
            if start % 8:
                return f"a piece of the {name} operand's columns starts at {start}, no multiple of 8"
    return None


def build(
    works: Sequence[Work],
    variant: Variant,
    dtype: str,
    out_dtype: str,
    left_transposed: bool,
    right_transposed: bool,
    *,
    blocks: int,
    stages: int,
    smem: int | None = None,
    tail_splits: int = 1,
    band: int | None = None,
) -> Launch:
    """The launch that makes `works`, in their order, with `blocks` at work at once; see `tiles.table`."""
    reason = refusal(works, dtype, out_dtype, left_transposed, right_transposed)
    if reason is not None:
        raise ValueError(reason)
    made = table(
        works,
        variant.tile,
        variant.warps,
        left_transposed,
        right_transposed,
        groups=blocks,
        cuts=Cuts(tail_splits),
        band=band,
        more=records(works, out_dtype),
    )
    return Launch(variant, made, stages, max(smem or 0, variant.smem(stages)), min(blocks, len(made.tiles)))


@dataclass(frozen=True, slots=True)
class Choice:
    """What `choose` found best."""

    variant: Variant
    residency: int  # blocks that are to share a multiprocessor
    budget: int  # bytes of shared memory that each may have
    tail_splits: int
    estimate: float  # microseconds, for ranking only


# For ranking; on H100 (python -m tools.gemm_bench --kernel sm80 --explore). Of 256 × 128 with the pipeline full, µs:
_STEP = 1.3  # a step of 64 of K on one multiprocessor
_TILE = 2.0  # that a tile's start and store add
_LAUNCH = 5.0
_BANDWIDTH = 3.0e6  # bytes of memory a µs
_SPLIT = (1.0, 2.3)  # once, and for each partial that a multiprocessor leaves or adds
# What the multiplication reaches of that rate by a warp's tile, by few warps that share a multiprocessor, by blocks
# of their own pace, and with two stages.
_BY_TILE = {64 * 64: 1.0, 64 * 32: 0.85, 32 * 32: 0.7}
_BY_WARPS = {4: 0.75}
_SHARED = 0.97
_SHALLOW = 0.85


def _rate(v: Variant, residency: int, stages: int) -> float:
    rate = _BY_TILE[v.tile[0] * v.tile[1] // v.warps] * _BY_WARPS.get(v.warps * residency, 1.0)
    return rate * (_SHARED if residency > 1 else 1.0) * (_SHALLOW if stages * residency == 2 else 1.0)


def splits(v: Variant, rows: Sequence[int], columns: Sequence[int], k: int, blocks: int) -> int:
    """Into how many parts K of the last wave's tiles is best cut, for `blocks` at work at once."""
    return _best(v, 1, rows, columns, k, blocks, 1.0)[1]


def _best(
    v: Variant, residency: int, rows: Sequence[int], columns: Sequence[int], k: int, blocks: int, rate: float
) -> tuple[float, int]:
    """The least time, and the splits of the last wave that give it."""
    m, n = v.tile
    size = m * n / (256 * 128)
    tiles = sum(ceil(r / m) for r in rows) * sum(ceil(c / n) for c in columns)
    step = residency * _STEP * size / rate
    moved = 2 * (sum(rows) * k + k * sum(columns) + sum(rows) * sum(columns)) / _BANDWIDTH
    split = (_SPLIT[0], _SPLIT[1] * size)
    cost, cut = best_splits(tiles, blocks, ceil(k / DEPTH), step, _TILE * size, split, moved)
    return _LAUNCH + cost, cut


def choose(
    rows: Sequence[int], columns: Sequence[int], k: int, sms: int, budgets: Mapping[int, int], exactly: bool = False
) -> Choice | None:
    """The variant that the estimate finds fastest for pieces of these sizes.

    budgets: the most shared memory of a block, by how many blocks its size lets share a multiprocessor.
    exactly: so many blocks must fit by their registers too. None if no variant fits.
    """
    best: Choice | None = None
    for v in VARIANTS:
        for shared, budget in budgets.items():
            stages, residency = v.stages(budget), min(shared, v.residency)
            if stages < 2 or (exactly and residency < shared):
                continue
            cost, cut = _best(v, residency, rows, columns, k, sms * residency, _rate(v, residency, stages))
            if best is None or cost < best.estimate:
                best = Choice(v, residency, budget, cut, cost)
    return best

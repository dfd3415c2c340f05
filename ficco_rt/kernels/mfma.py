"""The host's half of `src/mfma_gemm.hip`, the GEMM of AMD's matrix cores: variants, the choice of one, parameters.

Used as `sm80` is, whose table, parameters and limits it shares: pick a variant (`choose`), compile it, `build` a launch
of the works' geometry, put the table's constants into device memory with zeroed scratch beside it, launch with
`Launch.parameters(…)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from . import sm80
from .tiles import DEPTH, Cuts, Table, Work, best_splits, defines, entry_of, table

SOURCE = Path(__file__).with_name("src") / "mfma_gemm.hip"
ARCHS = ("gfx90a", "gfx942")
WAVES = 4  # of a block
THREADS = 64 * WAVES
STAGES = 2  # steps in LDS
LDS = 65536  # bytes of a compute unit, all of which one block may have
MAX_BLOCKS = 16  # of several waves, on a compute unit: it has so many barriers
MAX_LINE = 1 << 23  # bytes of a stored row: those of a tile are counted in 32 bits
PARAMETER_BYTES = 112


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of the source, for a choice of tile."""

    name: str
    tile: tuple[int, int]  # rows, columns of a block's tile
    step: int  # elements of K in a stage of LDS
    shape: int  # rows and columns of what a matrix instruction makes
    waves_m: int  # waves along rows
    residency: int  # blocks of a compute unit that registers leave room for

    @property
    def smem(self) -> int:
        """LDS of a block, bytes."""
        return STAGES * sum(self.tile) * self.step * 2


def _variant(rows: int, columns: int, step: int, shape: int, waves_m: int, residency: int) -> Variant:
    return Variant(f"mfma_gemm_{rows}x{columns}x{step}", (rows, columns), step, shape, waves_m, residency)


VARIANTS: tuple[Variant, ...] = (
    _variant(256, 128, 32, 32, 2, 1),
    _variant(128, 256, 32, 32, 2, 1),
    _variant(128, 128, 64, 32, 2, 1),
    _variant(128, 128, 32, 32, 2, 2),
    _variant(64, 128, 64, 32, 1, 1),
    _variant(64, 64, 64, 32, 2, 2),
    _variant(32, 128, 64, 16, 1, 1),
    _variant(32, 64, 64, 16, 1, 2),
)


def variant(name: str) -> Variant:
    return next(v for v in VARIANTS if v.name == name)


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
        "TILE_K": variant.step,
        "SHAPE": variant.shape,
        "WAVES_M": variant.waves_m,
        "RESIDENCY": variant.residency,
    }
    return ("-std=c++17", "-O3", f"--offload-arch={arch}", *(f"-D{key}={value}" for key, value in values.items()))


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch, ready but for device addresses."""

    variant: Variant
    table: Table
    smem: int

    def parameters(self, constants: int, scratch: int, epoch: int = 0, abort: int = 0) -> bytes:
        """The kernel's argument; `epoch` and `abort` are addresses of 32-bit words or 0: an up flag holds at least
        *epoch (else 1); waiting ends when *abort is not 0."""
        return sm80.parameters(self.table, STAGES, constants, scratch, epoch, abort)


def refusal(
    works: Sequence[Work], dtype: str, out_dtype: str, left_transposed: bool, right_transposed: bool
) -> str | None:
    """Why these works cannot be one launch of this kernel, or None."""
    for w in works:
        sides = [("left", w.left, 2), ("right", w.right, 2), ("out", w.out, _item(out_dtype))]
        for name, matrix, item in (*sides, *(("added", t.operand.matrix, t.item) for t in w.terms)):
            if matrix.pitch * item > MAX_LINE:
                return f"a row of the {name} operand has {matrix.pitch * item} bytes, more than {MAX_LINE}"
    return sm80.refusal(works, dtype, out_dtype, left_transposed, right_transposed)


def _item(dtype: str) -> int:
    return 4 if dtype == "fp32" else 2


def build(
    works: Sequence[Work],
    variant: Variant,
    dtype: str,
    out_dtype: str,
    left_transposed: bool,
    right_transposed: bool,
    *,
    blocks: int,
    smem: int = 0,
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
        WAVES,
        left_transposed,
        right_transposed,
        groups=blocks,
        cuts=Cuts(tail_splits),
        band=band,
        more=sm80.records(works, out_dtype),
    )
    return Launch(variant, made, max(smem, variant.smem))


@dataclass(frozen=True, slots=True)
class Choice:
    """What `choose` found best."""

    variant: Variant
    estimate: float  # clocks, for ranking only


# For ranking. Operations of bf16 that a compute unit's matrix cores do in a clock, and bytes of its LDS (white papers
# of CDNA 2 and 3, section on the compute unit); the others are guesses, as nothing has been measured: bytes of memory
# in a clock, clocks that a 128 × 128 tile's start and store add, clocks of splits, once and for each partial of it.
_OPERATIONS = {"gfx90a": 1024, "gfx942": 2048}
_LDS = 128
_MEMORY = 2000
_TILE = 3000
_SPLIT = (1500, 1500)


def resident(v: Variant, smem: int) -> int:
    """Blocks with so much LDS that a compute unit holds."""
    return max(1, min(v.residency, LDS // smem))


def splits(v: Variant, rows: Sequence[int], columns: Sequence[int], k: int, units: int, arch: str, smem: int) -> int:
    """Into how many parts K of the last wave's tiles is best cut, on `units` compute units."""
    return _best(v, rows, columns, k, units, arch, smem)[1]


def _best(
    v: Variant, rows: Sequence[int], columns: Sequence[int], k: int, units: int, arch: str, smem: int
) -> tuple[float, int]:
    """The least time, and the splits of the last wave that give it."""
    shared = resident(v, smem)
    m, n = v.tile
    size = m * n / (128 * 128)
    tiles = sum(ceil(r / m) for r in rows) * sum(ceil(c / n) for c in columns)
    moved = 2 * (sum(rows) * k + k * sum(columns) + sum(rows) * sum(columns)) / _MEMORY
    split = (_SPLIT[0], _SPLIT[1] * size)
    return best_splits(
        tiles, units * shared, ceil(k / DEPTH), shared * _step_clocks(v, arch), _TILE * size, split, moved
    )


def _step_clocks(v: Variant, arch: str) -> float:
    """Clocks of 64 of K: the matrix cores' or the LDS's, and what of the other does not overlap."""
    m, n = v.tile
    multiply = 2 * m * n * DEPTH / _OPERATIONS[arch]
    read, written = WAVES * (m / v.waves_m + n * v.waves_m / WAVES), m + n
    move = (read + written) * DEPTH * 2 / _LDS
    return max(multiply, move) + min(multiply, move) / 4


def choose(
    rows: Sequence[int],
    columns: Sequence[int],
    k: int,
    units: int,
    arch: str,
    *,
    least: int = 0,
    most: int = LDS,
    residency: int | None = None,
) -> Choice | None:
    """The variant that the estimate finds fastest for pieces of these sizes on `units` compute units, with blocks of
    `least` to `most` bytes of LDS. None if no variant's blocks fit that, or `residency` of them the registers."""
    best: Choice | None = None
    for v in VARIANTS:
        if v.smem > most or v.residency < (residency or 1):
            continue
        cost = _best(v, rows, columns, k, units, arch, max(v.smem, least))[0]
        if best is None or cost < best.estimate:
            best = Choice(v, cost)
    return best

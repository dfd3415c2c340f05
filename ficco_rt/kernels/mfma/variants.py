"""The variants of `src/mfma_gemm.hip`: one compilation each, and what blocks of it take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import target
from ..signature import Signature

SOURCE = Path(__file__).parents[1] / "src" / "mfma_gemm.hip"
ARCHS = ("gfx90a", "gfx942")
WAVES = 4  # of a block
STAGES = 2  # steps in LDS
LDS = 65536  # bytes of a compute unit, all of which one block may have
LONGEST = 1 << 23  # bytes of a stored row: those of a tile are counted in 32 bits


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
    def cluster(self) -> int:
        return 1

    @property
    def warps(self) -> int:
        return WAVES

    @property
    def threads(self) -> int:
        return 64 * WAVES

    @property
    def registers(self) -> int:
        """Of a lane, at most, with the accumulators."""
        return 512 // self.residency

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


def options(variant: Variant, signature: Signature, arch: str) -> tuple[str, ...]:
    """What the source is compiled with."""
    values = {
        **signature.defines(variant.name),
        "TILE_M": variant.tile[0],
        "TILE_N": variant.tile[1],
        "TILE_K": variant.step,
        "SHAPE": variant.shape,
        "WAVES_M": variant.waves_m,
        "RESIDENCY": variant.residency,
    }
    return (*target.options(arch), *(f"-D{key}={value}" for key, value in values.items()))

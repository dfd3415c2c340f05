"""The variants of `src/mfma_gemm.hip`: one compilation each, and the resources of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .. import by_address
from ..signature import Signature

SOURCE = Path(__file__).parents[1] / "src" / "mfma_gemm.hip"
ARCHS = ("gfx90a", "gfx942")
WAVES = 4  # of a block
STAGES = 2  # steps in LDS
LDS = 65536  # bytes of a compute unit, all of which one block may have
LONGEST = 1 << 23  # bytes of a stored row: those of a tile are counted in 32 bits


@dataclass(frozen=True, slots=True)
class Variant(by_address.Variant):
    shape: int = 32  # rows and columns of what a matrix instruction makes
    lanes: ClassVar[int] = 64
    most_stages: ClassVar[int] = STAGES

    @property
    def registers(self) -> int:
        """Registers of a thread, accumulators included."""
        return 512 // self.residency

    def options(self, signature: Signature, arch: str) -> tuple[str, ...]:
        (tile_m, tile_n), waves_m = self.tile, self.grid[0]
        defines = {"TILE_M": tile_m, "TILE_N": tile_n, "TILE_K": self.step, "SHAPE": self.shape, "WAVES_M": waves_m}
        return signature.options(self.name, arch, {**defines, "RESIDENCY": self.residency})


def _variant(rows: int, columns: int, step: int, shape: int, waves_m: int, residency: int) -> Variant:
    grid = (waves_m, WAVES // waves_m)
    return Variant(f"mfma_gemm_{rows}x{columns}x{step}", (rows, columns), grid, residency, step, shape)


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

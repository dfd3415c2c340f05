"""The variants of `src/sm80_gemm.cu`: one compilation each, and what blocks of it take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import target
from ..signature import Signature
from ..tiles import DEPTH

SOURCE = Path(__file__).parents[1] / "src" / "sm80_gemm.cu"
MAX_STAGES = 8
LONGEST = 2**31 // DEPTH  # bytes of a stored row: 64 of them are counted in 32 bits


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of the source, for a choice of tile."""

    name: str
    tile: tuple[int, int]  # rows, columns of a block's tile
    grid: tuple[int, int]  # warps along them
    residency: int  # blocks that a multiprocessor's registers hold

    @property
    def cluster(self) -> int:
        return 1

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

    def smem(self, stages: int) -> int:
        """Dynamic shared memory of a block."""
        return stages * self.stage_bytes

    def stages(self, budget: int) -> int:
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


def serves(arch: str) -> bool:
    """Is this an architecture that has the kernel's instructions?"""
    capability = target.compute_capability(arch)
    return capability is not None and capability >= 80


def options(variant: Variant, signature: Signature, arch: str) -> tuple[str, ...]:
    """What the source is compiled with."""
    values = {
        **signature.defines(variant.name),
        "TILE_M": variant.tile[0],
        "TILE_N": variant.tile[1],
        "WARPS_M": variant.grid[0],
        "WARPS_N": variant.grid[1],
        "RESIDENCY": variant.residency,
    }
    return (*target.options(arch), *(f"-D{key}={value}" for key, value in values.items()))

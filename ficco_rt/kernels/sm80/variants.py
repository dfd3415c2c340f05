"""The variants of `src/sm80_gemm.cu`: one compilation each, and the resources of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .. import by_address
from ..signature import Signature
from ..tiles import DEPTH

SOURCE = Path(__file__).parents[1] / "src" / "sm80_gemm.cu"
LONGEST = 2**31 // DEPTH  # bytes of a stored row: 64 of them are counted in 32 bits


@dataclass(frozen=True, slots=True)
class Variant(by_address.Variant):
    lanes: ClassVar[int] = 32
    most_stages: ClassVar[int] = 8

    @property
    def registers(self) -> int:
        return min(255, 65536 // (self.threads * self.residency) // 8 * 8)

    def options(self, signature: Signature, arch: str) -> tuple[str, ...]:
        (tile_m, tile_n), (warps_m, warps_n) = self.tile, self.grid
        defines = {"TILE_M": tile_m, "TILE_N": tile_n, "WARPS_M": warps_m, "WARPS_N": warps_n}
        operands = {"ITEM": signature.item, "TF32": int(signature.tf32), "ACCESS": signature.access}
        return signature.options(self.name, arch, {**defines, **operands, "RESIDENCY": self.residency})


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

"""A launch of products as a single value, in the form that the tensor-core families use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..graph.ir import Gemm
from ..types import Scaling
from . import tiles
from .signature import Signature
from .works import Work, WorkOf, only, scales_of, scaling_of

ALIGNMENT = 16  # bytes, of every tensor: of TMA, cp.async and 16-byte accesses


@dataclass(frozen=True, slots=True)
class MatrixGemm:
    """Products on matrices, of one signature."""

    works: tuple[tiles.MatrixWork, ...]
    signature: Signature
    read_only: tuple[bool, bool]  # whether the left, and the right, operands stay unwritten

    @property
    def rows(self) -> tuple[int, ...]:
        """Number of rows of each piece of the outputs, of all works."""
        return tuple(s.size for w in self.works for s in w.out_rows)

    @property
    def columns(self) -> tuple[int, ...]:
        """Number of columns of each piece of an output, of one work."""
        return tuple(s.size for s in self.works[0].out_columns)

    @property
    def depth(self) -> int:
        """Elements of K, the most of any work."""
        return tiles.depth_of(self.works, self.signature.transposed)

    @property
    def addends(self) -> int:
        """Number of addends of a product, at most."""
        return max(len(w.addends) for w in self.works)


# Scalings of both operands that a kernel for tensor cores may know, and the signature's word
SCALED: Mapping[tuple[Scaling, ...], str | None] = {
    (): None, ("row", "row"): "row", ("1x128", "128x128"): "1x128",
}  # fmt: skip


def _scalings(work: WorkOf[Gemm]) -> tuple[Scaling, ...]:
    return tuple(scaling_of(s, view) for s, view in zip(scales_of(work), work.views[1:3], strict=False))


def gemm_of(works: Sequence[Work]) -> MatrixGemm | str:
    """A launch's works; a text says why no kernel for tensor cores takes them."""
    products = only(works, Gemm)
    if len(products) < len(works):
        return "the launch holds sums or copies as well"
    kinds = {
        (left.dtype, right.dtype, out.dtype, w.body.transposed, _scalings(w), w.body.fast, w.body.tf32)
        for w in products for out, left, right in (w.views[:3],)
    }  # fmt: skip
    if len(kinds) > 1:
        return "works differ in types or layout"
    ((dtype, right_dtype, out_dtype, transposed, scalings, fast, tf32),) = kinds
    functions = {w.body.function for w in products}
    if len(functions) > 1:
        return (
            f"works apply {' and '.join(sorted(f or 'no function' for f in functions))}; give each a stage of its own"
        )
    if scalings not in SCALED:
        return f"operands are scaled {' and '.join(scalings)}"
    found = [tiles.work_of(w) for w in products]
    made = tuple(w for w in found if w is not None)
    if len(made) < len(products):
        return "an operand's columns are not side by side"
    signature = Signature(
        dtype, out_dtype, *transposed, addends=any(w.addends for w in made), function=functions.pop(),
        right_dtype=None if right_dtype == dtype else right_dtype, scaling=SCALED[scalings], fast=fast, tf32=tf32,
    )  # fmt: skip
    left_written, right_written = (
        any(view.written for w in products for view in (w.views[side], *scales_of(w)[side - 1 : side]))
        for side in (1, 2)
    )
    return MatrixGemm(made, signature, (not left_written, not right_written))

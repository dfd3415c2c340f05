"""A launch of products as a single value, in the form that the tensor-core families use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import TYPES
from . import tiles
from .signature import Signature
from .works import Product, Work

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


def gemm_of(works: Sequence[Work]) -> MatrixGemm | str:
    """A launch's works; a text says why no kernel for tensor cores takes them."""
    products = [w for w in works if isinstance(w, Product)]
    if len(products) < len(works):
        return "the launch holds sums or copies as well"
    first = products[0]
    dtype, out_dtype, transposed = first.left.dtype, first.out.dtype, first.transposed
    if any((w.left.dtype, w.out.dtype, w.transposed) != (dtype, out_dtype, transposed) for w in products):
        return "works differ in types or layout"
    if TYPES[dtype].half is None:
        return f"operands are {dtype}"
    if any(w.scales for w in products):
        return "operands have scales"
    found = [tiles.work_of(w) for w in products]
    made = tuple(w for w in found if w is not None)
    if len(made) < len(products):
        return "an operand's columns are not side by side"
    signature = Signature(dtype, out_dtype, *transposed, addends=any(w.addends for w in made))
    read_only = (not any(w.left.written for w in products), not any(w.right.written for w in products))
    return MatrixGemm(made, signature, read_only)

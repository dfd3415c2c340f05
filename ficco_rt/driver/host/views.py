"""Resolves regions to numpy views, once, when a command is bound."""

from __future__ import annotations

import numpy as np

from ...errors import Span, malformed
from ...geometry.region import Box, Region
from ..api import Array


class HostView:
    """A region of one rank's array. A region of one box is the array's own memory and is never copied to be
    read; one of several segments is gathered for reading and scattered back."""

    __slots__ = ("dtype", "one", "pieces", "region", "shape")

    def __init__(self, array: Array, region: Region, place: Span) -> None:
        if len(region.axes) != array.ndim or any(
            a.segments and max(s.stop for s in a.segments) > n for a, n in zip(region.axes, array.shape, strict=True)
        ):
            raise malformed(place, f"{region} does not lie in a tensor of shape {list(array.shape)}")
        self.region = region
        self.shape = region.shape
        self.dtype = array.dtype
        self.one: Array | None = None
        self.pieces: list[tuple[Array, tuple[slice, ...]]] = []  # where it is not one box
        if len(region.boxes) == 1:
            self.one = _part(array, region, region.boxes[0])
        else:
            self.pieces = [(_part(array, region, box), logical.slices()) for box, logical in region.logical_boxes()]

    def load(self) -> Array:
        """The content in the stored dtype: the memory itself where it is one box."""
        return self.one if self.one is not None else self._gather(self.dtype)

    def load32(self) -> Array:
        """The content as float32: the memory itself where it is one box of float32."""
        if self.one is not None:
            return self.one.astype(np.float32, copy=False)
        return self._gather(np.dtype(np.float32))

    def store(self, values: Array) -> None:
        """Write `values`, of the region's shape, rounding once to the stored dtype."""
        if self.one is not None:
            self.one[...] = values
            return
        for piece, logical in self.pieces:
            piece[...] = values[logical]

    def _gather(self, dtype: np.dtype[np.generic]) -> Array:
        values = np.empty(self.shape, dtype)
        for piece, logical in self.pieces:
            values[logical] = piece
        return values


def _part(array: Array, region: Region, box: Box) -> Array:
    index: list[int | slice] = []
    for axis, a, b in zip(region.axes, box.start, box.stop, strict=True):
        index.append(a if axis.dropped else slice(a, b))
    return array[(*index, ...)]  # the ellipsis keeps a fully indexed element a view

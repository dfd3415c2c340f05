"""Matrices in this process's memory, for kernels that run on the CPU."""

from __future__ import annotations

import numpy as np

from ficco_rt.kernels.tiles import Matrix
from ficco_rt.types import TYPES, numpy_dtype

DTYPES = {name: numpy_dtype(name) for name in TYPES}


class Memory:
    """An aligned array with NaN around and in whatever its matrix does not hold."""

    def __init__(self, rows: int, columns: int, dtype: str, multiple: int = 8) -> None:
        pitch = -(-columns // multiple) * multiple
        self._bytes = np.full(rows * pitch * DTYPES[dtype].itemsize + 4096, 0xFF, np.uint8)
        start = -self._bytes.ctypes.data % 256 + 1024
        end = start + rows * pitch * DTYPES[dtype].itemsize
        self.whole = self._bytes[start:end].view(DTYPES[dtype]).reshape(rows, pitch)
        self.values = self.whole[:, :columns]
        self.matrix = Matrix(self.whole.ctypes.data, rows, columns, pitch)
        self._around = (self._bytes[:start], self._bytes[end:])

    def untouched(self) -> bool:
        return all((part == 0xFF).all() for part in self._around)


def aligned(size: int) -> np.ndarray:
    """Zeroed bytes that begin as an allocation on a GPU does."""
    whole = np.zeros(size + 256, np.uint8)
    return whole[-whole.ctypes.data % 256 :][:size]

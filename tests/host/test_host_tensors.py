"""Tensors of other libraries in host memory, such as PyTorch's on a CPU, given to the host driver."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

import ficco_rt as ficco
from ficco_rt.driver.dlpack import DLTensor
from ficco_rt.errors import UsageError
from ficco_rt.types import TYPES, numpy_dtype

SIZES = {"M": 128, "N": 64, "K": 64}


class Lent:
    """A tensor as PyTorch's is on a CPU: it gives DLPack, without a stream, and is no numpy array."""

    def __init__(self, array: np.ndarray[Any, Any], dtype: str, device: int = 1) -> None:
        self.array, self.device = array, device
        code, bits = TYPES[dtype].dlpack
        steps = [step // array.itemsize for step in array.strides]
        self._lists = [(ctypes.c_int64 * array.ndim)(*numbers) for numbers in (array.shape, steps)]
        self._tensor = DLTensor(array.ctypes.data, device, 0, array.ndim, code, bits, 1, *self._lists, 0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self) -> object:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self._tensor), b"dltensor", None)


class Nowhere(Lent):
    """As PyTorch exports a subclass that holds another tensor, or one whose storage was freed."""

    def __init__(self, array: np.ndarray[Any, Any], dtype: str) -> None:
        super().__init__(array, dtype)
        self._tensor.data = None


class Meta(Lent):
    def __dlpack_device__(self) -> tuple[int, int]:
        raise ValueError("Unknown device type meta for Dlpack")


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).integers(-3, 4, shape).astype(numpy_dtype("bf16"))


def test_tensors_in_host_memory_are_bound_by_reference() -> None:
    plan = ficco.compile("ag_gemm/serial", 2, **SIZES)
    a, b = [random(64, 64), random(64, 64)], [random(64, 32), random(64, 32)]
    c = [np.zeros((128, 32), numpy_dtype("bf16")) for _ in range(2)]
    with ficco.Executor(plan, "host") as executor:
        executor.write("B", 0, Lent(b[0], "bf16"))
        executor.write("B", 1, b[1])
        layer = executor.bind(A=[Lent(x, "bf16") for x in a], C=[Lent(x, "bf16") for x in c])
        gc.collect()  # the executor keeps what it was given
        a[0][:] = 1  # seen by the run, which holds no copy
        executor.run(layer)
    whole = np.concatenate(a).astype(np.float32)
    for rank in range(2):
        np.testing.assert_allclose(c[rank].astype(np.float32), whole @ b[rank].astype(np.float32), rtol=0.01)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (
            Lent(random(64, 64).T, "bf16"),
            "given one with gaps or another order of dimensions: take .contiguous(), of a",
        ),
        (Lent(random(64, 64), "bf16", device=2), "in host memory; given Lent on a device"),
        (
            Nowhere(random(64, 64), "bf16"),
            "given a tensor without memory: take .to_local() of a DTensor, and",
        ),
        (Meta(random(64, 64), "bf16"), "given Meta: Unknown device type meta for Dlpack"),
        (Lent(np.zeros((64, 64), np.float32), "fp32"), "wanted bfloat16 of shape [64, 64]; given float32 of shape"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tensor: Lent, message: str) -> None:
    with ficco.Executor(ficco.compile("ag_gemm/serial", 2, **SIZES), "host") as executor:
        for call in (lambda: executor.write("A", 0, tensor), lambda: executor.bind(A=[tensor, tensor])):
            with pytest.raises(UsageError) as caught:
                call()
            assert message in str(caught.value)

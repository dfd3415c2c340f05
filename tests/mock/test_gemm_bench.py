"""The one way in which `tools/gemm_bench` launches kernels, with a module in PyTorch's place."""

from __future__ import annotations

import ctypes
import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ficco_rt.kernels.kernel_compiler import compile_text
from tests.mock.standin import StandIn

SOURCE = (
    'extern "C" __global__ void double_it(float *y, const float *x, int n) { y[threadIdx.x] = 2 * x[threadIdx.x]; }'
)


def test_a_kernel_gets_its_parameters(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.reset("devices 1")
    stream = SimpleNamespace(cuda_stream=0)
    torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda: stream))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "tools.gemm_bench.device", raising=False)
    device = importlib.import_module("tools.gemm_bench.device")
    monkeypatch.delitem(sys.modules, "tools.gemm_bench.device")
    call = device.call
    call("cuInit", 0)
    first = call("cuDeviceGet", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", first))
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    there = [int(call("cuMemAlloc", x.nbytes)) for _ in range(2)]
    call("cuMemcpyHtoD", there[1], x.ctypes.data, x.nbytes)
    function = device.loaded(compile_text(SOURCE, "double.cu", ("-arch=sm_75",)).code, "double_it", 1024)
    arguments = [*map(ctypes.c_void_p, there), ctypes.c_int(64)]
    device.Kernel(function, 1, 64, 0, [ctypes.addressof(argument) for argument in arguments])()
    call("cuCtxSynchronize")
    call("cuMemcpyDtoH", y.ctypes.data, there[0], y.nbytes)
    assert np.array_equal(y, 2 * x)
    assert not cuda.violations()

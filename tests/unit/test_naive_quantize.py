"""The kernel that quantizes, run on the CPU thread by thread: bit for bit what numpy makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.graph.functions import FUNCTIONS
from ficco_rt.graph.ir import Quantize
from ficco_rt.graph.ops.quantize import quantized
from ficco_rt.kernels import families
from ficco_rt.kernels.family import LaunchRequest
from ficco_rt.kernels.kernel_compiler import KERNELS
from ficco_rt.kernels.naive.plain_kernels import NaiveQuantize
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.kernels.works import View, WorkOf
from ficco_rt.machine.profiles import stored
from ficco_rt.types import Dtype, numpy_dtype
from tests.cases import few
from tests.host.test_quantize import extreme
from tests.simt import nvidia
from tests.unit.test_kernel_waits import aligned, encoded

# types; elements with one scale, or 0; columns, by 16 bytes and alone, of one part of a row and of several; how
CASES = [
    (taken, made, across, columns, way)
    for taken in ("bf16", "fp16", "fp32")
    for made in ("fp8_e4m3", "fp8_e5m2")
    for across, columns in ((128, 300), (128, 320), (128, 1032), (0, 300), (0, 328), (0, 8200), (0, 16392))
    for way in ("plain", "given", "pow2", "sum", "silu_mul")
    if across or way != "pow2"
]


@pytest.mark.parametrize(("taken", "made", "across", "columns", "way"), few(CASES, 12, 0))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bit_for_bit(taken: Dtype, made: Dtype, across: int, columns: int, way: str, tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(columns), 24
    wide = -(-columns // across // 4) * 4 if across else 1
    arrays: dict[str, tuple[Dtype, np.ndarray]] = {
        "Q": (made, np.zeros((rows, columns), numpy_dtype(made))),
        "Q.scales": ("fp32", np.full((rows, wide), np.nan, np.float32)),
        "A": (taken, extreme(rng, (rows, columns), taken, finite=way == "silu_mul")),
        "B": (taken, extreme(rng, (rows, columns), taken, finite=True)),
        "S": ("fp32", np.array([[0.375]], np.float32)),
    }
    views = {}
    for name, (dtype, array) in arrays.items():  # at multiples of 16 bytes
        memory = aligned(array.nbytes)
        memory[:] = array.view(np.uint8).ravel()
        arrays[name] = dtype, memory.view(array.dtype).reshape(array.shape)
        region = Region(name, 0, tuple(Axis((Interval(0, n),)) for n in array.shape))
        views[name] = View(region, memory.ctypes.data, array.shape, dtype)
    function, given = "silu_mul" if way == "silu_mul" else None, way == "given"
    terms = ("A", "B") if way == "sum" else ("A",)
    body = Quantize(
        views["Q"].region, tuple(views[t].region for t in terms), function, views["B"].region if function else None,
        scales=views["Q.scales"].region, across=across, by=views["S"].region if given else None, pow2=way == "pow2",
    )  # fmt: skip
    taking = *terms, *(("B",) if function else ()), *(("S",) if given else ())
    work = WorkOf(body, tuple(views[name] for name in ("Q", "Q.scales", *taking)), (), ())
    (config,) = families.configure(
        LaunchRequest(NaiveQuantize.name, (work,), 2), Limits.of(stored("h200-switch").device)
    )
    packed = families.tables(config, [work])
    constants, scratch = aligned(len(packed.constants)), aligned(4 * packed.counters)
    constants[:] = np.frombuffer(packed.constants, np.uint8)
    (argument,) = packed.arguments(constants.ctypes.data, scratch.ctypes.data, 0, encoded)
    kernel = nvidia.Kernel(tmp_path, KERNELS / "naive.cu", config.options, config.entry, "Table")
    a, pitch = arrays["A"][1], arrays["A"][1].strides[0]
    given_by = a.copy()
    kernel.forget()
    kernel.gives(0, a.ctypes.data, pitch, given_by.ctypes.data, pitch, rows, pitch)  # the launch before writes it
    assert kernel(argument, config.blocks, config.threads, 1) == "", kernel.hint()
    a, b = (arrays[name][1].astype(np.float32) for name in "AB")
    total = a + b if way == "sum" else FUNCTIONS["silu_mul"].of(a).astype(np.float32) * b if function else a
    values, scales = quantized(total, made, across, 0.375 if given else None, pow2=way == "pow2")
    found, of = (arrays[name][1] for name in ("Q", "Q.scales"))
    padded = np.pad(scales, [(0, 0), (0, wide - scales.shape[1])])
    if function:  # whose own error is larger
        assert np.allclose(of, padded, 1e-5, 0)
    else:
        assert of.tobytes() == padded.tobytes()
        assert found.tobytes() == values.tobytes()

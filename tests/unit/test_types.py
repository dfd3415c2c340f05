"""The table of element types: what reads it, and that a row is all that a new type takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import inf, log2, nan

import numpy as np
import pytest

import ficco_rt
from ficco_dsl.vocabulary import DTYPES
from ficco_rt.errors import InternalError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.kernels.kernel_compiler import KERNELS, compile_file
from ficco_rt.types import ELEMENT_TYPES, TYPES, ElementType, holds, loss, numpy_dtype

E4M3, E5M2 = TYPES["fp8_e4m3"], TYPES["fp8_e5m2"]
# No row of the table
E3M4 = replace(E5M2, name="fp8_e3m4", exponent=3, mantissa=4, numpy="ml_dtypes.float8_e3m4", dlpack_code=7, number=None)
FORMATS = {t.name: t for t in ELEMENT_TYPES}


@pytest.fixture(params=FORMATS)
def row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ElementType]:
    monkeypatch.setitem(TYPES, request.param, FORMATS[request.param])
    yield FORMATS[request.param]
    numpy_dtype.cache_clear()


def patterns(row: ElementType) -> np.ndarray:
    """Every bit pattern of a type; of one of 32 bits every upper half, each with five lower halves."""
    if row.bytes < 4:
        return np.arange(2 ** (8 * row.bytes), dtype=f"u{row.bytes}")
    high = np.arange(2**16, dtype=np.uint32) << 16
    return np.concatenate([high | low for low in (0, 1, 0x5555, 0x8000, 0xFFFF)])


def value(row: ElementType, bits: int) -> float:
    """Of a bit pattern, by the definition of the format."""
    sign = -1.0 if bits >> (row.exponent + row.mantissa) else 1.0
    exponent, mantissa = bits >> row.mantissa & (2**row.exponent - 1), bits & (2**row.mantissa - 1)
    last, full, bias = 2**row.exponent - 1, 2**row.mantissa - 1, 2 ** (row.exponent - 1) - 1
    if exponent == last and (mantissa == full if row.finite else mantissa):
        return nan
    if exponent == last and not row.finite:
        return sign * inf
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - row.mantissa)
    return sign * (2**row.mantissa + mantissa) * 2.0 ** (exponent - bias - row.mantissa)


def test_the_language_has_these_types() -> None:
    assert tuple(TYPES) == DTYPES


def test_every_bit_pattern_has_the_value_of_the_format(row: ElementType) -> None:
    held, bits = numpy_dtype(row.name), patterns(row)
    assert held.itemsize == row.bytes == row.dlpack[1] // 8 == int(row.typestr[2:])
    with np.errstate(invalid="ignore"):  # of NaNs that signal
        values = bits.view(held).astype(np.float64)
    wanted = np.array([value(row, int(b)) for b in bits])
    assert np.array_equal(values, wanted, equal_nan=True)
    positive = values[np.isfinite(values) & (values > 0)]
    assert (positive.max(), positive.min()) == (row.largest, row.smallest)


def test_a_store_rounds_to_nearest_and_ties_to_even(row: ElementType) -> None:
    held, bits = numpy_dtype(row.name), patterns(row)
    if row.bytes == 4:  # neighbours: those whose lower halves are 0 and 1, 0xFFFF and 0 of the next
        bits = np.concatenate([np.arange(2**16, dtype=np.uint32) * 2**16 + d for d in (0, 1)])
    bits = np.sort(bits[bits < 2 ** (8 * row.bytes - 1)])
    with np.errstate(invalid="ignore"):
        values = bits.view(held).astype(np.float64)
    here, above = np.isfinite(values[:-1]) & np.isfinite(values[1:]), np.diff(bits) == 1
    low, high, even = (a[here & above] for a in (values[:-1], values[1:], bits[:-1] % 2 == 0))
    middle = (low + high) / 2
    for at, wanted in (
        (middle, np.where(even, low, high)),
        (0.75 * low + 0.25 * high, low),
        (0.25 * low + 0.75 * high, high),
    ):
        assert np.array_equal(at.astype(held).astype(np.float64), wanted)
    normal = low >= row.smallest * 2**row.mantissa
    assert ((middle - low)[normal] <= row.unit_roundoff * middle[normal]).all()
    assert ((middle - low)[normal] >= row.unit_roundoff * middle[normal] / 2).all()


def test_integers_are_exact_up_to_there(row: ElementType) -> None:
    numbers = np.arange(max(0, row.exact - 2**12), row.exact + 1)
    held = numpy_dtype(row.name)
    assert np.array_equal(numbers.astype(np.float64).astype(held).astype(np.float64), numbers)
    assert float(np.float64(row.exact + 1).astype(held)) != row.exact + 1
    assert -log2(row.unit_roundoff) == log2(row.exact)


def test_the_formats_with_eight_bits_are_described() -> None:
    assert (E4M3.largest, E4M3.smallest, E4M3.exact, E4M3.bytes) == (448, 2**-9, 16, 1)
    assert (E5M2.largest, E5M2.smallest, E5M2.exact, E5M2.bytes) == (57344, 2**-16, 8, 1)


def test_what_holds_what(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, format_ in FORMATS.items():
        monkeypatch.setitem(TYPES, name, format_)
    held = {a: {b for b in FORMATS if holds(a, b)} for a in FORMATS}  # type: ignore[arg-type]
    narrow = {"fp8_e4m3", "fp8_e5m2"}
    assert held == {
        **{name: {name} for name in narrow}, "bf16": {"bf16", *narrow}, "fp16": {"fp16", *narrow},
        "fp32": set(FORMATS),
    }  # fmt: skip
    assert loss("bf16", "fp8_e4m3") == "fp8_e4m3 ends at 448 and keeps 4 binary digits of 8"


def test_the_naive_kernels_know_the_numbers_and_no_other(tmp_path: object) -> None:
    numbers = [t.number for t in TYPES.values() if t.number is not None]
    text = (KERNELS / "naive.cu").read_text(encoding="utf-8")
    assert sorted(numbers) == sorted(map(int, re.findall(r"struct Type<(\d+)>", text)))
    for define in ("-DIN=7", "-DIN=None", "-DIN=-1"):
        for kernel in ("GEMM", "REDUCE"):
            with pytest.raises(InternalError, match=r"naive\.cu does not compile"):
                compile_file(KERNELS / "naive.cu", ["-std=c++17", "-arch=sm_80", f"-D{kernel}=k", define, "-DOUT=0"])
    with pytest.raises(InternalError, match=r"naive\.cu knows no type of this number"):
        compile_file(KERNELS / "naive.cu", ["-std=c++17", "-arch=sm_80", "-DREDUCE=k", "-DIN=0", "-DOUT=5"])


def test_a_row_is_all_that_a_type_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its name in the language. No tensor core multiplies it, so the kernels that run everywhere do."""
    monkeypatch.setitem(TYPES, E3M4.name, E3M4)
    monkeypatch.setattr("ficco_dsl.names.DTYPES", (*DTYPES, E3M4.name))
    plan = ficco_rt.compile("ag_gemm/streamed", 2, M=64, N=32, K=32, T=E3M4.name, Sum="fp16")
    assert {c.kernel for s in plan.streams for c in s.commands if hasattr(c, "kernel")} == {"naive_gemm"}
    with Executor(plan) as executor:
        assert verified_run(executor, values="exact").ok
        assert verified_run(executor).ok
        assert verified_run(executor, values="one-signed").ok

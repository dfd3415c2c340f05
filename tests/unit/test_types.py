"""The table of element types: what reads it, and that a row is all that a new type takes."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import numpy as np
import pytest

import ficco_rt
from ficco_dsl.vocabulary import DTYPES
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.types import TYPES, numpy_dtype


def test_the_language_has_these_types() -> None:
    assert tuple(TYPES) == DTYPES


@pytest.mark.parametrize("name", TYPES)
def test_the_numbers_of_a_row_are_those_of_the_type(name: str) -> None:
    row, held = TYPES[name], numpy_dtype(name)
    assert held.itemsize == row.bytes == row.dlpack[1] // 8 == int(row.typestr[2:])
    last = np.array([row.exact - 1, row.exact, row.exact + 1]).astype(held).astype(np.float64)
    assert last.tolist()[:2] == [row.exact - 1, row.exact]
    assert last[2] != row.exact + 1
    assert -log2(row.unit_roundoff) == log2(row.exact)
    assert len({t.number for t in TYPES.values()}) == len(TYPES)


def test_a_row_is_all_that_a_type_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its name in the language. No tensor core multiplies it, so the kernels that run everywhere do."""
    monkeypatch.setitem(
        TYPES, "fp8", replace(TYPES["bf16"], name="fp8", bytes=1, exact=2**4, unit_roundoff=2**-4,
                              numpy="ml_dtypes.float8_e4m3fn", torch="float8_e4m3fn", dlpack=(10, 8), typestr="<V1",
                              number=3, tensor_map="UINT8", half=None),
    )  # fmt: skip
    monkeypatch.setattr("ficco_dsl.names.DTYPES", (*DTYPES, "fp8"))
    plan = ficco_rt.compile("ag_gemm/streamed", 2, M=64, N=32, K=32, T="fp8")
    assert {c.kernel for s in plan.streams for c in s.commands if hasattr(c, "kernel")} == {"naive_gemm"}
    with Executor(plan) as executor:
        assert verified_run(executor, values="exact").ok
        assert verified_run(executor).ok

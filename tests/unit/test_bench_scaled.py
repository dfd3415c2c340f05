"""What `tools.bench --scales` takes for the limit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from ficco_rt.machine import profiles
from tools.bench import ours, report
from tools.bench.executors import Executors
from tools.bench.measure import COPIES, GEMM, Entry, Row, work
from tools.bench.scaled import Product
from tools.bench.scenarios import Scenario
from tools.bench.stats import Spread

AG = Scenario("ag_gemm", "x", 256, 256, 256, transb=True, scales="1x128")


def test_the_gemm_alone_is_made_by_each_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on its operands' GPU, with left scales in its own order; copies are checked by one of them."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    calls: list[str] = []

    def products(left: Any, right: Any, out: Any) -> Mapping[str, Product]:
        assert left[0].shape == (AG.m, AG.k)
        return {
            name: Product(partial(calls.append, f"{name} prepared"), partial(calls.append, name))
            for name in ("cuBLASLt", "DeepGEMM")
        }

    monkeypatch.setattr(ours, "products", products)
    side = ours.Ours.__new__(ours.Ours)
    Executors.__init__(side, 2, [torch.device("cpu")] * 2, profiles.chosen("h200-switch", 2))
    side._of_two, side._places, side._own, side._products = False, (0, 1), {}, {}
    monkeypatch.setattr(side, "_wait", lambda: None)
    monkeypatch.setattr(side, "_copies", lambda: calls.append("copies"))
    by_each = [f"{GEMM} cuBLASLt", f"{GEMM} DeepGEMM"]
    assert list(side.begin(AG)) == [*by_each, COPIES]
    for key, name in zip(by_each, ("cuBLASLt", "DeepGEMM"), strict=True):
        calls.clear()
        side._contestants[key].run()
        assert calls == [name] * 2
    side._reference = []
    for key, name in ((by_each[1], "DeepGEMM"), (COPIES, "cuBLASLt")):
        calls.clear()
        side._check_yardstick(key)
        assert calls[0] == "copies"
        assert calls[-2:] == [name] * 2
        assert sorted(calls[1:-2]) == ["DeepGEMM prepared"] * 2 + ["cuBLASLt prepared"] * 2


def test_the_limit_has_the_fastest_library() -> None:
    """In single runs and in loops each its own, and the report says whose."""
    row = Row(AG, work(AG, 2), 0.1)
    for key, single, loop in (("gemm cuBLASLt", 30.0, 20.0), ("gemm DeepGEMM", 25.0, 22.0), ("copies", 10.0, 10.0)):
        row.entries[f"limit {key}"] = Entry("limit", single=Spread(*[single] * 3, 3), loop=Spread(*[loop] * 3, 3))
    assert (row.limit(), row.limit(True)) == (25.0, 20.0)
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in report.detail_table([row]).splitlines()]
    assert cells[2][cells[0].index("GEMM by")] == "DeepGEMM"
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in report.main_table([row]).splitlines()]
    assert cells[2][cells[0].index("GEMM")] == "25.0"

"""docs/scale.md: its tables have every number of ranks, and are what the tool makes of today's model where that is
quick: rows of the closed formula, and the yardsticks of all others."""

from __future__ import annotations

import re

import pytest

from tools import scale

PAGE = scale.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("machine", scale.RANKS)
@pytest.mark.parametrize("weak", [True, False])
def test_tables_are_the_models(machine: str, weak: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{machine} {'weak' if weak else 'fixed'}"
    found = re.search(rf"<!-- begin {name} -->\n(.*?)\n<!-- end {name} -->", PAGE, re.DOTALL)
    assert found is not None
    shown = found[1].splitlines()
    monkeypatch.setattr(scale, "SIMULATED", 0)
    kinds = [[scale.row(kind, ranks, machine, weak) for ranks in scale.RANKS[machine]] for kind in scale.COLLECTIVES]
    for g, s in zip(*kinds, strict=True):  # one column has both
        assert g.gemm == pytest.approx(s.gemm)
        assert g.serial == pytest.approx(s.serial)
    made = list(scale.table(*kinds))
    assert len(shown) == len(made)
    for said, now in zip(shown, made, strict=True):
        if "~" in said:
            assert said == now
        else:  # all but the virtual clock's times
            assert said.split("|")[:4] == now.split("|")[:4]

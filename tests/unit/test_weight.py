"""The budget is kept. Every line is a cost to whoever reads the code next."""

from __future__ import annotations

from tests import weight


def test_the_budget_is_kept() -> None:
    found = list(weight.weights())
    assert {(part, name) for part, name, _ in found} == {(p, n) for p, names in weight.BUDGET.items() for n in names}
    wrong = [text for numbers in found if (text := weight.over(*numbers))]
    assert not wrong, "; ".join(wrong) + ": raise it in the same commit, and say there why"


def test_more_than_the_budget_is_told() -> None:
    most = weight.BUDGET["code"]["tools"]
    assert weight.over("code", "tools", most) == ""
    assert str(most) in weight.over("code", "tools", most + 1)


def test_what_counts_as_code() -> None:
    text = '''"""Doc."""

# comment
x = (
    1,  # one
)


def f() -> None:
    """Doc.

    More."""
'''
    assert weight.code_lines(text) == 4

"""What `tools.bench --scales` takes for the limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tools.bench.ours import Ours
from tools.bench.scaled import Product


class Clock:
    """Of its own time, which products spend."""

    def __init__(self) -> None:
        self.now = 0.0

    def turn(
        self, run: Callable[[], None], finish: Callable[[], None], warmup: int, singles: int, loop: int
    ) -> tuple[list[list[float]], list[float]]:
        for _ in range(warmup):
            run()
        begun = self.now
        for _ in range(loop):
            run()
        return [], [(self.now - begun) / loop] * 2


def test_a_library_that_compiles_at_its_first_call_is_not_taken_for_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    side, clock = Ours.__new__(Ours), Clock()
    prepared: list[str] = []

    def product(name: str, first: float, later: float) -> Product:
        left = [first]

        def run() -> None:
            clock.now += left.pop() if left else later

        return Product(lambda: prepared.append(name), run)

    def both(of: Sequence[Product]) -> None:
        for each in of:
            each.run()

    monkeypatch.setattr(side, "_clock", clock, raising=False)
    monkeypatch.setattr(side, "_multiply", both)
    monkeypatch.setattr(side, "_wait", lambda: None)
    made = [{"plain": product("plain", 5.0, 5.0), "compiled": product("compiled", 1e6, 4.0)} for _ in range(2)]
    assert side._fastest(made) == [of["compiled"] for of in made]
    assert prepared == ["plain", "compiled"] * 2

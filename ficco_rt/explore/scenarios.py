"""The scenarios that a sweep models: named sizes of an operation, read from a file or generated from ranges."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypeAlias

from ..errors import UsageError
from ..files.atomic import read_text
from ..files.records import decoded

Value: TypeAlias = "int | str | tuple[Value, ...]"
Settings: TypeAlias = tuple[tuple[str, Value], ...]

SHIPPED = Path(__file__).with_name("scenarios.json")
TOKENS = "tokens"  # of an all-to-all: so many from every rank to every other, whatever the number of ranks
COUNTS = "counts"
MOST = 1 << 40  # no size is larger


@dataclass(frozen=True, slots=True)
class Scenario:
    """Work under a name; `sizes` are params of the operation's schedules, over all ranks.

    `Scenario("qkv70b_8k", (("M", 8192), ("N", 10240), ("K", 8192)))`. In place of `counts`, which has a row a rank, an
    all-to-all may have `tokens`.
    """

    name: str
    sizes: Settings

    def params(self, ranks: int) -> dict[str, object]:
        """The params of the scenario for the compiler, for `ranks` ranks."""
        found: dict[str, object] = {name: value for name, value in self.sizes if name != TOKENS}
        tokens = dict(self.sizes).get(TOKENS)
        if tokens is not None:
            found[COUNTS] = ((tokens,) * ranks,) * ranks
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The params that it sets, as schedules declare them."""
        return tuple(COUNTS if name == TOKENS else name for name, _ in self.sizes)


def load(path: Path | str, operation: str) -> tuple[Scenario, ...]:
    """An operation's scenarios of a file.

    The file: {"ag_gemm": [{"name": "x", "M": 8192, "N": 10240, "K": 8192}, …], …}; "about" is for readers.
    Raises UsageError with the place.
    """
    data = decoded(read_text(path), str(path))
    if not isinstance(data, dict):
        raise UsageError(f'{path}: wanted an object of operations, such as {{"ag_gemm": [...]}}')
    if operation not in data:
        there = ", ".join(str(name)[:40] for name in data if name != "about")
        raise UsageError(f"{path}: has no scenarios of '{operation}'; it has {there or 'none at all'}")
    rows = data[operation]
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{path}: {operation}: wanted a list of scenarios")
    found = [_scenario(row, f"{path}: {operation}[{i}]") for i, row in enumerate(rows)]
    names = [scenario.name for scenario in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{path}: there are two scenarios '{twice}' of {operation}; give each its own name")
    return tuple(found)


def _scenario(row: object, where: str) -> Scenario:
    if not isinstance(row, dict):
        raise UsageError(f'{where}: wanted an object such as {{"name": "x", "M": 8192, "N": 10240, "K": 8192}}')
    name = row.get("name")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise UsageError(f"{where}: 'name' is missing or no text")
    sizes = tuple((key, _value(value, f"{where} ({name}): {key}")) for key, value in row.items() if key != "name")
    if not sizes:
        raise UsageError(f"{where} ({name}): has no sizes; give it M, N and K")
    return Scenario(name, sizes)


def _value(value: object, where: str) -> Value:
    if isinstance(value, list):
        return tuple(_value(item, where) for item in value)
    if isinstance(value, str) and value.isidentifier():
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise UsageError(f"{where} must be a whole number, a list of those or a type; it is {json.dumps(value)[:60]}")
    return value


def chosen(scenarios: Sequence[Scenario], only: Sequence[str]) -> tuple[Scenario, ...]:
    """The scenarios whose names contain one of `only`; all, if `only` is empty. Raises UsageError: no name contains a
    text."""
    for text in only:
        if not any(text in s.name for s in scenarios):
            names = ", ".join(s.name for s in scenarios[:20]) + (", …" if len(scenarios) > 20 else "")
            raise UsageError(f"--only {text}: no scenario has this in its name; there are {names}")
    return tuple(s for s in scenarios if not only or any(text in s.name for text in only))


def combined(base: Sequence[Scenario], choices: Mapping[str, Sequence[Value]]) -> tuple[Scenario, ...]:
    """Every scenario with every combination of the values, which replace its own. Without `base`, the combinations
    alone."""
    if not choices:
        return tuple(base)
    found = []
    for scenario in base or (Scenario("", ()),):
        for values in product(*choices.values()):
            given = dict(zip(choices, values, strict=True))
            called = " ".join(f"{name}={written(value)}" for name, value in given.items())
            sizes = {**dict(scenario.sizes), **given}
            found.append(Scenario(f"{scenario.name} {called}".strip(), tuple(sizes.items())))
    return tuple(found)


def written(value: Value) -> str:
    """A value in the form that `--set` takes, without spaces: `8192`, `[4,2,1]`, `bf16`."""
    return "[" + ",".join(map(written, value)) + "]" if isinstance(value, tuple) else str(value)


def read_value(text: str) -> Value:
    """The value that `written` wrote. Raises ValueError."""
    return frozen(json.loads(text)) if text[:1] in "[-0123456789" else text


def frozen(value: object) -> Value:
    """A JSON value with tuples for lists. Raises ValueError for what no param holds."""
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{value!r} is no value of a param")

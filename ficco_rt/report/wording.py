"""Formats figures and lists for people: times, bytes, counts, values of params."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence


def show_time(microseconds: float) -> str:
    """`482 µs`, `4.82 ms`, `1.20 s`: three digits."""
    if microseconds == 0:
        return "0 µs"
    for limit, scale, unit in ((0.9995, 1e-3, "ns"), (999.5, 1.0, "µs"), (999.5e3, 1e3, "ms"), (math.inf, 1e6, "s")):
        if microseconds < limit:
            value = microseconds / scale
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{microseconds} µs"  # not a number


def signed_time(microseconds: float) -> str:
    """`−44.3 µs`: a time that may be negative."""
    return ("−" if microseconds < 0 else "") + show_time(abs(microseconds))


def show_bytes(count: float) -> str:
    """`512 B`, `12.0 MiB`."""
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def show_flops(count: float) -> str:
    """`137 GFLOP`."""
    return _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def _scaled(count: float, base: int, units: Sequence[str]) -> str:
    """Three digits and the unit, each of which is `base` times the one before; the first one counts whole things."""
    power = 0
    while count >= base - 0.5 and power + 1 < len(units):
        count, power = count / base, power + 1
    return f"{count:.{1 if power and count < 99.95 else 0}f} {units[power]}"


def count(number: int, noun: str) -> str:
    """`1 GPU`, `8 GPUs`, `3 copies`, `2 launches`."""
    if number == 1:
        return f"1 {noun}"
    plural = noun[:-1] + "ies" if noun.endswith("py") else noun + ("es" if noun.endswith("ch") else "s")
    return f"{number:,} {plural}".replace(",", "\u202f") if number >= 10_000 else f"{number} {plural}"


def join_words(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    listed = list(words)
    return " and ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else "".join(listed)


def set_text(value: object) -> str:
    return "[" + ",".join(map(set_text, value)) + "]" if isinstance(value, tuple | list) else str(value)


_LONG = 40


def show_value(value: object) -> str:
    """A param's value as it is written: `4096`, `[4, 2, 1]`, `bf16`."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(show_value, value)) + "]"
    return str(value)


def show_params(params: Iterable[tuple[str, object]]) -> str:
    """`M = 4096, T = bf16`; long lists are cut short."""
    shown = []
    for name, value in params:
        text = show_value(value)
        shown.append(f"{name} = {text if len(text) <= _LONG else text[: _LONG - 1] + '…'}")
    return ", ".join(shown)


def one_line(text: str) -> str:
    """The text with its line breaks and runs of blanks as one blank each."""
    return " ".join(text.split())


def by_reason(problems: Iterable[tuple[str, str]]) -> list[tuple[int, str]]:
    """Who has a problem, and which; an empty one is none. For each problem, whatever its numbers: how many have it, and
    the first of them, in words."""
    found: dict[str, list[str]] = {}
    for who, problem in problems:
        if problem:
            found.setdefault(re.sub(r"[0-9]+", "", problem), []).append(f"{who}: {problem}")
    return [(len(words), words[0]) for words in found.values()]

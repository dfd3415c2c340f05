"""Normalises arguments from Python callers: for example, a numpy integer becomes an int."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from math import inf
from typing import TypeVar

from ..errors import UsageError

T = TypeVar("T")
# Given beside params, for all products of a schedule: `vendor` or the name of a kernel, and 0 or 1, if no param is
# called so.
KERNEL, FAST = "kernel", "fast"
VENDOR = "vendor"
_DEPTH = 8  # more than params nest; what lies deeper is refused where params are bound


def whole(value: object, what: str) -> int:
    """The value as an int: anything with `__index__`. Bools are refused, and so are 4.0 and "4"."""
    number = _index(value)
    if number is None:
        raise UsageError(f"{what} is a whole number, such as 4; given {_shown(value)}")
    return number


def positive(value: object, what: str, of: str) -> int:
    """The value as an int from 1, a number `of` something. Raises UsageError."""
    number = whole(value, what)
    if number < 1:
        raise UsageError(f"{what} is a number of {of}, at least 1; given {number}")
    return number


def multiprocessors(value: object, what: str) -> int:
    """The value as an int from 0. Raises UsageError."""
    number = whole(value, what)
    if number < 0:
        raise UsageError(f"{what} is a number of multiprocessors, 0 or more; given {number}")
    return number


def seconds(value: object, what: str) -> float | None:
    """A time limit, None: there is none. Raises UsageError."""
    if value is None or (isinstance(value, int | float) and 0 < value < inf):
        return value
    raise UsageError(f"{what} is a number of seconds above 0, or None; given {_shown(value)}")


def plain(value: object, depth: int = 0) -> object:
    """A param's value with Python's own ints, in lists, too. Values that are no integers stay as they are."""
    if isinstance(value, list | tuple) and depth < _DEPTH:
        return tuple(plain(v, depth + 1) for v in value)
    number = _index(value)
    return value if number is None else number


def of_kind(value: object, kind: type[T], what: str) -> T:
    """The value, if it is of the kind; `what` says what is needed and where it comes from."""
    if not isinstance(value, kind):
        raise UsageError(f"{what}; given {_shown(value)}")
    return value


def near(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6, quoted: bool = False) -> str:
    """`; did you mean ag_gemm?`, where something is known that is called nearly so."""
    found = difflib.get_close_matches(name, list(known), most, cutoff)
    words = " or ".join(f"'{word}'" if quoted else word for word in found)
    return f"; did you mean {words}?" if found else ""


def _index(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:59] + '…'} ({type(value).__name__})"

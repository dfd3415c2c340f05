"""Parses `--set NAME=VALUE`: the value of a param, or all its values for a sweep."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from ..errors import UsageError
from ..files.arguments import KERNEL
from ..types import TYPES, dtype_and_scaling

SettingValue: TypeAlias = "int | str | tuple[SettingValue, ...]"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[a-z]+)?\Z")  # of a param; or what a queue says: compute.sms
_SIZE = re.compile(r"([0-9]+(?:_[0-9]+)*) ?(KiB|MiB|GiB)\Z")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_WORD = re.compile(r"[a-z][a-z0-9_]*\Z")
_SMS = re.compile(r"[0-9]{1,9} sms\Z")  # of leave
_INT = re.compile(r"[+-]?[0-9]+(_[0-9]+)*\Z")
_TOKEN = re.compile(r"\s*([\[\],]|[^\[\],\s]+)")
_DIGITS = 30  # more than any size has; the schedule says which numbers fit
_DEPTH = 8
_RANGE = re.compile(r"([0-9]{1,20})\.\.([0-9]{1,20})([*+])([0-9]{1,20})\Z")
_MOST = 1000  # values of a range
MAX_GPUS = 1024


def parse_settings(texts: Iterable[str]) -> dict[str, SettingValue]:
    """`("M=16_384", "shares=[4, 2, 1]", "T=fp32")` as a mapping; UsageError names the one that is wrong."""
    settings: dict[str, SettingValue] = {}
    for text in texts:
        name, value = _named(text, "--set", "NAME=VALUE, such as M=16384, or QUEUE.ATTRIBUTE=VALUE")
        if name in settings:
            raise UsageError(f"--set {text}: {name} is set twice")
        settings[name] = _one(f"--set {text}", name, value)
    return settings


def _named(text: str, option: str, form: str) -> tuple[str, str]:
    """The name, and what is behind the `=`."""
    name, equals, value = text.partition("=")
    if not equals or not _NAME.match(name.strip()):
        raise UsageError(f"{option} {text}: expected {form}")
    return name.strip(), value


def _one(where: str, name: str, value: str) -> SettingValue:
    """The value of a param, or of what a queue says: there it may be a word, or bytes with a unit."""
    text = value.strip()
    if name == KERNEL:
        return text
    if "." in name:
        if size := _SIZE.match(text):
            return int(size[1]) * _UNITS[size[2]]
        if _WORD.match(text) or _SMS.match(text):
            return text
    return _value(where, value)


def parse_choices(texts: Iterable[str], option: str) -> dict[str, tuple[SettingValue, ...]]:
    """`("M=1024..8192*2", "N=4096,6144", "deep=1,[1,1]")` as all values of each. A range goes to its end, in factors
    (`*2`) or steps (`+1024`). UsageError names the one that is wrong."""
    choices: dict[str, tuple[SettingValue, ...]] = {}
    for text in texts:
        name, values = _named(text, option, "NAME=VALUES, such as M=1024,4096 or M=1024..16384*2")
        if name in choices:
            raise UsageError(f"{option} {text}: {name} stands here twice; put its values behind one name, with commas")
        where = f"{option} {text}"
        if (name == KERNEL or "." in name) and ".." not in values:  # of a queue: words and bytes, too
            choices[name] = tuple(dict.fromkeys(_one(where, name, value) for value in values.split(",")))
        else:
            choices[name] = tuple(_several(where, values))
    return choices


def _several(where: str, values: str) -> dict[SettingValue, None]:
    tokens = _TOKEN.findall(values)
    found: dict[SettingValue, None] = {}
    at = 0
    while True:
        if at == len(tokens) or tokens[at] == ",":
            raise UsageError(f"{where}: {'a' if found else 'the'} value is missing")
        if ".." in tokens[at]:
            found |= dict.fromkeys(_range(where, tokens[at]))
            at += 1
        else:
            value, at = _parse(where, tokens, at)
            found[value] = None
        if at == len(tokens):
            return found
        if tokens[at] != ",":
            raise UsageError(f"{where}: expected ',' before '{tokens[at]}'")
        at += 1


def _range(where: str, text: str) -> Iterable[int]:
    parts = _RANGE.match(text)
    if parts is None:
        raise UsageError(f"{where}: '{text}' is no range; a range is 1024..16384*2 or 1024..4096+1024")
    first, last, step = (int(parts[i]) for i in (1, 2, 4))
    if step < (2 if parts[3] == "*" else 1) or first < 1 or last < first:
        raise UsageError(f"{where}: '{text}' is no range; it goes from 1 or more up to its end, by *2 or +1 at least")
    found, at = [], first
    while at <= last:
        found.append(at)
        at = at * step if parts[3] == "*" else at + step
        if len(found) > _MOST:
            raise UsageError(f"{where}: '{text}' has more than {_MOST} values; take a longer step")
    return found


def _value(where: str, value: str) -> SettingValue:
    if "=" in value:
        raise UsageError(f"{where}: one param a --set; repeat the option for the next: --set M=1 --set N=2")
    tokens = _TOKEN.findall(value)
    if not tokens:
        raise UsageError(f"{where}: the value is missing")
    parsed, rest = _parse(where, tokens, 0)
    if rest != len(tokens):
        raise UsageError(f"{where}: '{tokens[rest]}' after the value; a list stands in brackets: [4, 2, 1]")
    return parsed


def _parse(where: str, tokens: list[str], at: int, depth: int = 0) -> tuple[SettingValue, int]:
    token = tokens[at] if at < len(tokens) else ""
    if token != "[":
        words = 3 if tokens[at + 1 : at + 2] == ["scaled"] else 1
        return _atom(where, " ".join(tokens[at : at + words]), depth), at + words
    if depth == _DEPTH:
        raise UsageError(f"{where}: lists nest at most {_DEPTH} deep")
    items: list[SettingValue] = []
    at += 1
    while at < len(tokens) and tokens[at] != "]":
        item, at = _parse(where, tokens, at, depth + 1)
        items.append(item)
        if at < len(tokens) and tokens[at] == ",":
            at += 1
        elif at < len(tokens) and tokens[at] != "]":
            raise UsageError(f"{where}: expected ',' or ']' before '{tokens[at]}'")
    if at == len(tokens):
        raise UsageError(f"{where}: the list has no closing ']'")
    return tuple(items), at + 1


def _atom(where: str, token: str, depth: int) -> SettingValue:
    if depth == 0 and ":" in token:  # shares; a list that no shell takes for a pattern
        return tuple(_atom(where, share, 1) for share in token.split(":"))
    if _INT.match(token):
        if len(token) > _DIGITS:
            raise UsageError(f"{where[:46]}…: the number is too large")
        return int(token)
    if depth == 0 and dtype_and_scaling(token) is not None:
        return token
    raise UsageError(
        f"{where}: '{token}' is not a value; a value is a whole number (16384 or 16_384), "
        f"a list ([4, 2, 1] or 4:2:1) or a type ({', '.join(TYPES)}, fp8_e4m3 scaled 1x128, …)"
    )


def number_list(option: str, text: str, least: int, most: int, example: str) -> tuple[int, ...]:
    """`1,2,4,8` as numbers."""
    numbers = [part.strip() for part in text.split(",")]
    if not all(n.isascii() and n.isdecimal() and least <= int(n[:12]) <= most for n in numbers):
        raise UsageError(
            f"{option} {text}: expected numbers from {least} to {most} with commas between, such as {example}"
        )
    return tuple(dict.fromkeys(map(int, numbers)))


def gpu_list(text: str) -> tuple[int, ...]:
    """The numbers of ranks that `--gpus` lists."""
    return number_list("--gpus", text, 1, MAX_GPUS, "1,2,4,8")

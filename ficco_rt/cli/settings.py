"""`--set NAME=VALUE`: what a param may be given on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from ..errors import UsageError
from ..types import TYPES

SettingValue: TypeAlias = "int | str | tuple[SettingValue, ...]"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_INT = re.compile(r"[+-]?[0-9]+(_[0-9]+)*\Z")
_TOKEN = re.compile(r"\s*([\[\],]|[^\[\],\s]+)")
_DIGITS = 30  # more than any size has; the schedule says which numbers fit
_DEPTH = 8
_LONG = 40


def parse_settings(texts: Iterable[str]) -> dict[str, SettingValue]:
    """`("M=16_384", "shares=[4, 2, 1]", "T=fp32")` as a mapping; UsageError names the one that is wrong."""
    settings: dict[str, SettingValue] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not _NAME.match(name):
            raise UsageError(f"--set {text}: expected NAME=VALUE, such as M=16384")
        if name in settings:
            raise UsageError(f"--set {text}: {name} is set twice")
        settings[name] = _value(text, value)
    return settings


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


def _value(text: str, value: str) -> SettingValue:
    if "=" in value:
        raise UsageError(f"--set {text}: one param a --set; repeat the option for the next: --set M=1 --set N=2")
    tokens = _TOKEN.findall(value)
    if not tokens:
        raise UsageError(f"--set {text}: the value is missing")
    parsed, rest = _parse(text, tokens, 0)
    if rest != len(tokens):
        raise UsageError(f"--set {text}: '{tokens[rest]}' after the value; a list stands in brackets: [4, 2, 1]")
    return parsed


def _parse(text: str, tokens: list[str], at: int, depth: int = 0) -> tuple[SettingValue, int]:
    token = tokens[at] if at < len(tokens) else ""
    if token != "[":
        return _atom(text, token, depth), at + 1
    if depth == _DEPTH:
        raise UsageError(f"--set {text}: lists nest at most {_DEPTH} deep")
    items: list[SettingValue] = []
    at += 1
    while at < len(tokens) and tokens[at] != "]":
        item, at = _parse(text, tokens, at, depth + 1)
        items.append(item)
        if at < len(tokens) and tokens[at] == ",":
            at += 1
        elif at < len(tokens) and tokens[at] != "]":
            raise UsageError(f"--set {text}: expected ',' or ']' before '{tokens[at]}'")
    if at == len(tokens):
        raise UsageError(f"--set {text}: the list has no closing ']'")
    return tuple(items), at + 1


def _atom(text: str, token: str, depth: int) -> SettingValue:
    if depth == 0 and ":" in token:  # shares; a list that no shell takes for a pattern
        return tuple(_atom(text, share, 1) for share in token.split(":"))
    if _INT.match(token):
        if len(token) > _DIGITS:
            raise UsageError(f"--set {text[:40]}…: the number is too large")
        return int(token)
    if depth == 0 and token in TYPES:
        return token
    raise UsageError(
        f"--set {text}: '{token}' is not a value; a value is a whole number (16384 or 16_384), "
        f"a list ([4, 2, 1] or 4:2:1) or a type ({', '.join(TYPES)})"
    )

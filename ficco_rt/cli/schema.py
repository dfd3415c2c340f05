"""`ficco schema`: the JSON Schemas of what commands print with --json."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from ..errors import UsageError
from ..report.wording import join_words
from .console import table

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "array": ((list,), "a list"),
    "boolean": ((bool,), "true or false"),
    "integer": ((int,), "a whole number"),
    "null": ((type(None),), "null"),
    "number": ((int, float), "a number"),
    "object": ((dict,), "an object"),
    "string": ((str,), "text"),
}
_SHOWN = 40  # characters of what is wrong
_LARGEST = 1e18  # of a number that can be drawn


@cache
def _schema(name: str) -> Any:
    return json.loads(files(__package__).joinpath("schemas", name).read_text(encoding="utf-8"))


def faults(value: object, name: str, needed: Mapping[str, Sequence[str]], place: str = "") -> Iterator[str]:
    """What of a decoded file is not as the schema of this name says, each with its place: `account.parts[2].name is
    [], not text`. Of the keys only those may not be missing that are `needed` in objects, or lists of objects, of a
    name: files of other versions of ficco have others. The value itself has the name ''; `place` is where it stands."""
    yield from _faults(value, _schema(f"{name}.json"), place, "", needed)


def _faults(value: object, rule: Any, place: str, name: str, needed: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if "$ref" in rule:
        file, _, inside = rule["$ref"].partition("#/$defs/")
        rule = _schema(file or "common.json")["$defs"][inside]
    choices = rule.get("anyOf") or [rule]
    asked = [kind for choice in map(_resolved, choices) for kind in _kinds(choice)]
    if asked and not any(_is(value, kind) for kind in asked):
        yield f"{place or 'the file'} is {_shown(value)}, not {' or '.join(_TYPES[kind][1] for kind in asked)}"
        return
    for choice in map(_resolved, choices):
        if not _kinds(choice) or any(_is(value, kind) for kind in _kinds(choice)):
            yield from _inside(value, choice, place, name, needed)


def _inside(value: object, rule: Any, place: str, name: str, needed: Mapping[str, Sequence[str]]) -> Iterator[str]:
    allowed = rule.get("enum", [rule["const"]] if "const" in rule else None)
    if allowed is not None and not any(value == entry and type(value) is type(entry) for entry in allowed):
        yield f"{place} is {_shown(value)}, not one of {', '.join(map(_shown, allowed))}"
    if "minimum" in rule and isinstance(value, int | float) and value < rule["minimum"]:
        yield f"{place} is {_shown(value)}, less than {rule['minimum']}"
    if isinstance(value, dict):
        for key in needed.get(name, ()):
            if key not in value:
                yield f"{_joined(place, key)} is missing"
        known, others = rule.get("properties", {}), rule.get("additionalProperties")
        for key, entry in value.items():
            inner = known.get(key, others if isinstance(others, dict) else None)
            if inner is not None:
                yield from _faults(entry, inner, _joined(place, key), key, needed)
    if isinstance(value, list):
        if not rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", len(value)):
            yield f"{place} has {len(value)} entries"
        for number, entry in enumerate(value if "items" in rule else ()):
            yield from _faults(entry, rule["items"], f"{place}[{number}]", name, needed)


def _resolved(rule: Any) -> Any:
    return _schema("common.json")["$defs"][rule["$ref"].partition("#/$defs/")[2]] if "$ref" in rule else rule


def _kinds(rule: Any) -> list[str]:
    kinds = rule.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


def _is(value: object, kind: str) -> bool:
    """NOTE a bool is an int of Python, and JSON of Python has NaN."""
    if kind in ("integer", "number") and (isinstance(value, bool) or not _finite(value)):
        return False
    return isinstance(value, _TYPES[kind][0])


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and -_LARGEST < value < _LARGEST


def _joined(place: str, key: str) -> str:
    return f"{place}.{key[:_SHOWN]}" if place else key[:_SHOWN]


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def schema(name: str | None) -> int:
    """Print a schema, or list them."""
    folder = files(__package__).joinpath("schemas")
    found = {
        entry.name.removesuffix(".json"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".json")
    }
    if name is None:
        rows = [(known, json.loads(text)["title"]) for known, text in found.items()]
        sys.stdout.write(table(rows, indent="") + "\n")
        return 0
    if name not in found:
        raise UsageError(f"there is no schema '{name[:40]}'; there is: {join_words(found)}")
    sys.stdout.write(found[name])
    return 0

"""Records: dataclasses as JSON, read back, and their JSON Schemas. One walk over the types serves all three purposes.

A field whose type has a `Unit` is stored with the unit appended to its name; a name with an underscore because it is a
keyword of Python is stored without the underscore: `time: Micros` is "time_us", `class_` is "class". `object` stands
for the value of a param.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ..errors import UsageError

T = TypeVar("T")
Params: TypeAlias = Mapping[str, object]
_SHOWN = 40  # characters of what is wrong


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The least value of a number."""

    value: int


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit that is appended to the names of fields."""

    suffix: str


@dataclass(frozen=True, slots=True)
class Named:
    """What a field is called in JSON, where it has another name here."""

    name: str


Count: TypeAlias = Annotated[int, AtLeast(0)]
Positive: TypeAlias = Annotated[int, AtLeast(1)]
Micros: TypeAlias = Annotated[float, Unit("_us")]
Millis: TypeAlias = Annotated[float, Unit("_ms")]
INLINE = "inline"  # marks a mapping, or a record, whose entries stand among the fields
PAIRS = "pairs"  # marks pairs of a name and a param's value, which are an object in JSON
HIDDEN = "hidden"  # marks a field that JSON has not


class _LeftOut:
    def __bool__(self) -> bool:
        return False


LEFT_OUT: Any = _LeftOut()  # the default of a field that may be missing in what is printed
NEWER: Any = None  # the default of a field that files of older versions lack


@dataclass(frozen=True, slots=True)
class _Field:
    attribute: str
    hint: Any
    needed: bool
    left_out: bool
    derived: bool = False


class derived(property):
    """A property of a record that JSON has, too."""


@cache
def fields(cls: type) -> Mapping[str, _Field]:
    """The fields of a dataclass by the names that they have in JSON."""
    hints = get_type_hints(cls, include_extras=True)
    found = {}
    for f in dataclasses.fields(cls):
        if HIDDEN not in _marks(hints[f.name]):
            marks = [m for t in (hints[f.name], *get_args(hints[f.name])) for m in _marks(t)]
            units = [m.suffix for m in marks if type(m) is Unit]
            called = next((m.name for m in marks if type(m) is Named), f.name.rstrip("_") + "".join(units))
            needed = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
            found[called] = _Field(f.name, hints[f.name], needed, f.default is LEFT_OUT)
    for name, member in vars(cls).items():
        if isinstance(member, derived):
            found[name] = _Field(
                name, get_type_hints(member.fget)["return"], needed=False, left_out=False, derived=True
            )
    return found


@cache
def hints(cls: type) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of a class's own fields, and those that may be missing."""
    known = {name: f for name, f in fields(cls).items() if not (f.derived or INLINE in _marks(f.hint))}
    return {name: f.hint for name, f in known.items()}, frozenset(name for name, f in known.items() if not f.needed)


@cache
def _derived(cls: type) -> frozenset[str]:
    return frozenset(name for name, field in fields(cls).items() if field.derived)


@cache
def _inline(cls: type) -> Mapping[str, type]:
    """The attributes that are records whose fields stand among those of the class."""
    return {f.attribute: get_args(f.hint)[0] for f in fields(cls).values() if INLINE in _marks(f.hint)}


@cache
def _called(cls: type) -> Mapping[str, str]:
    """The attributes that have other names in JSON."""
    return {name: field.attribute for name, field in fields(cls).items() if field.attribute != name}


def _is_record(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint)


def _marks(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__metadata__", ())


def filled(cls: type[T], *sources: object, **own: Any) -> T:
    """A record with these values of its own. Its other fields have the values of the sources' attributes of the same
    names, of the first source that has one; a field that no source has keeps its default."""
    names = {f.name for f in dataclasses.fields(cast(Any, cls))} - own.keys()
    found = {name: getattr(of, name) for of in reversed(sources) for name in names.intersection(dir(of))}
    return cls(**found, **own)


# ---------------------------------------------------------------- writing


def plain(value: object) -> Any:
    """The value as JSON has it; numbers that JSON does not have are null."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if not dataclasses.is_dataclass(value):
        return value
    found: dict[str, Any] = {}
    for name, field in fields(cast(type, type(value))).items():
        inner = getattr(value, field.attribute)
        if INLINE in _marks(field.hint):
            found |= plain(inner)
        elif PAIRS in _marks(field.hint):
            found[name] = plain(dict(inner))
        elif inner is not LEFT_OUT:
            found[name] = plain(inner)
    return found


def json_text(value: object) -> str:
    """The value on one line."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


# ---------------------------------------------------------------- reading


def _no_json(path: str, fact: str, line: int, column: int) -> Exception:
    return UsageError(f"{path}:{line}:{column}: {fact}")


def decoded(text: str, path: str, wrong: Callable[[str, str, int, int], Exception] = _no_json) -> Any:
    """The JSON of a file. UsageError, or what `wrong` makes, says what is wrong where."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise wrong(path, f"this is no JSON: {error.msg}", error.lineno, error.colno) from None
    except RecursionError:
        raise wrong(path, "lists or objects are nested too deeply", 1, 1) from None
    except ValueError:  # Python's own limit
        raise wrong(path, "a number has thousands of digits", 1, 1) from None


def is_text(value: str) -> bool:
    """Whether a text is safe to print: JSON can contain half a surrogate pair, which nothing can print, and control
    characters, which a terminal would obey."""
    return not any("\ud800" <= c <= "\udfff" or (unicodedata.category(c) == "Cc" and c not in "\n\t") for c in value)


def shown(value: object) -> str:
    """A wrong value in a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class Reader:
    """Reads values by their types; UsageError says where the JSON does not fit. With `others`, objects may have fields
    that their classes have not: files of other versions have them. `text` takes texts with control characters, which
    are refused without it."""

    largest = 2.0**64  # of a number
    words: Mapping[Any, str] = {
        bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "an object", list: "a list"
    }  # fmt: skip

    def __init__(
        self, path: str, others: bool = False, way_out: str = "", text: Callable[[str], str] | None = None
    ) -> None:
        self.path, self.others, self.way_out, self.text = path, others, way_out, text
        self.special: dict[Any, Callable[[Any, str], Any]] = {object: self._param}

    def fail(self, at: str, message: str) -> Exception:
        return UsageError(f"{self.path}: {at}: {message}{self.way_out}")

    def wanted(self, kind: Any, value: object, at: str) -> Exception:
        return self.fail(at, f"{self.words[kind]} expected, found {shown(value)}")

    def read(self, hint: Any, value: Any, at: str) -> Any:
        """The value of this type that stands at this place."""
        if hint is str or hint is int or hint is float or hint is bool:
            return self._plain(hint, value, at)
        if isinstance(hint, type):
            special = self.special.get(hint)
            return self.object(hint, value, at) if special is None else special(value, at)
        if marks := _marks(hint):
            return self._marked(hint.__origin__, marks, value, at)
        origin = get_origin(hint)
        if origin is tuple:
            return self._tuple(get_args(hint), value, at)
        if origin is Literal:
            if any(value == allowed and type(value) is type(allowed) for allowed in get_args(hint)):
                return value
            raise self.fail(at, f"{value!r} is none of {', '.join(map(repr, get_args(hint)))}")
        if origin in (types.UnionType, Union):
            return self.union(get_args(hint), value, at)
        return self._mapping(get_args(hint)[1], value, at)

    def _plain(self, kind: Any, value: Any, at: str) -> Any:
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise self.wanted(kind, value, at)
        if kind is str:
            return self._text(value, at)
        if kind is not bool and not -self.largest < value < self.largest:
            raise self.wanted(kind, value, at)
        return value

    def _text(self, value: str, at: str) -> str:
        if self.text is not None:
            return self.text(value)
        if not is_text(value):
            raise self.fail(at, f"{json.dumps(value)[:_SHOWN]} is no text")
        return value

    def _param(self, value: Any, at: str) -> Any:
        if isinstance(value, list):
            return tuple(self._param(v, at) for v in value)
        if isinstance(value, str):
            return self._text(value, at)
        if type(value) is int:
            return value
        raise self.fail(at, f"a param is a number, a list or a type, not {shown(value)}")

    def _marked(self, hint: Any, marks: tuple[Any, ...], value: Any, at: str) -> Any:
        if PAIRS in marks:
            return tuple(self._mapping(object, value, at).items())
        found = self.read(hint, value, at)
        for mark in marks:
            if type(mark) is AtLeast and found < mark.value:
                raise self.fail(at, f"{found} is less than {mark.value}")
        return found

    def _tuple(self, args: tuple[Any, ...], value: Any, at: str) -> Any:
        if not isinstance(value, list):
            raise self.wanted(list, value, at)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(self.read(args[0], v, f"{at}[{i}]") for i, v in enumerate(value))
        if len(args) != len(value):
            raise self.fail(at, f"{len(args)} members expected, found {len(value)}")
        return tuple(self.read(a, v, f"{at}[{i}]") for i, (a, v) in enumerate(zip(args, value, strict=True)))

    def _mapping(self, hint: Any, value: Any, at: str) -> Any:
        if not isinstance(value, dict):
            raise self.wanted(dict, value, at)
        return {self._text(key, at): self.read(hint, v, f"{at}.{key[:_SHOWN]}") for key, v in value.items()}

    def union(self, args: tuple[Any, ...], value: Any, at: str) -> Any:
        """A value of one of these types: of classes the one that "type" names."""
        if value is None and type(None) in args:
            return None
        rest = [a for a in args if a is not type(None)]
        if len(rest) == 1:  # it may be left out
            return self.read(rest[0], value, at)
        classes = {c.__name__: c for c in rest if _is_record(c) and c not in self.special}
        if isinstance(value, dict):
            if len(classes) == 1 and "type" not in value:
                return self.object(next(iter(classes.values())), value, at)
            name = value.get("type")
            if isinstance(name, str) and name in classes:
                return self.object(classes[name], {k: v for k, v in value.items() if k != "type"}, at)
            raise self.fail(at, f"type {name!r} is none of {', '.join(classes)}")
        for a in rest:
            if not _is_record(a):
                return self.read(a, value, at)
        raise self.fail(at, f"found {shown(value)}")

    def object(self, cls: type, value: Any, at: str) -> Any:
        """A value of a dataclass."""
        if not isinstance(value, dict):
            raise self.wanted(dict, value, at)
        derived, called, inline = _derived(cls), _called(cls), _inline(cls)
        told = {name: v for name, v in value.items() if name not in derived} if derived or inline else value
        inner = {
            attribute: self.object(record, {name: told.pop(name) for name in hints(record)[0] if name in told}, at)
            for attribute, record in inline.items()
        }
        found = inner | self.values(*hints(cls), told, at)
        return cls(**{called.get(name, name): v for name, v in found.items()} if called else found)

    def values(
        self, hints: Mapping[str, Any], optional: frozenset[str], value: Mapping[str, Any], at: str
    ) -> dict[str, Any]:
        """The fields of an object, which has all of them but the optional ones."""
        if value.keys() != hints.keys():
            missing = sorted(hints.keys() - value.keys() - optional)
            extra = [] if self.others else sorted(value.keys() - hints.keys())
            if missing or extra:
                raise self.fail(at, f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(extra)}")
        given = ((name, hint) for name, hint in hints.items() if name in value)
        return {name: self.read(hint, value[name], f"{at}.{name}" if at else name) for name, hint in given}


# ---------------------------------------------------------------- schemas

_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", Path: "string"}
_VALUE = {
    "description": "A param's value: a size, a type's name, or a list of values.",
    "anyOf": [{"type": ["integer", "string"]}, {"type": "array", "items": {"$ref": "#/$defs/Value"}}],
}


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a record, or of a union of records. Titles and descriptions are those of docstrings, which
    describe a field by `name: Text.` at a line's begin."""
    defs: dict[str, Any] = {}
    body = _schema(kind, defs)
    records: list[Any] = [kind] if inspect.isclass(kind) else [*get_args(kind)]
    if len(records) == 1:
        body = defs.pop(kind.__name__)
    title = body.pop("description", None) or _described(records[0])[0]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return head | body | ({"$defs": dict(sorted(defs.items()))} if defs else {})


def _schema(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if hint is object:
        defs["Value"] = _VALUE
        return {"$ref": "#/$defs/Value"}
    if hint in _NAMES:
        return {"type": _NAMES[hint]}
    if origin is Annotated:
        if PAIRS in args:
            return _schema(Params, defs)
        least = [rule.value for rule in args[1:] if isinstance(rule, AtLeast)]
        return _schema(args[0], defs) | ({"minimum": least[0]} if least else {})
    if origin is Literal:
        return {"const": args[0]} if len(args) == 1 else {"enum": list(args)}
    if origin is tuple:
        size = {} if args[1:] == (Ellipsis,) else {"minItems": len(args), "maxItems": len(args)}
        return {"type": "array", "items": _schema(args[0], defs), **size}
    if origin in (types.UnionType, Union):
        members = [_schema(arg, defs) for arg in args]
        plain_ones = all(list(member) == ["type"] for member in members)
        return {"type": [m["type"] for m in members]} if plain_ones else {"anyOf": members}
    if _is_record(hint):
        if hint.__name__ not in defs:
            defs[hint.__name__] = {}  # it may hold itself
            defs[hint.__name__] = _object_schema(hint, defs)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": "object", "additionalProperties": _schema(args[1], defs)}


def _object_schema(cls: type, defs: dict[str, Any]) -> dict[str, Any]:
    about, told = _described(cls)
    others: Any = False
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, field in fields(cls).items():
        if INLINE in _marks(field.hint):
            inner = get_args(field.hint)[0]
            found = _object_schema(inner, defs) if _is_record(inner) else _schema(inner, defs)
            properties |= found.get("properties", {})
            required += found.get("required", [])
            others = found["additionalProperties"]
        else:
            properties[name] = _schema(field.hint, defs) | ({"description": told[name]} if name in told else {})
            required += [] if field.left_out else [name]
    return {
        "type": "object",
        **({"description": about} if about else {}),
        "required": required,
        "additionalProperties": others,
        "properties": properties,
    }


@cache
def _described(cls: type) -> tuple[str, Mapping[str, str]]:
    """What a class's docstring says of it, and of its fields."""
    told: dict[str, str] = {}
    about = ""
    for each in reversed(cls.__mro__[:-1]):
        about, *parts = re.split(rf"(?m)^({'|'.join(fields(cls))}): ", inspect.cleandoc(each.__doc__ or ""))
        told |= dict(_pairs(parts))
    return " ".join(about.split()), told


def _pairs(parts: list[str]) -> Iterator[tuple[str, str]]:
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        yield name, " ".join(text.split())

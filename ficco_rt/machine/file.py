"""Reads and writes machines as TOML files, which people edit and `ficco calibrate` writes.

The format follows the data model (`model.py`, `measured_tables.py`) field by field. Two things are shorter: rates by
dtype are a table, and tiers are one list, `[[tiers]]`, beginning with the innermost. A device or a tier may have a
table `sources`, which says where single numbers come from. `machine_rules.py` checks the content of a file.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import atomic
from ..files.arguments import near
from .machine_rules import Mistake, enough, hints, is_table, judged, members, mistakes, shown, unit_of
from .measured_tables import TITLES, Measured
from .model import Device, Links, Machine
from .units import Unit

VERSION = 1
SUFFIX = ".toml"
_TOP = ("version", "name", "source", "ranks", "device", "tiers", "measured")
_PAGE = "docs/machines.md"


def load(path: Path | str, ranks: int = 1) -> Machine:
    """The machine of a file, if it has `ranks` ranks. Raises UsageError with each mistake and its line."""
    return parse(atomic.read_text(path), str(path), ranks)


def save(machine: Machine, path: Path | str) -> None:
    """Write a machine to a file: all of it or nothing. Raises UsageError."""
    atomic.check_outputs([(atomic.MACHINE, path)])
    atomic.write_atomic(path, text_of(machine))


# ---------------------------------------------------------------- reading


def parse(text: str, name: str, ranks: int = 1) -> Machine:
    """The machine that a file's text describes, if it has `ranks` ranks; `name` is what messages call the file.
    Raises UsageError with each mistake and its line."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(_no_toml(str(error), text, name)) from None
    except RecursionError:
        raise UsageError(f"{name}: is no machine: it is nested too deeply") from None
    except ValueError:  # Python's own limit
        raise UsageError(f"{name}: is no machine: a number has thousands of digits") from None
    if "version" not in data:
        raise UsageError(f"{name}: is no machine: it has no 'version'; the first line is `version = {VERSION}`")
    if type(data["version"]) is not int or data["version"] != VERSION:
        raise UsageError(f"{name}: has version {shown(data['version'])}; this ficco reads version {VERSION}")
    reader = _Reader()
    machine = reader.machine(data)
    wrong = reader.wrong if machine is None else mistakes(machine) or enough(machine, ranks)
    if machine is None or wrong:
        lines = _lines(text)
        raise UsageError("\n".join(_told(mistake, lines, name) for mistake in wrong))
    return machine


class _Reader:
    """Reads values by the types of the data model, and keeps all mistakes."""

    def __init__(self) -> None:
        self.wrong: list[Mistake] = []
        self.sources: list[tuple[str, str]] = []

    def fail(self, path: str, fact: str) -> None:
        self.wrong.append(Mistake(path, fact))

    def machine(self, data: Mapping[str, Any]) -> Machine | None:
        for key in sorted(data.keys() - set(_TOP)):
            self.fail(key, f"is no key of a machine; its keys are {', '.join(_TOP)}{near(key, _TOP, quoted=True)}")
        for key in _TOP:
            if key not in data and key != "measured":
                self.fail(key, f"is missing ({_PAGE} has an example)")
        known = hints(Machine)
        values = {k: self.value(known[k], data[k], k) for k in ("name", "source", "ranks") if k in data}
        device = self.record(Device, data["device"], "device", sourced=True) if "device" in data else None
        tiers = data.get("tiers", [])
        if not isinstance(tiers, list) or ("tiers" in data and not tiers):
            self.fail("tiers", "at least one table [[tiers]] is needed, which says how ranks reach each other")
            tiers = []
        links = [self.record(Links, tier, f"tiers[{i}]", sourced=True) for i, tier in enumerate(tiers)]
        measured = self.record(Measured, data["measured"], "measured") if "measured" in data else None
        if self.wrong or not isinstance(device, Device):
            return None
        inner, *outer = links
        return Machine(
            **values, device=device, links=inner, outer=tuple(outer), measured=measured, sources=tuple(self.sources)
        )

    def record(self, cls: type, data: Any, path: str, sourced: bool = False) -> Any:
        """A table as a value of a class; with `sourced` it may have a table `sources`."""
        if not isinstance(data, Mapping):
            self.fail(path, f"a table is needed, not {shown(data)}")
            return None
        fields = hints(cls)
        needed = {f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}
        before = len(self.wrong)
        for key in sorted(data.keys() - fields.keys() - ({"sources"} if sourced else set())):
            self.fail(f"{path}.{key}", f"is no key here; keys are {', '.join(fields)}{near(key, fields, quoted=True)}")
        for key in sorted(needed - data.keys()):
            unit = unit_of(fields[key])
            self.fail(path, f"has no '{key}'" + (f" ({unit.words})" if unit and unit.words else ""))
        values = {k: self.value(hint, data[k], f"{path}.{k}") for k, hint in fields.items() if k in data}
        if sourced:
            tables = ((k, data[k]) for k, hint in fields.items() if is_table(hint) and k in data)
            known = {*fields, *(f"{k}.{name}" for k, table in tables if isinstance(table, Mapping) for name in table)}
            self._sources(data.get("sources", {}), path, known)
        return cls(**values) if len(self.wrong) == before else None

    def value(self, hint: Any, raw: Any, path: str) -> Any:
        found = self._plain(hint, raw, path)
        if not dataclasses.is_dataclass(_member(hint)):  # records are judged as they are read
            self.wrong += judged(found, hint, path)
        return found

    def _plain(self, hint: Any, raw: Any, path: str) -> Any:
        """TOML's value as the data model has it, if it can be."""
        unit = unit_of(hint)
        if unit is not None and typing.get_args(hint)[0] is float and type(raw) is int and unit.holds(raw):
            return float(raw)
        if hint is str and type(raw) is date:
            return raw.isoformat()
        if is_table(hint) and isinstance(raw, Mapping):
            inner = typing.get_args(typing.get_args(hint)[0])[1]
            return tuple((key, self._plain(inner, value, path)) for key, value in raw.items())
        if dataclasses.is_dataclass(_member(hint)):
            if not isinstance(raw, list):
                self.fail(path, f"a list of tables is needed, not {shown(raw)}")
                return ()
            return tuple(self.record(_member(hint), row, f"{path}[{i}]") for i, row in enumerate(raw))
        if typing.get_origin(hint) is tuple and isinstance(raw, list):
            inner_hints = members(hint, len(raw))
            if inner_hints is not None:
                return tuple(self._plain(h, r, path) for h, r in zip(inner_hints, raw, strict=True))
            return tuple(raw)
        return raw

    def _sources(self, data: Any, path: str, known: set[str]) -> None:
        if not isinstance(data, Mapping):
            self.fail(f"{path}.sources", f"a table is needed, not {shown(data)}")
            return
        for key, text in _flat(data):
            before = len(self.wrong)
            self.wrong += judged(text, str, f"{path}.sources.{key}")
            if key not in known:
                self.fail(f"{path}.sources.{key}", f"is the source of no number here{near(key, known, quoted=True)}")
            if len(self.wrong) == before:
                self.sources.append((f"{path}.{key}", text))


def _member(hint: Any) -> Any:
    """The class of a list's members."""
    arguments = typing.get_args(hint)
    return arguments[0] if len(arguments) == 2 and arguments[1] is Ellipsis else None


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A table's values by their dotted names."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _no_toml(message: str, text: str, name: str) -> str:
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if place is None:
        return f"{name}: is no TOML: {message}"
    fact = message[: place.start()]
    where = f"{place[1]}:{place[2]}" if place[1] else str(len(text.splitlines()))
    return f"{name}:{where}: this is no TOML: {fact[:1].lower()}{fact[1:]}"


def _told(mistake: Mistake, lines: Mapping[str, int], name: str) -> str:
    """The mistake with its line, or the line of the nearest table that has one."""
    path = mistake.path
    while path not in lines and path:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return f"{name}:{lines[path]}: {mistake}" if path else f"{name}: {mistake}"


def _lines(text: str) -> dict[str, int]:
    """The line on which each table and each key stands, in a text that is TOML; keys in inline tables have none."""
    found: dict[str, int] = {}
    table, arrays = "", dict[str, int]()
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[(\[?)\s*([A-Za-z0-9_.\"'-]+)\s*\]+\s*(#.*)?$", line)  # no row of numbers
        if header is not None:
            names = header[2].replace('"', "").replace("'", "").split(".")
            table = ""
            for i, part in enumerate(names):
                table = f"{table}.{part}".lstrip(".")
                if i == len(names) - 1 and header[1]:
                    arrays[table] = arrays.get(table, -1) + 1
                if table in arrays:
                    table = f"{table}[{arrays[table]}]"
            found.setdefault(table, number)
            continue
        key = re.match(r"\s*([A-Za-z0-9_.\"'-]+)\s*=", line)
        if key is not None:
            name = key[1].replace('"', "").replace("'", "")
            found.setdefault(f"{table}.{name}".lstrip("."), number)
    return found


# ---------------------------------------------------------------- writing

_HEAD = f"""\
# A machine of ficco_rt; {_PAGE} says what each number means. Rates are what large copies and GEMMs reach.
# A number was measured if its source begins with "measured".
"""


def text_of(machine: Machine) -> str:
    """The file's text. Raises UsageError if the machine has mistakes, which no file may have."""
    wrong = mistakes(machine)
    if wrong:
        raise UsageError("\n".join(f"machine {shown(machine.name)}: {mistake}" for mistake in wrong))
    lines = [_HEAD, f"version = {VERSION}"]
    lines += [f"{key} = {_value(getattr(machine, key))}" for key in ("name", "source", "ranks")]
    lines += ["", "[device]", *_record(machine.device, "device"), *_own_sources(machine, "device", "device")]
    for i, links in enumerate(machine.tiers):
        lines += ["", "[[tiers]]", *_record(links, "tiers"), *_own_sources(machine, f"tiers[{i}]", "tiers")]
    measured = machine.measured
    if measured is not None:
        lines += ["", "[measured]", *_record(measured, "measured")]
        for name, title in TITLES.items():
            records = getattr(measured, name)
            lines += ["", f"# {title}"] if records else []
            for i, record in enumerate(records):
                lines += [*([""] if i else []), f"[[measured.{name}]]", *_record(record, name)]
    return "\n".join(lines).rstrip() + "\n"


def _record(value: Any, table: str) -> list[str]:
    """The lines of a table. What has its default is left out; tables inside come last."""
    lines, rows, tables = [], [], []
    for f in dataclasses.fields(value):
        inner, hint = getattr(value, f.name), hints(type(value))[f.name]
        if inner == f.default or dataclasses.is_dataclass(_member(hint)):
            continue
        if is_table(hint):
            unit = unit_of(typing.get_args(typing.get_args(hint)[0])[1])
            tables += ["", f"[{table}.{f.name}]{_comment(unit)}", *(f"{_key(k)} = {_value(v)}" for k, v in inner)]
        elif typing.get_origin(hint) is tuple and inner and isinstance(inner[0], tuple):
            rows += [f"{f.name} = [{_columns(hint)}", *(f"  {_value(row)}," for row in inner), "]"]
        else:
            lines.append(f"{f.name} = {_value(inner)}{_comment(unit_of(hint))}")
    return [*lines, *rows, *tables]


def _own_sources(machine: Machine, path: str, table: str) -> list[str]:
    told = [(p.removeprefix(f"{path}."), text) for p, text in machine.sources if p.startswith(f"{path}.")]
    return ["", f"[{table}.sources]", *(f"{_key(k)} = {_value(text)}" for k, text in told)] if told else []


def _comment(unit: Unit | None) -> str:
    return f"  # {unit.words}" if unit is not None and unit.words not in ("", "seconds", "times") else ""


def _columns(hint: Any) -> str:
    """What the numbers of a point are."""
    units = [unit_of(h) for h in typing.get_args(_member(hint))]
    shapes = iter("mnk")
    words = [(u.words or next(shapes)) if u is not None else "" for u in units]
    return f"  # {', '.join(words)}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return _number(value)


def _number(value: float) -> str:
    """As people write it: 386e3, 4.2e6, 141_000_000_000, 6.0. It reads back to the same number."""
    if isinstance(value, int):
        return f"{value:_}"
    for exponent in (9, 6, 3):
        text = f"{value / 10**exponent:.6g}e{exponent}"
        if value >= max(10**exponent, 1e4) and "e+" not in text and float(text) == value:
            return text
    return repr(float(value))

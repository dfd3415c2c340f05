"""Rules of a valid machine, which apply to machines of files, of plans and of callers alike.

Each rule yields the mistakes that it finds: the path of the number (`device.sms`, `tiers[1].rate`), what is wrong, and
what would be right. Machines of several tiers are one list of tiers here, as they are in files.
"""

from __future__ import annotations

import dataclasses
import typing
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from ..types import TYPES
from .durations import Overheads, Power, VendorGemm
from .measured_tables import Measured
from .model import Device, Links, Machine
from .units import MOST, Unit


class Mistake(NamedTuple):
    """What is wrong with one number: its path, such as `tiers[1].rate`, and the fact with the way out."""

    path: str
    fact: str

    def __str__(self) -> str:
        return f"{self.path}: {self.fact}"


def mistakes(machine: Machine) -> list[Mistake]:
    """All that is wrong with a machine. What is of a wrong kind is told alone: other rules take kinds for granted."""
    return list(_kinds(machine)) or [mistake for rule in RULES for mistake in rule(machine)]


def enough(machine: Machine, ranks: int) -> list[Mistake]:
    """What is wrong with a machine's own file where `ranks` ranks are asked for. No rank is added: in a mesh the GPUs
    would have more links than they have, and a file may describe one node as it stands."""
    if ranks <= machine.ranks:
        return []
    last = machine.tiers[-1]
    where = f"here and in the last tier, '{last.name}'," if last.ranks and ranks > last.ranks else "here"
    way = f"write {ranks} {where} if the machine has so many, or ask for {machine.ranks} at most"
    return [Mistake("ranks", f"is {machine.ranks}, and {ranks} are needed; {way}")]


def hints(cls: type) -> dict[str, Any]:
    """The fields of a class of the data model, with their units."""
    return _hints(cls)


@cache
def _hints(cls: type) -> dict[str, Any]:
    found = typing.get_type_hints(cls, include_extras=True)
    return {f.name: found[f.name] for f in dataclasses.fields(cls)}


def unit_of(hint: Any) -> Unit | None:
    """The unit of a number's type; None for what is no number."""
    return next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Unit)), None)


def members(hint: Any, number: int) -> tuple[Any, ...] | None:
    """The types of a tuple's members, if it may have so many."""
    arguments = typing.get_args(hint)
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return (arguments[0],) * number
    return arguments if len(arguments) == number else None


def is_table(hint: Any) -> bool:
    """Whether a type is pairs of a name and something, which files have as a table."""
    arguments = typing.get_args(hint)
    return len(arguments) == 2 and arguments[1] is Ellipsis and typing.get_args(arguments[0])[:1] == (str,)


def _kinds(machine: Machine) -> Iterator[Mistake]:
    """Every value is of its field's kind and in its unit's range."""
    outer: Any = machine.outer
    if not isinstance(outer, tuple):
        yield Mistake("tiers", f"the outer ones are a tuple of Links, not {shown(outer)}")
        return
    parts: list[tuple[str, Any, Any]] = [("", machine, Machine), ("device", machine.device, Device)]
    parts += [(f"tiers[{i}]", links, Links) for i, links in enumerate(machine.tiers)]
    parts += [] if machine.measured is None else [("measured", machine.measured, Measured)]
    for path, value, cls in parts:
        if not isinstance(value, cls):
            yield Mistake(path, f"{cls.__name__} is needed")
            continue
        for name, hint in hints(cls).items():
            if cls is not Machine or name in ("name", "source", "ranks", "sources"):
                yield from judged(getattr(value, name), hint, f"{path}.{name}".lstrip("."))


def judged(value: Any, hint: Any, path: str) -> Iterator[Mistake]:
    """Whether a value is of a type of the data model, and in the range of its unit."""
    unit = unit_of(hint)
    if unit is not None:
        whole = typing.get_args(hint)[0] is int
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            yield Mistake(path, f"{'a whole number' if whole else 'a number'}{_in(unit)} is needed, not {shown(value)}")
        elif not unit.holds(value):
            yield Mistake(path, f"is {shown(value)}{_in(unit)}; it must be {unit.range}{_finite(value)}")
    elif hint is str:
        if not isinstance(value, str) or not is_text(value):
            yield Mistake(path, f"a text is needed, not {shown(value)}")
    elif typing.get_origin(hint) is typing.Literal:
        if value not in typing.get_args(hint):
            yield Mistake(path, f"{shown(value)} is none of {', '.join(map(str, typing.get_args(hint)))}")
    elif typing.get_origin(hint) is tuple:
        found = members(hint, len(value)) if isinstance(value, tuple) else None
        if found is None:
            yield Mistake(path, f"a list{_of(hint)} is needed, not {shown(value)}")
            return
        for i, (member, inner) in enumerate(zip(value, found, strict=True)):
            if is_table(hint) and isinstance(member, tuple) and len(member) == 2 and isinstance(member[0], str):
                yield from judged(member[1], typing.get_args(inner)[1], f"{path}.{member[0]}")
            else:
                yield from judged(member, inner, f"{path}[{i}]")
    elif not isinstance(value, hint):
        yield Mistake(path, f"{hint.__name__} is needed, not {shown(value)}")
    else:
        for name, inner in hints(hint).items():
            yield from judged(getattr(value, name), inner, f"{path}.{name}")


def _in(unit: Unit) -> str:
    return f" ({unit.words})" if unit.words else ""


def _finite(value: float) -> str:
    return "" if not value > MOST else f", and {MOST:g} at most"


def _of(hint: Any) -> str:
    """What a point has: ` of bytes, microseconds`."""
    units = [unit_of(h) for h in typing.get_args(hint)]
    if len(units) < 2 or None in units:
        return ""
    return f" of {len(units)} numbers"


def shown(value: Any) -> str:
    """A value in a message, not longer than a line."""
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def is_text(value: str) -> bool:
    """Whether a text holds only printable characters, and none that a terminal takes as a command."""
    return value.isprintable() or not any(unicodedata.category(c) in ("Cc", "Cs") for c in value)


# ---------------------------------------------------------------- rules, once all values are of their kinds


def it_has_names(machine: Machine) -> Iterator[Mistake]:
    """A machine, its device and its tiers have names, which are a few words; tiers have different ones."""
    named = [("name", machine.name), ("device.name", machine.device.name), ("device.arch", machine.device.arch)]
    for path, name in (*named, *((f"tiers[{i}].name", links.name) for i, links in enumerate(machine.tiers))):
        if not name.strip() or len(name) > 200:
            yield Mistake(path, f"{shown(name)} is no name; give one of 1 to 200 characters")
    names = [links.name for links in machine.tiers]
    for i, name in enumerate(names):
        if name in names[:i] or name == "device":
            taken = "another tier" if name in names[:i] else "what is inside a device"
            yield Mistake(f"tiers[{i}].name", f"'{name}' is the name of {taken}; give the tier its own")


def gemm_rates_are_there(machine: Machine) -> Iterator[Mistake]:
    """At least one element type has a rate, each once, and nothing else has one."""
    names = [name for name, _ in machine.device.gemm_rate]
    if not names:
        yield Mistake("device.gemm_rate", "has no rate; at least one type needs one, such as bf16")
    for name in {n for n in names if names.count(n) > 1}:
        yield Mistake(f"device.gemm_rate.{name}", "stands there twice")
    known = (*TYPES, "tf32")
    for name in names:
        if name not in known:
            yield Mistake(f"device.gemm_rate.{name}", f"is no element type; there are {', '.join(known)}")


def figures_have_names(machine: Machine) -> Iterator[Mistake]:
    """Overheads, power and the vendor's GEMM have the names that the model of time knows, each once. `beside` and
    `share` are shares."""
    for table, cls, whole in (
        ("overheads", Overheads, False),
        ("power", Power, True),
        ("vendor_gemm", VendorGemm, True),
    ):
        known = [f.name for f in dataclasses.fields(cls)]
        found = getattr(machine.device, table)
        names = [name for name, _ in found]
        for name in dict.fromkeys(names):
            if name not in known:
                yield Mistake(f"device.{table}.{name}", f"is no key here; keys are {', '.join(known)}")
            elif names.count(name) > 1:
                yield Mistake(f"device.{table}.{name}", "stands there twice")
        for name in known if whole and names else ():
            if name not in names:
                yield Mistake(f"device.{table}", f"has no '{name}'; it needs {' and '.join(known)}")
        for name, value in found:
            if (name in ("beside", "share") and value > 1) or (name in ("beside", "time", "reached") and value <= 0):
                allowed = {"beside": "above 0, and 1 at most", "share": "1 at most"}.get(name, "above 0")
                yield Mistake(f"device.{table}.{name}", f"is {shown(value)}; it must be {allowed}")


def a_block_fits(machine: Machine) -> Iterator[Mistake]:
    """What one block may ask for is no more than a multiprocessor has."""
    device = machine.device
    if device.smem_per_block + device.smem_reserved > device.smem_per_sm:
        yield Mistake(
            "device.smem_per_block",
            f"is {device.smem_per_block}, and a multiprocessor has {device.smem_per_sm} (smem_per_sm), of which a "
            f"block costs {device.smem_reserved} more (smem_reserved)",
        )


def tiers_nest(machine: Machine) -> Iterator[Mistake]:
    """Each tier joins whole groups of the one before, and the last one joins all ranks."""
    tiers = machine.tiers
    for i, (inner, outer) in enumerate(pairwise(tiers)):
        if not inner.ranks:
            yield Mistake(f"tiers[{i}].ranks", f"joins all ranks, so tier '{outer.name}' joins nothing; say how many")
        elif outer.ranks and (outer.ranks <= inner.ranks or outer.ranks % inner.ranks):
            way = f"a larger multiple of {inner.ranks}, or leave it out for all ranks"
            yield Mistake(
                f"tiers[{i + 1}].ranks", f"is {outer.ranks}; tier '{inner.name}' joins {inner.ranks}: give {way}"
            )
        if inner.ranks and inner.ranks % outer.ranks_a_port:
            yield Mistake(
                f"tiers[{i + 1}].ranks_a_port",
                f"is {outer.ranks_a_port}, which does not divide the {inner.ranks} ranks of tier '{inner.name}'",
            )
    if tiers[0].ranks_a_port != 1:
        yield Mistake("tiers[0].ranks_a_port", f"is {tiers[0].ranks_a_port}; ranks share ports of outer tiers alone")
    if tiers[-1].ranks and machine.ranks > tiers[-1].ranks:
        yield Mistake(
            "ranks", f"is {machine.ranks}, and the last tier, '{tiers[-1].name}', joins {tiers[-1].ranks} of them"
        )


def messages_are_outside(machine: Machine) -> Iterator[Mistake]:
    """Where ranks reach each other by messages alone, they do so in every tier further out."""
    for i, (inner, outer) in enumerate(pairwise(machine.tiers)):
        if inner.reach == "messages" and outer.reach == "memory":
            yield Mistake(
                f"tiers[{i + 1}].reach", f"is memory; tier '{inner.name}' inside it has messages: give messages here"
            )


def measurements_say_when(machine: Machine) -> Iterator[Mistake]:
    """A calibration has devices, a driver and a day."""
    found = machine.measured
    if found is None:
        return
    if not found.devices:
        yield Mistake("measured.devices", "is empty; name the devices that were measured")
    if not found.driver:
        yield Mistake("measured.driver", "is empty; name the driver's version")
    known = ""
    with suppress(ValueError):
        known = date.fromisoformat(found.date).isoformat()
    if found.date != known:
        yield Mistake("measured.date", f"{shown(found.date)} is no day; a day is written as 2026-11-22")


def tables_can_be_read(machine: Machine) -> Iterator[Mistake]:
    """Records name tiers that the machine has, and their points stand in the order of their sizes."""
    found = machine.measured
    if found is None:
        return
    places = ["device", *(links.name for links in machine.tiers)]
    for i, copy in enumerate(found.copies):
        if copy.where not in places:
            yield Mistake(f"measured.copies[{i}].where", f"{shown(copy.where)} is none of {', '.join(places)}")
    for name in ("copies", "gemms", "reductions", "contention"):
        for i, record in enumerate(getattr(found, name)):
            sizes = [point[:-1] for point in record.points]
            if not sizes:
                yield Mistake(f"measured.{name}[{i}].points", "is empty; a record has at least one point")
            elif any(a >= b for a, b in pairwise(sizes)):
                yield Mistake(f"measured.{name}[{i}].points", "are not in the order of their sizes, each size once")


RULES: tuple[Callable[[Machine], Iterator[Mistake]], ...] = (
    it_has_names,
    gemm_rates_are_there,
    figures_have_names,
    a_block_fits,
    tiers_nest,
    messages_are_outside,
    measurements_say_when,
    tables_can_be_read,
)

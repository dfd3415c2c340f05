"""`ficco machine`: show the numbers of a machine with their sources, and what was not measured."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from ..errors import UsageError
from ..files.records import HIDDEN, INLINE, Count
from ..machine.machine_rules import hints, is_table, unit_of
from ..machine.measured_tables import TITLES
from ..machine.model import Device, Links, Machine, TopologyKind
from ..machine.units import figure
from ..report.wording import count, show_bytes
from .console import Style, table
from .messages import tell

_CONDITIONS = ("kernel", "dtype", "layout", "where", "engine", "pattern", "what", "beside", "mode")
_COUNTS = ("senders", "terms", "row_pieces", "k_pieces", "sms", "seconds")


def machine(target: str | None, output: str | None, as_json: bool) -> int:
    """Print a machine, write it to a file, or list the stored ones."""
    from ..machine import file, profiles

    if target is None:
        if output is not None:
            raise UsageError("-o writes a machine to a file; name the machine, such as h200-switch")
        return _list(as_json)
    machine = profiles.read(target)
    if output is not None:
        file.save(machine, output)
        sys.stdout.write(f"{output}: {machine.name}, {_measured(machine)}\n")
        return 0
    return tell(as_json, lambda: record(machine), lambda style: render(machine, style))


def _list(as_json: bool) -> int:
    from ..machine.profiles import NAMES, stored

    machines = [stored(name) for name in NAMES]
    rows = [(m.name, count(m.ranks, "rank"), m.device.name, linked(m), _measured(m)) for m in machines]
    return tell(as_json, lambda: MachineList(tuple(map(record, machines))), lambda _: table(rows, indent="") + "\n")


# ---------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a device or a tier.

    unit: In words; empty: a count.
    measured: null: nothing to measure.
    """

    name: Annotated[str, HIDDEN]
    value: float
    unit: str
    measured: bool | None
    source: str


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A GPU: its numbers by name.

    arch: Such as sm_90a or gfx942.
    """

    name: str
    arch: str
    numbers: Annotated[Mapping[str, Number], INLINE]


@dataclass(frozen=True, slots=True)
class TierRecord:
    """Links: their numbers by name."""

    name: str
    kind: TopologyKind
    numbers: Annotated[Mapping[str, Number], INLINE]


@dataclass(frozen=True, slots=True)
class MeasuredRecord:
    """What was measured, with what, and when.

    devices: One for each rank.
    """

    devices: tuple[str, ...]
    driver: str
    software: str
    date: str


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """What `ficco machine --json` prints.

    source: Where its numbers come from.
    kernels: Which kernels multiply 16-bit types, in words.
    tiers: From the innermost.
    measured: null: nothing.
    tables: Entries of each table that a calibration measured.
    """

    name: str
    source: str
    ranks: Count
    kernels: str
    device: DeviceRecord
    tiers: tuple[TierRecord, ...]
    measured: MeasuredRecord | None
    tables: Mapping[str, Count]


@dataclass(frozen=True, slots=True)
class MachineList:
    """Without a name."""

    machines: tuple[MachineRecord, ...]


Told: TypeAlias = MachineRecord | MachineList


def parts(machine: Machine) -> Iterator[tuple[Any, dict[str, Number]]]:
    """The device and the tiers, each with its numbers by name."""
    for path, part in (("device", machine.device), *((f"tiers[{i}]", links) for i, links in enumerate(machine.tiers))):
        found = {}
        for name, hint in hints(type(part)).items():
            value, tabled = getattr(part, name), is_table(hint)
            unit = unit_of(hint.__args__[0].__args__[1] if tabled else hint)
            if unit is None:
                continue
            for key, number in [(f"{name}.{key}", of_key) for key, of_key in value] if tabled else [(name, value)]:
                source = machine.source_of(f"{path}.{key}")
                measured = source.startswith("measured") if unit.measurable else None
                found[key] = Number(key, number, unit.words, measured, source)
        yield part, found


def record(machine: Machine) -> MachineRecord:
    """The machine as JSON tells it."""
    (device, numbers), *tiers = parts(machine)
    return MachineRecord(
        name=machine.name,
        source=machine.source,
        ranks=machine.ranks,
        kernels=kernels(device.arch),
        device=DeviceRecord(device.name, device.arch, numbers),
        tiers=tuple(TierRecord(links.name, links.kind, found) for links, found in tiers),
        measured=MeasuredRecord(m.devices, m.driver, m.software, m.date) if (m := machine.measured) else None,
        tables={name: len(getattr(m, name)) if m else 0 for name in TITLES},
    )


def kernels(arch: str) -> str:
    """Which kernels multiply 16-bit types on an architecture, in words."""
    from ..kernels.families import tensor_core_families, tuned

    families = tensor_core_families(arch)
    if not families:
        return f"plain ones, right and slow: no kernel of ours uses matrix units of {arch}"
    told = ", then ".join(f"{family.name} ({family.instructions})" for family in families)
    if not tuned(arch):
        told += f"; none is made for {arch}, so GEMMs of ours do not reach the rates below"
    return told


def _library(device: Device) -> str:
    """What is known of the vendor's GEMM there."""
    from ..machine.durations import vendor_gemm, vendor_source, was_measured

    known = vendor_gemm(device)
    if known is None and not was_measured(device.arch):
        return "its GEMM has no price here, so choices count the rate of large GEMMs; ficco calibrate measures one"
    if known is None:
        return "its GEMM has no price here, so no choice takes kernel=vendor; ficco calibrate measures one"
    source = "below" if device.vendor_gemm else vendor_source(device)
    return (
        f"its GEMM: {known.reached:g} of the rate of large GEMMs between the ends of tiles, {known.ends:g} µs for "
        f"these, {known.start:g} µs a call: {source}"
    )


def linked(machine: Machine) -> str:
    """`switch`, or `2 ranks by mesh, all by switch`."""
    if not machine.outer and not machine.links.ranks:
        return machine.links.kind
    return ", ".join(f"{_joined(links)} by {links.kind}" for links in machine.tiers)


def _joined(links: Links) -> str:
    return count(links.ranks, "rank") if links.ranks else "all"


def _measured(machine: Machine) -> str:
    found = [n.measured for _, numbers in parts(machine) for n in numbers.values() if n.measured is not None]
    if not any(found):
        return "not measured"
    return f"{sum(found)} of {len(found)} rates and times measured"


# ---------------------------------------------------------------- words


def render(machine: Machine, style: Style) -> str:
    """The machine for people."""
    (device, numbers), *tiers = parts(machine)
    measured = machine.measured
    out = [
        f"{style(machine.name, 'bold')}: {count(machine.ranks, 'rank')}, {linked(machine)}; {_measured(machine)}",
        f"  source   {machine.source}",
        f"  kernels  {kernels(device.arch)}",
        f"  vendor   {_library(device)}",
        "",
        f"{style(device.name, 'bold')} ({device.arch})",
        _numbers(numbers.values()),
    ]
    for links, numbers in tiers:
        title = style(f"Tier {links.name}", "bold")
        by = "" if links.reach == "memory" else ", by messages of NCCL or RCCL alone"
        out += ["", f"{title}: {links.kind} of {_joined(links)}{by}", _numbers(numbers.values())]
    out += ["", style("Measurements", "bold")]
    if measured is not None:
        where = f"{', '.join(measured.devices)}; driver {measured.driver}"
        out.append(f"  {measured.date}, {where}" + (f", {measured.software}" if measured.software else ""))
    for name, title in TITLES.items():
        records = getattr(measured, name) if measured is not None else ()
        out.append(f"  {title}: " + (count(len(records), "record") if records else "not measured"))
        if records:
            out.append(table([_row(r) for r in records], indent="    "))
    return "\n".join(out) + "\n"


def _numbers(numbers: Iterable[Number]) -> str:
    words = {True: "measured", False: "not measured", None: ""}
    rows, last = [], ""
    for n in numbers:
        source = n.source.removeprefix("not measured: ").removeprefix("measured ")
        if not source and n.measured is not None:
            source = "see source"
        rows.append((n.name, _value(n), words[n.measured], "as above" if source and source == last else source))
        last = source
    return table(rows, right=frozenset((1,)))


def _value(number: Number) -> str:
    match number.unit:
        case "bytes":
            return show_bytes(number.value)
        case "bytes a microsecond":
            return f"{figure(number.value * 1e-3, 4)} GB/s"
        case "operations a microsecond":
            return f"{figure(number.value * 1e-6, 4)} TFLOP/s"
        case "microseconds":
            return f"{figure(number.value, 4)} µs"
    return "all" if number.name == "ranks" and not number.value else str(number.value)


def _row(found: Any) -> tuple[str, ...]:
    """A record of a table: its conditions, its points or its number, its source."""
    fields = hints(type(found))
    told = [str(getattr(found, name)) for name in _CONDITIONS if name in fields]
    said = [f"{name} {value}" for name in _COUNTS if (value := getattr(found, name, 0)) not in (0, 1)]
    if "points" in fields:
        first, last = found.points[0], found.points[-1]
        value = f"{count(len(found.points), 'point')}, {_point(first)} … {_point(last)}"
    else:
        value = f"{figure(found.time, 4)} µs" if "time" in fields else figure(found.factor, 4)
    return " ".join(told), ", ".join(said), value, found.source


def _point(point: tuple[float, ...]) -> str:
    *sizes, value = point
    return f"{' × '.join(f'{size:.15g}' for size in sizes)}: {figure(value, 4)}"

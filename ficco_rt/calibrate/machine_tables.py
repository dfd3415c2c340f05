"""Converts measurements into the tables that a machine's file stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..machine import measured_tables
from ..machine.model import Machine
from .fit import Constant, contention, copied, operations, shape_of
from .measure import Point, Series
from .probes import FP8_PRODUCTS, VENDOR_PRODUCT

_COSTS: tuple[tuple[str, measured_tables.CostName, measured_tables.CostMode], ...] = (
    ("copy_behind", "copy", "streams"),
    ("graph_copy_behind", "copy", "graph"),
    ("record", "record_event", "streams"),
    ("launch_behind", "launch", "streams"),
    ("graph_launch_behind", "launch", "graph"),
    ("signal_time", "wait_event", "streams"),
    ("graph_signal_time", "wait_flag", "graph"),
)


def measured_of(
    series: Sequence[Series], found: Mapping[str, Constant], machine: Machine, device: str, driver: str, date: str
) -> measured_tables.Measured:
    """`date` is an ISO one; `found` the constants of the series."""
    by = {s.probe.name: s.points for s in series}
    return measured_tables.Measured(
        devices=(device,) * machine.ranks,
        driver=driver,
        date=date,
        copies=tuple(_copies(by, machine)),
        gemms=tuple(_gemms(by)),
        reductions=tuple(_reductions(by)),
        contention=tuple(_contention(series)),
        costs=tuple(
            measured_tables.Cost(what, mode, time, f"probe '{c.probe}'")
            for name, what, mode in _COSTS
            if (c := found.get(name)) is not None and (time := c.measured) is not None
        ),
        sustained=tuple(_sustained(by)),
    )


def _copies(by: Mapping[str, Sequence[Point]], machine: Machine) -> Iterator[measured_tables.CopyTimes]:
    node = machine.links.name
    pattern: measured_tables.Pattern = "both_ways" if machine.ranks == 2 else "staggered"
    whole, inside = ([p for p in by.get(name, ()) if p.params["pieces"] == 1] for name in ("push", "inside"))
    if whole:
        yield measured_tables.CopyTimes(node, "copy", pattern, _sized(whole))
    if by.get("incast"):
        yield measured_tables.CopyTimes(node, "copy", "incast", _sized(by["incast"]), senders=machine.ranks - 1)
    if inside:
        yield measured_tables.CopyTimes("device", "copy", "one", _sized(inside))
    for point in by.get("stores", ()):
        yield measured_tables.CopyTimes(node, "sm", pattern, _sized([point]), sms=point.params["width"])


def _sized(points: Sequence[Point]) -> tuple[tuple[int, float], ...]:
    """Each size once: small probes have some twice."""
    return tuple(sorted({copied(p.params): p.micros for p in points}.items()))


def _gemms(by: Mapping[str, Sequence[Point]]) -> Iterator[measured_tables.GemmRates]:
    groups: dict[tuple[str, bool, int, int], dict[tuple[int, int, int], float]] = {}
    coarse = tuple(name for name, *_ in FP8_PRODUCTS)
    for name in ("product", VENDOR_PRODUCT, *coarse, "pieces of rows", "pieces of K"):
        for p in by.get(name, ()):
            rates = groups.setdefault((p.kernel, name in coarse, p.params["pieces"], p.params["deep"]), {})
            rates[shape_of(p.params)] = operations(p.params) / p.micros
    for (kernel, fp8, rows, deep), rates in groups.items():
        each = tuple((*shape, rate) for shape, rate in sorted(rates.items()))
        dtype = "fp8_e4m3" if fp8 else "bf16"
        yield measured_tables.GemmRates(kernel, dtype, "nt" if fp8 else "nn", each, row_pieces=rows, k_pieces=deep)


def _reductions(by: Mapping[str, Sequence[Point]]) -> Iterator[measured_tables.ReduceTimes]:
    groups: dict[int, list[Point]] = {}
    for p in by.get("sum", ()):
        groups.setdefault(p.params["terms"], []).append(p)
    for terms, points in groups.items():
        yield measured_tables.ReduceTimes("bf16", terms, _sized(points))


def _contention(series: Sequence[Series]) -> Iterator[measured_tables.Contention]:
    groups: dict[bool, dict[tuple[int, int, int, int], float]] = {}
    for loss in contention(series):
        key = *shape_of(loss.params), loss.params["copies"] * copied(loss.params)
        groups.setdefault(loss.copies_are_longer, {})[key] = 1 + max(0.0, loss.share)
    for copies, found in groups.items():
        points = tuple((*key, factor) for key, factor in sorted(found.items()))
        sides: tuple[measured_tables.Activity, measured_tables.Activity] = (
            ("copy", "gemm") if copies else ("gemm", "copy")
        )
        yield measured_tables.Contention(*sides, "copy", points)


def _sustained(by: Mapping[str, Sequence[Point]]) -> Iterator[measured_tables.Sustained]:
    if len(by.get("again", ())) == 2:
        once, many = by["again"]
        factor = once.micros * many.params["times"] / many.micros
        yield measured_tables.Sustained("bf16", many.micros / 1e6, factor)

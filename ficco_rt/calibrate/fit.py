"""From the times of probes to what a machine is described by. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..machine.cost import gemm_rate
from ..machine.model import Machine
from ..machine.tables import Measured
from .measure import Point, Series
from .probes import ROW

BYTES = 2  # of an element
_LINKS, _DEVICE = ("rate", "copy_time", "signal_time"), ("memory_rate", "launch_time")
LEAST = 0.1  # microseconds that anything takes
LARGE = 0.1  # of the operations of the largest product: those that go by the rate of GEMMs


@dataclass(frozen=True, slots=True)
class Constant:
    """A figure, its unit, and the probe that it rests on. `residual`: the median share by which the probe's times
    differ from what the figure says."""

    value: float
    unit: str
    probe: str
    residual: float = 0.0


def constants(measured: Sequence[Series], machine: Machine) -> dict[str, Constant]:
    """By name, as many as the probes tell. Times in microseconds, rates in bytes or operations a microsecond. `machine`
    is what the plans were made for: its rate of GEMMs, its launches and its signals change by as much as what was
    measured differs from the model."""
    series = {s.probe.name: s.points for s in measured if len(s.points) > 1}
    found: dict[str, Constant] = {}
    found |= _copies(series, "push", "")
    found |= _copies(series, "push as a graph", "graph_")
    if "inside" in series:
        _, rate, off = _line(series["inside"], lambda p: 2 * copied(p))
        found["inside_rate"] = Constant(1 / rate, "bytes a µs", "inside", off)
    for name, prefix in (("launches", ""), ("launches as a graph", "graph_")):
        if name in series:
            more, off = _beyond(series[name], lambda p: p["count"])
            found[f"{prefix}launch_time"] = Constant(max(LEAST, machine.device.launch_time + more), "µs", name, off)
    for name, prefix in (("hops", ""), ("hops as a graph", "graph_")):
        if name in series and "copy_time" in found:
            more, off = _beyond(series[name], lambda p: p["hops"])
            more -= found["copy_time"].value - machine.links.copy_time
            found[f"{prefix}signal_time"] = Constant(max(LEAST, machine.links.signal_time + more), "µs", name, off)
    if "sum" in series:
        _, rate, off = _line(series["sum"], lambda p: (p["terms"] + 1) * BYTES * ROW * p["height"])
        found["memory_rate"] = Constant(1 / rate, "bytes a µs", "sum", off)
    launch = found["launch_time"].value if "launch_time" in found else 0.0
    if "product" in series:
        most = max(operations(p.params) for p in series["product"])
        large = [p for p in series["product"] if operations(p.params) >= LARGE * most]
        shares = [max(0.1, p.modelled - machine.device.launch_time) / max(0.1, p.micros - launch) for p in large]
        share = statistics.median(shares)
        off = statistics.median(abs(s / share - 1) for s in shares)
        found["gemm_rate"] = Constant(gemm_rate(machine.device, "bf16") * share, "operations a µs", "product", off)
    if "stores" in series and "rate" in found:
        best = max(copied(p.params) / max(0.1, p.micros - launch) for p in series["stores"])
        found["stores"] = Constant(best / found["rate"].value, "of the rate of copy engines", "stores")
    if "again" in series:
        once, many = series["again"]
        share = (many.micros / many.params["times"]) / once.micros
        found["sustained"] = Constant(1 / share, "of the rate of a single run", "again")
    return found


def machine_of(found: Mapping[str, Constant], base: Machine, name: str, source: str, measured: Measured) -> Machine:
    """The machine `base` with the figures that were found in place of its own, each with its probe. Rates of other
    types than bf16 keep their share of it."""
    value = {key: constant.value for key, constant in found.items()}
    device, links = base.device, base.links
    share = value.get("gemm_rate", 0.0) / gemm_rate(device, "bf16") or 1.0
    device = replace(
        device,
        memory_rate=value.get("memory_rate", device.memory_rate),
        launch_time=value.get("launch_time", device.launch_time),
        gemm_rate=tuple((dtype, rate * share) for dtype, rate in device.gemm_rate),
    )
    links = replace(links, **{key: value.get(key, getattr(links, key)) for key in _LINKS})
    paths = {key: f"tiers[0].{key}" for key in _LINKS} | {key: f"device.{key}" for key in _DEVICE}
    sources = tuple(
        (path, f"measured: probe '{found[key].probe}', times off by {100 * found[key].residual:.1f} % in the median")
        for key, path in paths.items()
        if key in found
    )
    return replace(base, name=name, device=device, links=links, source=source, measured=measured, sources=sources)


@dataclass(frozen=True, slots=True)
class Loss:
    """How much longer something took than it would alone, or in one piece: 0.1 is 10 %."""

    params: Mapping[str, int]
    share: float


def decomposition(measured: Sequence[Series]) -> dict[str, list[Loss]]:
    """By probe: what cutting a GEMM costs."""
    series = {s.probe.name: s.points for s in measured}
    whole = {_shape(p.params): p.micros for p in series.get("product", ())}
    found = {}
    for name in ("pieces of rows", "pieces of K"):
        points = [p for p in series.get(name, ()) if _shape(p.params) in whole]
        found[name] = [Loss(p.params, p.micros / whole[_shape(p.params)] - 1) for p in points]
    return found


@dataclass(frozen=True, slots=True)
class Beside(Loss):
    """Of a GEMM and copies at once: by how much both took longer than the longer one alone."""

    copies_are_longer: bool


def contention(measured: Sequence[Series]) -> Iterator[Beside]:
    """The probe has each alone, then both."""
    points = next((s.points for s in measured if s.probe.name == "beside"), ())
    for copies, product, both in zip(points[::3], points[1::3], points[2::3], strict=False):
        longer = max(copies.micros, product.micros)
        yield Beside(both.params, both.micros / longer - 1, copies.micros > product.micros)


def _copies(series: Mapping[str, Sequence[Point]], name: str, prefix: str) -> dict[str, Constant]:
    """A copy's own time and the rate of its bytes: the time is a run's, a piece's each, and a byte's each."""
    points = series.get(name, ())
    if len({p.params["pieces"] for p in points}) < 2:
        return {}
    rows = [(1.0, p.params["pieces"], copied(p.params)) for p in points]
    (_, each, rate), off = _weighted(rows, points)
    found = {f"{prefix}copy_time": Constant(each, "µs", name, off)}
    if not prefix:
        found["rate"] = Constant(1 / rate, "bytes a µs", name, off)
    return found


def _line(points: Sequence[Point], of: Callable[[Mapping[str, int]], float]) -> tuple[float, float, float]:
    """The time at 0 and the time of each, and the residual."""
    (start, each), off = _weighted([(1.0, of(p.params)) for p in points], points)
    return start, each, off


def _beyond(points: Sequence[Point], of: Callable[[Mapping[str, int]], float]) -> tuple[float, float]:
    """How much longer each takes than the model says, and the residual."""
    _, each, off = _line(points, of)
    _, modelled, _ = _line([replace(p, micros=p.modelled) for p in points], of)
    return each - modelled, off


def _weighted(rows: Sequence[Sequence[float]], points: Sequence[Point]) -> tuple[list[float], float]:
    """Least squares of relative errors."""
    times = np.array([p.micros for p in points])
    matrix = np.array(rows, float)
    scale = matrix.max(axis=0)
    factors = np.linalg.lstsq(matrix / scale / times[:, None], np.ones(len(points)), rcond=None)[0] / scale
    return [float(f) for f in factors], float(np.median(np.abs(matrix @ factors / times - 1)))


def copied(params: Mapping[str, int]) -> int:
    return BYTES * ROW * params["height"]


def operations(params: Mapping[str, int]) -> float:
    return 2.0 * params["M"] * params["N"] * params["K"]


def _shape(params: Mapping[str, int]) -> tuple[int, int, int]:
    return params["M"], params["N"], params["K"]

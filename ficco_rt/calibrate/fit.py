"""Fits the constants of a machine to the times of probes. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import hypot
from typing import Annotated, Any

import numpy as np

from ..files.records import HIDDEN, Named
from ..kernels.vendor_cost import call_time
from ..machine.durations import VENDOR_GEMMS, Overheads, VendorGemm, gemm_rate, overheads, vendor_gemm
from ..machine.measured_tables import Measured
from ..machine.model import Device, Machine
from ..machine.units import figure
from .measure import Point, Series
from .probes import FP8_PRODUCTS, ROW, VENDOR_PRODUCT

BYTES = 2  # of an element
_LINKS, _DEVICE = ("rate", "copy_time", "signal_time"), ("memory_rate", "launch_time")
OVERHEADS = tuple(f.name for f in fields(Overheads))
VENDOR = ("reached", "start")  # of the vendor's GEMM
_RATES = {"gemm_rate": "bf16", "fp8_rate": "fp8_e4m3"}  # of large GEMMs, and the type of their operands
# What the probes found on GPUs of a kind whose stored figures are fitted to the times of schedules, by a device's name.
# Probes have links, memory and multiprocessors to themselves, and find operands in L2, so schedules need more than they
# find. So a stored figure is changed by as much as they find another one here than they found there. NVIDIA H200: the
# means of two calibrations of two GPUs on 23 November 2026; the kept measurements may be of other GPUs
FOUND: Mapping[str, Mapping[str, float]] = {
    "NVIDIA H200": {
        "rate": 395.7e3, "copy_time": 3.55, "signal_time": 4.0, "memory_rate": 4.03e6, "gemm_rate": 773.2e6,
        "frame": 3.32, "inside_behind": 3.01, "event_to_copy": -0.7, "event_to_kernel": -0.43, "beside": 0.938,
    }
}  # fmt: skip
LEAST = 0.1  # microseconds that anything takes
_ROUNDS = 4
SURE = 2.0  # standard errors: a figure is told from noise if it is above 0 by so many, or from another one
MEDIAN = 0.065  # standard error of a median of 25 runs, as a share of the runs' range
LARGE = 0.1  # of the operations of the largest product: those that go by the rate of GEMMs


@dataclass(frozen=True, slots=True)
class Noise:
    """What was measured, and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class Constant:
    """A figure of the machine. `error`: its standard error, 0 where that is not known. `usual`: what `FOUND` has.

    probe: The probe that found it.
    residual: The median share by which the probe's times differ from what the figure says.
    host: The host issued the probe's runs while they ran: the figure may be the time of the host.
    noise: Null, or what was measured: it cannot be told from noise, or from what was found before, so the value is the
      one known before.
    found: Null, or what the probe found, where the value is the stored one of this device, changed by as much as the
      probe found another figure than it finds there.
    """

    value: float
    unit: str
    probe: str
    residual: float = 0.0
    host: bool = False
    error: Annotated[float, HIDDEN] = 0.0
    noise: Noise | None = None
    usual: Annotated[float | None, HIDDEN] = None
    found: float | None = None

    @property
    def measured(self) -> float | None:
        """What the probe found, whatever the value is; None: nothing but noise."""
        if self.noise is not None:
            return None if self.usual is None else self.noise.value
        return self.value if self.found is None else self.found


@dataclass(frozen=True, slots=True)
class _Least:
    """Factors by least squares, the standard error of each, and the residual."""

    factors: tuple[float, ...]
    errors: tuple[float, ...]
    off: float


class _Fit:
    """Finds constants one after another: each is what its probe's times tell beyond those found before. `base` is the
    machine that the plans were made for: what the probes say of the way that a figure takes part in a time is how much
    the times differ from the model's."""

    def __init__(self, measured: Sequence[Series], base: Machine) -> None:
        self.series = {s.probe.name: s.points for s in measured if len(s.points) > 1}
        self.modes = {s.probe.name: s.probe.mode for s in measured}
        self.base, self.known = base, overheads(base.device)
        self.found: dict[str, Constant] = {}
        self.further = 0.0  # how much longer a further small kernel takes than modelled, µs

    def add(self, name: str, value: float, probe: str, off: float = 0.0, unit: str = "µs", error: float = 0.0) -> None:
        """A time that cannot be told from noise stays what it was. One that only the tables have is left out."""
        host = self.modes[probe] == "streams" and not all(p.ahead for p in self.series[probe])
        if unit != "µs" or value > max(SURE * error, LEAST):
            self.found[name] = Constant(value, unit, probe, off, host, error)
        elif name in _LINKS + _DEVICE + OVERHEADS:
            self.found[name] = Constant(self.before(name), unit, probe, off, host, error, Noise(value, error))

    def before(self, name: str) -> float:
        """A figure as it was known before it was measured."""
        links, device = self.base.links, self.base.device
        if name in _RATES:
            return gemm_rate(device, _RATES[name])
        known = getattr(self.known if name in OVERHEADS else device if name in _DEVICE else links, name)
        return links.copy_time if known is None else float(known)

    def more(self, name: str, before: float) -> float:
        """By how much a figure is greater than what it was before it was measured; 0 if it was not."""
        return self.found[name].value - before if name in self.found else 0.0

    def alone(self) -> float:
        """What a run of one kernel takes beside the kernel."""
        launch, frame = self.base.device.launch_time, self.known.frame
        return launch + self.more("launch_time", launch) + frame + self.more("frame", frame)

    def beyond(self, probe: str, rows: Sequence[Callable[[Mapping[str, int]], float]]) -> _Least:
        """How much longer a run takes than the model says: at all, and for each of what `rows` count."""
        points = self.series[probe]
        matrix = [(1.0, *(row(p.params) for row in rows)) for p in points]
        found, modelled = _weighted(matrix, points), _weighted(matrix, [replace(p, micros=p.modelled) for p in points])
        more = tuple(a - b for a, b in zip(found.factors, modelled.factors, strict=True))
        return _Least(more, found.errors, found.off)

    # ---- kernels and runs

    def launches(self) -> None:
        """A chain of small kernels tells what a run costs at all: nearly nothing else is in a run of one kernel.

        Where launches begin early, a kernel behind another one hides its launch, and a further kernel shows what the
        kernel takes. The time of a launch then shows only together with what is before it, the frame of a run or an
        event. It stays what it is, and these are what is left."""
        for probe, prefix in (("launches", ""), ("launches as a graph", "graph_")):
            if probe in self.series:
                points = self.series[probe]
                least = _weighted([(1.0, p.params["count"] - 1) for p in points], points)
                self.add(f"{prefix}launch_behind", least.factors[1], probe, least.off, error=least.errors[1])
        if "launches" in self.series:
            least = self.beyond("launches", [lambda p: p["count"] - 1])
            start, self.further = least.factors
            if not any(p.early for p in self.series["launches"]):
                before = self.base.device.launch_time
                self.add("launch_time", before + self.further, "launches", least.off, error=least.errors[1])
            # a run of one kernel is the first of the chain: what each kernel takes longer, it takes longer too
            self.add("frame", self.known.frame + start - self.further, "launches", least.off, error=least.errors[0])

    def products(self) -> None:
        if "sum" in self.series:
            least = _weighted(
                [(1.0, (p.params["terms"] + 1) * copied(p.params)) for p in self.series["sum"]], self.series["sum"]
            )
            rate, error = _rate(least, 1)
            # sums of few terms have too few loads under way: then copies show what the memory gives
            inside = self.found.get("inside_rate")
            if inside is not None and inside.value > rate:
                self.add("memory_rate", inside.value, inside.probe, inside.residual, inside.unit, inside.error)
            else:
                self.add("memory_rate", rate, "sum", least.off, "bytes a µs", error)
        if "product" not in self.series:
            return
        self._rate("gemm_rate", "product", self.series["product"])
        coarse = [p for name, *_ in FP8_PRODUCTS for p in self.series.get(name, ())]
        if coarse:
            self._rate("fp8_rate", next(name for name, *_ in FP8_PRODUCTS if name in self.series), coarse)

    def _rate(self, name: str, probe: str, points: Sequence[Point]) -> None:
        """Of large products; what a run costs beside its product is known by now."""
        beside = self.base.device.launch_time + self.known.frame
        more = self.alone() - beside
        most = max(operations(p.params) for p in points)
        large = [p for p in points if operations(p.params) >= LARGE * most]
        shares = [max(0.1, p.modelled - beside) / max(0.1, p.micros - beside - more) for p in large]
        share = statistics.median(shares)
        off = statistics.median(abs(s / share - 1) for s in shares)
        self.add(name, gemm_rate(self.base.device, _RATES[name]) * share, probe, off, "operations a µs")

    def vendor(self) -> None:
        """What calls of the vendor's library take: the rate between the ends of its tiles by the median of the longer
        ones, then the start by the median of the shorter. `ends` stays what it is."""
        points = self.series.get(VENDOR_PRODUCT, ())
        if not points:
            return
        device, known = _device(self.found, self.base), _vendor_before(self.base)
        alone = [(p, p.micros - self.alone()) for p in sorted(points, key=lambda p: p.micros)]

        def time(p: Point, figures: VendorGemm) -> float:
            return call_time(*shape_of(p.params), device.sms, device, "bf16", figures)

        half = len(alone) // 2
        for _ in range(_ROUNDS):  # what ends, memory and waves leave of the rate
            share = statistics.median(time(p, known) / max(LEAST, t - known.start) for p, t in alone[half:])
            known = replace(known, reached=known.reached * share)
            start = statistics.median(t - time(p, known) for p, t in alone[: half or 1])
            known = replace(known, start=max(0.0, start))
        off = statistics.median(abs((known.start + time(p, known)) / max(LEAST, t) - 1) for p, t in alone)
        self.add("reached", known.reached, VENDOR_PRODUCT, off, "of the rate of large GEMMs")
        self.found["start"] = Constant(known.start, "µs", VENDOR_PRODUCT, off)  # 0 too: `reached` was found with it

    # ---- copies

    def copies(self) -> None:
        """A run of one copy costs the frame of a run and the latency of a lone copy. Every further piece of it costs
        what a copy right behind another one does."""
        for probe, name in (("push", "copy_behind"), ("push as a graph", "graph_copy_behind")):
            if len({p.params["pieces"] for p in self.series.get(probe, ())}) < 2:
                continue
            least = self._pieces(probe, 1)
            self.add(name, least.factors[1], probe, least.off, error=least.errors[1])
            if probe == "push":
                rate, error = _rate(least, 2)
                self.add("rate", rate, probe, least.off, "bytes a µs", error)
                if "records" in self.series:
                    self._record(least.errors[1])
        if len({p.params["pieces"] for p in self.series.get("inside", ())}) > 1:
            least = self._pieces("inside", 2)
            rate, error = _rate(least, 2)
            self.add("inside_rate", rate, "inside", least.off, "bytes a µs", error)
            self.add("inside_behind", least.factors[1], "inside", least.off, error=least.errors[1])
        if "stores" in self.series and "rate" in self.found:
            best = max(copied(p.params) / max(0.1, p.micros - self.alone()) for p in self.series["stores"])
            self.add("stores", best / self.found["rate"].value, "stores", 0.0, "of the rate of copy engines")

    def _record(self, error: float) -> None:
        """What a further piece costs with an event behind it, less what a copy behind another one costs: so the two
        together are as measured, whether the copy can be told from noise or not."""
        points = self.series["records"]
        least = _weighted([(1.0, _further(p.params)) for p in points], points)
        behind = self.found["copy_behind"].value
        self.add("record", least.factors[1] - behind, "records", least.off, error=hypot(least.errors[1], error))

    def _pieces(self, probe: str, times: int) -> _Least:
        """What a run takes at all, each further piece, and each byte that goes so many times."""
        points = self.series[probe]
        return _weighted([(1.0, _further(p.params), times * copied(p.params)) for p in points], points)

    # ---- waits

    def waits(self) -> None:
        """A chain shows a copy and the wait before it as one time. The latency of a lone copy divides it, if that is
        known better than the wait is long. Otherwise the wait stays what it was, and the copy is what is left: so the
        two together are as measured."""
        self._latency()
        copy = self.more("copy_time", self.before("copy_time"))
        for probe, prefix in (("hops", ""), ("hops as a graph", "graph_")):
            if probe in self.series and "copy_time" in self.found:
                self._turn(f"{prefix}signal_time", probe, "hops", copy + self._longer("rate", probe))
        if "copy turns" in self.series and "copy_time" in self.found:
            inside = 2 * self._longer("inside_rate", "copy turns")
            self._turn("event_to_copy", "copy turns", "turns", copy + inside)
        if "kernel turns" in self.series and "frame" in self.found:
            self._turn("event_to_kernel", "kernel turns", "turns", self.further)

    def _latency(self) -> None:
        if "rate" not in self.found:
            return
        before, signal = self.base.links.copy_time, self.base.links.signal_time
        least = self.beyond("push", [_further, copied])
        alone = before + least.factors[0] - self.more("frame", self.known.frame)
        if "hops" in self.series:
            hops = self.beyond("hops", [lambda p: p["hops"]])
            both = before + signal + hops.factors[1] - self._longer("rate", "hops")
            error = hypot(least.errors[0], hops.errors[1])
            if both - alone <= max(SURE * error, LEAST):
                self.add("copy_time", both - signal, "hops", hops.off, error=hops.errors[1])
                return
        self.add("copy_time", alone, "push", least.off, error=least.errors[0])

    def _longer(self, rate: str, probe: str) -> float:
        """How much longer the bytes of a copy of the probe take at the rate that was found than they were modelled."""
        if rate not in self.found:
            return 0.0
        modelled = self.base.links.rate if rate == "rate" else self.base.device.memory_rate
        return copied(self.series[probe][0].params) * (1 / self.found[rate].value - 1 / modelled)

    def _turn(self, name: str, probe: str, counted: str, longer: float) -> None:
        """The wait of a chain's turn: what a turn takes longer than modelled, less what its copy or its kernel does
        (`longer`)."""
        least = self.beyond(probe, [lambda p: p[counted]])
        plain = name.removeprefix("graph_")
        value = self.before(plain) + least.factors[1] - longer
        self.add(name, value, probe, least.off, error=least.errors[1])

    # ---- what kernels keep

    def shares(self) -> None:
        kept = [
            1 / (1 + max(0.0, both.micros - product.micros) / copies.micros)
            for copies, product, both in _threes(self.series.get("beside", ()))
            if 0.5 * product.micros < copies.micros <= product.micros
        ]
        if kept:
            self.add("beside", statistics.median(kept), "beside", 0.0, "of a kernel's speed")
        if "again" in self.series:
            single, several = self.series["again"]
            once, many = single.micros - self.alone(), several.micros - self.alone()
            factor = many / several.params["times"] / once
            self.add("sustained", 1 / factor, "again", 0.0, "of the rate of a single run")


def constants(measured: Sequence[Series], machine: Machine) -> dict[str, Constant]:
    """The fitted constants by name, as many as the probes determine. Times in microseconds, rates in bytes or
    operations a microsecond. `machine` is what the plans were made for."""
    fit = _Fit(measured, machine)
    for step in (fit.launches, fit.copies, fit.waits, fit.products, fit.vendor, fit.shares):
        step()
    return {name: _told(name, constant, fit) for name, constant in fit.found.items()}


def _told(name: str, constant: Constant, fit: _Fit) -> Constant:
    """The stored figure, changed by as much as the probe found another one than `FOUND` has, where it has one; not
    changed where that cannot be told from noise."""
    usual = FOUND.get(fit.base.device.name, {}).get(name)
    if usual is None or constant.noise is not None:
        return constant
    before = fit.before(name)
    if abs(constant.value - usual) < SURE * constant.error:
        return replace(constant, value=before, noise=Noise(constant.value, constant.error), usual=usual)
    value = max(0.0, before + constant.value - usual) if constant.unit == "µs" else before * constant.value / usual
    return replace(constant, value=value, found=constant.value)


def machine_of(found: Mapping[str, Constant], base: Machine, name: str, source: str, measured: Measured) -> Machine:
    """The machine `base` with the figures that were found in place of its own, each with its probe."""
    figures: dict[str, Any] = {key: found[key].value for key in _LINKS if key in found}
    paths = {key: f"tiers[0].{key}" for key in _LINKS} | {key: f"device.{key}" for key in _DEVICE}
    paths |= {name: f"device.gemm_rate.{dtype}" for name, dtype in _RATES.items()}
    paths |= {key: f"device.overheads.{key}" for key in OVERHEADS}
    paths |= {key: f"device.vendor_gemm.{key}" for key in VENDOR}
    sources = tuple((path, _source(found[key], base.source_of(path))) for key, path in paths.items() if key in found)
    if VENDOR[0] in found:
        sources += (("device.vendor_gemm.ends", "not measured: fitted on an H200"),)
    device, links = _device(found, base), replace(base.links, **figures)
    return replace(base, name=name, device=device, links=links, source=source, measured=measured, sources=sources)


def _device(found: Mapping[str, Constant], base: Machine) -> Device:
    """The device with the figures that were found. Rates that were not found keep their share of bf16's."""
    value: dict[str, Any] = {key: constant.value for key, constant in found.items()}
    device = base.device
    share = value.get("gemm_rate", 0.0) / gemm_rate(device, "bf16") or 1.0
    rates = {dtype: rate * share for dtype, rate in device.gemm_rate}
    rates |= {dtype: value[name] for name, dtype in _RATES.items() if name in value}
    vendor = dict(device.vendor_gemm)
    if VENDOR[0] in value:
        vendor = asdict(_vendor_before(base)) | {key: value[key] for key in VENDOR}
    return replace(
        device,
        **{key: value[key] for key in _DEVICE if key in value},
        gemm_rate=tuple(rates.items()),
        overheads=tuple((dict(device.overheads) | {key: value[key] for key in OVERHEADS if key in value}).items()),
        vendor_gemm=tuple(vendor.items()),
    )


def _vendor_before(base: Machine) -> VendorGemm:
    """What the fit begins with."""
    return vendor_gemm(base.device) or VENDOR_GEMMS["NVIDIA H200"]


def _source(constant: Constant, before: str) -> str:
    stored = f" ({before})" if before else ""
    if constant.noise is not None:
        value, error = constant.noise.value, constant.noise.error
        what = "noise" if constant.usual is None else f"the {figure(constant.usual)} of two such GPUs"
        told = f"{figure(value)} ± {figure(error, 2)} {constant.unit}"
        return f"as stored{stored}: probe '{constant.probe}' cannot tell it from {what}, {told}"
    if constant.found is not None:
        return (
            f"measured: probe '{constant.probe}' found {figure(constant.found, 4)} {constant.unit}, which changes the "
            f"stored figure{stored}"
        )
    how = "measured with the time of the host in it" if constant.host else "measured"
    return f"{how}: probe '{constant.probe}', times off by {100 * constant.residual:.1f} % in the median"


@dataclass(frozen=True, slots=True)
class Loss:
    """How much longer something took than it would alone, or in one piece.

    loss: As a share: 0.1 is 10 %.
    """

    params: Mapping[str, int]
    share: Annotated[float, Named("loss")]


def decomposition(measured: Sequence[Series]) -> dict[str, tuple[Loss, ...]]:
    """By probe: what cutting a GEMM costs."""
    series = {s.probe.name: s.points for s in measured}
    whole = {shape_of(p.params): p.micros for p in series.get("product", ())}
    found: dict[str, tuple[Loss, ...]] = {}
    for name in ("pieces of rows", "pieces of K"):
        points = [p for p in series.get(name, ()) if shape_of(p.params) in whole]
        found[name] = tuple(Loss(p.params, p.micros / whole[shape_of(p.params)] - 1) for p in points)
    return found


@dataclass(frozen=True, slots=True)
class Beside(Loss):
    """Of a GEMM and copies at once: by how much both took longer than the longer one alone."""

    copies_are_longer: Annotated[bool, HIDDEN]


def contention(measured: Sequence[Series]) -> Iterator[Beside]:
    """The probe has each alone, then both."""
    points = next((s.points for s in measured if s.probe.name == "beside"), ())
    for copies, product, both in _threes(points):
        longer = max(copies.micros, product.micros)
        yield Beside(both.params, both.micros / longer - 1, copies.micros > product.micros)


def _weighted(rows: Sequence[Sequence[float]], points: Sequence[Point]) -> _Least:
    """Least squares of relative errors. The standard errors of the factors come from how far the times are off, or from
    how far runs of one point differ, whichever is more."""
    times = np.array([p.micros for p in points])
    matrix = np.array(rows, float)
    scale = matrix.max(axis=0)
    scaled = matrix / scale / times[:, None]
    factors = np.linalg.lstsq(scaled, np.ones(len(points)), rcond=None)[0] / scale
    off = matrix @ factors / times - 1
    left = len(points) - matrix.shape[1]
    scatter = [MEDIAN * (p.most - p.least) / p.micros for p in points]
    spread = max(
        float(np.sqrt(np.sum(off**2) / left)) if left > 0 else 0.0, float(np.sqrt(np.mean(np.square(scatter))))
    )
    errors = spread * np.sqrt(np.abs(np.diag(np.linalg.pinv(scaled.T @ scaled)))) / scale
    return _Least(tuple(map(float, factors)), tuple(map(float, errors)), float(np.median(np.abs(off))))


def _rate(least: _Least, factor: int) -> tuple[float, float]:
    """What goes in a time, where a factor says how long one takes; and its standard error."""
    rate = 1 / least.factors[factor]
    return rate, least.errors[factor] * rate**2


def _threes(points: Sequence[Point]) -> Iterator[tuple[Point, Point, Point]]:
    """Copies alone, the product alone, both."""
    yield from zip(points[::3], points[1::3], points[2::3], strict=False)


def _further(params: Mapping[str, int]) -> int:
    """Pieces behind the first."""
    return params["pieces"] - 1


def copied(params: Mapping[str, int]) -> int:
    return BYTES * ROW * params["height"]


def operations(params: Mapping[str, int]) -> float:
    return 2.0 * params["M"] * params["N"] * params["K"]


def shape_of(params: Mapping[str, int]) -> tuple[int, int, int]:
    return params["M"], params["N"], params["K"]

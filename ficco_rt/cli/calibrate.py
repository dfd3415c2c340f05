"""`ficco calibrate`: measure this machine's GPUs, and write the results as a machine's file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ..calibrate.fit import Beside, Constant, Loss, constants, contention, decomposition, machine_of
from ..calibrate.machine_tables import measured_of
from ..calibrate.measure import Clock, Series, measure
from ..calibrate.probes import Probe, probes
from ..driver.api import DriverName
from ..errors import DeviceError
from ..files.atomic import MACHINE, check_outputs
from ..machine.model import Machine
from ..machine.units import figure
from ..report.wording import count, show_params
from .console import Progress, Style, table
from .machine import MachineRecord
from .machine import record as machine_record
from .messages import tell

HOST = " *"  # behind a time that may be the host's
NOISE = " †"  # behind the probe of a figure that it cannot tell from noise
FOUND = " ‡"  # of a stored figure that is changed by as much as the probe found another one than it did before
MOST_GPUS = 8  # that are looked for


def calibrate(gpus: int | None, backend: str, seconds: int, name: str | None, output: str | None, as_json: bool) -> int:
    """Measure, print, and write the file, if one is asked for."""
    from ..calibrate.gpu_times import OnGpus
    from ..driver.registry import VENDORS, device_count, discover, driver_version

    check_outputs([(MACHINE, output)])
    found = [vendor for vendor in VENDORS if backend in ("auto", vendor) and device_count(vendor)]
    if not found and backend in ("auto", *VENDORS):
        raise DeviceError(
            "no GPU to be measured; `ficco machine` lists stored machines, docs/machines.md says how to write one"
        )
    vendor: DriverName = found[0] if found else backend  # type: ignore[assignment]
    clock = OnGpus(vendor)
    base = discover(vendor, gpus or min(MOST_GPUS, device_count(vendor)))
    begun = time.monotonic()
    with clock.open(base.ranks):
        series = observed(base, clock, seconds, Progress())
    driver = driver_version(vendor)
    machine = calibrated(series, base, name, driver)
    if output is not None:
        from ..machine.file import save

        save(machine, output)
    wrote = f"\n{output}: written; --machine {output} takes it\n" if output is not None else ""
    took = time.monotonic() - begun
    return tell(
        as_json,
        lambda: record(series, machine, base),
        lambda style: render(series, machine, base, took, style, clock.spent) + wrote,
    )


def observed(base: Machine, clock: Clock, seconds: float, progress: Progress) -> tuple[Series, ...]:
    wanted = list(probes())
    points = sum(len(probe.points) for probe in wanted)
    done: dict[str, int] = {}

    def report(probe: Probe, number: int, _: int) -> None:
        done[probe.name] = number
        progress.report(sum(done.values()) / points)

    with progress.step(f"measuring {count(base.ranks, 'GPU')}"):
        return measure(wanted, base, clock, seconds, report)


def calibrated(series: Sequence[Series], base: Machine, name: str | None, driver: str) -> Machine:
    """The machine that the times tell of."""
    date = datetime.now(UTC).date().isoformat()
    found = constants(series, base)
    tables = measured_of(series, found, base, base.device.name, driver, date)
    source = f"measured on {base.ranks} × {base.device.name} by `ficco calibrate`, {date}"
    return machine_of(found, base, name or base.name, source, tables)


# ---------------------------------------------------------------- what is told


@dataclass(frozen=True, slots=True)
class Calibration:
    """What `ficco calibrate --json` prints."""

    machine: MachineRecord
    constants: Mapping[str, Constant]
    probes: tuple[Series, ...]
    decomposition_loss: Mapping[str, tuple[Loss, ...]]
    contention_loss: tuple[Beside, ...]


def record(series: Sequence[Series], machine: Machine, base: Machine) -> Calibration:
    """What --json prints."""
    both = tuple(contention(series))
    return Calibration(machine_record(machine), constants(series, base), tuple(series), decomposition(series), both)


def render(
    series: Sequence[Series], machine: Machine, base: Machine, seconds: float, style: Style, spent: Mapping[str, float]
) -> str:
    found = constants(series, base)
    rows = [
        (
            name.replace("_", " "),
            figure(c.value, 4),
            c.unit,
            f"{100 * c.residual:.1f} %",
            c.probe + HOST * c.host + NOISE * (c.noise is not None) + FOUND * (c.found is not None),
        )
        for name, c in found.items()
    ]
    parts = [
        f"{machine.name}: {machine.source}, in {seconds:.0f} s",
        table([("", "value", "", "off by", "probe"), *rows], right=frozenset({1, 3})),
        style("what cutting and meeting costs", "bold"),
        table(_losses(series), right=frozenset({2})),
        style("times", "bold"),
        table(_times(series), right=frozenset({2, 3, 4})),
    ]
    if any(s.probe.mode == "streams" and not p.ahead for s in series for p in s.points):
        parts.append(f"{HOST.strip()} the host issued these runs while they ran: the time of a short one is the host's")
    told = ", ".join(
        f"{name.replace('_', ' ')} {figure(c.noise.value)} ± {figure(c.noise.error, 2)} {c.unit}"
        for name, c in found.items()
        if c.noise is not None
    )
    if told:
        parts.append(
            f"{NOISE.strip()} cannot be told from noise, so the figure is the one known before; measured: {told}"
        )
    known = {name.replace("_", " "): c.found for name, c in found.items() if c.found is not None}
    shown = ", ".join(f"{name} {figure(value, 4)}" for name, value in known.items())
    if shown:
        parts.append(
            f"{FOUND.strip()} the stored figure of {base.device.name}, which is of schedules, changed by as much as "
            f"the probe found another one here than on two such GPUs before; found: {shown}"
        )
    missing = [f"  {s.probe.name}: {s.missing}" for s in series if s.missing]
    parts += ["not measured:", *missing] if missing else []
    for what, each in (("probes", {s.probe.name: s.seconds for s in series if s.points}), ("on GPUs", spent)):
        told = ", ".join(f"{name} {time:.1f}" for name, time in each.items())
        parts += [f"seconds, {what}: {told}"] if told else []
    return "\n".join(parts) + "\n"


def _losses(series: Sequence[Series]) -> Iterator[tuple[str, str, str]]:
    yield "", "", "longer by"
    for name, losses in decomposition(series).items():
        for loss in losses:
            yield name, show_params(loss.params.items()), f"{100 * loss.share:.1f} %"
    for both in contention(series):
        name = "copies beside a GEMM" if both.copies_are_longer else "a GEMM beside copies"
        yield name, show_params(both.params.items()), f"{100 * both.share:.1f} %"


def _times(series: Sequence[Series]) -> Iterator[tuple[str, ...]]:
    yield "probe", "", "µs", "spread", "profile says"
    for s in series:
        for p in s.points:
            spread = f"{100 * (p.most - p.least) / p.micros:.0f} %"
            mark = HOST if s.probe.mode == "streams" and not p.ahead else ""
            yield s.probe.name, show_params(p.params.items()), f"{p.micros:.1f}{mark}", spread, f"{p.modelled:.1f}"

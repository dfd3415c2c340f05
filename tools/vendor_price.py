"""The figures of the vendor's GEMM on this machine's first GPU, and whether a choice by them is right.

    python -m tools.vendor_price [--seconds 50]

It measures the probes of `ficco calibrate` that the figures rest on, and the same products by our own kernels. It
prints each product's time and price, by the library and by ours, whom a choice takes by the prices and who was faster,
and the figures as `VENDOR_GEMMS` of ficco_rt/machine/durations.py has them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ficco_rt.calibrate.fit import Constant, constants
from ficco_rt.calibrate.measure import Clock, Series, measure
from ficco_rt.calibrate.probes import VENDOR_PRODUCT, Probe, probes
from ficco_rt.machine.durations import VendorGemm, vendor_gemm
from ficco_rt.machine.model import Machine
from ficco_rt.select.choose import AHEAD

OURS = "the same by ours"
NEEDED = ("launches", VENDOR_PRODUCT)


def wanted() -> tuple[Probe, ...]:
    by = {probe.name: probe for probe in probes()}
    ours = replace(by["product"], name=OURS, points=by[VENDOR_PRODUCT].points)
    return (*(by[name] for name in NEEDED), ours)


def report(series: Sequence[Series], machine: Machine) -> Iterator[str]:
    """The table, then the figures."""
    by = {s.probe.name: s for s in series}
    library, ours = by[VENDOR_PRODUCT], by[OURS]
    if library.missing or ours.missing:
        yield f"not measured: {library.missing or ours.missing}"
        return
    yield f"{machine.device.name}, bf16, µs of a run; AHEAD = {AHEAD:g}"
    yield "| m × n × k | vendor | price | ours | price | vendor / ours | by prices | by prices it is | right |"
    yield "|---|--:|--:|--:|--:|--:|--:|---|---|"
    for v, o in zip(library.points, ours.points, strict=True):
        measured, priced = v.micros / o.micros, v.modelled / o.modelled
        taken = priced * (1 + AHEAD) < 1
        lost = (measured if taken else 1 / measured) - 1
        shape = f"{v.params['M']} × {v.params['N']} × {v.params['K']}"
        yield (
            f"| {shape} | {v.micros:.1f} | {v.modelled:.1f} | {o.micros:.1f} "
            f"| {o.modelled:.1f} | {measured:.3f} | {priced:.3f} | {'the vendor’s' if taken else 'ours'} "
            f"| {'yes' if lost <= 0 else f'loses {100 * lost:.0f} %'} |"
        )
    yield figures(constants(series, machine), machine)


def figures(found: dict[str, Constant], machine: Machine) -> str:
    known = vendor_gemm(machine.device) or VendorGemm(1.0, 2.0, 2.5)
    made = VendorGemm(round(found["reached"].value, 2), known.ends, round(found["start"].value, 1))
    return f'"{machine.device.name}": {made}  # off by {100 * found["reached"].residual:.1f} % in the median'


def main(words: Sequence[str], clock: Clock | None = None, machine: Machine | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=50.0)
    args = parser.parse_args(words)
    if clock is None or machine is None:
        from ficco_rt.calibrate.gpu_times import OnGpus
        from ficco_rt.driver.registry import discover

        clock, machine = OnGpus("cuda"), discover("cuda", 1)
    lines = list(report(measure(wanted(), machine, clock, args.seconds), machine))
    print("\n".join(lines))
    return 0 if len(lines) > 1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Whose GEMM is faster for a product that nothing runs beside, ours or the vendor's: measured once on a GPU, and kept.

The operands change from product to product and exceed L2, as weights of a model do. No product begins before the one
before it has ended, as behind a collective.
"""

from __future__ import annotations

from math import ceil
from statistics import median

from ..compiler import build, plan_of
from ..driver.api import DriverName
from ..driver.registry import discover, driver_version, gemms_version, uncaptured
from ..errors import DeviceError
from ..files.store import user_store
from ..graph.overrides import by_library
from ..kernels.families import AloneTimes, PlainProduct
from ..machine.model import Machine
from ..process.group import Group
from ..types import TYPES
from .gpu_times import OnGpus
from .probes import schedule

_OPERANDS = 2e8  # bytes of them all, several times L2
_TURNS, _RUNS = 8, 15  # pairs of products of a run, of which the first ones take longer; and runs


def times(product: PlainProduct, driver: DriverName, group: Group | None = None) -> AloneTimes | None:
    """Of this process's GPU, or, of a group of this process alone, of the one that it takes there. None: it has no
    library, or no memory for the operands."""
    try:
        machine, library = discover(driver, 1), gemms_version(driver)
        key = ("alone", product, machine.device.name, driver_version(driver), library)
        found = user_store().get(key, AloneTimes)
        if found is None:
            clock = OnGpus(driver, group, runs=_RUNS, rest=0.0)
            with uncaptured(driver):
                found = AloneTimes(_micros(product, machine, clock), _micros(product, machine, clock, vendor=True))
            user_store().put(key, found)
        return found
    except DeviceError:
        return None


def _micros(product: PlainProduct, machine: Machine, clock: OnGpus, *, vendor: bool = False) -> float:
    """Of one product, with what lies between two."""
    m, n, k, item = product.m, product.n, product.k, TYPES[product.dtype].bytes
    count = max(2, min(2 * _TURNS, ceil(_OPERANDS / (item * k * (m + n)))))
    sizes = {"M": m, "N": n, "K": k, "T": product.dtype, "transb": int(product.right_transposed)}
    sizes |= {"count": count, "turns": _TURNS}
    text = by_library(schedule("alone")) if vendor else schedule("alone")
    return median(clock.times(plan_of(build(text, 1, sizes), machine), "graph").micros) / (2 * _TURNS)

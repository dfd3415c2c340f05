"""Which GEMM is fastest for a product that nothing runs beside, of ours and the vendor's: measured once on a GPU, and
kept.

The operands change from product to product and exceed L2, as weights of a model do. No product begins before the one
before it has ended, as behind a collective.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import ceil
from statistics import median

from ..compiler import build, plan_of
from ..driver.api import DriverName
from ..driver.registry import discover, driver_version, gemms_version, uncaptured
from ..errors import DeviceError
from ..files.arguments import KERNEL, VENDOR
from ..files.store import user_store
from ..kernels.families import AloneTimes, PlainProduct, family_of
from ..kernels.kernel_compiler import KERNELS, compile_file
from ..kernels.signature import Signature
from ..kernels.sm90.family import SM90
from ..machine.model import Machine
from ..plan.ir import Plan
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
                plans: dict[str | None, Plan] = {None: _plan(product, machine)}
                plans |= {kernel: _plan(product, machine, kernel) for kernel in _others(product, plans[None])}
                ours = {kernel: _micros(plan, clock) for kernel, plan in plans.items()}
                best = min(ours, key=lambda kernel: ours[kernel])
                found = AloneTimes(ours[best], _micros(_plan(product, machine, VENDOR), clock), kernel=best)
            user_store().put(key, found)
        return found
    except DeviceError:
        return None


def _others(product: PlainProduct, first: Plan) -> list[str]:
    """Kernels of ours that may be faster than that of the plan. All are compiled, at the same time."""
    (taken,) = {launch.kernel for _, launch in first.launches()}
    if family_of(taken) is not SM90:
        return []
    p = product
    found = [v for v, _ in SM90.promising(p.m, p.n, p.k, p.right_transposed, first.target.device, p.dtype)]
    options = [v.options(Signature(p.dtype, p.dtype, False, p.right_transposed)) for v in found]
    with ThreadPoolExecutor() as pool:
        list(pool.map(partial(compile_file, KERNELS / SM90.source), options))
    return [v.name for v in found if v.name != taken]


def _plan(product: PlainProduct, machine: Machine, kernel: str | None = None) -> Plan:
    """Of many such products, by that kernel."""
    m, n, k, item = product.m, product.n, product.k, TYPES[product.dtype].bytes
    count = max(2, min(2 * _TURNS, ceil(_OPERANDS / (item * k * (m + n)))))
    sizes: dict[str, object] = {"M": m, "N": n, "K": k, "T": product.dtype, "transb": int(product.right_transposed)}
    sizes |= {"count": count, "turns": _TURNS} | ({KERNEL: kernel} if kernel else {})
    return plan_of(build(schedule("alone"), 1, sizes), machine)


def _micros(plan: Plan, clock: OnGpus) -> float:
    """Of one product, with what lies between two."""
    return median(clock.times(plan, "graph").micros) / (2 * _TURNS)

"""The families of kernels, in order of preference, and the functions that query all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..files.arguments import VENDOR as LIBRARY
from ..files.arguments import near
from ..graph.ir import Body, Gemm
from ..machine.durations import vendor_gemm
from ..machine.model import Device
from ..types import TYPES, Dtype
from .block_fit import Footprint
from .family import Chosen, Family, GemmRequest, KernelConfig, LaunchRequest, Refusal, Tables
from .mfma.family import MFMA
from .naive.family import NAIVE, kernel_of
from .naive.plain_kernels import KERNELS
from .occupancy import Limits, out_of_limits, window
from .pace import Pace
from .sm80.family import SM80
from .sm90.family import SM90
from .user import USER
from .vendor_cost import FEW_ROWS, LONGEST, MEASURED, beside_ours
from .vendor_gemm import VENDOR
from .works import Work

FAMILIES: tuple[Family[Any], ...] = (SM90, SM80, MFMA, NAIVE)  # whose kernels are chosen; the vendor's are asked for
NAMED: tuple[Family[Any], ...] = (*FAMILIES, VENDOR)  # whose kernels plans name for products
_MEASURED = ("bf16", "bf16"), ("fp16", "fp16")  # types whose estimates were compared with the library's
_LEFT_OUT = "leave it out, and one is chosen"
_BY_KERNEL: dict[str, Family[Any]] = {v.name: f for f in NAMED for v in f.variants} | {k.name: NAIVE for k in KERNELS}
_BY_NAME: dict[str, Family[Any]] = {f.name: f for f in (*NAMED, USER)}


def family_of(kernel: str) -> Family[Any]:
    """The family of a kernel; names that are not ours are users' kernels."""
    return _BY_KERNEL.get(kernel, USER)


def footprints(limits: Limits) -> tuple[Footprint, ...]:
    """Blocks of all kernels for products on such a device, with the least shared memory that each runs with."""
    return tuple(found for family in FAMILIES if family.serves(limits.arch) for found in family.footprints(limits))


def fitting(request: GemmRequest, arch: str) -> Family[Any]:
    """The first family on this architecture that accepts the works, regardless of the requested attributes."""
    return next(f for f in FAMILIES if f.serves(arch) and f.fits(request) is None)


def tensor_core_families(arch: str) -> tuple[Family[Any], ...]:
    """The families that use an architecture's tensor cores."""
    return tuple(f for f in FAMILIES if f.instructions and f.serves(arch))


def choose(request: GemmRequest, limits: Limits) -> Chosen | str:
    """The kernel of the first family that takes the works with the attributes of the text; a text if no family does,
    and why."""
    if request.kernel == LIBRARY:
        return VENDOR.choose(request, limits)
    families = FAMILIES if request.kernel is None else tuple(f for f in FAMILIES if request.kernel in _names(f))
    if not families:
        known = [name for f in FAMILIES if f.serves(limits.arch) for name in _names(f)]
        hint = near(str(request.kernel), known) or f"; {_LEFT_OUT}"
        return f"kernel = {request.kernel}: no kernel for products is called so{hint}"
    asked = request.sms, request.residency, request.smem
    reason = out_of_limits(*asked, limits)
    if reason is not None:
        return reason
    left = window(request.residency, request.smem, limits)
    if isinstance(left, str):
        return left
    refused: list[Refusal] = []
    for family in families:
        if family.serves(limits.arch):
            found = family.choose(request, limits)
            if isinstance(found, Chosen):
                return replace(found, refused=tuple(refused))
        else:
            found = f"it does not run on {limits.arch}"
        refused.append(Refusal(family.name, found))
    reason = refused[-1].reason
    return reason if request.kernel is None else f"kernel = {request.kernel}: {reason}; {_LEFT_OUT}"


def _names(family: Family[Any]) -> list[str]:
    return [v.name for v in family.variants]


def tuned(arch: str) -> bool:
    """Whether a GEMM of ours is made for the architecture. NVIDIA's later ones run Ampere's, far below their rate."""
    return any(family.made_for(arch) for family in FAMILIES)


@dataclass(frozen=True, slots=True)
class PlainProduct:
    """Of whole matrices, [m, k] · [k, n], to which nothing is added, of one type."""

    m: int
    n: int
    k: int
    right_transposed: bool
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class AloneTimes:
    """Microseconds of products that nothing runs beside, one after another: by our kernels and by the vendor's library.
    `measured`: on a GPU; otherwise they are estimated. `kernel`: ours, where it is not the one that the estimate
    takes."""

    ours: float
    library: float
    measured: bool = True
    kernel: str | None = None


Timer: TypeAlias = Callable[[PlainProduct], AloneTimes | None]  # None: it cannot be measured


def beside_library(
    products: Sequence[tuple[Gemm, Dtype, Dtype]], device: Device, timer: Timer | None = None
) -> AloneTimes | None:
    """The times of products, measured where there is a timer, with the kernel of a single one. Each is given with the
    types of its operands and of its output. None, and ours is to be taken: there are none, one is not plain or too
    long, or it was not measured, and has few rows or estimates were not compared on such a device."""
    known = vendor_gemm(device)
    if not SM90.serves(device.arch) or not products:
        return None
    found: list[AloneTimes] = []
    for gemm, dtype, out in products:
        added = gemm.accumulate or gemm.addends or gemm.function or gemm.scales
        whole = all(len(region.boxes) == 1 for region in (gemm.out, gemm.left, gemm.right))
        if added or not whole or gemm.left_transposed or gemm.stored_afar or (dtype, out) not in _MEASURED:
            return None
        (m, n), k, right_t = gemm.out.shape, gemm.depth, gemm.right_transposed
        times = timer(PlainProduct(m, n, k, right_t, dtype)) if timer and gemm.flops <= MEASURED else None
        if times is None and known is not None and m > FEW_ROWS and gemm.flops <= LONGEST:
            _, ours = SM90.promising(m, n, k, right_t, device, dtype)[0]
            times = AloneTimes(ours, beside_ours(m, n, k, device, dtype, known), measured=False)
        if times is None:
            return None
        found.append(times)
    return AloneTimes(
        ours=sum(times.ours for times in found),
        library=sum(times.library for times in found),
        measured=all(times.measured for times in found),
        kernel=found[0].kernel if len(found) == 1 else None,
    )


def configure(request: LaunchRequest, limits: Limits, *, vendor: bool = False) -> tuple[KernelConfig, ...]:
    """The launches that do the works, one after another. Works that the kernel does not take go to the naive one.
    `vendor`: the vendor's library is there; on GPUs that no GEMM of ours is made for, it does what it can."""
    found = VENDOR.configure(request, limits) if vendor and not tuned(limits.arch) else ""
    if isinstance(found, str):
        found = family_of(request.kernel).configure(request, limits)
    if isinstance(found, str):
        found = NAIVE.configure(request, limits)
    return found


def unread(config: KernelConfig, works: Sequence[Work]) -> str | None:
    """A type of these works that the source of a configured launch does not know; None: it knows all."""
    typed = (w for w in works if config.family == NAIVE.name and kernel_of([w.body]).types(w))
    views = (v for w in typed for v in w.views)
    return next((v.dtype for v in views if TYPES[v.dtype].number is None), None)


def plain(request: LaunchRequest, limits: Limits) -> tuple[KernelConfig, ...]:
    """Launches that do the works wherever their tensors lie."""
    return NAIVE.configure(request, limits)


def pace(config: KernelConfig, device: Device, dtype: str) -> Pace:
    """What a configured launch of products of `dtype` takes on a device."""
    return _BY_NAME[config.family].pace(config, device, dtype)


def movable(config: KernelConfig, bodies: Iterable[Body]) -> bool:
    """Whether the tables of a configured launch of such works can be `moved`."""
    return _BY_NAME[config.family].movable(bodies)


def tables(config: KernelConfig, works: Sequence[Work], resets: Sequence[int] = ()) -> Tables:
    """The tables that a configured launch reads. `works` are all of the request, on memory; `resets` are the addresses
    of the flags of `config.resets`."""
    return _BY_NAME[config.family].tables(config, works, resets)

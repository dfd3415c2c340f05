"""Products by the vendor's library, cuBLASLt or hipBLASLt. A launch of this family is not one of our kernels: it is one
or several calls of the library for each matrix product, which the device plan holds in full.

The library's heuristics choose a kernel when memory is bound. So the blocks, registers and shared memory of a call are
unknown: it may take all multiprocessors, as a user's kernel may. cuBLASLt accepts a request to use fewer
multiprocessors (`sms`), but nothing enforces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from ..geometry.cells import common
from ..geometry.rows import Block
from ..graph.functions import FunctionName
from ..graph.ir import Gemm
from ..machine.durations import VendorGemm, gemm_rate, vendor_gemm
from ..machine.model import Device
from ..types import BLOCKS, TYPES, Scaling
from . import family, tiles, vendor_cost
from .block_fit import Footprint, Several, fits, left
from .occupancy import Limits
from .pace import Pace
from .target import compute_capability
from .tile_table import MAX_SPLITS, SplitK
from .works import Work, WorkOf, only, scales_of, scaling_of

GEMM = "vendor_gemm"
FUNCTION: FunctionName = "gelu_tanh"  # the one that the libraries apply
_ROWS = 16  # bytes: NOTE of matrices that were aligned less, cuBLASLt 13.1 stored rounded sums before its epilogues
WORKSPACE = 32 << 20  # bytes of a stream's calls: what NVIDIA's libraries take on Hopper, of which others need less
MOST_CALLS = 16  # of one product: each is a launch, and more of them are slower than a kernel that takes all pieces

_TILE = (128, 128)  # by which the virtual clock prices a call
_ENDS, _SPLIT = 0.85, (3.0, 0.65)  # µs: a tile's start and store, and a split of K: half of a 128 × 256 tile on Hopper


@dataclass(frozen=True, slots=True)
class LibraryGemm:
    """The name in plans for whichever kernel the library chooses. Its tile is that of the plain kernel, so that a plan
    shows the size of its products."""

    name: str = GEMM
    tile: tuple[int, int] = _TILE
    cluster: int = family.MOST_CLUSTER


class VendorLibrary(family.Family[LibraryGemm]):
    """What a call reads stands in `config.matmuls`."""

    name = "vendor"
    variants = (LibraryGemm(),)

    def fits(self, request: family.GemmRequest) -> str | None:
        found = _product(request.works, request.streamed)
        if isinstance(found, str):
            return found
        made = matmuls_of(found)
        return made if isinstance(made, str) else None

    def refuses(self, request: family.GemmRequest, arch: str) -> str | None:
        """Why the library does not make the works on GPUs of an architecture; None: it does."""
        product = _product(request.works, request.streamed)
        return self.fits(request) or (None if isinstance(product, str) else _unknown_scales(product, arch))

    def choose(self, request: family.GemmRequest, limits: Limits) -> family.Chosen | str:
        asked = {"residency": request.residency, "smem": request.smem}
        if request.sms is not None and request.sms < limits.sms and compute_capability(limits.arch) is None:
            asked["sms"] = request.sms  # hipBLASLt has no word for it
        said = " and ".join(f"{name} = {value}" for name, value in asked.items() if value is not None)
        if request.leave:
            reason = cannot_leave(request.leave, limits)
            if reason is not None:
                return reason
        if said:
            return f"{said} cannot be had of the vendor's kernels; leave it out, or leave out kernel = vendor"
        reason = self.refuses(request, limits.arch)
        if reason is not None:
            return f"kernel = vendor does not do this: {reason}"
        return family.Chosen(self.name, GEMM, (*_TILE, tiles.DEPTH), 1, 0, None, None)

    def configure(self, request: family.LaunchRequest, limits: Limits) -> tuple[family.KernelConfig, ...] | str:
        product = _product(request.works, request.streamed)
        if isinstance(product, str):
            return product
        sms = request.sms if request.sms < limits.sms else 0
        if sms and compute_capability(limits.arch) is None:
            return f"sms = {sms} cannot be had of the vendor's kernels"
        matmuls = _unknown_scales(product, limits.arch) or matmuls_of(product, sms)
        if isinstance(matmuls, str):
            return matmuls
        count = sum(ceil(m.m / _TILE[0]) * ceil(m.n / _TILE[1]) for m in matmuls)
        return (
            family.KernelConfig(
                family=self.name,
                kernel=GEMM,
                entry=GEMM,
                source=self.source,
                options=(),
                threads=1,
                registers=0,
                smem=0,
                static_smem=0,
                blocks=limits.sms,
                cluster=1,
                resident=1,
                tiles=count,
                works=(0, 1),
                tile=_TILE,
                wave=request.sms,
                split_k=SplitK(tail=_splits(matmuls[0].k, count, request.sms)),
                matmuls=matmuls,
                workspace=WORKSPACE + max(map(_converted, matmuls)),
                alignment=_ROWS if any(map(_aligned, matmuls)) else 1,
            ),
        )

    def pace(self, config: family.KernelConfig, device: Device, dtype: str) -> Pace:
        """The pace by measurements of the library on the device or, without these, by the rate of large GEMMs. The
        calls' time is spread evenly over the tiles, which the clock then takes one after another."""
        m, n = _TILE
        known = vendor_gemm(device)
        if known is not None:
            time = sum(_call_time(matmul, config.wave, device, dtype, known) for matmul in config.matmuls)
            steps = sum(c.m * c.n * c.k for c in config.matmuls) / (m * n * tiles.DEPTH)
            start = known.start * len(config.matmuls)
            return Pace(groups=1, step=time / steps, start=start, whole_edges=False)
        step = 2.0 * m * n * tiles.DEPTH * device.sms / gemm_rate(device, dtype)
        return Pace(groups=config.wave, step=step, ends=_ENDS, shown=0.0, split=_SPLIT, whole_edges=False)


def _call_time(c: family.Matmul, sms: int, device: Device, dtype: str, known: VendorGemm) -> float:
    added = {"residual": c.residual is not None, "bias": c.bias is not None, "function": c.function is not None}
    return vendor_cost.call_time(
        c.m, c.n, c.k, sms, device, dtype, known, **added, out_dtype=c.out_dtype,
        scaling=c.scaling[0] if c.scaling else None, fast=c.fast, converted=len(conversions(c)),
    )  # fmt: skip


def cannot_leave(blocks: Sequence[Footprint], limits: Limits) -> str | None:
    """Why no kernel of the library can leave room for such blocks; None: it may, which the driver says on a GPU."""
    if compute_capability(limits.arch) is None:
        return (
            "leave cannot be had of hipBLASLt's kernels, as nobody can ask what they take; leave it out, or leave out "
            "kernel = vendor"
        )
    least = Several(Footprint("", limits.warp, 1, 0, 0))
    if all(fits((least, Several(block)), limits) for block in blocks):
        return None
    most = max(blocks, key=lambda b: b.smem)
    return (
        f"leave = {most.kernel}: none of the library's blocks fits beside {most.smem} bytes of shared memory, as a "
        f"multiprocessor gives a block {left((), limits).smem}; leave less"
    )


def matmuls_of(product: WorkOf[Gemm], sms: int = 0) -> tuple[family.Matmul, ...] | str:
    """The products of whole matrices that a product is, one after another, for `sms` multiprocessors; a text says why
    the library does not make them, and behind a semicolon the way out. Pieces of rows and columns are products of their
    own; pieces of K add to what the output holds, which rounds it in between."""
    (out, left, right), transposed = product.views[:3], product.body.transposed
    dtype, out_dtype = left.dtype, out.dtype
    unknown = next((t for t in (dtype, out_dtype) if TYPES[t].blas is None), None)
    if unknown is not None:
        return f"it has no code for {unknown}; take tensors of another type"
    if TYPES[out_dtype].quantised:
        return f"it stores no {out_dtype}; take a result of another type"
    if product.body.function not in (None, FUNCTION):
        return f"{product.body.function} is applied to the sum; apply it by a reduce"
    if product.body.stored_afar:
        return "its result lies on another rank; take a tensor of this rank, and a copy"
    work = tiles.work_of(product)
    if work is None:
        return "an operand's columns are not side by side"
    added = _added(product)
    if isinstance(added, str):
        return added
    rows, columns = tiles.pieces_of(work, transposed)
    depths = common(*tiles.depths_of(work, *transposed))
    if not (rows and columns and depths):
        return "it is empty"
    scaling = _scaling(product)
    if isinstance(scaling, str):
        return scaling
    if len(depths) > 1 and out_dtype != "fp32":
        return (
            f"K comes in {len(depths)} pieces, between which the sum would be rounded to {out_dtype}; write to an fp32 "
            "tensor, or a gemm for each piece"
        )
    calls = len(rows) * len(columns) * len(depths)
    if calls > MOST_CALLS:
        return f"it comes in {calls} pieces, and the library is called for {MOST_CALLS} at most; take fewer pieces"

    def at(view: int, matrix: tiles.Matrix, row: int, column: int, turned: bool = False) -> family.Operand:
        row, column = (column, row) if turned else (row, column)
        first = (matrix.address - product.views[view].address) // TYPES[product.views[view].dtype].bytes
        return family.Operand(view, first + row * matrix.pitch + column, matrix.pitch, turned)

    def term(view: int | None, row: tuple[int, ...], column: tuple[int, ...]) -> family.Operand | None:
        """What is added to a piece."""
        if view is None:
            return None
        return at(view, work.addends[view - 3].operand.matrix, row[view - 1], column[view - 1])

    def scales(side: int, row: int, depth: int) -> family.Operand | None:
        """Where an operand's scales begin, of which `row` and `depth` are elements."""
        if scaling is None:
            return None
        down, across = BLOCKS[scaling[side]]
        row = 0 if scaling[side] == "tensor" else row // down
        view = len(product.views) - 2 + side
        found = tiles.operand(product.views[view])
        assert found is not None
        return at(view, found.matrix, row, depth // across if across else 0)

    made = tuple(
        family.Matmul(
            m=row[-1],
            n=column[-1],
            k=k,
            dtype=dtype,
            out_dtype=out_dtype,
            left=at(1, work.left, row[0], left_k, transposed[0]),
            right=at(2, work.right, right_k, column[0], transposed[1]),
            out=at(0, work.out, row[1], column[1]),
            accumulate=product.body.accumulate or added.itself or number > 0,
            sms=sms,
            residual=None if number else term(added.residual, row, column),
            bias=None if number else term(added.bias, row, column),
            function=None if number < len(depths) - 1 else product.body.function,
            right_dtype=None if right.dtype == dtype else right.dtype,
            scaling=scaling,
            left_scales=scales(0, row[0], left_k),
            right_scales=scales(1, column[0], right_k),
            fast=product.body.fast,
        )
        for row in rows
        for column in columns
        for number, (left_k, right_k, k) in enumerate(depths)
    )
    if TYPES[dtype].quantised:
        return _fp8_refusal(product, made) or made
    apart = (
        f"rows of {product.views[operand.view].region.tensor} do not begin at multiples of {_ROWS} bytes, and then it "
        f"may round the sum to {out_dtype} before it adds or applies anything; do that by a reduce"
        for matmul in made
        if out_dtype != "fp32" and _alone(matmul)
        for _, operand in matmul.named
        if any(at * TYPES[product.views[operand.view].dtype].bytes % _ROWS for at in (operand.offset, operand.pitch))
    )
    return next(apart, made)


def _scaling(product: WorkOf[Gemm]) -> tuple[Scaling, Scaling] | str | None:
    """How operands of fp8 are scaled, as a call is told; a text says why none can be."""
    found = [
        # what is written was gathered, and each part has a scale of its own
        "tensor" if view.scaling == "tensor" and not scales.written else scaling_of(scales, view)
        for scales, view in zip(scales_of(product), product.views[1:3], strict=False)
    ]
    if not found:
        return None
    if found == ["128x128", "128x128"]:
        return "both operands are scaled 128x128, and one at least is to be 1x128"
    left, right = found if found == ["tensor", "tensor"] else ("row" if s == "tensor" else s for s in found)
    return left, right


def _unknown_scales(product: WorkOf[Gemm], arch: str) -> str | None:
    """Why the library multiplies no such operands of fp8 on an architecture."""
    (_, left), scaling, capability = product.views[:2], _scaling(product), compute_capability(arch)
    if not TYPES[left.dtype].quantised or isinstance(scaling, str):
        return None
    if capability is None:
        return f"operands are {left.dtype}, which nobody has tried with hipBLASLt; take bf16 or fp16 operands"
    if scaling not in (None, ("tensor", "tensor")) and capability != 90:
        return (
            f"operands are scaled {' and '.join(scaling)}, which cuBLASLt takes on sm_90 alone; scale both by "
            "tensor, or take a Hopper GPU"
        )
    return None if capability >= 89 else f"operands are {left.dtype}, which cuBLASLt takes since sm_89"


def _fp8_refusal(product: WorkOf[Gemm], matmuls: Sequence[family.Matmul]) -> str | None:
    """Why the library does not make products of fp8; None: it does. Of cuBLASLt 13.1 on an H200."""
    (out, left), names = product.views[:2], ("left", "right")
    if product.body.transposed != (False, True):
        wrong = names[int(not product.body.left_transposed)]
        stored = {"left": "[M, K]", "right": "[N, K]"}[wrong]
        return f"operands of {left.dtype} lie along K, and the {wrong} one does not; store it {stored}"
    for m in matmuls:
        blocked = 4 if m.blocks else 1
        for what, size, of in (("K", m.k, _ROWS), ("N", m.n, max(blocked, _ROWS // TYPES[out.dtype].bytes)),
                               ("M", m.m, blocked)):  # fmt: skip
            if size % of:
                return f"a piece of {what} is {size}, and cuBLASLt multiplies {left.dtype} in multiples of {of}; cut so"
        for name, operand in m.named:
            item = TYPES[product.views[operand.view].dtype].bytes
            if "scales" not in name and any(at * item % _ROWS for at in (operand.offset, operand.pitch)):
                tensor = product.views[operand.view].region.tensor
                return f"rows of {tensor} do not begin at multiples of {_ROWS} bytes"
        if out.dtype != "fp32" and (m.accumulate or m.residual is not None):
            return f"it rounds a sum to {out.dtype} before it adds a matrix; add by a reduce, or to an fp32 tensor"
        if out.dtype == "fp32" and m.bias is not None:
            return "it adds no fp32 row to a product of fp8; add it by a reduce"
    return None


def conversions(matmul: family.Matmul) -> tuple[Conversion, ...]:
    """The scales of the left and of the right operand that the library wants laid out otherwise: 1x128 column by
    column, 128x128 with a pitch that follows from K, all from a multiple of 16 bytes. They lie one behind the other,
    behind the workspace of the call."""
    if matmul.scaling in (None, ("tensor", "tensor")):
        return ()
    assert matmul.scaling is not None
    blocks, found, at = ceil(matmul.k / 128), [], WORKSPACE
    sides = ((matmul.left_scales, matmul.m), (matmul.right_scales, matmul.n))
    for side, ((scales, rows), by) in enumerate(zip(sides, matmul.scaling, strict=True)):
        assert scales is not None
        down, across = BLOCKS[by]
        rows, columns = ceil(rows / down), blocks if across else 1
        turned, pitch = by == "1x128", ceil(blocks / 4) * 4 if across else 1
        if turned or scales.pitch != pitch or scales.offset % 4:
            found.append(Conversion(side, at, rows, columns, scales.pitch, turned, rows if turned else pitch))
            at += found[-1].size
    return tuple(found)


def _converted(matmul: family.Matmul) -> int:
    """Bytes of what is converted, at most: of fewer rows, those of each block may begin anywhere."""
    if matmul.scaling == ("row", "row"):
        return sum(-(-4 * rows // 256) * 256 for rows in (matmul.m, matmul.n))
    return sum(c.size for c in conversions(matmul))


@dataclass(frozen=True, slots=True)
class Conversion:
    """Of `rows` × `columns` scales of an operand (0: left, 1: right), `pitch` from row to row, to where they lie `at`
    bytes behind the workspace's begin, row by row or, `turned`, column by column, with a pitch `to`."""

    side: int
    at: int
    rows: int
    columns: int
    pitch: int
    turned: bool
    to: int

    @property
    def size(self) -> int:
        """Bytes, in whole units of what allocations are aligned to."""
        return -(-4 * self.to * (self.columns if self.turned else self.rows) // 256) * 256


def _aligned(matmul: family.Matmul) -> bool:
    """Whether addresses of tensors have to be aligned."""
    return _alone(matmul) or TYPES[matmul.dtype].quantised


def _alone(matmul: family.Matmul) -> bool:
    """Whether the library might store its sum first, and read it again for the rest."""
    return matmul.bias is not None or matmul.function is not None


@dataclass(frozen=True, slots=True)
class _Added:
    """What is added to a product: the output itself, or places of views."""

    itself: bool = False
    residual: int | None = None
    bias: int | None = None


def _added(product: WorkOf[Gemm]) -> _Added | str:
    """As the library adds it, or why it does not."""
    body, out = product.body, product.views[0]
    found = _Added()
    for place, (region, view) in enumerate(zip(body.addends, product.views[3:], strict=False), 3):
        free = found.bias is None if view.repeated else not found.itself and found.residual is None
        if not free or view.dtype != out.dtype:
            return (
                f"it adds one matrix and one row at most, of {out.dtype} as the result is; add other terms by a reduce"
            )
        if region.rank != body.left.rank:
            return f"{region.tensor} is added from rank {region.rank}; add it by a reduce"
        if view.repeated:
            found = replace(found, bias=place)
        else:
            found = replace(found, itself=True) if region == body.out else replace(found, residual=place)
    return found


def fewer(matmul: family.Matmul, blocks: Sequence[Block | None]) -> family.Matmul | None:
    """What a call makes of the rows that are there; None: there are none. `blocks`: how the rows of each view of the
    work lie. A left operand that is stored transposed has rows along K."""
    over = matmul.left.transposed
    there = matmul.k if over else matmul.m
    moved: dict[str, Any] = {}
    for name, operand in matmul.named:
        block = blocks[operand.view]
        if block is not None:
            row, column = divmod(operand.offset, operand.pitch)
            there = min(there, block.left(row))
            moved[name] = replace(operand, offset=block.place(row) * operand.pitch + column)
    m, k = (matmul.m, there) if over else (there, matmul.k)
    return replace(matmul, m=m, k=k, **moved) if there else None


def _product(works: Sequence[Work], streamed: bool) -> WorkOf[Gemm] | str:
    if streamed:
        return "the stage is streamed, and the library's kernels wait for no pieces; leave out 'streamed'"
    products = only(works, Gemm)
    return products[0] if len(products) == len(works) == 1 else "the launch holds more than one product"


def _splits(depth: int, count: int, groups: int) -> int:
    """Into how many parts the clock takes K of the last wave's tiles to go: they keep all multiprocessors busy."""
    tail, steps = count % groups, ceil(depth / tiles.DEPTH)
    return max(1, min(groups // tail, steps // 4, MAX_SPLITS)) if tail else 1


VENDOR = VendorLibrary()

"""Launches by the vendor's GEMM library: each matrix product of a device plan becomes one call of cuBLASLt or
hipBLASLt, which is issued like any other driver call.

The libraries take column-major matrices, so they compute the transposed product: out^T = right^T · left^T. The library
selects an algorithm once for each shape; descriptors and algorithm are kept until the driver is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...kernels import vendor_gemm
from ...kernels.block_fit import Footprint
from ...kernels.family import KernelConfig, Matmul, Operand
from ...kernels.leaving import crowded_out
from ...kernels.occupancy import Limits
from ...kernels.vendor_gemm import conversions, fewer
from ...kernels.works import View
from ...types import TYPES, Dtype, Scaling
from .blas_lt import BlasLt, Layout, MatmulPlace, Scaled, Shape
from .gpus import Gpus
from .refused import Closing, Refused, undo_on_error
from .vendor import DriverCall, Gpu, Handle

TRIED = 8  # algorithms of a shape, where blocks are to leave room
_ALIGNED = 256  # bytes: no more of an address's alignment counts


@dataclass(frozen=True, slots=True)
class Left:
    """What a launch leaves room for on each multiprocessor, as the text says it: a block of each of these."""

    said: str
    blocks: tuple[Footprint, ...]


class LibraryCalls:
    """The calls of one driver, whose library is opened when the first of them is bound."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._library: BlasLt | None = None
        self._handles: dict[int, Handle] = {}  # by device
        self._planned: dict[tuple[int, Shape, Left | None], tuple[Handle, int]] = {}
        self._workspaces: dict[tuple[int, int], tuple[int, int]] = {}  # by device and stream: addresses, and sizes

    @property
    def name(self) -> str:
        """The library's name with its version; empty if no call is bound."""
        return "" if self._library is None else self._library.name

    def bind(
        self, config: KernelConfig, views: Sequence[View], device: Gpu, stream: int, left: Left | None = None
    ) -> tuple[Callable[[Handle], Sequence[DriverCall | None]], tuple[int, ...]]:
        """The calls of a launch on a stream, None where no row is there, and their algorithms, as `BlasLt.plan` numbers
        them. `stream` is the plan's: its calls come one after another, and share a workspace. `views` are the
        product's: out, left, right, and what is added. `left`: what the kernels leave room for."""
        library = self._library = self._library or self._gpus.vendor.gemms()
        key = (device.ordinal, stream)
        workspace, size = self._workspaces.get(key, (0, 0))
        if size < config.workspace:  # NOTE calls that are bound keep theirs
            what = f"the workspace of {library.name} for stream {stream}"
            workspace = self._gpus.alloc(device, config.workspace, what, "library")
            self._workspaces[key] = workspace, config.workspace
        with self._gpus.inside(device):
            if device.ordinal not in self._handles:
                self._handles[device.ordinal] = library.open()
            handle = self._handles[device.ordinal]
            made: list[tuple[tuple[Handle, int], MatmulPlace] | None] = []
            for planned_rows in config.matmuls:
                matmul = fewer(planned_rows, [view.block for view in views])
                if matmul is None:
                    made.append(None)
                    continue
                place = place_of(matmul, views, workspace)
                made.append((self._plan(library, handle, device, shape_of(matmul, place), place, left), place))

        def calls(stream: Handle) -> Sequence[DriverCall | None]:
            return [one and library.matmul_action(handle, one[0][0], one[1], stream) for one in made]

        return calls, tuple(one[0][1] for one in made if one is not None)

    def _plan(
        self, library: BlasLt, handle: Handle, device: Gpu, shape: Shape, place: MatmulPlace, left: Left | None
    ) -> tuple[Handle, int]:
        key = (device.ordinal, shape, left)
        if key not in self._planned:
            a, out = shape.first, shape.out
            k = a.rows if shape.transposed[0] else a.columns
            what = f"{out.columns} × {out.rows} × {k} of {a.dtype} to {out.dtype}"
            reason = "no algorithm", what, "leave out kernel = vendor"
            for number in range(1 if left is None else TRIED):
                found = library.plan(handle, shape, place.size, number)
                if found is None:
                    break
                crowded = ""
                # NOTE a kernel that is loaded in a run waits for the run, which may wait for the host
                if left is not None or library.lazy:
                    with undo_on_error(library.drop, found):
                        kernels = self._kernels(library, handle, found, place, device)
                        crowded = "" if left is None else self._crowded(kernels, left, device)
                if not crowded:
                    self._planned[key] = found, number
                    break
                library.drop(found)
                if not number and left is not None:  # the one that is liked best is told of
                    way_out = f"say leave = {device.facts.sms // 8} sms, or leave out kernel = vendor"
                    reason = f"leave = {left.said} cannot be had of its kernels", f"{what}: {crowded}", way_out
            if key not in self._planned:
                raise Refused(library.name, *reason)
        return self._planned[key]

    def _kernels(
        self, library: BlasLt, handle: Handle, planned: Handle, place: MatmulPlace, device: Gpu
    ) -> Sequence[tuple[Handle, Footprint]]:
        """A call's kernels, as the driver tells of a call that is captured and not run. They are loaded then."""
        vendor, stream = self._gpus.vendor, self._gpus.control[device.ordinal]
        with vendor.uncaptured():  # of the caller's captures: to load a kernel may spoil them
            vendor.begin_capture(stream)
            with undo_on_error(vendor.drop_capture, stream):
                function, arguments = library.matmul_action(handle, planned, place, stream)
                code = function(*arguments)[0]
                if code:
                    raise vendor.failure(function, code)
            captured = vendor.end_capture(stream)
            try:
                return vendor.kernels_of(captured)
            finally:
                vendor.destroy_captured(captured)

    def _crowded(self, kernels: Sequence[tuple[Handle, Footprint]], left: Left, device: Gpu) -> str:
        """Why a call's kernels leave too little room; nothing if they leave enough."""
        for kernel, block in kernels:
            told = crowded_out(block, left.blocks, Limits.of(device.facts))
            if told:
                return told
            self._gpus.vendor.share_smem(kernel, f"a kernel of {self.name}")
        return "" if kernels else "the driver tells of no kernel in its call"

    def close(self) -> None:
        """Releases handles and descriptors; workspaces are devices' memory, and are released with it."""
        with Closing() as closing:
            for ordinal in [*self._handles]:
                closing(self._close, ordinal)

    def _close(self, ordinal: int) -> None:
        library = self._library
        assert library is not None  # whose handles these are
        with self._gpus.inside(self._gpus.devices[ordinal]), Closing() as closing:
            for key in [key for key in self._planned if key[0] == ordinal]:
                closing(library.drop, self._planned.pop(key)[0])
            closing(library.close, self._handles.pop(ordinal))


def place_of(matmul: Matmul, views: Sequence[View], workspace: int) -> MatmulPlace:
    """Where a call finds its operands, by the addresses of the product's views."""

    def address(operand: Operand | None) -> int:
        if operand is None:
            return 0
        view = views[operand.view]
        return view.address + operand.offset * TYPES[view.dtype].bytes

    scales = lying = address(matmul.left_scales), address(matmul.right_scales)
    for c in conversions(matmul):
        scales = (workspace + c.at, scales[1]) if c.side == 0 else (scales[0], workspace + c.at)
    return MatmulPlace(
        first=address(matmul.right),
        second=address(matmul.left),
        out=address(matmul.out),
        workspace=workspace,
        size=vendor_gemm.WORKSPACE,
        residual=address(matmul.residual),
        bias=address(matmul.bias),
        scales=scales[::-1],
        converted=lying[::-1],
    )


def shape_of(matmul: Matmul, place: MatmulPlace) -> Shape:
    """A product by rows as the library makes it by columns: a matrix that is stored by rows is its transpose, stored by
    columns."""

    def layout(operand: Operand, rows: int, columns: int, dtype: Dtype, address: int) -> Layout:
        rows, columns = (columns, rows) if operand.transposed else (rows, columns)
        return Layout(dtype, columns, rows, operand.pitch, _alignment(address))

    added = matmul.residual
    return Shape(
        first=layout(matmul.right, matmul.k, matmul.n, matmul.right_dtype or matmul.dtype, place.first),
        second=layout(matmul.left, matmul.m, matmul.k, matmul.dtype, place.second),
        out=layout(matmul.out, matmul.m, matmul.n, matmul.out_dtype, place.out),
        residual=None if added is None else layout(added, matmul.m, matmul.n, matmul.out_dtype, place.residual),
        bias=_alignment(place.bias),
        function=matmul.function,
        transposed=(matmul.right.transposed, matmul.left.transposed),
        accumulate=matmul.accumulate,
        sms=matmul.sms,
        scaled=_scaled(matmul, place),
        fast=matmul.fast,
    )


_MODES: Mapping[Scaling, int] = {"tensor": 0, "row": 3, "1x128": 4, "128x128": 5}  # CUBLASLT_MATMUL_MATRIX_SCALE_…


def _scaled(matmul: Matmul, place: MatmulPlace) -> tuple[Scaled, Scaled] | None:
    if matmul.scaling is None:
        return None
    found = [Scaled(_MODES[by], _alignment(at)) for by, at in zip(matmul.scaling[::-1], place.scales, strict=True)]
    for c in conversions(matmul):
        rows, columns = (c.rows, c.columns) if c.turned else (c.columns, c.rows)
        source = Layout("fp32", c.columns, c.rows, c.pitch, _alignment(place.converted[1 - c.side]))
        target = Layout("fp32", rows, columns, c.to, _ALIGNED)
        found[1 - c.side] = replace(found[1 - c.side], source=source, target=target, turned=c.turned)
    return found[0], found[1]


def _alignment(address: int) -> int:
    """Bytes; 0 of no address."""
    return min(_ALIGNED, address & -address)

"""Runs of a plan on tensors with fewer rows than the plan's (`geometry.rows`). Where the driver does not take these, a
run is on memory of the plan's size, with copies of the rows before and behind it: what lies behind the rows that were
given is computed on whatever is there, and not copied out. Where a plan sums over rows, zeros lie there: its ops are
linear, so that the products which it sums are zeros, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple
from weakref import ReferenceType, ref

from ..driver.api import Array, CopiedRows, DeviceArray
from ..errors import UsageError
from ..geometry.rows import Rows
from ..graph.ir import Body, Gemm, KernelCall, Tensor
from ..plan.ir import Work
from ..types import TYPES, numpy_dtype
from .bindings import apart
from .bound import Bound
from .device_arrays import GAPS, Key, host_array, look, tells
from .executor import Executor
from .workspace import Workspace

MOST = 1024  # runs that an operation keeps prepared: a few numbers of rows for each of a model's layers

_Seen = dict[tuple[str, int], Array | DeviceArray]


class Prepared(NamedTuple):
    """A run on GPUs: the executor, the binding, if it is still kept, and the copies before and after the run."""

    executor: Executor
    bound: ReferenceType[Bound]
    before: Sequence[CopiedRows]
    behind: Sequence[CopiedRows]

    def again(self, streams: Sequence[object] | None) -> bool:
        """One run, if it may run again as it is and without copies; whether it was. NOTE most calls end here."""
        bound = self.bound()
        return bound is not None and not (self.before or self.behind) and self.executor.repeat(bound, streams)


def run(
    workspace: Workspace,
    executor: Executor,
    tensors: Mapping[str, Sequence[object]],
    rows: Rows,
    most: int,
    streams: Sequence[object] | None,
    key: Key | None,
    kept: dict[Key | None, Prepared],
) -> None:
    """One run. `tensors`, and `streams` on GPUs, are as `Executor.run` takes them; `most`: rows of any run of these.
    `kept`: earlier runs on GPUs, by the tensors' key. Raises UsageError, DeviceError."""
    known = kept.get(key)
    bound = known.bound() if known is not None else None
    if known is None or bound is None or not executor.again(bound):
        seen = _seen(executor, tensors, rows)
        if not rows.given and all(t.name in rows.blocks for t in executor.plan.tensors if t.kind == "output"):
            return
        if not executor.driver.on_device:
            _on_host(executor, seen, rows, streams)
            return
        bound, known = _prepared(workspace, executor, seen, rows, most)
        if key is not None and tells(key, seen.values()):
            if len(kept) == MOST:
                kept.clear()
            kept[key] = known
    if not (known.before or known.behind):
        return executor.run(bound, streams=streams)
    shared = workspace.shared
    assert shared is not None
    shared.copy_rows(known.before, streams, first=True)
    executor.run(bound, streams=streams)
    shared.copy_rows(known.behind, streams, first=False)


def _named(executor: Executor) -> dict[str, Tensor]:
    return {t.name: t for t in executor.plan.tensors if t.kind != "scratch"}


def _seen(executor: Executor, tensors: Mapping[str, Sequence[object]], rows: Rows) -> _Seen:
    named = _named(executor)
    wrong = sorted(set(named) ^ set(tensors))
    if wrong:
        raise UsageError(f"give each of {', '.join(named)}, and nothing else; {', '.join(wrong)} is not so")
    seen: _Seen = {}
    for name, arrays in tensors.items():
        if not isinstance(arrays, Sequence) or len(arrays) != len(executor.ranks):
            given = len(arrays) if isinstance(arrays, Sequence) else f"one {type(arrays).__name__}"
            raise UsageError(f"{name}: wanted a list of {len(executor.ranks)}, one a rank; given {given}")
        for rank, array in zip(executor.ranks, arrays, strict=True):
            seen[name, rank] = _checked(named[name], rank, array, rows, on_device=executor.driver.on_device)
    return seen


def _checked(tensor: Tensor, rank: int, array: object, rows: Rows, *, on_device: bool) -> Array | DeviceArray:
    shape = rows.shape(tensor.name, tensor.shapes[rank])
    wanted = f"{tensor.kind} {tensor.name}, rank {rank}: wanted {tensor.dtype} of shape {list(shape)}"
    found: Array | DeviceArray
    if on_device:
        found = look(array, lambda: wanted)
        dtype, dense, writable = found.dtype, found.dense, not found.read_only
    else:
        found = host_array(array, lambda: wanted)
        dtype = tensor.dtype if found.dtype == numpy_dtype(tensor.dtype) else str(found.dtype)
        dense, writable = found.flags.c_contiguous, found.flags.writeable
    if dtype != tensor.dtype or found.shape != shape:
        first = next(iter(rows.blocks))
        rows_differ = tensor.name in rows.blocks and found.shape[1:] == shape[1:] and dtype == tensor.dtype
        same = f": all ranks have the same number of rows, {rows.given} as {first} of the first one"
        why = same if rows_differ else ""
        raise UsageError(f"{wanted}; given {dtype} of shape {list(found.shape)}{why}")
    if not dense:
        raise UsageError(f"{wanted}; {GAPS}")
    if tensor.kind == "output" and not writable:
        raise UsageError(f"{wanted}; given one that cannot be written")
    return found


def _on_host(executor: Executor, seen: _Seen, rows: Rows, streams: Sequence[object] | None) -> None:
    import numpy as np

    named = _named(executor)
    apart(executor.plan, {at: (a.ctypes.data, a.shape) for at, a in seen.items() if not isinstance(a, DeviceArray)})
    padded: dict[str, list[Array]] = {}
    for name, tensor in named.items():
        for rank in executor.ranks:
            array = seen[name, rank]
            assert not isinstance(array, DeviceArray)
            if name in rows.blocks:
                whole: Array = np.zeros(tensor.shapes[rank], numpy_dtype(tensor.dtype))
                if tensor.kind == "input":
                    _block(whole, rows, name)[:, : rows.given] = array.reshape(
                        rows.blocks[name], rows.given, *array.shape[1:]
                    )
                array = whole
            padded.setdefault(name, []).append(array)
    executor.run(None, streams=streams, progress=None, **padded)
    for name in rows.blocks:
        for rank, whole in zip(executor.ranks, padded[name], strict=True):
            array = seen[name, rank]
            assert not isinstance(array, DeviceArray)
            if named[name].kind == "output":
                array.reshape(rows.blocks[name], rows.given, *array.shape[1:])[...] = _block(whole, rows, name)[
                    :, : rows.given
                ]


def _block(whole: Array, rows: Rows, name: str) -> Array:
    return whole.reshape(rows.blocks[name], rows.planned, *whole.shape[1:])


def _prepared(workspace: Workspace, executor: Executor, seen: _Seen, rows: Rows, most: int) -> tuple[Bound, Prepared]:
    named, shared = _named(executor), workspace.shared
    assert shared is not None
    places = {at: (array.address, array.shape) for at, array in seen.items() if isinstance(array, DeviceArray)}
    apart(executor.plan, places)
    # NOTE without rows no kernel has an address to read: a sum over none is one over the zeros in staging memory
    staged = executor.driver.staged(rows) | (frozenset() if rows.given else rows.blocks.keys())
    if not staged:
        bound = executor.bind_at(seen, rows if rows.given < rows.planned else None)
        return bound, Prepared(executor, ref(bound), (), ())
    summed = any(isinstance(part, Work) and _sums_rows(part.body) for part in executor.plan.parts())
    given: dict[tuple[str, int], Array | DeviceArray] = dict(seen)
    copies: dict[str, list[CopiedRows]] = {"input": [], "output": []}
    for name, rank in seen:
        tensor, array = named[name], seen[name, rank]
        if name not in staged:
            continue
        assert isinstance(array, DeviceArray)
        shape = tensor.shapes[rank]
        row = TYPES[tensor.dtype].bytes * prod(shape[1:])
        blocks, width, pitch, size, zeros = 1, row * shape[0], row * shape[0], row * shape[0], 0
        if name in rows.blocks:
            blocks = rows.blocks[name]
            width, pitch, size = row * rows.given, row * rows.planned, row * blocks * most
            zeros = -(-row * shape[0] // 4) if summed and tensor.kind == "input" and rows.given < rows.planned else 0
        address = shared.staging(rank, name, -(-size // 4) * 4)
        given[name, rank] = DeviceArray(address, shape, tensor.dtype)
        sides = (address, pitch), (array.address, width)
        (dst, dst_pitch), (src, src_pitch) = sides if tensor.kind == "input" else sides[::-1]
        copies[tensor.kind].append(CopiedRows(rank, dst, src, width, blocks, dst_pitch, src_pitch, zeros))
    bound = executor.bind_at(given)
    read = [replace(copy, width=0, zeros=0) for copy in copies["input"]]  # the next copies wait until they are
    return bound, Prepared(executor, ref(bound), copies["input"], copies["output"] + read)


def _sums_rows(body: Body) -> bool:
    """Whether an op may sum over rows."""
    return isinstance(body, KernelCall) or (isinstance(body, Gemm) and body.left_transposed)

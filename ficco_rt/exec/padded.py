"""Runs of a plan on tensors with fewer rows than the plan's: on memory of the plan's size, with copies of the rows
before and behind the run.

The rows of a tensor lie in blocks of equal size, one block, or one for each rank. The plan's blocks are longer: what
lies behind the rows that were given is computed on whatever is there, and not copied out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..driver.api import Array, CopiedRows, DeviceArray
from ..errors import UsageError
from ..graph.ir import Tensor
from ..types import TYPES, numpy_dtype
from .bindings import apart
from .device_arrays import GAPS, host_array, look
from .executor import Executor
from .workspace import Workspace

_Seen = dict[tuple[str, int], Array | DeviceArray]


@dataclass(frozen=True, slots=True)
class Rows:
    """Of a run: `given` rows in each block, and `planned` ones; of all runs, the `most`. `blocks`: by tensor, of those
    whose rows may be fewer than planned."""

    given: int
    planned: int
    most: int
    blocks: Mapping[str, int]

    def shape(self, tensor: Tensor, rank: int) -> tuple[int, ...]:
        """What a caller gives for a tensor of a rank."""
        _, *columns = shape = tensor.shapes[rank]
        return (self.blocks[tensor.name] * self.given, *columns) if tensor.name in self.blocks else shape


def run(
    workspace: Workspace,
    executor: Executor,
    tensors: Mapping[str, Sequence[object]],
    rows: Rows,
    streams: Sequence[object] | None,
) -> None:
    """One run. `tensors`, and `streams` on GPUs, are as `Executor.run` takes them. Raises UsageError, DeviceError."""
    named = {t.name: t for t in executor.plan.tensors if t.kind != "scratch"}
    wrong = sorted(set(named) ^ set(tensors))
    if wrong:
        raise UsageError(f"give each of {', '.join(named)}, and nothing else; {', '.join(wrong)} is not so")
    seen: _Seen = {}
    for name, arrays in tensors.items():
        if len(arrays) != len(executor.ranks):
            raise UsageError(f"{name}: wanted a list of {len(executor.ranks)}, one a rank; given {len(arrays)}")
        for rank, array in zip(executor.ranks, arrays, strict=True):
            seen[name, rank] = _checked(named[name], rank, array, rows, on_device=executor.driver.on_device)
    if not rows.given:
        return
    if not executor.driver.on_device:
        _on_host(executor, named, seen, rows, streams)
    elif rows.given < rows.planned:
        _on_device(workspace, executor, named, seen, rows, streams)
    else:
        apart(executor.plan, {at: array.address for at, array in seen.items() if isinstance(array, DeviceArray)})
        executor.run(executor.bind_at(seen), streams=streams)


def _checked(tensor: Tensor, rank: int, array: object, rows: Rows, *, on_device: bool) -> Array | DeviceArray:
    shape = rows.shape(tensor, rank)
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
        raise UsageError(f"{wanted}; given {dtype} of shape {list(found.shape)}")
    if not dense:
        raise UsageError(f"{wanted}; {GAPS}")
    if tensor.kind == "output" and not writable:
        raise UsageError(f"{wanted}; given one that cannot be written")
    return found


def _on_host(
    executor: Executor,
    named: Mapping[str, Tensor],
    seen: _Seen,
    rows: Rows,
    streams: Sequence[object] | None,
) -> None:
    import numpy as np

    padded: dict[str, list[Array]] = {}
    for name, tensor in named.items():
        for rank in executor.ranks:
            array = seen[name, rank]
            assert not isinstance(array, DeviceArray)
            if name in rows.blocks:
                whole: Array = np.zeros(tensor.shapes[rank], numpy_dtype(tensor.dtype))
                if tensor.kind == "input":
                    _block(whole, rows, name)[:, : rows.given] = array.reshape(rows.blocks[name], rows.given, -1)
                array = whole
            padded.setdefault(name, []).append(array)
    executor.run(None, streams=streams, progress=None, **padded)
    for name in rows.blocks:
        for rank, whole in zip(executor.ranks, padded[name], strict=True):
            array = seen[name, rank]
            assert not isinstance(array, DeviceArray)
            if named[name].kind == "output":
                array.reshape(rows.blocks[name], rows.given, -1)[...] = _block(whole, rows, name)[:, : rows.given]


def _block(whole: Array, rows: Rows, name: str) -> Array:
    return whole.reshape(rows.blocks[name], rows.planned, -1)


def _on_device(
    workspace: Workspace,
    executor: Executor,
    named: Mapping[str, Tensor],
    seen: _Seen,
    rows: Rows,
    streams: Sequence[object] | None,
) -> None:
    shared = workspace.shared
    assert shared is not None
    given: dict[tuple[str, int], Array | DeviceArray] = {}
    copies: dict[str, list[CopiedRows]] = {"input": [], "output": []}
    for (name, rank), array in seen.items():
        tensor = named[name]
        given[name, rank] = array
        if name in rows.blocks:
            assert isinstance(array, DeviceArray)
            shape, item = tensor.shapes[rank], TYPES[tensor.dtype].bytes
            row = item * prod(shape[1:])
            address = shared.staging(rank, name, row * rows.blocks[name] * rows.most)
            given[name, rank] = DeviceArray(address, shape, tensor.dtype)
            sides = (address, row * rows.planned), (array.address, row * rows.given)
            (dst, dst_pitch), (src, src_pitch) = sides if tensor.kind == "input" else sides[::-1]
            width, blocks = row * rows.given, rows.blocks[name]
            copies[tensor.kind].append(CopiedRows(rank, dst, src, width, blocks, dst_pitch, src_pitch))
    bound = executor.bind_at(given)
    shared.copy_rows(copies["input"], streams, first=True)
    executor.run(bound, streams=streams)
    shared.copy_rows(copies["output"], streams, first=False)

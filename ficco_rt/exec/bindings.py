"""Checks the tensors that a caller binds to a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from ..driver.api import Array, DeviceArray
from ..errors import UsageError
from ..graph.ir import Tensor
from ..graph.scales import columns, name_of, tensor_of
from ..plan.ir import Plan
from ..types import TYPES, numpy_dtype
from .device_arrays import GAPS, host_array, look


def checked(plan: Plan, given: Mapping[str, object], ranks: Sequence[int]) -> dict[tuple[str, int], Array]:
    """The caller's arrays by (tensor, rank), one for each of `ranks`, or a UsageError that says which one is wrong and
    what fits."""
    bound: dict[tuple[str, int], Array] = {}
    for (name, rank), tensor, array in _matched(plan, given, "arrays", ranks):
        bound[name, rank] = array_of(tensor, rank, array, f"{tensor.kind} {name}")
    apart(plan, {key: (array.ctypes.data, array.shape) for key, array in bound.items()})
    return bound


def checked_on_device(
    plan: Plan, given: Mapping[str, object], ranks: Sequence[int]
) -> dict[tuple[str, int], DeviceArray]:
    """The caller's tensors on GPUs by (tensor, rank), one for each of `ranks`, or a UsageError that says which one is
    wrong and what fits."""
    bound: dict[tuple[str, int], DeviceArray] = {}
    for key, tensor, array in _matched(plan, given, "tensors", ranks):
        wanted = partial(_wanted, tensor, key[1])
        seen = look(array, wanted)
        if seen.dtype != tensor.dtype or seen.shape != tensor.shapes[key[1]]:
            raise UsageError(f"{wanted()}; given {seen.dtype} of shape {list(seen.shape)}")
        if not seen.dense:
            raise UsageError(f"{wanted()}; {GAPS}")
        if tensor.kind == "output" and seen.read_only:
            raise UsageError(f"{wanted()}; given a tensor that cannot be written")
        bound[key] = seen
    apart(plan, {key: (seen.address, seen.shape) for key, seen in bound.items()})
    return bound


def without_scales(plan: Plan, given: Mapping[str, object]) -> Mapping[str, object]:
    """The given lists of pairs (values, scales) as two lists, for scaled inputs that are not given so already. Raises
    UsageError."""
    made = dict(given)
    for tensor in plan.tensors:
        pairs = given.get(tensor.name)
        if tensor.scaling is not None and isinstance(pairs, list | tuple) and name_of(tensor.name) not in given:
            found = [pair(tensor, number, each) for number, each in enumerate(pairs)]
            made[tensor.name], made[name_of(tensor.name)] = [v for v, _ in found], [s for _, s in found]
    return made


def pair(tensor: Tensor, number: int, given: object) -> tuple[object, object]:
    """The values and the scales that are given for a scaled tensor. Raises UsageError."""
    if isinstance(given, tuple | list) and len(given) == 2:
        return given[0], given[1]
    shapes = " and ".join(str(list(t.shapes[0])) for t in (tensor, tensor_of(tensor)))
    raise UsageError(
        f"{tensor.kind} {tensor.name}, number {number} of the list: it is scaled {tensor.scaling}; give a pair "
        f"(values, scales), of shapes {shapes}; given {type(given).__name__}"
    )


def padded(tensor: Tensor, rank: int, scales: object) -> object:
    """Scales as a run takes them: one number is repeated for every row, and rows of blocks are padded."""
    wanted, extent = tensor_of(tensor).shapes[rank], tensor.shapes[rank][-1]
    number = isinstance(scales, float | int | np.number)
    array = np.array(scales, np.float32) if number else host_array(scales, lambda: f"scales of {tensor.name}")
    if tensor.scaling == "tensor" and array.size == 1:
        return np.full(wanted, array.reshape(()), np.float32)
    missing = wanted[-1] - columns(tensor, extent)
    if missing and array.shape == (*wanted[:-1], wanted[-1] - missing):
        return np.pad(array, [*[(0, 0)] * (array.ndim - 1), (0, missing)])
    return array


def _wanted(tensor: Tensor, rank: int) -> str:
    return f"{tensor.kind} {tensor.name}, rank {rank}: wanted {tensor.dtype} of shape {list(tensor.shapes[rank])}"


def apart(plan: Plan, places: Mapping[tuple[str, int], tuple[int, tuple[int, ...]]]) -> None:
    """Refuse an output that shares memory with another tensor. Dense tensors, given by address and shape, are compared
    by their ends."""
    tensors = {t.name: t for t in plan.tensors}
    ends: list[tuple[int, int, tuple[str, int]]] = []
    for (name, rank), (address, shape) in places.items():
        size = TYPES[tensors[name].dtype].bytes * prod(shape)
        if size:
            ends.append((address, address + size, (name, rank)))
    active: list[tuple[int, tuple[str, int]]] = []
    for start, stop, key in sorted(ends):
        active = [(end, other) for end, other in active if end > start]
        for _, other in active:
            if "output" in (tensors[key[0]].kind, tensors[other[0]].kind):
                (a, ra), (b, rb) = sorted((key, other))
                raise UsageError(f"{a} of rank {ra} and {b} of rank {rb} share memory; an output needs its own")
        active.append((stop, key))


def _matched(
    plan: Plan, given: Mapping[str, object], what: str, ranks: Sequence[int]
) -> Iterator[tuple[tuple[str, int], Tensor, object]]:
    """The given arrays one by one with the tensors that they are for."""
    tensors = {t.name: t for t in plan.tensors if t.kind != "scratch"}
    for name, arrays in given.items():
        if name not in tensors:
            known = ", ".join(f"{t.name} ({t.kind})" for t in tensors.values())
            kind = "is scratch, which the executor owns" if any(t.name == name for t in plan.tensors) else "is none"
            raise UsageError(f"'{name}' {kind}; the tensors of schedule '{plan.schedule}' to give are {known}")
        tensor = tensors[name]
        if isinstance(arrays, np.ndarray) or not isinstance(arrays, Sequence) or len(arrays) != len(ranks):
            got = f"{len(arrays)} {what}" if isinstance(arrays, list | tuple) else f"one {type(arrays).__name__}"
            whose = "" if len(ranks) == plan.ranks else " of this process"
            raise UsageError(
                f"{tensor.kind} {name}: wanted a list of {len(ranks)} {what}, one a rank{whose}; given {got}"
            )
        for rank, array in zip(ranks, arrays, strict=True):
            yield (name, rank), tensor, array


def array_of(tensor: Tensor, rank: int, given: object, name: str, *, bound: bool = True) -> Array:
    """A caller's array for a rank's tensor, which messages call `name`. `bound`: it is used in place."""
    shape, dtype = tensor.shapes[rank], numpy_dtype(tensor.dtype)
    wanted = f"{name}, rank {rank}: wanted {dtype} of shape {list(shape)}"
    array = host_array(given, lambda: wanted)
    if array.dtype != dtype or array.shape != shape:
        raise UsageError(f"{wanted}; given {array.dtype} of shape {list(array.shape)}")
    if bound and not array.flags.c_contiguous:
        raise UsageError(f"{wanted}; {GAPS}")
    if tensor.kind == "output" and not array.flags.writeable:
        raise UsageError(f"{wanted}; given an array that cannot be written")
    return array

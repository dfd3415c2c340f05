"""The computations of the host driver: each work of a plan becomes a function without arguments over resolved views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import numpy as np

from ...errors import DeviceError, Span, UsageError, malformed
from ...geometry.region import Region
from ...graph.ir import Argument, Kernel, KernelCall
from ...graph.kinds import kind_of
from ...plan.ir import CollectiveCall, Transfer, Work
from ...plan.kernel_files import read
from ..api import Array
from .views import HostView

HostCall: TypeAlias = Callable[[], None]
Resolve: TypeAlias = Callable[[Region], HostView]
HostFunction: TypeAlias = Callable[..., object]


def bind_transfers(transfers: Sequence[Transfer], resolve: Resolve) -> HostCall:
    """Copies that go out together."""
    moves = [kind_of(t).bind(t, t.origin, resolve) for t in transfers]

    def run() -> None:
        for move in moves:
            move()

    return moves[0] if len(moves) == 1 else run


def bind_work(work: Work, resolve: Resolve, functions: dict[str, HostFunction]) -> HostCall:
    """The work as a function; `functions` are the user kernels' host functions by kernel name."""
    body = work.body
    if isinstance(body, KernelCall):
        return _user(body, work.origin, resolve, functions[body.kernel])
    return kind_of(body).bind(body, work.origin, resolve)


def _user(call: KernelCall, place: Span, resolve: Resolve, function: HostFunction) -> HostCall:
    given = [_argument(a, place, resolve) for a in call.arguments]

    def run() -> None:
        try:
            function(*(g.view() if isinstance(g, np.ndarray) else g for g in given))
        except (Exception, SystemExit) as error:  # the user's code: whatever it raises is reported with its place
            raise DeviceError(
                f"{place.path}:{place.line}: kernel '{call.kernel}' failed on rank {_rank(call)}: "
                f"{type(error).__name__}: {error}"
            ) from error

    return run


def _argument(argument: Argument, place: Span, resolve: Resolve) -> Array | int:
    """The number, or the region's own memory, which a twin may not write where the kernel only reads."""
    if not isinstance(argument.value, Region):
        return argument.value
    memory = resolve(argument.value).one
    if memory is None:
        raise malformed(place, f"a kernel takes one piece, not {argument.value}")
    view = memory.view()
    view.flags.writeable = argument.mode != "read"
    return view


def _rank(call: KernelCall) -> int:
    return next((a.value.rank for a in call.arguments if isinstance(a.value, Region)), 0)


# ---------------------------------------------------------------- collectives


def bind_collective(calls: Sequence[CollectiveCall], rank: int, resolve: Resolve) -> tuple[HostCall, HostCall]:
    """A rank's part in a collective, given all ranks' calls in order: it reads what all give, and then, when all ranks
    have read, writes its result. Pieces go along the first dimension. A call may be in place: nobody writes what others
    are still to read."""
    mine = calls[rank]
    sources, dst = [resolve(call.src) for call in calls], resolve(mine.dst)
    in_place = any(call.src.tensor == mine.dst.tensor for call in calls)
    kept: list[Array] = []

    def read() -> None:
        value = _result(calls, rank, sources)
        if in_place:
            kept[:] = [value]
        else:
            dst.store(value)

    def write() -> None:
        if kept:
            dst.store(kept.pop())

    return read, write


def _result(calls: Sequence[CollectiveCall], rank: int, sources: Sequence[HostView]) -> Array:
    """What a rank gets of a collective, as memory of its own."""
    mine = calls[rank]
    match mine.kind:
        case "all_gather":
            return np.concatenate([s.load() for s in sources])
        case "all_reduce":
            return _sum([s.load() for s in sources])
        case "reduce_scatter":
            start = sum(call.dst.shape[0] for call in calls[:rank])
            return _sum([s.load()[start : start + mine.dst.shape[0]] for s in sources])
        case "send_recv":
            return sources[mine.by].load().copy()
        case "all_to_all":
            n = len(calls)
            loaded = [s.load() for s in sources]
            return np.concatenate([v[rank * v.shape[0] // n : (rank + 1) * v.shape[0] // n] for v in loaded])


def _sum(parts: Sequence[Array]) -> Array:
    total = parts[0].astype(np.float32)  # a copy, whatever the dtype
    for part in parts[1:]:
        total += part.astype(np.float32, copy=False)
    return total


# ---------------------------------------------------------------- user kernels


def host_function(kernel: Kernel, modules: dict[Path, ModuleType]) -> HostFunction:
    """The numpy twin of a user kernel, from its `host = "file.py:function"`, which runs the file.
    `modules` holds the files run so far."""
    place = f"{kernel.origin.path}:{kernel.origin.line}"
    if kernel.host is None:
        raise UsageError(
            f"{place}: kernel '{kernel.name}' has no host function, so the host driver cannot run it; "
            f'declare a numpy twin with host = "file.py:function", called with one array a region and ints, '
            f"in the order of the kernel's arguments"
        )
    name = kernel.host.rpartition(":")[2]
    path, text = read(kernel, "host")
    if path not in modules:
        module = ModuleType(f"ficco_host_{path.stem}")
        module.__file__ = str(path)
        try:  # this very text, whose hash was compared: not the file once more
            exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
        except (Exception, SystemExit) as error:  # the user's code
            raise UsageError(
                f"{place}: kernel '{kernel.name}': '{path}' does not load: {type(error).__name__}: {error}"
            ) from error
        modules[path] = module
    function = getattr(modules[path], name, None)
    if not callable(function):
        raise UsageError(f"{place}: kernel '{kernel.name}': '{path}' has no function '{name}'")
    result: HostFunction = function
    return result

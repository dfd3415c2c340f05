"""Callers' tensors of a process of a group on the stand-in (`tests.mock.worker`), and what befalls their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from ficco_rt.process.group import Group
from tests.mock.standin import Face, StandIn

TIMEOUT = 15.0  # seconds that processes wait for each other, and that a run may take


class Tensors:
    """The part of a worker that makes them."""

    place: int
    face: Face
    gpus: StandIn
    group: Group
    fill: Callable[..., None]
    executor: Callable[..., Any]
    left: Callable[[], str]

    def stale(self, kind: str, places: Sequence[int], timeout: float) -> tuple[list[Any], str]:
        """Runs on a caller's C, given by keyword, whose memory some processes free and make anew at its address in
        between: an ordinary allocation, or a mapping, as PyTorch's allocator does."""
        with self.executor("gemm_ar/streamed", timeout) as executor:
            driver = executor.driver
            shape = next(t.shapes[self.place] for t in executor.plan.tensors if t.name == "C")
            gpus, vendor, found = driver._gpus, driver._vendor, []
            sharing, ordinal, handles, at = vendor.sharing(), gpus.first.local, [], 0

            def make() -> int:
                if kind == "ordinary":
                    return int(vendor.alloc(4 * int(np.prod(shape)), "a caller's tensor"))
                handles.append(sharing.create(ordinal, step, False, "a segment"))
                sharing.place(start, step, handles[-1], "a segment")
                sharing.allow(start, step, (ordinal,), "a segment")
                return start

            def drop() -> None:
                if kind == "ordinary":
                    vendor.free(at)
                else:
                    sharing.lift(at, step)
                    sharing.release(handles.pop())

            with gpus.inside(gpus.first):
                step = sharing.granularity(ordinal, "")
                start = sharing.reserve(step, "a segment") if kind != "ordinary" else 0
                at = make()
            self.fill(executor, 3)
            for turn in range(3):
                gpus.put(gpus.first, at, np.full(shape, np.nan, np.float32))
                self.group.barrier(TIMEOUT)
                executor.run(C=[_Array(at, shape)])
                found.append({("C", self.place): executor.read("C", self.place)})
                if turn == 1 and self.place in places:
                    with gpus.inside(gpus.first):
                        drop()
                        assert make() == at
            with gpus.inside(gpus.first):
                drop()
                if start:
                    sharing.unreserve(start, step)
        return found, self.left()

    def _tensor(self, kind: str, driver: Any, shape: tuple[int, ...], dtype: Any, stack: ExitStack) -> Any:
        """A caller's tensor: of `ficco_rt.empty`; a part of an ordinary allocation, as of PyTorch's allocator; over two
        mappings made for sharing, as of its expandable segments; of a mapping, or a pool, that stays in the process."""
        from ficco_rt import empty

        gpus, vendor, size = driver._gpus, driver._vendor, 4 * int(np.prod(shape))
        if kind == "empty":
            return empty(shape, dtype, group=self.group, driver=self.face)
        if kind == "mapped":
            return _Array(self.gpus.mapped(self.place, 1 << 21), shape)
        if kind == "pooled":
            return _Array(self.gpus.pooled(self.place, size), shape)
        with gpus.inside(gpus.first):
            if kind == "ordinary":
                address = vendor.alloc(size + 4096, "a caller's tensor")
                stack.callback(self._inside, gpus, vendor.free, address)
                return _Array(address + 512, shape)
            sharing, ordinal = vendor.sharing(), gpus.first.local
            step = sharing.granularity(ordinal, "")
            handles = [sharing.create(ordinal, step, False, "a segment") for _ in range(2)]
            mapped = sharing._mapped(handles, [step, step], (ordinal,), "a segment")
            stack.callback(self._inside, gpus, sharing.unmap, mapped)
            return _Array(mapped.address + step - size // 2 // 256 * 256, shape)

    @staticmethod
    def _inside(gpus: Any, give_back: Callable[[Any], None], what: Any) -> None:
        with gpus.inside(gpus.first):
            give_back(what)


class _Array:
    """A caller's tensor."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.address, self.shape = address, shape
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": (address, False), "version": 3}

"""A plan bound to buffers, and a cache of the bindings for the sets of arrays that were used before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..driver.api import Array, Binding, Buffer, DeviceArray, Driver, Memory
from ..driver.gpu.refused import undo_on_error
from ..errors import UsageError
from ..geometry.rows import Rows
from ..plan.ir import Plan
from .device_arrays import Key, tells

KEPT = 8  # sets of tensors on GPUs; of numpy arrays one, as what is kept keeps them alive
KEPT_OF_MANY = 128  # in a workspace, where each of a model's layers has its own

Given: TypeAlias = Mapping[tuple[str, int], Array | DeviceArray]  # the caller's arrays by tensor and rank
_Key: TypeAlias = frozenset[tuple[str, int, int]]  # tensor, rank, and which array it is


@dataclass(slots=True, weakref_slot=True, eq=False)
class Bound:
    """A plan, bound to arrays that were given and to the executor's own buffers for the rest."""

    key: _Key
    given: Given
    memory: dict[tuple[str, int], Buffer] = field(default_factory=dict)
    binding: Binding | None = None  # the driver's, when all is bound
    pinned: bool = False  # made by `bind`, or in a caller's graph: kept until it is released
    tensors: object = None  # what a caller has bound ahead: kept alive until then


class Bindings:
    """Binds a plan on a driver, and caches the bindings of the last few sets of arrays."""

    def __init__(self, driver: Driver, plan: Plan, kept: int = KEPT) -> None:
        self._driver = driver
        self._most = kept if driver.on_device else 1
        self._dtypes = {t.name: t.dtype for t in plan.tensors}
        self._kept: dict[_Key, Bound] = {}  # the last used one last
        self._by_look: dict[Key, Bound] = {}  # by the key of PyTorch tensors

    def known(self, seen: Key) -> Bound | None:
        """The binding that `get` has made for tensors with this key, if it may run again."""
        found = self._by_look.get(seen)
        return found if found is not None and self.again(found) else None

    def again(self, bound: Bound) -> bool:
        """Whether a binding may run again: it is kept, and its memory has not been reallocated."""
        if self._kept.get(bound.key) is not bound or not self._driver.reuse(bound.memory):
            return False
        self._kept[bound.key] = self._kept.pop(bound.key)
        return True

    def get(self, given: Given, owned: Memory, seen: Key | None = None, rows: Rows | None = None) -> Bound:
        """The plan bound to these arrays, which have been checked, and to `owned` buffers for tensors that are not
        given. `seen`: the arrays' key, if they have one; `rows`: those that they have, if they are fewer."""
        key = frozenset([(*at, a.address if isinstance(a, DeviceArray) else id(a)) for at, a in given.items()])
        if rows is not None:
            key |= {("", rows.given, 0)}
        found = self._kept.get(key)
        if found is not None and not self._driver.reuse(found.memory):
            if found.pinned:
                raise UsageError(
                    "these tensors lie in other memory than when they were bound, and what bind() made, or a caller's "
                    "graph, still has the old one: release that, or close the executor, before their memory is freed"
                )
            self.release(found)
            found = None
        if found is None:
            self._make_room()
            found = self._bind(key, given, owned, rows)
        self._kept.pop(key, None)  # the last used one stands last
        self._kept[key] = found
        if seen is not None and tells(seen, given.values()):
            self._by_look[seen] = found
        return found

    def holds(self, bound: Bound) -> bool:
        return isinstance(bound, Bound) and self._kept.get(bound.key) is bound

    def release(self, bound: Bound) -> None:
        """Releases what a binding holds; the last run must not use it, or must have ended."""
        self._kept.pop(bound.key, None)
        self._by_look = {seen: other for seen, other in self._by_look.items() if other is not bound}
        if bound.binding is not None:
            self._driver.unbind(bound.binding)
        for at in bound.given:
            if at in bound.memory:
                self._driver.free(bound.memory[at])

    def clear(self) -> None:
        """Forgets all bindings, because the driver is closed."""
        self._kept.clear()
        self._by_look.clear()

    def _make_room(self) -> None:
        """NOTE the host waits for the last run where it releases a binding, so half of them go at once."""
        free = [b for b in self._kept.values() if not b.pinned]
        if len(free) >= self._most:
            for bound in free[: len(free) - self._most // 2]:
                self.release(bound)

    def _bind(self, key: _Key, given: Given, owned: Memory, rows: Rows | None) -> Bound:
        made = Bound(key, dict(given))
        with undo_on_error(self.release, made):  # the driver still knows what has not been given back
            for (name, rank), array in given.items():
                made.memory[name, rank] = self._driver.adopt(rank, array, self._dtypes[name])
            memory = {**owned, **made.memory}
            made.binding = self._driver.bind(memory, rows)
        made.memory = memory
        return made

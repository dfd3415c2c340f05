"""Users' kernels: compiled from files next to the schedule, and launched as the text says."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from math import prod

from ..geometry.region import Region
from ..graph.ir import KernelCall
from ..machine.model import Device
from .family import Chosen, Family, GemmRequest, KernelConfig, LaunchRequest, Tables, Variant
from .occupancy import Limits
from .pace import Pace
from .works import Work, WorkOf, only


class User(Family[Variant]):
    """The registers and static shared memory of a user's kernel are known only after it is loaded."""

    name = "user"

    def fits(self, request: GemmRequest) -> str | None:
        return "a user's kernel is named, not chosen"

    def choose(self, request: GemmRequest, limits: Limits) -> Chosen | str:
        return "a user's kernel is named, not chosen"

    def configure(self, request: LaunchRequest, limits: Limits) -> tuple[KernelConfig, ...] | str:
        return tuple(self._config(i, w.body, request) for i, w in enumerate(only(request.works, KernelCall)))

    def _config(self, index: int, call: KernelCall, request: LaunchRequest) -> KernelConfig:
        return KernelConfig(
            family=self.name,
            kernel=call.kernel,
            entry=call.kernel,
            source=self.source,
            options=(),
            threads=prod(call.block),
            registers=0,
            smem=request.smem,
            static_smem=0,
            blocks=prod(call.grid),
            cluster=1,
            resident=1,
            tiles=prod(call.grid),
            works=(index, 1),
        )

    def pace(self, config: KernelConfig, device: Device, dtype: str) -> Pace:
        return Pace(groups=1, step=0.0)  # what it computes nobody says

    def tables(self, config: KernelConfig, works: Sequence[Work], resets: Sequence[int] = ()) -> Tables:
        packed = list(_packed(only(works, KernelCall)[config.works[0]]))
        return Tables(b"", 0, 0, lambda constants, counters, partials, encode: packed)


def _packed(work: WorkOf[KernelCall]) -> Iterator[bytes]:
    """Of a region the address of its first element, of a number a C int."""
    views = {view.region: view for view in work.views}
    for value in (argument.value for argument in work.body.arguments):
        yield bytes(ctypes.c_uint64(views[value].first) if isinstance(value, Region) else ctypes.c_int(value))


USER = User()

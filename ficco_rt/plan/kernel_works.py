"""Converts ops into works, the form in which kernels take them."""

from __future__ import annotations

from collections.abc import Iterable

from ..geometry.region import Region
from ..graph.ir import Body, Tensor
from ..graph.kinds import kind_of
from ..graph.ops.kind import Flags, Look
from ..kernels.works import View, Work


def symbolic(tensors: Iterable[Tensor]) -> Look:
    """Views for use before memory exists: tensors have assumed addresses, far apart, aligned as allocations are."""
    places = {t.name: ((i + 1) << 44, t) for i, t in enumerate(tensors)}

    def look(region: Region) -> View:
        address, tensor = places[region.tensor]
        # NOTE regions of one launch may lie on several ranks, each in a place of its own
        address += region.rank << 32
        return View(region, address, tensor.shapes[region.rank], tensor.dtype, tensor.kind != "input")

    return look


def kernel_work(body: Body, look: Look, waits: Flags = (), signals: Flags = ()) -> Work:
    """The work of a body on views; flags are numbers or addresses."""
    return kind_of(body).work(body, look, waits, signals)

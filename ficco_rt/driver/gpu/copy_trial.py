"""Tests whether copies to other GPUs arrive, before any run relies on them."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from ...errors import DeviceError
from .gpus import Gpus
from .peers import Peers
from .vendor import Gpu, LinearCopy, PitchedCopy

_ARRIVE = "to see that copies arrive"


def try_copies(gpus: Gpus, peers: Peers | None) -> None:
    """Tests copies from each device to all others, which all processes do at the same step. DeviceError, in every
    process: copies change bytes."""
    size, what = gpus.vendor.lent, "copies to other GPUs"
    if not size or len(gpus.placement.ordinals) < 2:
        return
    places = size * len(gpus.placement.ordinals)  # one for each device that tries: nobody else's bytes count
    mine = {ordinal: gpus.alloc(device, places, what, shared=True) for ordinal, device in gpus.devices.items()}
    for ordinal, address in mine.items():
        gpus.put(gpus.devices[ordinal], address, np.zeros(places, np.uint8))
    targets = {str(gpus.devices[ordinal]): address for ordinal, address in mine.items()}
    shared = None
    if peers is not None:
        shared = peers.share(what, {f"device {ordinal}": (address, places) for ordinal, address in mine.items()})
        targets |= {f"{there} of another process": address for there, address in shared.addresses.items()}
    with nullcontext() if peers is None else peers.in_step(f"try {what}"):
        for ordinal, device in gpus.devices.items():
            for there, address in targets.items():
                if address != mine[ordinal] and not _arrives(gpus, device, address + size * ordinal, there):
                    gpus.vendor.copy_ordinarily(device, there)
    if peers is not None and shared is not None:
        peers.release(shared)
    for address in mine.values():
        gpus.free(address)


def _arrives(gpus: Gpus, here: Gpu, target: int, there: str) -> bool:
    """Whether bytes that a device sends to another's memory, and then gets back, come at all. DeviceError: they come
    as others."""
    vendor = gpus.vendor
    size, half = vendor.lent, vendor.lent // 2
    sent = (np.arange(size) % 251 + 1).astype(np.uint8)  # no zeros: they say that nothing came
    source, back = (gpus.placed(here, values, _ARRIVE) for values in (sent, np.zeros_like(sent)))
    stream, got = gpus.control[here.ordinal], np.empty_like(sent)
    came = True
    with gpus.inside(here):
        for to, of in ((target, source), (back, target)):
            for function, arguments in (  # lying together, and by rows
                vendor.copy(LinearCopy(to, of, half), stream),
                vendor.copy_rows(PitchedCopy(to + half, of + half, 64, half // 64, 64, 64), stream),
            ):
                came = vendor.call.succeeds(function, *arguments, unless=vendor.no_copy, what=_ARRIVE) and came
    gpus.finish(here, stream)
    with gpus.inside(here):
        vendor.to_host(got.ctypes.data, back, size)
    for address in (source, back):
        gpus.free(address)
    came = came and all(part.any() for part in (got[:half], got[half:]))
    if came and not np.array_equal(got, sent):
        raise DeviceError(f"copies between {here} and {there} change bytes; is a link or a GPU broken?")
    return came

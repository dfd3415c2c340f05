"""Tests whether copies to the GPUs of other processes arrive, before any run relies on them. Pairs of GPUs of one
process are tested by the vendor's module (`Vendor.prepare`)."""

from __future__ import annotations

import numpy as np

from .gpus import Gpus
from .peers import Peers


def try_copies(gpus: Gpus, peers: Peers) -> None:
    """Tests copies between processes, which all do this at the same step. DeviceError, in every process: copies change
    bytes."""
    size, what = gpus.vendor.lent, "copies to other processes"
    if not size:
        return
    places = size * len(gpus.placement.ordinals)  # one for each device that tries: nobody else's bytes count
    mine = {}
    for ordinal, device in gpus.devices.items():
        mine[f"device {ordinal}"] = gpus.alloc(device, places, what, shared=True), places
        gpus.put(device, mine[f"device {ordinal}"][0], np.zeros(places, np.uint8))
    shared = peers.share(what, mine)
    with peers.in_step(f"try {what}"):
        for there, address in shared.addresses.items():
            for ordinal, device in gpus.devices.items():
                gpus.vendor.try_copies(gpus, device, address + size * ordinal, f"{there} of another process")
    peers.release(shared)
    for address, _ in mine.values():
        gpus.free(address)

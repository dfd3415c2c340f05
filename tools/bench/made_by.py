"""Which GEMM kernels make a plan's products: a time holds for the kernels that it was measured with."""

from __future__ import annotations

import hashlib
import re

from ficco_rt.device.build import layout_of
from ficco_rt.device.features import usual
from ficco_rt.device.ir import Placement
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan

_TILE = re.compile(r"\d+x\d+_c\d+(_pp)?(_swapped)?")


def kernels(plan: Plan, machine: Machine) -> str:
    """Eight digits: the tiles of products, and into how many parts K of them is split. Ranks have the same, so it does
    not matter how many of them a plan keeps."""
    launches = layout_of(plan, machine.device, Placement(tuple(range(plan.ranks))), usual(machine.device.arch)).launches
    return digest([(launch.config.entry, repr(launch.config.split_k)) for launch in launches])


def digest(launches: list[tuple[str, str]]) -> str:
    """Of entries of launches, each with its split of K."""
    gemms = sorted({(found[0], split) for entry, split in launches if (found := _TILE.search(entry)) is not None})
    return hashlib.sha256(repr(gemms).encode()).hexdigest()[:8]

"""Finds accesses of a rank to memory that it cannot reach, on machines of several nodes."""

from __future__ import annotations

from collections.abc import Iterable

from ..geometry.region import Region
from ..machine.model import Machine

WAY_OUT = (
    "copy it on a queue with engine = nccl, or take a vendor collective; the schedules called hierarchical show how, "
    "with node = GPUs of a node"
)


def beyond(machine: Machine, rank: int, reads: Iterable[Region], writes: Iterable[Region]) -> str | None:
    """The first region outside of a rank's reach, in words; None: the rank reaches all regions."""
    node = machine.node
    for regions, does in ((reads, "reads"), (writes, "writes")):
        for region in regions:
            if region.rank // node != rank // node:
                tier = machine.between(rank, region.rank).name
                return (
                    f"rank {rank} {does} {region.tensor}@{region.rank}, the memory of another node: ranks reach each "
                    f"other by messages alone over tier '{tier}' of {machine.name}, whose nodes have {node} "
                    f"GPU{'' if node == 1 else 's'}"
                )
    return None

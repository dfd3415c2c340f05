"""The worker processes of a run: ours in one process, ours in a process a GPU, the peers, and each library that needs
processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ficco_rt.errors import DeviceError

from .cublasmp import KIND, CublasMp, Libraries, libraries
from .gatherers import PACKAGES, Gatherer, missing
from .measure import OURS, PROCESSES, Asked, Settings, first_line
from .members import Member, free_port
from .ours import Ours
from .peers import PEERS, Peer
from .scenarios import Scenario
from .stats import ITEM
from .workers import Absent, Crew

START = 180.0  # seconds for the workers to come up
LIMIT = 60.0  # seconds that an answer of a crew beside ours may take
SPARES = 2  # times that such a crew is started again
KINDS = (*PEERS, KIND, *PACKAGES)

Join = Callable[..., Crew]  # makes the crew of the processes that a launcher has started


def crews(
    scenarios: Sequence[Scenario], settings: Settings, values: int | None, skip: Sequence[str], folder: str
) -> dict[str, Crew | Absent]:
    """The workers of one process and of the peers, coming up. Peers have no rank of R on two."""
    ranks = settings.ranks
    found: dict[str, Crew | Absent] = {OURS: Crew(OURS, Ours, [(ranks, values, settings.gpus)])}
    if settings.gpus < ranks:
        return found
    beside = partial(Crew, limit=LIMIT, spares=SPARES)
    if set(PEERS) - set(skip):
        gathered = [s.m * s.k * ITEM for s in scenarios if s.gathers]
        if not gathered:
            skip = [*skip, "nccl-ce"]
        whole = max([1 << 20, *gathered])
        port = free_port()
        each = [(rank, ranks, port, folder, tuple(skip), (whole // ranks, whole)) for rank in range(ranks)]
        found["peers"] = beside("peer", Peer, each)
    if KIND not in skip:
        found[KIND] = _cublasmp(ranks, Path(folder) / KIND, beside)
    for kind in (kind for kind in PACKAGES if kind not in skip):
        why, port = missing(kind), free_port()
        of_each = [(rank, ranks, port, folder, kind) for rank in range(ranks)]
        found[kind] = Absent(kind, why) if why else beside(kind, Gatherer, of_each)
    return found


def _cublasmp(ranks: int, folder: Path, beside: Callable[..., Crew]) -> Crew | Absent:
    there = libraries()
    if not isinstance(there, Libraries):
        return Absent(KIND, there)
    folder.mkdir()
    port = free_port()
    return beside(KIND, CublasMp, [(rank, ranks, port, str(folder), there) for rank in range(ranks)])


def members(ranks: int, join: Join | None) -> Crew:
    """Ours in a process a GPU: started here, or by a launcher."""
    if join is not None:
        return join(limit=LIMIT)
    port = free_port()
    each = [(rank, ranks, port) for rank in range(ranks)]
    return Crew(PROCESSES, Member, each, limit=LIMIT, spares=SPARES)


def ready(found: Mapping[str, Crew | Absent]) -> tuple[dict[str, Asked], dict[str, str]]:
    """The crews when they have come up, and what they measure with. One that does not come up is absent, but for ours.

    Raises DeviceError: ours does not come up.
    """
    up: dict[str, Asked] = {}
    about: dict[str, Any] = {}
    for name, crew in found.items():
        try:
            crew.ready(START)
            up[name] = crew
            about |= crew.ask("about")[0]
        except DeviceError as error:
            if name == OURS:
                raise
            crew.close()
            up[name] = Absent(name, first_line(error))
            about[name] = f"not measured: {first_line(error)}"
    return up, about

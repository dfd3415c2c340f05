"""The options of `ficco-run` as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..device.ir import Mode
    from ..driver.api import CollectivesBy


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    target: str
    gpus: int | None
    settings: tuple[str, ...]
    backend: str
    ranks_per_gpu: int
    node: int | None  # GPUs of a node; None: as the launcher says
    graph: bool | None  # None: as is chosen, or on streams
    collectives: CollectivesBy
    timeout: int
    machine: str | None
    order: str | None
    iters: int | None
    warmup: int
    baselines: bool
    exact: bool
    no_verify: bool
    seed: int
    trace: str | None
    timeline: str | None
    report: str | None
    emit: str | None
    mode: Mode | None
    ranks_per_process: int | None
    trust: bool
    by: str | None
    as_json: bool

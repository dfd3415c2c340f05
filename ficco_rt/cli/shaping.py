"""The settings that `ficco shape` tries for a schedule, and a row for each: how long the run takes, and what it leaves
free.

A setting consists of attributes of queues (`compute.sms = 100`), and sometimes params. Unless the caller gives a sweep,
each control of the schedule is tried alone, with and without priority; multiprocessors are left free for as many blocks
of collectives as may use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, TypeAlias

from ficco_dsl import nodes as n
from ficco_dsl.verbs import Gemm

from ..files.records import PAIRS, Count, Micros, derived
from ..graph.overrides import NOTHING, split_overrides, value_of, with_overrides

if TYPE_CHECKING:
    from ..device.ir import DeviceLaunch
    from ..machine.model import Device, Machine
    from ..plan.ir import Plan

Setting: TypeAlias = Mapping[str, object]  # what queues say, and perhaps params, in place of the text
KIB = 1 << 10
_LEFT = (4, 8, 16, 32)  # multiprocessors for others, and blocks of a collective
_SMEM = (64 * KIB, 96 * KIB, 128 * KIB, 160 * KIB)
_RESIDENCY = (1, 2, 3)
_THREADS = (256, 128)


@dataclass(frozen=True, slots=True)
class Row:
    """A setting with its time and what the run is compared with.

    time_us: Of a run; null: see problem.
    sequential_us: The same work one after the other.
    iterations: Of a run; 0: it repeats nothing.
    time_ratio: time ÷ sequential.
    share_of_saving: (sequential - time) ÷ (sequential - ideal).
    free_sms: Multiprocessors that products leave free; null: unknown, as of a vendor's kernel.
    free_smem: Bytes of shared memory that products leave free on each of the others; null: unknown.
    problem: Why there is no time; empty: there is one.
    made: A digest of what made the row.
    """

    setting: Annotated[tuple[tuple[str, object], ...], PAIRS]
    time: Micros | None = None
    sequential: Micros = 0.0
    ideal: Micros = 0.0
    iterations: Count = 0
    free_sms: int | None = None
    free_smem: int | None = None
    problem: str = ""
    made: str = ""

    @derived
    def time_ratio(self) -> float | None:
        return self.time / self.sequential if self.time and self.sequential else None

    @derived
    def share_of_saving(self) -> float | None:
        most = self.sequential - self.ideal
        return (self.sequential - self.time) / most if self.time and most > 0 else None

    @property
    def label(self) -> str:
        return ", ".join(f"{name} = {_shown(name, value)}" for name, value in self.setting) or "as the text says"


def _shown(name: str, value: object) -> str:
    whole = name.endswith(".smem") and isinstance(value, int) and value and value % KIB == 0
    return f"{value // KIB} KiB" if whole and isinstance(value, int) else str(value)


# ---------------------------------------------------------------- what is tried


def settings(schedule: n.Schedule, said: Setting, device: Device) -> list[dict[str, object]]:
    """What is tried where the caller sweeps nothing; the text as it is comes first. `said` is said in all of them."""
    schedule = with_overrides(schedule, split_overrides(said, schedule).said)
    products = [q for q in schedule.queues if q.engine == "sm" and _multiplies(schedule, q.name)]
    own = [q.name for q in products if value_of(q, "kernel") is None]
    calls = [q.name for q in schedule.queues if q.engine == "nccl"]
    moving = calls or [q.name for q in schedule.queues if q.engine == "copy"]
    high = _all(moving, "priority", "high") | _all([q.name for q in products], "priority", "low")
    alone: list[dict[str, object]] = [{}]
    for left in _LEFT:
        fewer = _all([q.name for q in products], "sms", max(1, device.sms - left))
        alone.append(fewer)
        alone += [_all(calls, "ctas", left), fewer | _all(calls, "ctas", left)] if calls else []
    alone += [_all(own, "smem", smem) for smem in _SMEM if own and smem <= device.smem_per_block]
    alone += [_all(own, "residency", residency) for residency in _RESIDENCY if own]
    alone += [_all([q.name for q in products], "leave", "nccl")] if calls else []
    if calls:
        few = _all(calls, "threads", _THREADS[0])
        alone += [_all(calls, "threads", threads) for threads in _THREADS]
        alone += [few | _all(calls, "ctas", _LEFT[2])]
        alone += [few | _all(own, "smem", _SMEM[0]), few | _all(own, "leave", "nccl")] if own else []
    said_so = {f"{q.name}.priority" for q in schedule.queues if value_of(q, "priority") is not None}
    plain: dict[str, object] = {name: NOTHING for name in high if name in said_so}
    found = [{}, *(one | priority for one in alone for priority in (plain, high))]
    return list({tuple(sorted(one.items(), key=str)): one for one in found}.values())


def _all(queues: Sequence[str], attribute: str, value: object) -> dict[str, object]:
    return {f"{queue}.{attribute}": value for queue in queues}


def _multiplies(schedule: n.Schedule, queue: str) -> bool:
    stages = (stage for stage in schedule.stages if stage.queue == queue)
    return any(isinstance(node, Gemm) for stage in stages for node in n.walk(stage))


def told(error: Exception) -> str:
    """Why a setting has no time, in one line."""
    found = getattr(error, "diagnostics", ())
    words = found[0].message if found else str(error)
    return " ".join(words.split())[:300]


# ---------------------------------------------------------------- what it leaves free


def left_free(plan: Plan, machine: Machine) -> tuple[int | None, int | None]:
    """Multiprocessors, and shared memory of each of the others in bytes, beside the largest launch of products."""
    from ..analysis.account import placed_launches

    device = machine.device
    launches: list[DeviceLaunch] = [
        launch for launch in placed_launches(plan, machine) if launch.config.tiles and launch.works[0].tiles is not None
    ]
    if not launches or any(launch.config.matmuls for launch in launches):
        return None, None
    taken = max(ceil(launch.config.blocks / max(1, launch.config.resident)) for launch in launches)
    held = max(
        launch.config.resident * (launch.config.smem + launch.config.static_smem + device.smem_reserved)
        for launch in launches
    )
    return max(0, device.sms - taken), max(0, device.smem_per_sm - held)

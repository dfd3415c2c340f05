"""Describes where a run's time went, what its stages did, and what happened inside its streamed launches, in words and
as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..analysis.account import Account, PartName, StageUse, account, stage_uses
from ..analysis.causes import arrows, path_times
from ..files.records import NEWER, Micros
from ..machine.model import Machine
from ..plan.ir import Plan
from ..trace.inside import LaunchInside, launches
from ..trace.model import Trace
from .wording import count, one_line, show_bytes, show_time, signed_time

if TYPE_CHECKING:
    from ..exec.ideal import Yardsticks

_IDEAL = ("ideal", "The longer of computing alone and moving alone.")
_WAVES = ("waves", "The last wave of a GEMM launch has no tile for every multiprocessor (estimated).")
_WAITING = ("waiting", "Nothing but waits for other streams or ranks.")
_LAUNCH = ("launch", "Launches, signals, and the run's begin and end.")
# What the time that a run is compared with, `serial`, is of.
SERIAL = "computing and moving, one after the other, both uncut"
# What each part of an account is called, and what it means, by the side that the account goes by.
WORDS: Mapping[str, Mapping[PartName, tuple[str, str]]] = {
    "computing": {
        "ideal": _IDEAL,
        "waves": _WAVES,
        "slower": (
            "computing beyond the ideal",
            "Smaller pieces, copies beside them, sums and kernels, and what these move between ranks themselves: the "
            "ideal counts none of these.",
        ),
        "exposed": ("exposed communication", "Copies or collectives moved data and nothing computed."),
        "waiting": _WAITING,
        "launch": _LAUNCH,
    },
    "moving": {
        "ideal": _IDEAL,
        "waves": _WAVES,
        "slower": (
            "moving beyond the ideal",
            "More copies, links that are shared, copies inside a GPU: the ideal counts none of these.",
        ),
        "exposed": ("only computing", "Computing ran and nothing moved."),
        "waiting": _WAITING,
        "launch": _LAUNCH,
    },
}


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Where a run's time went.

    stages: In the order of their first works.
    """

    time: Micros
    stages: tuple[StageUse, ...]
    account: Account = NEWER


def times_of(trace: Trace, plan: Plan, machine: Machine, yardsticks: Yardsticks) -> RunTimes:
    """The account and the stages of a run."""
    if not trace.arrows:
        trace = replace(trace, arrows=arrows(plan, trace))
    return RunTimes(trace.duration, stages_of(trace), account_of(trace, plan, machine, yardsticks))


def account_of(trace: Trace, plan: Plan, machine: Machine, yardsticks: Yardsticks) -> Account:
    """Where the time of a run went beside its yardsticks."""
    return account(trace, plan, machine, yardsticks.compute_alone, yardsticks.communication_alone)


def stages_of(trace: Trace) -> tuple[StageUse, ...]:
    """The stages of a run whose trace has arrows."""
    return stage_uses(trace, path_times(trace))


def lost_words(found: Account) -> str:
    """What the run took beyond its ideal: `waves 23.0 µs, launch 5.60 µs; on rank 0, which ends last`. The ideal and
    the parts add up to the time: if the rank was busy for less than the ideal, that part is shown as negative."""
    words = WORDS[found.side]
    lost: Sequence[str] = [
        f"{part_name(words[part.name][0], part.time)} {signed_time(part.time)}"
        for part in found.parts
        if part.name != "ideal" and abs(part.time) >= found.time / 1000
    ]
    moved = f"; {moved_words(found.peer_bytes)}, as part of computing" if found.peer_bytes else ""
    return f"{', '.join(lost)}; on rank {found.rank}, which ends last{moved}" if lost else "nothing"


def moved_words(peer_bytes: int) -> str:
    """The bytes that launches that compute move between ranks, in words."""
    return f"launches move {show_bytes(peer_bytes)} between ranks themselves"


def part_name(words: str, time: float) -> str:
    """`computing beyond the ideal`, or `computing below the ideal` of a time below 0."""
    return words.replace("beyond", "below") if time < 0 else words


def launch_words(launch: LaunchInside) -> str:
    """`rank 0 mm: waited 34.0 µs of 210 µs, longest 9.2 µs for flag 3 of rank 1 stream dma (mm C rows 0–511)`."""
    span, longest = launch.span, launch.longest
    words = f"rank {span.rank} {span.stage}: waited {show_time(span.waited)} of {show_time(span.stop - span.start)}"
    if longest is not None:
        awaited = longest.awaited.replace("waits for", "for", 1)
        words += f", longest {show_time(longest.waited)} {awaited} ({one_line(longest.label)})"
    return words


def summary(trace: Trace) -> str | None:
    """One line on the launch that waited most; None where no launch tells."""
    found = launches(trace)
    if not found:
        return None
    most = max(found, key=lambda launch: launch.span.waited)
    if most.longest is None:
        return f"{count(len(found), 'streamed launch')}, none of which waited"
    others = f"; {count(len(found) - 1, 'other launch')} waited as long or less" if len(found) > 1 else ""
    return launch_words(most) + others


def launch_records(trace: Trace) -> tuple[LaunchInside, ...]:
    """Streamed launches as --json has them."""
    return tuple(
        replace(launch, works=tuple(replace(work, label=one_line(work.label)) for work in launch.works))
        for launch in launches(trace)
    )

"""`ficco-run` in several processes, as torchrun, mpirun or Slurm starts them: one command, one report, one exit code.

Process 0 prints and writes files. It also reports the errors of the other processes, with their places. Each process
reports its own errors only if the processes can no longer communicate.
"""

from __future__ import annotations

import json
import os
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

from ..errors import DeviceError, LeftError, UsageError, exit_code
from ..files.records import plain
from ..graph.budget import one_meter
from ..process.group import Group
from ..process.transports import launched
from ..report.request import DEFAULT_GPUS, PLAN_SUFFIX
from ..report.wording import join_words
from .messages import as_ours, error_record, error_text, print_json, say
from .options import Options
from .run import run

PROGRAM = "ficco-run"
GOODBYE = 5.0  # seconds that processes wait for each other at the end


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process's part of the command has ended. `derived`: its error was caused by that of another process."""

    code: int
    text: str = ""
    record: dict[str, object] | None = None
    derived: bool = False


def together(options: Options) -> int:
    """The whole command, in this process alone or with those that were started with it."""
    who, size = launched()
    if size == 1:
        with one_meter(options.gpus or DEFAULT_GPUS):  # of the plan and of what is made of it, together
            return run(options)
    group = Group.from_env(float(options.timeout))
    ends = Group(group, timeout=float(options.timeout))  # of use when `group` is none any more
    try:
        outcome = Outcome(_part(replace(options, gpus=_ranks(options, who, size)), group))
    except Exception as error:  # noqa: BLE001  as in `main`: every error becomes words and a code
        ours = as_ours(error)
        outcome = Outcome(
            exit_code(ours), error_text(ours, PROGRAM), plain(error_record(ours)), isinstance(ours, LeftError)
        )
        group.leave(ours)
    try:
        told = ends.exchange(json.dumps([getattr(outcome, n) for n in Outcome.__slots__]).encode(), GOODBYE, "the end")
    except DeviceError as error:
        text = outcome.text or error_text(error, PROGRAM)
        say(f"[process {group.rank}] {text}")
        code = outcome.code or exit_code(error)
        ends.abandon(code)
        return code
    outcomes = [Outcome(*json.loads(data)) for data in told]
    if group.rank == 0:
        _tell(outcomes, options.as_json)
    return _first(outcomes).code


def _part(options: Options, group: Group) -> int:
    if group.rank == 0:
        with one_meter(options.gpus or DEFAULT_GPUS):
            return run(options, group)
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), one_meter(options.gpus or DEFAULT_GPUS):
        return run(options, group)


def _ranks(options: Options, who: str, size: int) -> int | None:
    """`--gpus` as it is, or by the processes; None for a stored plan, which has its own."""
    if options.gpus is None:
        return None if options.target.endswith(PLAN_SUFFIX) else size * options.ranks_per_gpu
    if options.gpus % size:
        raise UsageError(
            f"--gpus {options.gpus}: {who} has started {size} processes, and {options.gpus} ranks do not go out even "
            f"on them; leave --gpus out, or start {options.gpus} processes"
        )
    return options.gpus


def _first(outcomes: list[Outcome]) -> Outcome:
    """The one that has ended the command: an error before those that it has brought about."""
    wrong = [outcome for outcome in outcomes if outcome.code]
    return next((outcome for outcome in wrong if not outcome.derived), wrong[0] if wrong else outcomes[0])


def _tell(outcomes: list[Outcome], as_json: bool) -> None:
    """All errors, each once, with the places of the processes where they are not process 0's."""
    first = _first(outcomes)
    places: dict[str, list[int]] = {}
    for place, outcome in enumerate(outcomes):
        if outcome.text and outcome.derived == first.derived:
            places.setdefault(outcome.text, []).append(place)
    if as_json and first.record is not None:
        record: dict[str, Any] = first.record
        if outcomes[0] != first:
            record = {**record, "message": f"[process {outcomes.index(first)}] {record['message']}"}
        print_json({"error": record})
        return
    for text, who in places.items():
        noun = "process" if len(who) == 1 else "processes"
        say(text if 0 in who else f"[{noun} {join_words(map(str, who))}] {text}")

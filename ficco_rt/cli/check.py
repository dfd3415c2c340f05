"""`ficco check`: prove schedules, and check plans and device plans."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Literal

from ficco_dsl.diagnostics import Diagnostic, Span

from ..device.ir import Mode
from ..errors import PlanError, SizesError, exit_code
from ..files import atomic
from ..files.records import Count, filled
from ..report.job import Job, compile_job, operations, proof_words, short_words, waits
from ..report.request import STDIN, Request, Source, parse, read
from ..report.settings import gpu_list
from ..report.sources import DiagnosticRecord, diagnostic_records, sourced
from ..report.wording import count
from .console import Progress
from .messages import ErrorRecord, as_ours, error_class, error_record, error_text, print_json, say, warn


@dataclass(frozen=True, slots=True)
class PlanChecked:
    """A schedule or a plan that is right.

    operations: On all ranks.
    waits: On streams, and of works of streamed launches.
    short_sums: Tensors whose partial sums may pass the end of their type (fp16: 65504) where the result does not.
    """

    target: str
    schedule: str
    ranks: Count
    ok: Literal[True]
    proven: bool
    unproven: tuple[str, ...]
    proof_ms: float
    operations: Count
    streams: Count
    waits: Count
    short_sums: tuple[str, ...]
    warnings: tuple[DiagnosticRecord, ...]


@dataclass(frozen=True, slots=True)
class DevicePlanChecked:
    """A device plan that is right.

    compared: It is what the plan in its file gives. false: the file holds no plan.
    """

    target: str
    schedule: str
    ranks: Count
    ok: Literal[True]
    mode: Mode
    devices: Count
    streams: Count
    semaphores: Count
    launches: Count
    actions: Count
    compared: bool


@dataclass(frozen=True, slots=True)
class Wrong:
    """One that is wrong.

    ranks: null: it is wrong at any number.
    """

    target: str
    ranks: Count | None
    ok: Literal[False]
    error: ErrorRecord


@dataclass(frozen=True, slots=True)
class Checked:
    """What `ficco check --json` prints.

    ok: All are right.
    results: One for each target and number of ranks.
    """

    ok: bool
    results: tuple[PlanChecked | DevicePlanChecked | Wrong, ...]


def check(
    targets: tuple[str, ...],
    gpus: str | None,
    settings: tuple[str, ...],
    machine: str | None,
    trust: bool,
    as_json: bool,
) -> int:
    """Check every target at every number of ranks; one that is wrong does not hide the others."""
    numbers = (None,) if gpus is None else gpu_list(gpus)
    progress = Progress()
    results: list[PlanChecked | DevicePlanChecked | Wrong] = []
    told: set[object] = set()
    worst = 0

    def wrong(target: str, ranks: int | None, caught: Exception) -> None:
        nonlocal worst
        error = as_ours(caught)
        worst = max(worst, exit_code(error))
        results.append(Wrong(target, ranks, False, error_record(error)))
        if not as_json:
            at = f": {count(ranks, 'rank')}" if ranks else ""
            refused = error_class(error) == SizesError.__name__
            verdict = "refused" if refused else "WRONG" if exit_code(error) == 1 else "not checked"
            sys.stdout.write(f"{_shown(target)}{at}: {verdict}\n")
            text = error_text(error, "ficco check")
            if text not in told:  # the same at every number of ranks
                told.add(text)
                say(text)

    for target in targets:
        try:
            source = read(target)
            if not source.is_plan:
                parse(source)
            elif source.is_device_plan:
                record = _device_plan(target, source, progress)
                results.append(record)
                if not as_json:
                    sys.stdout.write(f"{_shown(target)}: {_device_sentence(record)}\n")
                continue
        except Exception as caught:  # noqa: BLE001  the same at every number of ranks; the next target has its turn
            wrong(target, numbers[0] if len(numbers) == 1 else None, caught)
            continue
        for ranks in (None,) if source.is_plan and gpus is None else numbers:
            try:
                job = compile_job(Request(source, ranks, settings, machine, trust, rules=False), progress.step)
            except Exception as caught:  # noqa: BLE001  told at once, then the next one has its turn
                wrong(target, ranks, caught)
                continue
            results.append(_record(target, job))
            warn([d for d in job.warnings if _cause(d) not in told], job.texts)
            told.update(map(_cause, job.warnings))
            if not as_json:
                sys.stdout.write(f"{_shown(target)}: {_sentence(job)}\n")
    if as_json:
        print_json(Checked(worst == 0, tuple(results)))
    return worst


def _device_plan(target: str, source: Source, progress: Progress) -> DevicePlanChecked:
    """A stored device plan, checked from itself alone, and compared with what its plan gives."""
    from ..compiler import compilation
    from ..device import codec
    from ..device.build import device_plan, layout_of
    from ..device.check import check
    from ..device.contents import COMPILE, differences
    from ..plan import codec as plan_codec
    from ..plan.check import check as check_plan

    text = atomic.decoded(source.data, source.name)
    with progress.step("reading and checking the device plan"), sourced(source.texts), compilation():
        plan = codec.from_json(text, source.name)
        check(plan)
    stored = codec.source_of(text)
    if stored is not None:
        with progress.step("making the device plan again"), sourced(source.texts), compilation():
            made_of = plan_codec.from_json(stored, source.name)
            check_plan(made_of)
            here = Span(source.name, 1, 1, 1, 1)
            if made_of.ranks != len(plan.placement.devices):
                ranks = f"{made_of.ranks} ranks, and its device plan for {len(plan.placement.devices)}"
                raise PlanError((Diagnostic(here, f"the plan in the file is for {ranks}; {COMPILE}"),))
            layout = layout_of(made_of, plan.device, plan.placement, plan.features, plan_codec.content_hash(made_of))
            found = tuple(differences(plan, device_plan(layout, plan.mode)))
            if found:
                raise PlanError(found)
    return DevicePlanChecked(
        target=target,
        schedule=plan.schedule,
        ranks=len(plan.placement.devices),
        ok=True,
        mode=plan.mode,
        devices=len(plan.placement.ordinals),
        streams=len([s for s in plan.streams if s.name.kind != "caller"]),
        semaphores=len(plan.semaphores),
        launches=len(plan.launches),
        actions=len(plan.body),
        compared=stored is not None,
    )


def _device_sentence(record: DevicePlanChecked) -> str:
    counted = ("ranks", "devices", "streams", "semaphores", "launches", "actions")
    numbers = ", ".join(count(getattr(record, name), name.removesuffix("s")) for name in counted)
    plan = "as its plan has it" if record.compared else "not compared with its plan, which the file does not hold"
    return f"device plan, mode {record.mode}: no race, no deadlock, runs stay apart, {plan}; {numbers}"


def _shown(target: str) -> str:
    return STDIN if target == "-" else target


def _cause(warning: Diagnostic) -> object:
    """A statement and what is slow about it: its numbers, which differ from one number of ranks to the next, aside."""
    return warning.span, re.sub(r"[0-9.]+", "", warning.help or warning.message)


def _sentence(job: Job) -> str:
    plan = job.plan
    parts = [proof_words(job), "no race, no deadlock"]
    parts += [count(operations(plan), "operation"), count(len(plan.streams), "stream"), count(waits(plan), "wait")]
    return f"{count(plan.ranks, 'rank')}: {', '.join(parts)}{short_words(job)}"


def _record(target: str, job: Job) -> PlanChecked:
    plan = job.plan
    return filled(
        PlanChecked,
        job,
        plan,
        target=target,
        ok=True,
        proof_ms=job.proof_time / 1e3,
        operations=operations(plan),
        streams=len(plan.streams),
        waits=waits(plan),
        warnings=diagnostic_records(job.warnings),
    )

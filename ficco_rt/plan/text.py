"""Prints a plan as stable text, for reading, golden tests and diffs."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph.ir import CollectiveSettings
from ..graph.text import body_text
from .ir import CollectiveCall, Command, CopyAsync, Launch, Plan, Record, SignalFlag, WaitEvent, WaitFlag, Work


def to_text(plan: Plan) -> str:
    """One line a command, indented under its stream; `:12` is the schedule's line."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    yield f"plan {plan.schedule} version {plan.version}: {plan.ranks} ranks on {plan.machine}"
    for name, value in plan.params:
        yield f"  {name} = {_value(value)}"
    for t in plan.tensors:
        shapes = [" × ".join(map(str, s)) for s in t.shapes]
        shown = shapes[0] if len(set(shapes)) == 1 else " | ".join(shapes)
        yield f"  {t.kind} {t.name}[{shown}] {t.dtype}{' unproven' if t.unproven else ''}"
    for k in plan.kernels:
        yield f"  kernel {k.name} from {k.file} entry {k.entry}"
    for claim in plan.claims:
        yield f"  computes {claim.text}"
    yield f"  {plan.events} events, {len(plan.flag_homes)} flags"
    for stream in plan.streams:
        yield ""
        asked = "".join(f", {part}" for part in settings_words(stream.collectives))
        yield f"rank {stream.rank} stream {stream.name} ({stream.engine}, {stream.priority}{asked})"
        for command in stream.commands:
            for line in _command(command):
                yield f"  {line}"
    for order in plan.orders:
        yield f"after: op {order.before} before op {order.after}  :{order.origin.line}"


def settings_words(asked: CollectiveSettings | None) -> Iterator[str]:
    """What is asked of the vendor's library of collectives, as the schedule has it."""
    for name in ("ctas", "threads"):
        if (value := getattr(asked, name, None)) is not None:
            yield f"{name} {value}"


def _value(value: object) -> str:
    return "[" + ", ".join(map(_value, value)) + "]" if isinstance(value, tuple) else str(value)


def _command(c: Command) -> Iterator[str]:
    match c:
        case CopyAsync():
            for i, t in enumerate(c.transfers):
                yield f"{'copy' if i == 0 else '   +'} {t.dst} <- {t.src}  :{t.origin.line}"
        case Launch():
            a = c.attributes
            names = ("smem", "residency", "sms", "leave", "priority")
            limits = [f"{name} {value}" for name in names if (value := getattr(a, name)) is not None]
            head = f"launch {c.kernel} ({', '.join(limits)})"
            if not c.streamed:
                yield f"{head} {work_text(c.works[0])}"
                for work in c.works[1:]:
                    yield f"  + {work_text(work)}"
                return
            yield f"{head} streamed"
            for work in c.works:
                yield f"  {work_text(work)}{flags_text(work)}"
        case CollectiveCall():
            yield f"{body_text(c)} group {c.group}  :{c.origin.line}"
        case Record():
            yield f"record event {c.event}"
        case WaitEvent():
            yield f"wait event {c.event}"
        case SignalFlag():
            yield f"signal flag {c.flag}"
        case WaitFlag():
            yield f"wait flag {c.flag}"


def flags_text(work: Work) -> str:
    """The flags that order a work of a streamed launch."""
    return "".join([*(f" wait flag {flag}" for flag in work.waits), *(f" signal flag {flag}" for flag in work.signals)])


def work_text(work: Work) -> str:
    """What a work does, and the schedule's line."""
    tiles = "" if work.tiles is None else f" tiles {'×'.join(map(str, work.tiles))}"
    return f"{body_text(work.body)}{tiles}  :{work.origin.line}"

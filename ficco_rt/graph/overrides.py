"""Overrides of a schedule's queue attributes by the caller: `compute.sms = 100`, `vendor.ctas = 8`, and `kernel =
vendor`, or a kernel's name, and `fast = 1` for all queues of multiprocessors.

Callers give overrides among the params. An override changes the syntax tree as if it were written at the queue. `None`,
or the word `none`, removes an attribute. `written` applies overrides to the text of a schedule, for a copy of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import ficco_dsl
from ficco_dsl.diagnostics import Span
from ficco_dsl.nodes import Attribute, Expr, Int, Multiprocessors, Name, QueueDecl, Schedule
from ficco_dsl.vocabulary import NAMED, OF_COLLECTIVES, RESOURCES, WORDS

from ..errors import UsageError
from ..files.arguments import FAST, KERNEL, VENDOR, near

_SMS = re.compile(r"([0-9]{1,9}) sms")
NOTHING = "none"  # the word that takes an attribute away


@dataclass(frozen=True, slots=True)
class Given:
    """What a caller gives, apart: values of params and types, and what queues say."""

    params: Mapping[str, object]
    said: Mapping[str, object] = field(default_factory=dict)  # by `queue.attribute`; `kernel` or `fast`: of all queues


def split_overrides(given: Mapping[str, object], schedule: Schedule) -> Given:
    """Names with a dot, `kernel` and `fast` speak of queues; all others are params and types, as a param `fast` is."""
    own = {param.name for param in schedule.params} | {kind.name for kind in schedule.types}
    alone = {KERNEL, FAST} - own
    said = {name: value for name, value in given.items() if "." in name or name in alone}
    return Given({name: value for name, value in given.items() if name not in said}, said)


def with_overrides(schedule: Schedule, said: Mapping[str, object]) -> Schedule:
    """The schedule, its queues as `said` has them. Raises UsageError: no such queue, attribute or word."""
    queues = {queue.name: queue for queue in schedule.queues}
    for name, value in said.items():
        for queue, attribute in _places(schedule, name, value):
            queues[queue] = _changed(queues[queue], attribute, value)
    return replace(schedule, queues=tuple(queues[queue.name] for queue in schedule.queues))


def by_library(schedule: Schedule) -> Schedule:
    """The schedule with all products by the vendor's library, as if its queues said so."""
    return with_overrides(schedule, {KERNEL: VENDOR})


def value_of(queue: QueueDecl, attribute: str) -> object | None:
    """What the queue's text says of an attribute: a number, a word, `...` for an expression; None: nothing."""
    for a in queue.attributes:
        if a.name == attribute:
            return a.value.value if isinstance(a.value, Int) else a.value.id if isinstance(a.value, Name) else ...
    return None


def _places(schedule: Schedule, name: str, value: object) -> Sequence[tuple[str, str]]:
    """The queues, each with the attribute, that a name speaks of."""
    if name in (KERNEL, FAST):
        if name == KERNEL and not _named(value):
            raise UsageError(f"kernel = {value}: it is vendor, or the name of a kernel for products")
        if name == FAST and value not in (0, 1):
            raise UsageError(f"fast = {value}: it is 1, or 0")
        return [(q.name, name) for q in schedule.queues if q.engine == "sm" and value_of(q, name) is None]
    queue, _, attribute = name.partition(".")
    declared = {q.name: q for q in schedule.queues}
    if queue not in declared:
        raise UsageError(f"{name}: schedule {schedule.name} has no queue '{queue}'{_near(queue, list(declared))}")
    collects = declared[queue].engine == "nccl"
    allowed = (*RESOURCES, *OF_COLLECTIVES) if collects else RESOURCES
    if attribute not in allowed:
        raise UsageError(f"{name}: queue '{queue}' has no attribute '{attribute}'{_near(attribute, allowed)}")
    words = WORDS.get(attribute)
    known = value is None or value == NOTHING or (isinstance(value, int) if words is None else value in words)
    known = known or (attribute in NAMED and _named(value))
    if attribute == "leave":  # bytes, multiprocessors, or room for a block of the library's collectives
        known = known or value == "nccl" or _SMS.fullmatch(str(value)) is not None
    if not known:
        needed = "a whole number" if words is None else " or ".join(words)
        needed += ", such as 8 sms, or nccl" if attribute == "leave" else ", or a name" if attribute in NAMED else ""
        raise UsageError(f"{name} = {value}: {attribute} is {needed}, or {NOTHING}")
    return [(queue, attribute)]


def _named(value: object) -> bool:
    return isinstance(value, str) and value.isidentifier()


def _near(name: str, known: Sequence[str]) -> str:
    return near(name, known) or f"; choose among {', '.join(known)}"


def _changed(queue: QueueDecl, attribute: str, value: object) -> QueueDecl:
    others = tuple(a for a in queue.attributes if a.name != attribute)
    if value is None or value == NOTHING:
        return replace(queue, attributes=others)
    sms = _SMS.fullmatch(str(value)) if attribute == "leave" else None
    node: Expr | Multiprocessors = Name(str(value), queue.span)
    if sms is not None:
        node = Multiprocessors(int(sms[1]), queue.span)
    elif isinstance(value, int):
        node = Int(value, queue.span)
    return replace(queue, attributes=(*others, Attribute(attribute, node, queue.span)))


# ---------------------------------------------------------------- in a text


def written(text: str, path: str, given: Mapping[str, object]) -> str:
    """The text with these values: of params as their defaults, of queues as their attributes. Comments and lines stay.

    >>> written("schedule s queue q { engine = sm  sms = 8 }", "s.ficco", {"q.sms": 100, "q.priority": "low"})
    'schedule s queue q { engine = sm sms = 100 priority = low }\\n'
    """
    schedule = ficco_dsl.parse(text, path)
    of = split_overrides(given, schedule)
    with_overrides(schedule, of.said)  # what is wrong with it is told
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    edits: list[tuple[int, int, str]] = []

    def place(span: Span) -> tuple[int, int]:
        return starts[span.line - 1] + span.column - 1, starts[span.end_line - 1] + span.end_column - 1

    for param in schedule.params:
        if param.name in of.params:
            edits.append((*place(param.value.span), _shown(of.params[param.name])))
    for kind in schedule.types:
        if kind.name in of.params:
            begin, end = place(kind.span)
            edits.append((begin, end, f"type {kind.name} = {of.params[kind.name]}"))
    for queue in schedule.queues:
        wanted = {a: v for name, v in of.said.items() for q, a in _places(schedule, name, v) if q == queue.name}
        for a in queue.attributes:
            if a.name in wanted:
                value = wanted.pop(a.name)
                gone = value is None or value == NOTHING
                edits.append((*place(a.span), "" if gone else f"{a.name} = {value}"))
        new = [f"{a} = {v}" for a, v in wanted.items() if v is not None and v != NOTHING]
        if new:
            end = place(queue.attributes[-1].span)[1]
            edits.append((end, end, "  " + "  ".join(new)))
    for begin, end, words in sorted(edits, reverse=True):
        text = text[:begin] + words + text[end:]
    return ficco_dsl.format_text(text, path)


def _shown(value: object) -> str:
    return "[" + ", ".join(map(_shown, value)) + "]" if isinstance(value, tuple | list) else str(value)

"""Plans as versioned JSON with spans and a content hash, and back to the same value.

The format follows `ir.py` field by field. Some things are shorter: a span is [line, column, end line, end column] (the
path is given once, at the top); a region is [tensor, rank, axis, ...] with an axis a list of [start, stop] pairs, or a
single number for an indexed dimension. Values of a union carry "type". A work and its body are one flat record
(`_RECORDS`). A field that has its default in `ir.py` is left out, so that plans keep their text and hash when a field
with a default is added.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, TypeAlias

from ficco_dsl.diagnostics import Diagnostic, Span

from ..errors import PlanError, UsageError
from ..files import records
from ..geometry.region import Axis, Interval, Region
from ..graph import ir as graph_ir
from ..graph.budget import PLAN_PIECES, VALUES, Budget, without_collection
from ..graph.kinds import KINDS
from ..graph.ops.kind import OpKind
from ..machine.profiles import profile
from . import ir
from .ir import VERSION, Plan


def to_json(plan: Plan) -> str:
    """The plan as JSON text, one stream command a line. `from_json` gives an equal plan."""
    path = plan.tensors[0].origin.path if plan.tensors else "plan"
    body = encode(plan, spans=True)
    head = {"ficco_plan": VERSION, "hash": content_hash(plan), "path": path}
    return layout({**head, **body}) + "\n"


def content_hash(plan: Plan) -> str:
    """SHA-256 of all that the plan does; places in the text and the file's name do not count."""
    with without_collection():
        text = json.dumps(encode(plan, spans=False), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def plan_facts(plan: Plan) -> dict[str, str]:
    """Facts that distinguish plans for people; the last is the hash, which distinguishes all plans that differ."""
    params = {name: str(value) for name, value in plan.params}
    facts = {"schedule": plan.schedule, "ranks": str(plan.ranks), "machine": plan.machine, **params}
    short = {name: text if len(text) < _SHORT else f"{text[:_SHORT]}…" for name, text in facts.items()}
    return short | {"plan": content_hash(plan)}


def from_json(text: str, path: str = "plan.json") -> Plan:
    """Read a plan back. Raises PlanError for what is no plan, is of another version, or was changed by hand
    without its hash."""
    plan = read_document(text, path, Plan, "plan", VERSION, content_hash)
    assert isinstance(plan, Plan)
    return plan if plan.made_for is not None else _with_its_machine(plan, path)


def _with_its_machine(plan: Plan, path: str) -> Plan:
    """A plan of a version that wrote no more of a stored machine than its name."""
    try:
        return dataclasses.replace(plan, made_for=profile(plan.machine, plan.ranks))
    except UsageError as error:
        raise _broken(path, f"the plan does not hold the machine that it was made for, and {error}") from None


def read_document(
    text: str,
    path: str,
    kind: type,
    name: str,
    version: int,
    hashed: Callable[[Any], str],
    aside: Container[str] = (),
) -> Any:
    """The value of type `kind` that a file of ours holds under "ficco_NAME", its version, with the hash of its content
    and the path of the schedule. `aside`: what stands beside the value. Raises PlanError."""
    key = f"ficco_{name.replace(' ', '_')}"
    values = sum(map(text.count, ",[{"))
    Budget(VALUES, PlanError).spend(values, Span(path, 1, 1, 1, 1))
    data = records.decoded(text, path, _broken)
    if not isinstance(data, dict) or key not in data:
        raise _broken(path, f"this JSON is no {name}: it has no '{key}' version")
    source = data.get("path")
    if type(data[key]) is not int or data[key] != version:  # true is 1, too
        found = json.dumps(data[key])[:20]
        raise _broken(
            path,
            f"the {name} has version {found}; this ficco reads version {version}",
            help=f"write the {name} again from {source if isinstance(source, str) else 'its schedule'}, with "
            f"`{_WRITES[name]}`, or take the ficco that wrote this one",
        )
    reader = Reader(path, source if isinstance(source, str) else path)
    body = {k: v for k, v in data.items() if k not in (key, "hash", "path") and k not in aside}
    try:
        value = reader.read(kind, body, name)
        found = hashed(value)
    except RecursionError:
        raise _broken(path, f"this is no {name}: it is nested too deeply") from None
    if data.get("hash") != found:
        raise _broken(path, f"the {name}'s content does not match its hash: it was changed or cut; compile it again")
    return value


def _broken(path: str, message: str, line: int = 1, column: int = 1, help: str | None = None) -> PlanError:
    return PlanError((Diagnostic(Span(path, line, column, line, column), message, help=help),))


# ---------------------------------------------------------------- writing


def encode(value: Any, spans: bool, unions: Unions = ()) -> Any:
    """A value of the plan's data model, or of one that adds `unions` to it, as JSON has it; `spans`: with places."""
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, Region):
        return [value.tensor, value.rank, *map(_axis, value.axes)]
    if isinstance(value, Span):
        return [value.line, value.column, value.end_line, value.end_column]
    if isinstance(value, tuple):
        return [encode(v, spans, unions) for v in value]
    if isinstance(value, ir.Work):
        return _encode_work(value, spans)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out: dict[str, Any] = {"type": type(value).__name__} if type(value) in _kinds(unions) else {}
        for name, default in _written(type(value), spans):
            inner = getattr(value, name)
            if inner != default:
                out[name] = encode(inner, spans, unions)
        return out
    return value


_SHORT = 60  # characters of a param in a message
_WRITES = {"plan": "ficco compile", "device plan": "ficco-run --emit device-plan"}
_AS_THEY_ARE = frozenset((int, float, str, bool, type(None)))


@cache
def _written(cls: type, spans: bool) -> tuple[tuple[str, Any], ...]:
    """The fields of a class that are written, each with the default that is not."""
    return tuple((f.name, f.default) for f in dataclasses.fields(cls) if f.compare or spans)


def _encode_work(work: ir.Work, spans: bool) -> dict[str, Any]:
    record = _RECORD_OF[type(work.body)]
    out: dict[str, Any] = {"type": record.name}
    optional = record.optional
    for name, field in record.fields.items():
        inner = getattr(work if field in _OF_WORKS else work.body, field)
        if (name != "origin" or spans) and (inner or name not in optional):
            out[name] = encode(inner, spans)
    return out


def _axis(axis: Axis) -> Any:
    return axis.segments[0].start if axis.dropped else [[s.start, s.stop] for s in axis.segments]


def layout(body: Mapping[str, Any], by_line: Container[str] = ()) -> str:
    """JSON with a line for each command, each member of the lists `by_line`, and each other top-level value, so that a
    diff can be read."""
    lines = []
    for key, value in body.items():
        if key in by_line and value:
            members = ",\n".join("    " + json.dumps(member, ensure_ascii=False) for member in value)
            text = f"[\n{members}\n  ]"
        elif key == "streams":
            streams = []
            for stream in value:
                commands = ",\n".join("      " + json.dumps(c, ensure_ascii=False) for c in stream["commands"])
                rest = json.dumps({k: v for k, v in stream.items() if k != "commands"}, ensure_ascii=False)
                inner = f"[\n{commands}\n    ]" if commands else "[]"
                streams.append(f'    {rest[:-1]}, "commands": {inner}}}')
            text = "[\n" + ",\n".join(streams) + "\n  ]" if streams else "[]"
        else:
            text = json.dumps(value, ensure_ascii=False)
        lines.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}"


# ---------------------------------------------------------------- works


@dataclass(frozen=True, slots=True)
class _Record:
    """One kind of work as it is stored: the JSON's names in their order, each with the field of the work or of its
    body that it holds."""

    name: str
    body: type
    fields: Mapping[str, str]

    @property
    def optional(self) -> frozenset[str]:
        """Names that may be left out."""
        return frozenset(name for name, field in self.fields.items() if field in records.hints(self.body)[1])


_ORDER = ("waits", "signals", "op", "origin")
_OF_WORKS = frozenset({*_ORDER, "tiles"})


def _record(kind: OpKind[Any]) -> _Record:
    """The body's fields, those with a default behind the work's own."""
    body: type = kind.body
    known, optional = records.hints(body)
    first = [f for f in known if f not in optional]
    last = [f for f in known if f in optional]
    names = (*first, *(("tiles",) if kind.tiled else ()), *_ORDER, *last)
    return _Record(kind.stored, body, {kind.stored_as.get(f, f): f for f in names})


_RECORDS = tuple(_record(kind) for kind in KINDS if kind.stored)
_RECORD_OF: dict[type, _Record] = {record.body: record for record in _RECORDS}


def _record_hints(record: _Record) -> dict[str, Any]:
    of_work = {**records.hints(ir.Work)[0], "tiles": tuple[int, int]}  # where it is stored it is never None
    of_body, _ = records.hints(record.body)
    return {name: (of_work if f in _OF_WORKS else of_body)[f] for name, f in record.fields.items()}


# ---------------------------------------------------------------- reading

Unions: TypeAlias = tuple[Any, ...]

_UNIONS: Unions = (ir.Command, graph_ir.ClaimValue)


@cache
def _kinds(unions: Unions) -> dict[type, str]:
    """Classes that stand in unions: the plan's, and these."""
    return {member: member.__name__ for union in (*_UNIONS, *unions) for member in typing.get_args(union)}


class Reader(records.Reader):
    """Reads values by the types of the plan's own data model; PlanError says where the JSON does not fit."""

    def __init__(self, path: str, source: str) -> None:
        super().__init__(path)
        self.source = source
        self.special |= {Region: self._region, Span: self._span, ir.Work: self._work}
        self.pieces_left = Budget(PLAN_PIECES, PlanError)
        self.regions: dict[str, Region] = {}
        self.spans: dict[tuple[int, ...], Span] = {}

    def fail(self, at: str, message: str) -> Exception:
        return _broken(self.path, f"{at}: {message}")

    def union(self, args: tuple[Any, ...], value: Any, at: str) -> Any:
        if isinstance(value, list) and Region in args:
            return self._region(value, at)
        return super().union(args, value, at)

    def _work(self, value: Any, at: str) -> ir.Work:
        if not isinstance(value, dict):
            raise self.fail(at, f"found {records.shown(value)}")
        name = value.get("type")
        record = next((r for r in _RECORDS if r.name == name), None)
        if record is None:
            raise self.fail(at, f"type {name!r} is none of {', '.join(r.name for r in _RECORDS)}")
        stored = {k: v for k, v in value.items() if k != "type"}
        given = self.values(_record_hints(record), record.optional, stored, at)
        found = {record.fields[k]: v for k, v in given.items()}
        of_work = {k: found.pop(k) for k in _OF_WORKS & found.keys()}
        return ir.Work(record.body(**found), **of_work)

    def _region(self, value: Any, at: str) -> Region:
        key = json.dumps(value)
        if key not in self.regions:
            self.regions[key] = self._new_region(value, at)
        return self.regions[key]

    def _new_region(self, value: Any, at: str) -> Region:
        match value:
            case [str(tensor), rank, *axes] if type(rank) is int:
                out = []
                for axis in axes:
                    match axis:
                        case int() if type(axis) is int:  # no truth value
                            out.append(Axis((Interval(axis, axis + 1),), True))
                        case list() if all(
                            isinstance(s, list) and len(s) == 2 and all(type(x) is int for x in s) for s in axis
                        ):
                            out.append(Axis(tuple(Interval(a, b) for a, b in axis)))
                        case _:
                            raise self.fail(at, f"an axis is an index or a list of [start, stop], not {axis!r}")
                self.pieces_left.spend(prod(len(a.segments) for a in out), Span(self.path, 1, 1, 1, 1))
                return Region(tensor, rank, tuple(out))
        raise self.fail(at, f"a region is [tensor, rank, axis, …], not {records.shown(value)}")

    def _span(self, value: Any, at: str) -> Span:
        if not isinstance(value, list) or len(value) != 4 or not all(type(x) is int and x > 0 for x in value):
            raise self.fail(at, "a span is [line, column, end line, end column], counted from 1")
        key = tuple(value)
        if key not in self.spans:
            self.spans[key] = Span(self.source, *value)
        return self.spans[key]

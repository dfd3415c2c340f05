"""Declarations and uses of names, for editors. Uses the scoping rules of `names.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .diagnostics import Span
from .nodes import (
    Binding,
    Comprehension,
    Computes,
    For,
    If,
    KernelDecl,
    Let,
    Name,
    RegionRef,
    Schedule,
    StageDecl,
    StageStep,
    Step,
    TensorDecl,
    TypeName,
    Word,
    children,
)
from .verbs import Launch


@dataclass(frozen=True, slots=True)
class Symbol:
    """A declared name. `what`: param, type, input, output, scratch, queue, kernel, argument (of a kernel), stage, loop
    variable or let. `lives`: the part of the text in which the name refers to this symbol."""

    name: str
    what: str
    span: Span
    lives: Span


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An occurrence of a name in the text; `span` is that of the name itself."""

    span: Span
    symbol: Symbol

    @property
    def declares(self) -> bool:
        return self.span == self.symbol.span


def occurrences(schedule: Schedule) -> tuple[Occurrence, ...]:
    """All occurrences of names in a schedule without syntax errors, in the order of the text. Undeclared names have
    none."""
    found = {(o.span.line, o.span.column): o for o in _Walk(schedule).run()}
    return tuple(found[place] for place in sorted(found))


class _Walk:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        whole = replace(schedule.span, line=1, column=1, end_line=1 << 30, end_column=1)
        self.spaces: dict[str, dict[str, Symbol]] = {"value": {}, "queue": {}, "kernel": {}, "stage": {}}
        s = schedule
        groups = (
            ("value", "param", s.params), ("value", "type", s.types), ("value", "", s.tensors),
            ("queue", "queue", s.queues), ("kernel", "kernel", s.kernels), ("stage", "stage", tuple(s.stages)),
        )  # fmt: skip
        for space, what, declared in groups:
            for d in declared:
                kind = d.kind if isinstance(d, TensorDecl) else what
                if isinstance(d.name, Word):
                    self.spaces[space].setdefault(d.name, Symbol(d.name, kind, d.name.span, whole))
        self.scope: dict[str, Symbol] = {}
        self.lives = whole  # the block at hand

    def run(self) -> Iterator[Occurrence]:
        for space in self.spaces.values():
            for symbol in space.values():
                yield Occurrence(symbol.span, symbol)
        yield from self._node(self.schedule)

    # ---- nodes

    def _node(self, node: object) -> Iterator[Occurrence]:
        match node:
            case tuple():
                for member in node:
                    yield from self._node(member)
            case Name():
                yield from self._use(node.id, node.span, "value")
            case RegionRef():
                end = node.span.column + len(node.tensor)
                yield from self._use(node.tensor, replace(node.span, end_line=node.span.line, end_column=end), "value")
                yield from self._fields(node)
            case TensorDecl() | TypeName():
                yield from self._word(node.dtype, "value")
                yield from self._fields(node)
            case StageDecl():
                yield from self._word(node.queue, "queue")
                for name in node.after:
                    yield from self._use(name.id, name.span, "stage")
                yield from self._node(node.attributes)
                yield from self._block(node.body, node.span)
            case Launch():
                yield from self._word(node.kernel, "kernel")
                yield from self._fields(node)
            case KernelDecl():
                live = dict(self.scope)
                for param in node.params:
                    yield from self._bind(param.name, "argument", node.span)
                yield from self._node(node.attributes)
                self.scope = live
            case StageStep() | Step():
                yield from self._for((node.binding,), node)
            case For():
                yield from self._for(node.bindings, node)
            case If():
                yield from self._node(node.condition)
                yield from self._block(node.body, node.span)
                yield from self._block(node.otherwise, node.span)
            case Comprehension():
                yield from self._node(node.domain)
                live = dict(self.scope)
                yield from self._bind(node.name, "loop variable", node.span)
                yield from self._node(node.body)
                self.scope = live
            case Computes():
                live = dict(self.scope)
                if node.binding is not None:
                    yield from self._node(node.binding.domain)
                    yield from self._bind(node.binding.name, "loop variable", node.span)
                yield from self._node((node.target, node.value))
                for type_name in node.within:
                    yield from self._word(type_name, "value")
                self.scope = live
            case Let():
                yield from self._node(node.value)
                yield from self._bind(
                    node.name, "let", replace(self.lives, line=node.span.line, column=node.span.column)
                )
            case _:
                yield from self._fields(node)

    def _fields(self, node: object) -> Iterator[Occurrence]:
        for child in children(node):
            yield from self._node(child)

    def _for(self, bindings: tuple[Binding, ...], node: For | Step | StageStep) -> Iterator[Occurrence]:
        live = dict(self.scope)
        for binding in bindings:
            yield from self._node(binding.domain)
            yield from self._bind(binding.name, "loop variable", node.span)
        yield from self._block(node.body, node.span)
        self.scope = live

    def _block(self, body: tuple[object, ...], lives: Span) -> Iterator[Occurrence]:
        """What is bound in it ends with it."""
        live, outer = dict(self.scope), self.lives
        self.lives = lives
        yield from self._node(body)
        self.scope, self.lives = live, outer

    # ---- names

    def _bind(self, name: str, what: str, lives: Span) -> Iterator[Occurrence]:
        if isinstance(name, Word):
            symbol = Symbol(name, what, name.span, lives)
            self.scope[name] = symbol
            yield Occurrence(name.span, symbol)

    def _word(self, name: str, space: str) -> Iterator[Occurrence]:
        if isinstance(name, Word):
            yield from self._use(name, name.span, space)

    def _use(self, name: str, span: Span, space: str) -> Iterator[Occurrence]:
        symbol = self.scope.get(name) if space == "value" else None
        symbol = symbol or self.spaces[space].get(name)
        if symbol is not None:
            yield Occurrence(span, symbol)

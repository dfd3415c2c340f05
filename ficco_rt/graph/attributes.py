"""Evaluates attributes of queues, stages and statements: the resources that they request from the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from ficco_dsl import nodes as n
from ficco_dsl.vocabulary import WORDS

from . import ir
from .budget import Budget
from .evaluate import Mistake, Scope, compile_expr, number, size
from .op_rules import MOST_CTAS, MOST_THREADS, WARP

_LEAST = {"smem": 0, "leave": 1, "residency": 1, "sms": 1, "fast": 0, "ctas": 0, "threads": 64}
_MOST = {"fast": 1, "ctas": MOST_CTAS, "threads": MOST_THREADS}

Asked = TypeVar("Asked", ir.Resources, ir.CollectiveSettings)


class Attributes:
    """Attributes of a queue, a stage or a statement, compiled once. Their words and kinds of value the parser has
    checked."""

    def __init__(self, attributes: Sequence[n.Attribute], expressions: Budget) -> None:
        self._attributes, self._budget = attributes, expressions
        self._parts = size(tuple(a.value for a in attributes))
        self.constant = all(isinstance(a.value, n.Int | n.Multiprocessors | str) for a in attributes)
        self._values: dict[str, Callable[[Scope], int]] = {}

    def on(self, base: Asked, scope: Scope) -> Asked:
        """`base`, overridden by these attributes."""
        changes: dict[str, Any] = {a.name: self._value(a, scope) for a in self._attributes}
        return replace(base, **changes) if changes else base

    def common(self, base: Asked, scopes: Sequence[Scope]) -> Asked:
        """`base`, overridden by these attributes, which must have the same values on all ranks."""
        found = self.on(base, scopes[0])
        for a in () if self.constant else self._attributes:
            if a.name not in WORDS and any(self._value(a, s) != getattr(found, a.name) for s in scopes):
                raise Mistake(a.span, f"{a.name} differs from rank to rank", "give it on a statement, whose rank it is")
        return found

    def _value(self, a: n.Attribute, scope: Scope) -> str | int | ir.Leave:
        if a.name in WORDS:
            return cast(n.Name, a.value).id
        if a.name != "leave":
            return self._number(a, scope)
        if isinstance(a.value, n.Multiprocessors):
            return ir.Leave("sms", a.value.count)
        if isinstance(a.value, n.Name) and a.value.id == "nccl":
            return ir.Leave("nccl")
        return ir.Leave("bytes", self._number(a, scope))

    def _number(self, a: n.Attribute, scope: Scope) -> int:
        if a.name not in self._values:
            self._values[a.name] = number(compile_expr(cast(n.Expr, a.value)), a.span)
        self._budget.spend(self._parts, a.span)
        value = self._values[a.name](scope)
        if value < _LEAST[a.name]:
            raise Mistake(a.span, f"{a.name} = {value}; it is at least {_LEAST[a.name]}")
        most = _MOST.get(a.name, 2**31 - 1)
        if value > most:
            raise Mistake(a.span, f"{a.name} = {value}; it is at most {most}")
        if a.name == "threads" and value % WARP:
            raise Mistake(a.span, f"threads = {value}; it is a multiple of {WARP}")
        return value

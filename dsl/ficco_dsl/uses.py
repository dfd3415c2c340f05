"""Checks names where they are used: mistakes in regions and expressions that can be found before sizes are known."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass

from .diagnostics import Diagnostic, Note, Span
from .nodes import (
    Binding,
    Call,
    Comprehension,
    Expr,
    Name,
    Part,
    Pieces,
    RegionRef,
    Schedule,
    Subscript,
    Word,
    children,
)
from .vocabulary import BUILTINS, FUNCTIONS

_RANGE = "a range is written 0..n: from 0 to n - 1, as range(n) of Python"

MAX_MISTAKES = 100
_MAX_CANDIDATES = 1000  # difflib is slow: no suggestions out of more names


@dataclass(frozen=True, slots=True)
class Declared:
    what: str  # "param", "loop variable"
    span: Span


class Uses:
    """The declared names of a schedule, and the local names that are in scope at the current node. Adds mistakes to
    `mistakes`."""

    def __init__(self, schedule: Schedule) -> None:
        self.mistakes: list[Diagnostic] = []
        self.values: dict[str, Declared] = {}  # params, types and tensors share one namespace
        self.tensors = {t.name: t for t in reversed(schedule.tensors)}
        self.params = {p.name: p for p in reversed(schedule.params)}
        self.scope: dict[str, Declared] = {}  # loop variables and lets in scope
        self.in_param = False
        self.shaped: set[str] = set()  # tensors declared before the one whose shape is checked now; later all tensors
        self.arguments: dict[str, str] = {}  # of the kernel whose braces are being read: their modes

    def mistake(self, span: Span, message: str, *notes: Note, help: str | None = None) -> None:
        self.mistakes.append(Diagnostic(span, message, notes, help))

    def like(self, name: str, known: Collection[str]) -> str | None:
        """The help text for an unknown name: the most similar known name."""
        if len(known) > _MAX_CANDIDATES or len(self.mistakes) > MAX_MISTAKES:
            return None
        by_lower = {k.lower(): k for k in known}  # `c` for `C` is the likeliest slip
        close = difflib.get_close_matches(name.lower()[:64], by_lower, 1, 0.6)
        return f"did you mean '{by_lower[close[0]]}'?" if close else None

    def bind(self, name: str, what: str, span: Span) -> None:
        """Bring a loop variable or let into scope."""
        if name in BUILTINS:
            self.mistake(span, f"'{name}' is built in and cannot be a {what}")
        elif name in FUNCTIONS:
            self.mistake(span, f"'{name}' is a built-in function and cannot be a {what}")
        else:
            before = self.scope.get(name) or self.values.get(name)
            if before is not None:
                note = Note(f"{before.what} '{name}' is declared here", before.span)
                self.mistake(span, f"{what} '{name}' hides the {before.what} of that name", note, help="rename it")
        self.scope[name] = Declared(what, span)

    def region(
        self, r: RegionRef, place: str = "a claim", *, at: bool = False, transposed: bool | None = None,
        writes: bool = False, optional: bool = False,
    ) -> None:  # fmt: skip
        """Checks a region; `at` and `transposed` say whether `@` and `.T` are allowed here, `optional` whether the
        tensor may be missing."""
        tensor = self.tensors.get(r.tensor)
        if tensor is None:
            declared = self.scope.get(r.tensor) or self.values.get(r.tensor)
            if r.tensor in BUILTINS:
                self.mistake(r.span, f"'{r.tensor}' is a number or a set, not a tensor")
            elif declared is not None:
                self.mistake(r.span, f"'{r.tensor}' is a {declared.what}, not a tensor")
            else:
                self.mistake(r.span, f"unknown tensor '{r.tensor}'", help=self.like(r.tensor, self.tensors))
        elif tensor.condition is not None and not optional:
            note = Note(f"{tensor.kind} '{r.tensor}' is declared here", spot(tensor.name, tensor.span))
            message = f"'{r.tensor}' has a condition: only terms of sums may name it, and are left out without it"
            self.mistake(r.span, message, note)
        elif writes and tensor.kind == "input":
            note = Note(f"input '{r.tensor}' is declared here", spot(tensor.name, tensor.span))
            self.mistake(r.span, f"'{r.tensor}' is an input and cannot be written", note, help="write to a scratch")
        if r.transposed and not transposed and place != "a claim":
            self.mistake(r.span, f".T on {place}: only operands of gemm and claims are transposed")
        if r.at is not None:
            if not at:
                help = "a gemm reads its operands on its own rank; copy first" if "gemm" in place else None
                self.mistake(r.at.span, f"'@' cannot stand on {place}", help=help)
            self.expr(r.at)
        for accessor in r.accessors:
            self.expr(accessor)

    def binding(self, b: Binding) -> None:
        self.expr(b.domain)
        self.bind(b.name, "loop variable", spot(b.name, b.span))

    def expr(self, e: Expr | Part | Pieces | Subscript) -> None:
        """Checks everything in an expression, or in an accessor of a region."""
        if isinstance(e, Name):
            self._name(e)
        elif isinstance(e, Call):
            self._call(e)
        elif isinstance(e, Comprehension):
            live = dict(self.scope)
            self.expr(e.domain)
            self.bind(e.name, "loop variable", spot(e.name, e.span))
            self.expr(e.body)
            self.scope = live
        else:
            for child in children(e):
                self.expr(child)

    def _unknown(self, name: str) -> bool:
        return name not in self.scope and name not in self.values and name not in BUILTINS

    def _name(self, e: Name) -> None:
        name = e.id
        if name in self.scope:
            return
        if name in ("rank", "peers"):
            if self.in_param:
                help = "use it in a tensor's shape or in a stage"
                self.mistake(e.span, f"'{name}' differs from rank to rank; a param does not", help=help)
            return
        if name in BUILTINS or name in self.params:
            return
        if name in self.arguments:
            if self.arguments[name] != "int":
                help = f"rows({name}) and cols({name}) are numbers"
                self.mistake(e.span, f"argument '{name}' is a region, not a number", help=help)
            return
        if name in self.values:
            self.mistake(e.span, f"'{name}' is {indefinite(self.values[name].what)}, not a number or a list")
        elif name in FUNCTIONS:
            self.mistake(e.span, f"'{name}' is a function", help=f"write {FUNCTIONS[name][2]}")
        else:
            known = [*self.scope, *self.params, *BUILTINS]
            known += [argument for argument, mode in self.arguments.items() if mode == "int"]
            self.mistake(e.span, f"unknown name '{name}'", help=self.like(name, known))

    def _call(self, e: Call) -> None:
        function = FUNCTIONS.get(e.function)
        if function is None:
            help = _RANGE if e.function == "range" else self.like(e.function, FUNCTIONS)
            self.mistake(spot(e.function, e.span), f"unknown function '{e.function}'", help=help)
        else:
            least, most, form = function
            if len(e.arguments) < least or (most is not None and len(e.arguments) > most):
                count = "1 argument" if len(e.arguments) == 1 else f"{len(e.arguments)} arguments"
                self.mistake(e.span, f"{e.function}() does not take {count}", help=f"write {form}")
                function = None  # what stands where is unclear
        for i, argument in enumerate(e.arguments):
            if isinstance(argument, Part):
                if function is not None and not (e.function == "part" and i == 1):
                    help = f"write {function[2]}; 'of' belongs to regions and part()"
                    self.mistake(argument.span, f"{e.function}() takes no piece", help=help)
                self.expr(argument)
                continue
            if function is not None and e.function == "part" and i == 1:
                self.mistake(argument.span, "part() takes a piece: part(extent, i of n)")
            if function is not None and e.function in ("rows", "cols"):
                self._measured(e.function, argument)
            else:
                self.expr(argument)

    def _measured(self, function: str, argument: Expr) -> None:
        """The argument of rows() or cols(): a tensor, or a kernel's region argument in its braces."""
        if not isinstance(argument, Name):
            self.mistake(argument.span, f"{function}() takes the name of a tensor")
            self.expr(argument)
            return
        if argument.id not in self.tensors and self.arguments.get(argument.id, "int") == "int":
            known = [*self.tensors, *(name for name, mode in self.arguments.items() if mode != "int")]
            self.mistake(argument.span, f"unknown tensor '{argument.id}'", help=self.like(argument.id, known))
        elif self.in_param:
            message = f"a param cannot use {function}({argument.id}): shapes are made from params"
            self.mistake(argument.span, message)
        elif argument.id in self.tensors and argument.id not in self.shaped:
            message = f"{function}({argument.id}) in a shape: '{argument.id}' has none yet"
            self.mistake(argument.span, message, help=f"declare '{argument.id}' further up")


def spot(name: str, span: Span) -> Span:
    """The span of a name inside of a node that has `span`."""
    return name.span if isinstance(name, Word) else span


def indefinite(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"

"""The syntax tree of a `.ficco` file: syntax and names only, no sizes.

Every node keeps the span of the text it came from. Comparisons ignore spans, so a formatted file parses to an equal
tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .diagnostics import Span


class Word(str):
    """A name as written, with its place: the span of a declaration or call is longer than that of a wrong name in
    it."""

    __slots__ = ("span",)
    span: Span

    @classmethod
    def at(cls, text: str, span: Span) -> Word:
        word = cls(text)
        word.span = span
        return word


# ---------------------------------------------------------------- expressions
# Integers, lists and sets of integers. `rank`, `ranks`, `peers` and `all` are names that every schedule has.


@dataclass(frozen=True, slots=True)
class Int:
    """A number: `4096`, or with a unit of bytes, `96 KiB`."""

    value: int
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    """A param, a loop variable, or one of the built-in names."""

    id: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Unary:
    """`-x` or `not x`."""

    op: Literal["-", "not"]
    operand: Expr
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Binary:
    """`+ - * / // %`, comparisons, `and`, `or`. `/` must divide exactly; `//` rounds down."""

    op: str
    left: Expr
    right: Expr
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Range:
    """`start..stop`: the integers from start up to, not with, stop."""

    start: Expr
    stop: Expr
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class ListOf:
    """`[4, 2, 1, 1]`."""

    items: tuple[Expr, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Comprehension:
    """`[body for name in domain]`."""

    body: Expr
    name: str
    domain: Expr
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Item:
    """`list[index]`."""

    base: Expr
    index: Expr
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Part:
    """`index of whole`: one piece (or, with a set, several) of a row or column range.

    `whole` is a number of nearly equal pieces or a list of shares.
    """

    index: Expr
    whole: Expr
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A built-in function: `reversed min max sum len ceil part rows cols`."""

    function: str
    arguments: tuple[Expr | Part, ...]
    span: Span = field(compare=False)


Expr: TypeAlias = Int | Name | Unary | Binary | Range | ListOf | Comprehension | Item | Call

# ---------------------------------------------------------------- regions


@dataclass(frozen=True, slots=True)
class Pieces:
    """`.rows(i of n, j of m)` or `.cols(...)`: a piece of a dimension, then a piece of that piece."""

    axis: Literal["rows", "cols"]
    parts: tuple[Part, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Slice:
    """`a:b` inside brackets; a missing end means the tensor's own."""

    start: Expr | None
    stop: Expr | None
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Subscript:
    """`X[i]`, `X[a:b, c:d]`: one entry a dimension from the first; an index drops its dimension."""

    entries: tuple[Expr | Slice, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class RegionRef:
    """A part of a tensor as written: `G.rows(p of ranks, c of chunks) @ p`, `B.T`.

    Accessors apply from left to right, each to what the one before left. `at` is the rank that
    holds the data; None means this rank.
    """

    tensor: str
    accessors: tuple[Pieces | Subscript, ...]
    transposed: bool
    at: Expr | None
    span: Span = field(compare=False)


# ---------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Multiprocessors:
    """`8 sms`, the value of an attribute."""

    count: int
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Attribute:
    """`name = value` on a queue, or after `with` on a stage, a statement or in a kernel's braces."""

    name: str
    value: Expr | str | Multiprocessors  # a string literal's text arrives as str, a bare word as Name
    span: Span = field(compare=False)


class Operation:
    """A statement that moves or computes: the nodes of `verbs`, one for each verb."""

    __slots__ = ()
    attributes: tuple[Attribute, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Let:
    """`let name = value`: a name for the rest of its block."""

    name: str
    value: Expr
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Binding:
    """`name in domain` of a loop."""

    name: str
    domain: Expr
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class For:
    """`for c in 0..chunks, p in peers { }`: a rank's own loop; the last binding runs fastest."""

    bindings: tuple[Binding, ...]
    body: tuple[Statement, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Step:
    """`step s in 1..ranks { }`: a phase that all ranks finish before any starts the next."""

    binding: Binding
    body: tuple[Statement, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class If:
    """`if condition { } else { }`."""

    condition: Expr
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]
    span: Span = field(compare=False)


Statement: TypeAlias = Operation | Let | For | Step | If

# ---------------------------------------------------------------- declarations


@dataclass(frozen=True, slots=True)
class Param:
    """`param M = 4096 where M > 0`: a size that `--set M=...` replaces."""

    name: str
    value: Expr
    check: Expr | None
    check_text: str | None = field(compare=False)  # the check as written, for its message
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class TypeName:
    """`type T = bf16`; `--set T=fp32` replaces it. `dtype` is a dtype or the name of an earlier type."""

    name: str
    dtype: str
    scaling: str | None
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class TensorDecl:
    """`input A[M / ranks, K] : T`: the part of A that each rank holds. `dtype` is a type's name or a dtype;
    `scaling` says which elements share a scale; `transposed` says whether, or under which condition, the last two
    dimensions are stored the other way round; `condition`, of an input, when there is such a tensor at all (None:
    always)."""

    kind: Literal["input", "output", "scratch"]
    name: str
    shape: tuple[Expr, ...]
    dtype: str
    scaling: str | None
    unproven: bool
    transposed: bool | Expr
    span: Span = field(compare=False)
    condition: Expr | None = None


CollectiveKind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


@dataclass(frozen=True, slots=True)
class ClaimProduct:
    """`LEFT * RIGHT` in a `computes` line."""

    left: ClaimExpr
    right: ClaimExpr
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class ClaimSum:
    """`LEFT + RIGHT` in a `computes` line; a right side of one dimension is added to every row."""

    left: ClaimExpr
    right: ClaimExpr
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class ClaimFunction:
    """`gelu(X)`, `silu_mul(X, Y)` in a `computes` line: elementwise."""

    function: str
    arguments: tuple[ClaimExpr, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class ClaimCollective:
    """`all_gather(X, rows)`, `reduce_scatter(X, rows)`, `all_reduce(X)`, `all_to_all(X, rows of counts)`."""

    kind: CollectiveKind
    operand: ClaimExpr
    axis: Literal["rows", "cols"] | None  # None for all_reduce
    shares: Expr | None  # `of counts`: how each rank's operand is cut; None: equally
    span: Span = field(compare=False)


ClaimExpr: TypeAlias = RegionRef | ClaimProduct | ClaimSum | ClaimFunction | ClaimCollective


@dataclass(frozen=True, slots=True)
class Computes:
    """`computes C = all_gather(A, rows) * B`, or for each of several: `computes C[i] = ... for i in 0..2`.

    `within bf16` after the value allows intermediate values of C to be rounded to bf16."""

    target: RegionRef
    value: ClaimExpr
    within: tuple[str, ...]  # types, or names of types
    binding: Binding | None
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class QueueDecl:
    """`queue dma { engine = copy  priority = high }`."""

    name: str
    attributes: tuple[Attribute, ...]
    span: Span = field(compare=False)

    @property
    def engine(self) -> str:
        """The engine as written; empty if the queue names none, which the parser refuses."""
        return next((a.value.id for a in self.attributes if a.name == "engine" and isinstance(a.value, Name)), "")


@dataclass(frozen=True, slots=True)
class KernelParam:
    """One argument of a user kernel: a region it reads, writes or updates, or an int."""

    mode: Literal["read", "write", "update", "int"]
    name: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class KernelDecl:
    """`kernel silu(read x, write y, int n) from "silu.cu" entry "silu" { host = "silu.py:silu" }`."""

    name: str
    params: tuple[KernelParam, ...]
    file: str
    entry: str
    attributes: tuple[Attribute, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class StageDecl:
    """`stage rest on compute streamed after gather with sms = 120 { ... }`."""

    name: str
    queue: str
    streamed: bool
    after: tuple[Name, ...]
    attributes: tuple[Attribute, ...]
    body: tuple[Statement, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class StageStep:
    """`step i in 0..iters { stage ... stage ... }`: the stages inside, once an iteration."""

    binding: Binding
    body: tuple[StageDecl | StageStep, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A whole `.ficco` file. Declarations stand in the order of the text."""

    name: str
    path: str
    params: tuple[Param, ...]
    types: tuple[TypeName, ...]
    tensors: tuple[TensorDecl, ...]
    claims: tuple[Computes, ...]
    queues: tuple[QueueDecl, ...]
    kernels: tuple[KernelDecl, ...]
    program: tuple[StageDecl | StageStep, ...]
    span: Span = field(compare=False)

    @property
    def stages(self) -> Iterator[StageDecl]:
        """All stages, also those in steps, in the order of the text."""
        return _stages(self.program)


def _stages(program: tuple[StageDecl | StageStep, ...]) -> Iterator[StageDecl]:
    for item in program:
        yield from _stages(item.body) if isinstance(item, StageStep) else (item,)


# ---------------------------------------------------------------- walks

_LEAVES = frozenset({str, Word, int, bool, type(None), Span})


def children(node: Any) -> Iterator[Any]:
    """The nodes that a node holds, in the order of its fields."""
    for name in node.__slots__:
        value = getattr(node, name)
        if type(value) is tuple:
            yield from (member for member in value if type(member) not in _LEAVES)
        elif type(value) not in _LEAVES:
            yield value


def walk(node: Any) -> Iterator[Any]:
    """Yields a node and all nodes inside it, each before the nodes inside it."""
    yield node
    for child in children(node):
        yield from walk(child)


def names_in(node: Any) -> dict[str, None]:
    """The names that an expression uses, in order, without the loop variables that it binds itself."""
    if isinstance(node, Name):
        return {node.id: None}
    if isinstance(node, Comprehension):
        return names_in(node.domain) | {name: None for name in names_in(node.body) if name != node.name}
    return {name: None for child in children(node) for name in names_in(child)}

"""The verbs of the language, which are statements that move or compute: for each a node and a record of its properties.

To add a verb, add its rule to `grammar.lark`, and its node and record here. The name checks, the messages, the
formatter and the editors read the records. `ficco_rt/graph/ops` defines what a verb does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .diagnostics import Span
from .nodes import Attribute, CollectiveKind, Expr, Operation, RegionRef


@dataclass(frozen=True, slots=True)
class Copy(Operation):
    """`copy DST <- SRC`; `@ p` on one side makes it a push (DST) or a pull (SRC)."""

    dst: RegionRef
    src: RegionRef
    attributes: tuple[Attribute, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Gemm(Operation):
    """`gemm OUT = LEFT * RIGHT + sum(R, ...)`, the sum as in `reduce` or left out; with `+=` the product is added to
    OUT, and the first `+=` on an element starts from zero. `gemm OUT = FUNCTION(LEFT * RIGHT + sum(R, ...), FACTOR)`:
    a function of the finished sum (`vocabulary.OF_SUMS`)."""

    out: RegionRef
    left: RegionRef
    right: RegionRef
    accumulate: bool
    terms: tuple[RegionRef, ...]
    attributes: tuple[Attribute, ...]
    span: Span = field(compare=False)
    function: str | None = None
    factor: RegionRef | None = None


@dataclass(frozen=True, slots=True)
class Reduce(Operation):
    """`reduce OUT = sum(R, ...)`: elementwise; a set-valued R gives one term for each member. A function of the sum as
    in `gemm`."""

    out: RegionRef
    terms: tuple[RegionRef, ...]
    attributes: tuple[Attribute, ...]
    span: Span = field(compare=False)
    function: str | None = None
    factor: RegionRef | None = None


@dataclass(frozen=True, slots=True)
class Quantize(Operation):
    """`quantize OUT = R`, or of a sum or a function of it as in `reduce` (`summed`), with scales computed from the
    values; `quantize OUT = R / SCALE`: with the scale that a tensor holds."""

    out: RegionRef
    terms: tuple[RegionRef, ...]
    attributes: tuple[Attribute, ...]
    span: Span = field(compare=False)
    function: str | None = None
    factor: RegionRef | None = None
    by: RegionRef | None = None
    summed: bool = False


@dataclass(frozen=True, slots=True)
class Collective(Operation):
    """`all_gather DST <- SRC`: the vendor's collective over all ranks, pieces along the first dimension."""

    kind: CollectiveKind
    dst: RegionRef
    src: RegionRef
    attributes: tuple[Attribute, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Launch(Operation):
    """`launch kernel(arguments)`: a kernel of the user's, with the regions it touches."""

    kernel: str
    arguments: tuple[RegionRef | Expr, ...]
    attributes: tuple[Attribute, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Part:
    """A field of a node that holds regions: its name in messages, and whether `@` and `.T` are allowed on it."""

    field: str
    called: str  # of a statement with several keywords, "{}" is the one that is written
    at: bool = False
    transposed: bool | None = None
    writes: bool = False


@dataclass(frozen=True, slots=True)
class Verb:
    """The properties of a verb beyond its syntax."""

    node: type[Operation]
    keywords: Mapping[str, str]  # and what each means, for hovers and completion
    engines: tuple[str, ...]
    parts: tuple[Part, ...] = ()
    streams: bool = True  # may it stand in a streamed stage?
    # what a message expects where this sign is missing: sign, words; "{}" is the keyword
    signs: tuple[tuple[str, str], ...] = ()

    @property
    def terminals(self) -> tuple[str, ...]:
        """The keywords as the grammar names them."""
        return tuple(map(str.upper, self.keywords))


VERBS = (
    Verb(
        Gemm,
        {"gemm": "gemm Y = L * R: a matrix product; += adds to what is there, + sum(…) adds terms"},
        ("sm",),
        (
            Part("out", "the result of gemm", at=True, writes=True),
            Part("left", "an operand of gemm", transposed=True),
            Part("right", "an operand of gemm", transposed=True),
            Part("terms", "a term of gemm", at=True),
            Part("factor", "a factor of gemm", at=True),
        ),
        signs=(
            ("EQUAL", "'=' or '+=' after the result of gemm"),
            ("STAR", "'*' between the operands of gemm"),
            ("LPAR", "sum(...) after '+'"),
        ),
    ),
    Verb(
        Reduce,
        {"reduce": "reduce Y = sum(X, …): an elementwise sum of terms, here or on other ranks"},
        ("sm",),
        (
            Part("out", "the result of reduce", writes=True),
            Part("terms", "a term of reduce", at=True),
            Part("factor", "a factor of reduce", at=True),
        ),
        signs=(("EQUAL", "'=' after the result of reduce"), ("LPAR", "sum(...) after '='")),
    ),
    Verb(
        Quantize,
        {"quantize": "quantize Q = X: rounds to fp8, with scales of the values; / S gives the scale"},
        ("sm",),
        (
            Part("out", "the result of quantize", writes=True),
            Part("terms", "what quantize reads", at=True),
            Part("factor", "a factor of quantize", at=True),
            Part("by", "the scale of quantize"),
        ),
        signs=(("EQUAL", "'=' after the result of quantize"), ("LPAR", "sum(...) after '('")),
    ),
    Verb(
        Copy,
        {"copy": "copy DST <- SRC: moves a region, into another rank's memory or out of it with @"},
        ("copy", "sm", "nccl"),
        (Part("dst", "a copy", at=True, writes=True), Part("src", "a copy", at=True)),
        signs=(("ARROW", "'<-' after the destination of copy"),),
    ),
    Verb(
        Collective,
        {
            "all_gather": "the vendor's collective: all ranks' parts, one below the other",
            "all_reduce": "the vendor's collective: the sum of all ranks' parts",
            "reduce_scatter": "the vendor's collective: a piece of the sum for each rank",
            "all_to_all": "the vendor's collective: a piece for each rank from each rank",
        },
        ("nccl",),
        (Part("dst", "the destination of {}", writes=True), Part("src", "the source of {}")),
        streams=False,
        signs=(("ARROW", "'<-' after the destination of {}"),),
    ),
    Verb(
        Launch,
        {"launch": "launch k(…): runs a kernel of yours"},
        ("sm",),
        streams=False,
        signs=(("LPAR", "'(' after the kernel's name"),),
    ),
)
VERB_OF: Mapping[type[Operation], Verb] = {verb.node: verb for verb in VERBS}
NODE_OF: Mapping[str, Callable[..., Operation]] = {t: verb.node for verb in VERBS for t in verb.terminals}
COLLECTIVES = tuple(VERB_OF[Collective].keywords)
TERMINALS = tuple(terminal for verb in VERBS for terminal in verb.terminals)

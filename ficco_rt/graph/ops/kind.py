"""The record of a kind of operation: what each level of the compiler needs to know, so that no level has to distinguish
kinds itself."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy.typing as npt

from ficco_dsl import nodes as n
from ficco_dsl.diagnostics import Span
from ficco_dsl.verbs import VERB_OF, Verb

from ...geometry.region import Box, Region, called, summary
from ...machine import durations
from ...machine.model import Machine
from .. import ir
from ..evaluate import Mistake, Scope
from ..references import Reference, is_turned
from ..scales import Companions
from ..symbolic import Algebra, Pieces

B = TypeVar("B", bound=ir.Body)
Tensors: TypeAlias = Mapping[str, ir.Tensor]
Side: TypeAlias = Literal["computes", "moves", "sums"]
Make: TypeAlias = Callable[[Scope, ir.Where], ir.Op]
Size: TypeAlias = Callable[[Region], int]  # bytes
Read: TypeAlias = Callable[[Region], Pieces]
Twin: TypeAlias = Callable[[], None]
Named: TypeAlias = Callable[[Region], str]


class Noises(Protocol):
    """What elements carry (`noise.Noises`), as far as a kind changes it."""

    def read(self, region: Region) -> Any: ...
    def write(self, region: Region, noise: Any) -> None: ...
    def forget(self, region: Region) -> None: ...
    def store(self, body: ir.Gemm | ir.Reduce, terms: list[Any], origin: Span) -> None: ...
    def multiply(self, gemm: ir.Gemm, origin: Span) -> None: ...


class Memory(Protocol):
    """A region of numpy memory (`driver/host/views.HostView`)."""

    shape: tuple[int, ...]
    dtype: Any
    one: npt.NDArray[Any] | None  # the memory itself, if the region is one box

    def load(self) -> npt.NDArray[Any]: ...
    def load32(self) -> npt.NDArray[Any]: ...
    def store(self, values: npt.NDArray[Any]) -> None: ...


Resolve: TypeAlias = Callable[[Region], Memory]


class Names:
    """The names that statements of one build refer to. `transposed`: tensors that are stored so."""

    def __init__(
        self, tensors: Tensors, transposed: Container[str], kernels: Mapping[str, n.KernelDecl] | None = None
    ) -> None:
        self.tensors, self.transposed, self.kernels = tensors, transposed, kernels or {}
        self.scales = Companions(tensors)

    def one(self, ref: n.RegionRef) -> Callable[[Scope], Region]:
        return Reference(ref, self.tensors, self.transposed).one

    def each(self, refs: Sequence[n.RegionRef]) -> Callable[[Scope], tuple[Region, ...]]:
        """The terms of a sum. A set in a reference makes one term for each member. Tensors that there are not are left
        out."""
        references = [Reference(r, self.tensors, self.transposed) for r in refs if r.tensor in self.tensors]
        return lambda scope: tuple(region for r in references for region in r.each(scope))

    def turned(self, ref: n.RegionRef) -> bool:
        """Whether the region is stored transposed."""
        return ref.tensor in self.transposed and is_turned(ref, len(self.tensors[ref.tensor].shapes[0]))

    def alike(self, what: str, refs: Iterable[n.RegionRef]) -> None:
        """Raises Mistake: some regions are stored transposed, and others are not."""
        by_layout = {self.turned(ref): ref for ref in refs}
        if len(by_layout) > 1:
            turned, other = by_layout[True], by_layout[False]
            message = f"{what}: {turned.tensor} is stored transposed and {other.tensor} is not"
            raise Mistake(other.span, message, "declare both transposed, or neither")

    def straight(self, what: str, refs: Iterable[n.RegionRef]) -> None:
        """Raises Mistake: a region is stored transposed."""
        for ref in filter(self.turned, refs):
            message = f"{what} takes tensors as they are stored, and {ref.tensor} is stored transposed"
            raise Mistake(ref.span, message, f"declare {ref.tensor} with the shape in which it is stored")


class OpKind(Generic[B]):
    """A kind of operation. The defaults are those of a kernel that reads and writes in equal pieces."""

    body: ClassVar[type[Any]]
    node: ClassVar[type[n.Operation]]  # the statement that makes it
    word: ClassVar[str]  # what the language calls it
    noun: ClassVar[str]  # what reports call one
    alike: ClassVar[bool] = True  # do elements come from those at the same place of what is read?
    span: ClassVar[str]  # the kind of its spans in traces
    side: ClassVar[Side] = "sums"  # what its time counts as, and its colours in pictures
    tiled: ClassVar[bool] = False  # do its works have a number of output tiles?
    stored: ClassVar[str]  # the type of its works in plan files
    stored_as: ClassVar[Mapping[str, str]] = {}  # fields of the body that have another name there

    @property
    def verb(self) -> Verb:
        """The language's record: the engines that it runs on, and whether streamed stages take it."""
        return VERB_OF[self.node]

    def maker(self, s: Any, names: Names) -> Make:
        """A function that makes the op of a statement; here the body has the fields of the node, in their order."""
        made: list[Callable[[Scope], Any]] = []
        for f in fields(s)[: len(fields(self.body))]:
            value = getattr(s, f.name)
            made.append(names.each(value) if isinstance(value, tuple) else names.one(value))
        return lambda scope, where: ir.Op(where, self.body(*(m(scope) for m in made)))

    def check_layout(self, s: Any, names: Names) -> None:
        """Raises Mistake: tensors of a statement are stored in ways that do not go together. Here elements have the
        same place in all of them."""
        names.alike(self.word, (ref for ref in n.children(s) if isinstance(ref, n.RegionRef)))

    def fits(self, body: B, rank: int, tensors: Tensors) -> str | None:
        """Why the rank may not do it, if so."""
        raise NotImplementedError

    def text(self, body: B) -> str:
        """The op in words, with its exact regions."""
        raise NotImplementedError

    def values(self, body: B, algebra: Algebra, read: Read) -> Iterable[Pieces]:
        """The proof's rule: the values of each region that is written, in their order."""
        raise NotImplementedError

    def sources(self, body: B, box: Box) -> Iterator[tuple[Region, Box]]:
        """What is read to make `box` of what is written, in the regions' logical coordinates."""
        yield from ((region, box) for region in body.reads if self.alike)

    def noise(self, body: B, noises: Noises, origin: Span) -> None:
        """The effect of the op's roundings on the noise of elements."""
        raise NotImplementedError

    def bind(self, body: B, place: Span, resolve: Resolve) -> Twin:
        """The numpy twin. Arithmetic is that of the device kernels: operands in their stored dtype, products and sums
        in float32, one rounding to the output's dtype at the end."""
        raise NotImplementedError

    def label(self, body: B, rank: int | None, part: Named = summary) -> str:
        """What a span says: which part of which tensor is written, as the rank sees it."""
        (out,) = body.writes
        return f"{out.tensor if rank is None else called(out, rank)} {part(out)}"

    def moved(self, body: B, size: Size) -> int:
        """Bytes that the op moves."""
        return sum(map(size, (*body.reads, *body.writes)))

    def time(self, body: B, machine: Machine, rank: int, size: Size, sms: int | None) -> float:
        """µs that it takes alone on so many multiprocessors (None: all)."""
        return durations.kernel_time(machine, self.moved(body, size), sms)

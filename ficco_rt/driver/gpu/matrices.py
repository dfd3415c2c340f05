"""A launch's products as the tuned kernels take them: matrices in memory, and pieces of their rows and columns."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.ir import ITEM_BYTES, Gemm
from ...kernels import tiles
from ...plan.ir import Launch
from .tensors import FlagAddress, Resolve


def works_of(command: Launch, resolve: Resolve, address: FlagAddress) -> list[tiles.Work] | None:
    """The works on memory; None if an operand's columns are not side by side."""
    works = []
    for work in command.works:
        gemm = work.body
        assert isinstance(gemm, Gemm)
        sides = []
        for region in (gemm.left, gemm.right, gemm.out, *gemm.addends):
            tensor = resolve(region)
            side = tiles.operand(region, tensor.shape, tensor.address, ITEM_BYTES[tensor.dtype])
            if side is None:
                return None
            sides.append(side)
        left, right, out, *others = sides
        terms = tuple(tiles.Term(o, resolve(t).dtype) for o, t in zip(others, gemm.addends, strict=True))
        waits, signals = tuple(map(address, work.waits)), tuple(map(address, work.signals))
        # a product of inputs need not wait for what comes to its terms, or for who still reads where it goes
        late = bool(terms) and not any(resolve(r).written for r in (gemm.left, gemm.right))
        waits, term_waits = ((), waits) if late else (waits, ())
        works.append(tiles.Work.of(left, right, out, gemm.accumulate, waits, signals, terms, term_waits))
    return works


@dataclass(frozen=True, slots=True)
class Product:
    """A launch's works, and what a tuned kernel is chosen and built by."""

    works: list[tiles.Work]
    types: tuple[str, str]  # of the operands, of the output
    turned: tuple[bool, bool]  # stored transposed: left, right
    rows: list[int]  # of the output's pieces, of all works
    columns: list[int]  # of a work's
    depth: int  # K
    terms: bool  # some work has terms
    constant: tuple[bool, bool]  # nothing in the plan writes the left operands, the right ones


def product_of(command: Launch, resolve: Resolve, address: FlagAddress) -> Product | None:
    """None if an operand's columns are not side by side."""
    works = works_of(command, resolve, address)
    if works is None:
        return None
    gemms = [w.body for w in command.works if isinstance(w.body, Gemm)]
    first = gemms[0]
    return Product(
        works=works,
        types=(resolve(first.left).dtype, resolve(first.out).dtype),
        turned=(first.left_transposed, first.right_transposed),
        rows=[s.size for w in works for s in w.out_rows],
        columns=[s.size for s in works[0].out_columns],
        depth=first.left.shape[0 if first.left_transposed else 1],
        terms=tiles.with_terms(works),
        constant=(
            not any(resolve(w.left).written for w in gemms),
            not any(resolve(w.right).written for w in gemms),
        ),
    )

"""Copies of regions as the copies that devices make: runs of bytes, and rows of one pitch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...cells import cells
from ...plan.ir import CopyAsync
from ...region import Region
from ...types import TYPES
from .streams import Piece
from .tensors import Resolve
from .vendor import Action, Handle, Rows, Run, Vendor


def parts(dst: Region, src: Region, resolve: Resolve) -> Iterator[Run | Rows]:
    """What makes dst equal src."""
    to, of = resolve(dst), resolve(src)
    item = TYPES[to.dtype].bytes
    for cell in cells((dst, src), (to.shape, of.shape)):
        a, b = cell.sides
        at, start = to.address + a.offset * item, of.address + b.offset * item
        width = cell.columns * item
        if cell.rows == 1:
            yield Run(at, start, width)
        else:
            yield Rows(at, start, width, cell.rows, a.pitch * item, b.pitch * item)


def action(vendor: Vendor, part: Run | Rows, stream: Handle) -> Action:
    return vendor.copy(part, stream) if isinstance(part, Run) else vendor.copy_rows(part, stream)


@dataclass(frozen=True, slots=True)
class Copies:
    """A command's copies: a piece for each transfer; all of them in fewer calls, if that can be; and what they are made
    of, if that is runs of bytes alone."""

    pieces: list[Piece]
    fast: Piece | None
    runs: tuple[Run, ...]


def bind(vendor: Vendor, command: CopyAsync, resolve: Resolve, stream: Handle) -> Copies:
    of_transfers = [list(parts(t.dst, t.src, resolve)) for t in command.transfers]
    pieces: list[Piece] = [tuple(action(vendor, p, stream) for p in found) for found in of_transfers]
    every = [p for found in of_transfers for p in found]
    runs = tuple(p for p in every if isinstance(p, Run))
    batch = vendor.copy_batch(runs, stream) if len(runs) > 1 else None
    rest = tuple(action(vendor, p, stream) for p in every if isinstance(p, Rows))
    return Copies(pieces, None if batch is None else (batch, *rest), () if rest else runs)

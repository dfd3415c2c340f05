"""`all_gather` and the other collectives: calls of the vendor's library, in which all ranks take part."""

from __future__ import annotations

from collections.abc import Sequence

from ficco_dsl import verbs

from ...geometry.region import contiguous, overlap, shape_words, summary
from ...types import TYPES
from .. import ir
from ..evaluate import Mistake
from .kind import Make, Named, Names, OpKind, Size, Tensors


def sent_and_received(group: int, copies: Sequence[ir.Op]) -> list[ir.Op]:
    """One copy of each rank, by rank, as calls of the vendor's library. Raises Mistake unless each rank sends to one
    rank and receives from one."""
    sent: dict[int, ir.Op] = {}
    received: dict[int, ir.Op] = {}
    for op in copies:
        assert isinstance(op.body, ir.Copy)
        for ends, rank, does in ((sent, op.body.src.rank, "sends"), (received, op.body.dst.rank, "receives")):
            other = ends.setdefault(rank, op)
            if other is not op:
                raise Mistake(
                    op.where.origin,
                    f"rank {rank} {does} twice at once, by the copies of rank {other.where.rank} and of rank "
                    f"{op.where.rank}; in each turn of copies by NCCL a rank sends to one rank and receives from one",
                    "let rank and peer keep their distance: @ (rank + s) % ranks in a loop over s",
                )
    calls = []
    for op in copies:
        rank = op.where.rank
        out, back = sent[rank].body, received[rank].body
        assert isinstance(out, ir.Copy)
        assert isinstance(back, ir.Copy)
        body = ir.Collective("send_recv", group, back.dst, out.src, out.dst.rank, back.src.rank)
        calls.append(ir.Op(op.where, body))
    return calls


class CollectiveKind(OpKind[ir.Collective]):
    """What a rank's call means depends on the calls of the other ranks: the proof, the noise and drivers take all of a
    group's calls together."""

    body, node = ir.Collective, verbs.Collective
    word = span = "collective"
    noun = "call"
    alike = False  # what a message brings is another rank's (`trail`)
    side = "moves"
    stored = ""  # a command, not a work

    def maker(self, s: verbs.Collective, names: Names) -> Make:
        """The group of the call is not known yet: -1."""
        dst, src = names.one(s.dst), names.one(s.src)
        return lambda scope, where: ir.Op(where, ir.Collective(s.kind, -1, dst(scope), src(scope)))

    def check_layout(self, s: verbs.Collective, names: Names) -> None:
        if s.kind == "all_reduce":
            super().check_layout(s, names)
        else:
            names.straight(s.kind, (s.dst, s.src))

    def fits(self, call: ir.Collective, rank: int, tensors: Tensors) -> str | None:
        """A vendor collective works on contiguous memory of one type."""
        dst, src = call.dst, call.src
        for region in (*call.reads, *call.writes):
            if not contiguous(region, tensors[region.tensor].shapes[region.rank]):
                return f"{call.kind}: {region.tensor} is not one run of memory here; take whole rows"
        a, b = tensors[src.tensor].dtype, tensors[dst.tensor].dtype
        if a != b and call.kind != "send_recv":
            return f"{call.kind} from {src.tensor} ({a}) to {dst.tensor} ({b}): a collective does not change the type"
        if TYPES[a].quantised and call.kind in ("all_reduce", "reduce_scatter") and tensors[src.tensor].scaling is None:
            return f"{call.kind}: {src.tensor} is {a}, of which no library makes sums: give the call bf16, fp16 or fp32"
        if overlap(dst, src) and not (call.kind == "all_reduce" and dst == src):
            return f"{call.kind}: source and destination overlap"
        ranks = len(tensors[src.tensor].shapes)
        if call.kind == "send_recv":
            return None  # what it receives is another rank's `src` (`rules.pairs_fit`)
        if not src.shape or not dst.shape:
            return f"{call.kind} takes tensors with at least one dimension"
        rows, *columns = src.shape
        wanted = {
            "all_reduce": src.shape,
            "all_gather": (rows * ranks, *columns),
            "reduce_scatter": (rows // ranks, *columns),
            "all_to_all": src.shape,
        }[call.kind]
        if call.kind in ("reduce_scatter", "all_to_all") and rows % ranks:
            return f"{call.kind}: the {rows} rows of {src.tensor} do not divide among {ranks} ranks"
        if dst.shape != wanted:
            gives = f"{call.kind} of {src.tensor}, {shape_words(src.shape)}, gives {shape_words(wanted)}"
            return f"{gives}, but {dst.tensor} is {shape_words(dst.shape)}"
        return None

    def text(self, call: ir.Collective) -> str:
        if call.kind == "send_recv":
            return f"send {call.src} to {call.to}, receive {call.dst} from {call.by}"
        return f"{call.kind} {call.dst} <- {call.src}"

    def label(self, call: ir.Collective, rank: int | None, part: Named = summary) -> str:
        return f"{call.kind} {call.src.tensor} → {call.dst.tensor}"

    def moved(self, call: ir.Collective, size: Size) -> int:
        return size(call.dst if call.kind == "all_gather" else call.src)

"""The proof: pushes symbolic values through the ops, and checks that every output holds what `computes` says.

No numbers are computed. The ops of a graph are taken in the order of the schedule's meaning; `link` (dependencies) and
the plan's check (every conflicting pair is ordered) ensure that the plan keeps this meaning. The ops of a stored plan
are taken in an order that the check has found (`plan/prove.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial

from ficco_dsl.diagnostics import Diagnostic, Note, ScheduleError, Span

from ..geometry.region import Box, BoxMap, Region, describe, to_logical_box, to_tensor_box, whole
from ..trace.model import base_name
from ..types import ACCUMULATOR, BLOCKS, TYPES, loss
from . import ir, symbolic
from .combine import Array, combine, equal_shares
from .difference import Terms, difference, elements, inside, same, show, terms, twice
from .evaluate import MOST_MISTAKES, first_of, refuse
from .kinds import kind_of
from .op_rules import broken, misplaced, pairs_fit
from .scales import belong, is_scales, region_of
from .text import body_text
from .trail import MOST_LOOKS, Part, Step, Trails

MOST_NOTES = 6
MOST_NAMED = 8  # ranks in a note
MOST_BOXES = 3  # parts of a tensor in a note
MOST_KEPT = 10_000  # of a statement, before only what they lie within is told


def prove(graph: ir.Graph) -> None:
    """Show that every claimed output is the full value, each part once. Raises ScheduleError with what is wrong.

    Outputs marked `unproven` are not looked at beyond this: nothing may read what nobody has written.
    """
    tensors = {t.name: t for t in graph.tensors}
    mistakes: dict[Span, Diagnostic] = {}
    illegal = [*misplaced(graph), *((op, message) for op in graph.ops if (message := broken(op, tensors)) is not None)]
    for op, message in illegal:
        text = f"{message} (rank {op.where.rank})"
        mistakes.setdefault(op.where.origin, Diagnostic(op.where.origin, text, (Note(body_text(op.body)),)))
    refuse(mistakes.values())
    refuse(Proof(graph.tensors, graph.claims, meaning(graph)).mistaken())


def meaning(graph: ir.Graph) -> list[Step]:
    """The ops of a graph in the order of the schedule's meaning, in which they stand."""
    labels = [stage.label for stage in graph.stages]
    return [Step(op.where.rank, labels[op.where.stage], op.where.origin, op.body) for op in graph.ops]


class Proof:
    """The values of all tensors while ops are executed symbolically. `error` is raised if there are too many values."""

    def __init__(
        self,
        tensors: Sequence[ir.Tensor],
        claims: Sequence[ir.Claim],
        steps: Sequence[Step],
        error: type[ScheduleError] = ScheduleError,
    ) -> None:
        self.tensors = {t.name: t for t in tensors}
        self.claims = claims
        self.steps = steps
        self.ranks = max((len(t.shapes) for t in tensors), default=0)
        inputs = {t.name: t.dtype for t in tensors if t.kind == "input"}
        places = [*(step.origin for step in steps[:1]), *(t.origin for t in tensors[:1]), Span("", 1, 1, 1, 1)]
        blocks = {t.name: BLOCKS[t.scaling] for t in tensors if t.scaling is not None}
        self.algebra = symbolic.Algebra(places[0], inputs, error, blocks)
        self.noted = {  # types that some claim does not admit: who stores in one is noted
            t.dtype
            for t in tensors
            if any(not claim.admits(t.dtype, self.tensors[claim.targets[0].tensor].dtype) for claim in claims)
        }
        self.mistakes: dict[Span, Diagnostic] = {}
        self.of_scales: list[Diagnostic] = []  # those for which one of the values is told instead, if there is one
        self.last_writers: dict[tuple[str, int], BoxMap[int]] = {}
        self.at = 0  # the step that is taken
        self.watch: Callable[[int, Region, symbolic.Pieces], None] | None = None  # is told what each step stores
        self.state: dict[tuple[str, int], BoxMap[symbolic.Value]] = {}
        for t in tensors:
            for rank, shape in enumerate(t.shapes):
                start: symbolic.Value = (
                    self.algebra.element(t.name, rank, len(shape)) if t.kind == "input" else symbolic.UNWRITTEN
                )
                self.state[t.name, rank] = BoxMap(shape, start)

    @cached_property
    def trails(self) -> Trails:
        """Made when a mistake is first told."""
        return Trails(self.steps, self.tensors)

    def mistaken(self) -> tuple[Diagnostic, ...]:
        """The mistakes; empty if all claims hold."""
        self.run()
        if not self.mistakes:
            self.compare()
        return first_of(self.mistakes.values())

    def run(self) -> None:
        """Pushes the values through every step."""
        begun = 0
        for members in ir.by_call(self.steps, lambda step: step.body):
            step, body = members[0], members[0].body
            if len(self.mistakes) >= MOST_MISTAKES:
                return
            self.algebra.origin, self.at = step.origin, begun
            begun += len(members)
            if isinstance(body, ir.Collective):
                self._collective([(s, s.body) for s in members if isinstance(s.body, ir.Collective)])
                continue
            values = kind_of(body).values(body, self.algebra, partial(self._read, step))
            for region, pieces in zip(body.writes, values, strict=True):
                self._write(region, pieces, step)

    # -- tensors

    def _read(self, step: Step, region: Region) -> symbolic.Pieces:
        """The region's values by pieces, in logical coordinates."""
        values = self.state[region.tensor, region.rank]
        pieces: symbolic.Pieces = []
        for tensor_box, logical_box in region.logical_boxes():
            for box, value in values.items(tensor_box):
                if isinstance(value, symbolic.Unwritten):
                    self._unwritten(region, box, step)
                    value = self.algebra.zero
                inner = to_logical_box(region, box, tensor_box, logical_box)
                pieces.append((inner, symbolic.to_logical(self.algebra, region, box, inner, value)))
        self.algebra.look_at(len(pieces))
        return pieces

    def _write(self, region: Region, pieces: symbolic.Pieces, step: Step) -> None:
        values = self.state[region.tensor, region.rank]
        if self.watch is not None:
            self.watch(self.at, region, pieces)
        dtype = self.tensors[region.tensor].dtype
        if dtype in self.noted:
            rounding = symbolic.Rounding(dtype, step.origin, region.tensor, step.stage)
            pieces = [(box, self.algebra.stored(value, rounding)) for box, value in pieces]
        boxes = list(region.logical_boxes())
        cut: Iterable[tuple[Box, Box, symbolic.Sum]] = _cut(self.algebra, region, boxes, pieces)
        if len(boxes) == len(pieces) == 1:  # as most are
            cut = ((*boxes[0], pieces[0][1]),)
        for tensor_box, logical_box, value in cut:
            held = symbolic.to_tensor(self.algebra, region, tensor_box, logical_box, value)
            self.algebra.look_at(values.update(tensor_box, lambda _, held=held: held))  # type: ignore[misc]

    def _unwritten(self, region: Region, box: Box, step: Step) -> None:
        origin = step.origin
        if origin in self.mistakes and (is_scales(region.tensor) or self.mistakes[origin] not in self.of_scales):
            return
        self.mistakes[origin] = Diagnostic(
            origin,
            f"stage '{step.stage}' on rank {step.rank} reads {region.tensor}@{region.rank} {describe(box)}, "
            "which nothing has written by then",
            self._told_writers(region.tensor, region.rank, self.at, box),
        )
        if is_scales(region.tensor):
            self.of_scales.append(self.mistakes[origin])

    # -- ops

    def _collective(self, members: Sequence[tuple[Step, ir.Collective]]) -> None:
        ranks = self.ranks
        step, first = members[0]
        by_rank = {s.rank: (s, call) for s, call in members}
        wrong = None
        if len(members) != ranks or len(by_rank) != ranks:
            wrong = f"{first.kind} is called by {len(by_rank)} of {ranks} ranks; it takes all of them"
        elif first.kind == "send_recv":
            wrong = pairs_fit([by_rank[r][1] for r in range(ranks)], self.tensors)
        elif len({call.src.shape for _, call in members}) > 1:
            wrong = f"{first.kind}: the ranks give different sizes; a vendor collective takes equal ones"
        if wrong is not None:
            calls = tuple(Note(f"rank {s.rank}: {body_text(call)}") for s, call in members)
            self.mistakes[step.origin] = Diagnostic(step.origin, wrong, calls)
            return
        ordered = [by_rank[r] for r in range(ranks)]
        if first.kind == "send_recv":
            sent = [self._read(s, call.src) if call.reads else [] for s, call in ordered]
            for s, call in ordered:
                if call.writes:
                    self._write(call.dst, sent[call.by], s)
            return
        given = [(self._read(s, call.src), call.src.shape) for s, call in ordered]
        results = combine(self.algebra, first.kind, given, 0, (equal_shares(first.src.shape[0], ranks),) * ranks)
        for (s, call), (pieces, _) in zip(ordered, results, strict=True):
            self._write(call.dst, pieces, s)

    # -- the claims

    def compare(self) -> None:
        """Compares every claimed element with the claim; checks that unproven outputs are written."""
        for tensor in self.tensors.values():
            if tensor.unproven:
                self._see_written(tensor)
        for claim in self.claims:
            if self.tensors[claim.targets[0].tensor].unproven:
                continue
            self.algebra.origin = claim.origin
            wanted = self._claimed(claim.value)
            for target, (pieces, shape) in zip(claim.targets, wanted, strict=True):
                self._compare(claim, target, pieces, shape)
            if self.tensors[claim.targets[0].tensor].scaling is not None and not self.mistakes:
                self._compare_scales(claim)

    def _claimed(self, value: ir.ClaimValue) -> list[Array]:
        """The claim's value on every rank, in logical coordinates, with its shape."""
        algebra = self.algebra
        match value:
            case ir.Operand():
                out = []
                for region in value.regions:
                    source = algebra.element(region.tensor, region.rank, len(region.axes))
                    pieces = [
                        (lb, symbolic.to_logical(algebra, region, tb, lb, source)) for tb, lb in region.logical_boxes()
                    ]
                    if value.transposed:
                        out.append((symbolic.transposed(algebra, pieces), region.shape[::-1]))
                    else:
                        out.append((pieces, region.shape))
                return out
            case ir.Product():
                pairs = zip(self._claimed(value.left), self._claimed(value.right), strict=True)
                return [
                    (symbolic.multiply(algebra, left, right, (a[0], b[1])), (a[0], b[1]))
                    for (left, a), (right, b) in pairs
                ]
            case ir.Added():
                sides = zip(self._claimed(value.left), self._claimed(value.right), strict=True)
                return [
                    (symbolic.added(algebra, [left, symbolic.repeated(algebra, right, shape)], shape), shape)
                    for (left, shape), (right, _) in sides
                ]
            case ir.Applied():
                applied = []
                for found in zip(*map(self._claimed, value.arguments), strict=True):
                    shape = found[0][1]
                    applied.append((symbolic.applied(algebra, value.function, [p for p, _ in found], shape), shape))
                return applied
            case ir.Combined():
                operands = self._claimed(value.operand)
                dims = len(operands[0][1])
                axis = dims - 2 + value.axis if dims > 1 else 0
                return combine(algebra, value.kind, operands, axis, value.shares)

    def _compare(self, claim: ir.Claim, target: Region, pieces: symbolic.Pieces, shape: tuple[int, ...]) -> None:
        held = self.state[target.tensor, target.rank]
        boxes = list(target.logical_boxes())
        for tensor_box, logical_box, value in _cut(self.algebra, target, boxes, pieces):
            wanted = symbolic.to_tensor(self.algebra, target, tensor_box, logical_box, value)
            for box, has in held.items(tensor_box):
                self.algebra.look_at(1)
                if isinstance(has, symbolic.Unwritten) or not self.algebra.same(box, self.algebra.exact(has), wanted):
                    self._mismatch(claim, target, box, has, wanted)
                elif has.rounded:
                    self._rounded(claim, target, box, has.rounded)

    def _compare_scales(self, claim: ir.Claim) -> None:
        """Sees that the scales of a claimed tensor are those of its values."""
        tensor = self.tensors[claim.targets[0].tensor]
        for rank, shape in enumerate(tensor.shapes):
            values = whole(tensor.name, rank, shape)
            sides = [
                (r, list(self.state[r.tensor, rank].items(r.boxes[0]))) for r in (values, region_of(values, tensor))
            ]
            written = [[(box, v) for box, v in found if not isinstance(v, symbolic.Unwritten)] for _, found in sides]
            if not all(r.elements for r, _ in sides) or belong(
                self.algebra, values, written[0], sides[1][0], written[1]
            ):
                continue
            step = self.steps[self._last_writer(sides[1][0], sides[1][0].boxes[0])]
            message = f"{values}: what it holds, and its scales, do not belong together"
            self.mistakes[step.origin] = Diagnostic(
                step.origin, message, (Note(f"claimed here: {claim.text}", claim.origin),)
            )

    def _rounded(self, claim: ir.Claim, target: Region, box: Box, rounded: Sequence[symbolic.Rounding]) -> None:
        """Tell of types that the claim does not admit."""
        own = self.tensors[target.tensor].dtype
        for r in rounded:
            if claim.admits(r.dtype, own) or r.origin in self.mistakes:
                continue
            word = "," if claim.within or claim.tf32 else " within"
            coarse = TYPES[own].quantised  # sums are in fp32
            lost, instead = loss(ACCUMULATOR, r.dtype) if coarse else loss(own, r.dtype), "bf16" if coarse else own
            self.mistakes[r.origin] = Diagnostic(
                r.origin,
                f"stage '{r.stage}' stores in {r.tensor}, which is {r.dtype}, what {target.tensor}@{target.rank} "
                f"{describe(box)} is made of: {lost}",
                (Note(f"claimed here: {claim.text}", claim.origin),),
                f"make {r.tensor} {instead}, or admit the rounding: end the claim with '{word.lstrip()} {r.dtype}'",
            )

    def _mismatch(self, claim: ir.Claim, target: Region, box: Box, has: symbolic.Value, wanted: symbolic.Sum) -> None:
        last = self._last_writer(target, box)
        writer = self.steps[last] if last >= 0 else None
        origin = claim.origin if writer is None else writer.origin
        if origin in self.mistakes:
            return
        if isinstance(has, symbolic.Unwritten):
            box = self._unwritten_part(target, box)
        place = f"{target.tensor}@{target.rank} {describe(box)}"
        if writer is not None:
            place += f" (last written by stage '{writer.stage}' on rank {writer.rank})"
        notes: tuple[Note, ...] = ()
        if origin != claim.origin:
            notes = (Note(f"claimed here: {claim.text}", claim.origin),)
        help = None
        if isinstance(has, symbolic.Unwritten):
            message = f"{place}: nothing writes them"
            notes = self._told_writers(target.tensor, target.rank)
        elif has.opaque:
            message = f"{place}: the proof does not see into {has.opaque[0]}"
            help = f"mark the output: 'output {target.tensor}[…] : … unproven', without its computes line"
        else:
            words, due, there = inside(terms(self.algebra, wanted), terms(self.algebra, has))
            lacks, extra = difference(due, there), difference(there, due)
            alien = difference(extra, due)
            again = difference(extra, alien)
            parts = [("lacks", lacks), ("has besides", alien), ("has once too often", again)]
            told = [f"{how} {show(part, box)}" for how, part in parts if part]
            message = f"{place}: {words}{'; '.join(told)}"
            part = Part(target.tensor, target.rank, box)
            twice_there = again.inputs or again.products
            guilty = self._doubled(again, box, last) if twice_there and not lacks else None
            notes += self._brought(last, part, extra, lacks) if guilty is None else guilty
            if lacks.functions or extra.functions:
                name = (lacks.functions or extra.functions)[0][0]
                help = f"{name} is applied once, to the finished sum"
        self.mistakes[origin] = Diagnostic(origin, message, notes, help)

    def _brought(self, writer: int, part: Part, extra: Terms, lacks: Terms) -> tuple[Note, ...]:
        """The copies that brought what a part has and must not have."""
        if writer < 0:
            return ()
        there = elements(extra)
        for guilty in (there - elements(lacks), there):  # a factor of both is most often the right one
            notes = self.trails.told(writer, part, {(e.tensor, e.rank) for e in guilty})
            if notes:
                return notes[:MOST_NOTES]
        return ()

    def _doubled(self, again: Terms, box: Box, last: int) -> tuple[Note, ...] | None:
        """Where the terms first came together with themselves: the sum, and the copies that brought it what it has
        already. None: it was not found."""
        found: list[tuple[int, Part, Terms, Box]] = []
        looks = 0

        def watch(at: int, region: Region, pieces: symbolic.Pieces) -> None:
            nonlocal looks
            adds = not isinstance(self.steps[at].body, ir.Copy)
            for logical, value in pieces if adds and not found and looks < MOST_LOOKS else ():
                there = terms(proof.algebra, value)
                looks += len(there.inputs) + len(there.products)
                repeated = twice(there)
                if (repeated.inputs or repeated.products) and same(repeated, logical, again, box):
                    tensor_box, within = next((t, w) for t, w in region.logical_boxes() if logical.meet(w) is not None)
                    met = logical.meet(within)
                    assert met is not None
                    part = Part(region.tensor, region.rank, to_tensor_box(region, met, tensor_box, within))
                    found.append((at, part, repeated, logical))

        proof = Proof(tuple(self.tensors.values()), self.claims, self.steps[: last + 1])
        proof.watch = watch
        try:
            proof.run()
        except ScheduleError:  # too many values: the first proof had just come through
            return None
        if not found:
            return None
        at, part, repeated, logical = found[0]
        step = self.steps[at]
        text = f"stage '{step.stage}' on rank {step.rank} adds {show(repeated, logical)} once too often here"
        notes = (Note(text, step.origin),)
        reads = step.body.reads
        if len(set(reads)) < len(reads):  # it takes one part twice: no copy is to blame
            return notes
        brought = self.trails.told(at, part, {(e.tensor, e.rank) for e in elements(repeated)})
        return (*notes, *brought)[:MOST_NOTES]

    def _see_written(self, tensor: ir.Tensor) -> None:
        for rank, shape in enumerate(tensor.shapes):
            target = whole(tensor.name, rank, shape)
            for box, has in self.state[tensor.name, rank].items(target.boxes[0]):
                if isinstance(has, symbolic.Unwritten) and tensor.origin not in self.mistakes:
                    place = f"{tensor.name}@{rank} {describe(self._unwritten_part(target, box))}"
                    notes = self._told_writers(tensor.name, rank)
                    self.mistakes[tensor.origin] = Diagnostic(tensor.origin, f"{place}: nothing writes them", notes)

    def _unwritten_part(self, target: Region, box: Box) -> Box:
        """The part of a claim that nothing writes: all of it if it is one box, else the part that was found first."""
        held = self.state[target.tensor, target.rank]
        missing = [part for b in target.boxes for part, has in held.items(b) if isinstance(has, symbolic.Unwritten)]
        hull = _hull(missing)
        return hull if hull.elements == sum(b.elements for b in missing) else box

    def _told_writers(
        self, tensor: str, rank: int, before: int | None = None, missing: Box | None = None
    ) -> tuple[Note, ...]:
        """Who writes other parts of a tensor, by a step; and who writes what is missing then, but later. If nobody
        does, who writes it on other ranks."""
        notes = [
            Note(f"stage '{stage}' writes {words}", origin)
            for origin, stage, words in self._writers(tensor, rank, before, missing)
        ]
        if not notes:
            for step, there in self._writers_elsewhere(tensor):
                text = f"stage '{step.stage}' writes {tensor} on {_named(there)} here, and not on rank {rank}"
                notes.append(Note(text, step.origin))
        if len(notes) > MOST_NOTES:
            notes[MOST_NOTES - 1 :] = [Note(f"{len(notes) - MOST_NOTES + 1} more write {tensor}")]
        return tuple(notes)

    def _writers(self, tensor: str, rank: int, before: int | None, missing: Box | None) -> list[tuple[Span, str, str]]:
        """The statements that write a tensor: the place of each, its stage, and what it writes, in words."""
        parts: dict[Span, tuple[dict[Box, str], dict[Box, str]]] = {}  # early and late, with the iteration of the stage
        for number, step in enumerate(self.steps):
            late = before is not None and number >= before
            for region in step.body.writes:
                if (region.tensor, region.rank) == (tensor, rank):
                    kept = parts.setdefault(step.origin, ({}, {}))[late]
                    for box in region.boxes:
                        met = box.meet(missing) if late and missing is not None else box
                        if met is not None:
                            kept.setdefault(met, step.stage)
        found = []
        for origin, (then, later) in parts.items():
            stages = {*then.values(), *later.values()}
            words = [f"{self._listed(tensor, rank, list(then))} here"] if then else []
            if later:
                when = "" if len(stages) == 1 else f", in '{next(iter(later.values()))}'"
                words.append(
                    f"{self._listed(tensor, rank, list(later))}{'' if then else ' here'}, but only later{when}"
                )
            if words:
                name = next(iter(stages))
                found.append((origin, base_name(name) if len(stages) > 1 else name, ", and ".join(words)))
        return found

    def _listed(self, tensor: str, rank: int, boxes: Sequence[Box]) -> str:
        """Parts of a tensor, joined where they touch."""
        hull = _hull(boxes)
        if len(boxes) > MOST_KEPT:
            return f"within {describe(hull)}"
        written = BoxMap(self.tensors[tensor].shapes[rank], False)
        for box in boxes:
            written.update(box, lambda _: True)
        parts = [box for box, is_there in written.items(hull) if is_there]
        more = f" and {len(parts) - MOST_BOXES} more parts" if len(parts) > MOST_BOXES else ""
        return " and ".join(map(describe, parts[:MOST_BOXES])) + more

    def _writers_elsewhere(self, tensor: str) -> list[tuple[Step, list[int]]]:
        """The statements that write a tensor, the first place of each, and the ranks that have what it writes."""
        found: dict[Span, tuple[Step, set[int]]] = {}
        for step in self.steps:
            for region in step.body.writes:
                if region.tensor == tensor:
                    found.setdefault(step.origin, (step, set()))[1].add(region.rank)
        return [(step, sorted(ranks)) for step, ranks in found.values()]

    def _last_writer(self, target: Region, box: Box) -> int:
        """The number of the step; -1 if there is none."""
        key = (target.tensor, target.rank)
        if key not in self.last_writers:  # found once for all that is wrong with a tensor
            writers = self.last_writers[key] = BoxMap(self.tensors[target.tensor].shapes[target.rank], -1)
            for i, step in enumerate(self.steps):
                for region in step.body.writes:
                    if (region.tensor, region.rank) == key:
                        for b in region.boxes:
                            self.algebra.look_at(writers.update(b, lambda _, i=i: i))  # type: ignore[misc]
        return max(i for _, i in self.last_writers[key].items(box))


# ---------------------------------------------------------------- pieces of regions


def _cut(
    algebra: symbolic.Algebra, region: Region, boxes: list[tuple[Box, Box]], pieces: symbolic.Pieces
) -> Iterator[tuple[Box, Box, symbolic.Sum]]:
    """Logical pieces cut at the region's segments: (box of the tensor, its logical box, value)."""
    search = len(boxes) * len(pieces) > 64  # many of both: find the pieces of a box by search
    if search:
        index: BoxMap[symbolic.Sum | None] = BoxMap(region.shape, None)
        for box, value in pieces:
            algebra.look_at(index.update(box, lambda _, value=value: value))  # type: ignore[misc]
    for tensor_box, logical_box in boxes:
        near: Iterator[tuple[Box, symbolic.Sum | None]] = index.items(logical_box) if search else iter(pieces)
        for box, found in near:
            met = box.meet(logical_box)
            if met is None or found is None:
                continue
            yield to_tensor_box(region, met, tensor_box, logical_box), met, found


def _named(ranks: Sequence[int]) -> str:
    """Ranks in words, the first few of many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:MOST_NAMED]))}{more}"


def _hull(boxes: Sequence[Box]) -> Box:
    start = tuple(map(min, zip(*(b.start for b in boxes), strict=True)))
    return Box(start, tuple(map(max, zip(*(b.stop for b in boxes), strict=True))))

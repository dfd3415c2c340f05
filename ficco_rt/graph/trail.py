"""Finds which statements produced a wrong value, from the statement that used it back to the inputs.

A value is often wrong because a copy sent another piece than its reader expects. The proof finds the mistake at the
output. The trail leads from there back through copies, products and sums, and names the copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

from ficco_dsl.diagnostics import Note, Span

from ..geometry.region import Box, BoxMap, Region, describe, to_logical_box, to_tensor_box
from . import ir
from .kinds import kind_of

MOST_LOOKS = 500_000  # at writers of tensors, for all mistakes together: a schedule may have millions
MOST_HOPS = 50  # from a mistake: what is further away is not looked for


class Step(NamedTuple):
    """One op, in the order in which the proof takes them."""

    rank: int
    stage: str
    origin: Span
    body: ir.Body


class Part(NamedTuple):
    """A box of a rank's tensor."""

    tensor: str
    rank: int
    box: Box

    def __str__(self) -> str:
        return f"{self.tensor}@{self.rank} {describe(self.box)}"


Input: TypeAlias = tuple[str, int]  # a tensor and a rank


class Trails:
    """Finds the ops that brought values into parts of tensors. `tensors` are those of all steps."""

    def __init__(self, steps: Sequence[Step], tensors: Mapping[str, ir.Tensor]) -> None:
        self.steps = steps
        self.tensors = tensors
        self.looks = 0
        self.writers: dict[tuple[str, int], list[int]] = {}  # in the order of the steps
        for i, step in enumerate(steps):
            for region in step.body.writes:
                self.writers.setdefault((region.tensor, region.rank), []).append(i)

    def told(self, at: int, part: Part, wanted: Set[Input]) -> tuple[Note, ...]:
        """The copies behind the value that step `at` stored in `part`, a note for each statement, in the order in which
        the value went. Only those which brought something of the `wanted` inputs."""
        walk = _Walk(self, wanted)
        walk.behind(at, part.box, 0)
        return tuple(walk.notes.values())


class _Walk:
    """The way back from one part."""

    def __init__(self, trails: Trails, wanted: Set[Input]) -> None:
        self.trails = trails
        self.wanted = wanted
        self.seen: dict[tuple[Part, int], frozenset[Input]] = {}
        self.notes: dict[Span, Note] = {}

    def behind(self, at: int, box: Box, hops: int) -> frozenset[Input]:
        """The inputs of which step `at` made `box` of what it writes."""
        inputs: set[Input] = set()
        step = self.trails.steps[at]
        for to, source in self._sources(at, box):
            found = self.into(source, at, hops + 1)
            inputs |= found
            if kind_of(step.body).side == "moves" and found & self.wanted:
                text = f"stage '{step.stage}' on rank {step.rank} copies {source} to {to} here"
                self.notes.setdefault(step.origin, Note(text, step.origin))
        return frozenset(inputs)

    def into(self, part: Part, before: int, hops: int) -> frozenset[Input]:
        """The inputs whose values stood in a part before a step."""
        key = part.tensor, part.rank
        if self.trails.tensors[part.tensor].kind == "input":
            return frozenset((key,))
        found = self.seen.get((part, before))
        if found is None:
            inputs: set[Input] = set()
            for box, writer in self._last(part, before) if hops <= MOST_HOPS else ():
                inputs |= self.behind(writer, box, hops)
            found = self.seen[part, before] = frozenset(inputs)
        return found

    def _last(self, part: Part, before: int) -> Iterator[tuple[Box, int]]:
        """Which step has written each piece of a part last."""
        steps, key = self.trails.steps, (part.tensor, part.rank)
        last = BoxMap(self.trails.tensors[part.tensor].shapes[part.rank], -1)
        for i in self.trails.writers.get(key, ()):
            self.trails.looks += 1
            if i >= before or self.trails.looks > MOST_LOOKS:
                break
            for region in steps[i].body.writes:
                for b in region.boxes if (region.tensor, region.rank) == key else ():
                    if (met := b.meet(part.box)) is not None:
                        last.update(met, lambda _, i=i: i)  # type: ignore[misc]
        return ((box, i) for box, i in last.items(part.box) if i >= 0)

    def _sources(self, at: int, box: Box) -> Iterator[tuple[Part, Part]]:
        """The parts that a step read to make `box`, each with the part of `box` that it went to."""
        body = self.trails.steps[at].body
        if isinstance(body, ir.Collective) and body.kind == "send_recv":
            body = ir.Copy(body.dst, self._sent(at, body))
        sources = kind_of(body).sources
        for dst in body.writes:
            for tensor_box, logical_box in dst.logical_boxes():
                met = tensor_box.meet(box)
                if met is None:
                    continue
                to, logical = Part(dst.tensor, dst.rank, met), to_logical_box(dst, met, tensor_box, logical_box)
                for region, taken in sources(body, logical):
                    yield from ((to, part) for part in _parts(region, taken))

    def _sent(self, at: int, call: ir.Collective) -> Region:
        """What the rank from which a call receives gives to the exchange."""
        steps = self.trails.steps
        for i in (*range(at, -1, -1), *range(at + 1, len(steps))):
            other = steps[i].body
            if isinstance(other, ir.Collective) and other.group == call.group and steps[i].rank == call.by:
                return other.src
        return call.src


def _parts(region: Region, logical: Box) -> Iterator[Part]:
    """The parts of a region that a box of its logical coordinates stands for."""
    for tensor_box, logical_box in region.logical_boxes():
        met = logical_box.meet(logical)
        if met is not None:
            yield Part(region.tensor, region.rank, to_tensor_box(region, met, tensor_box, logical_box))

"""Device plans as the interpreter takes them: the parts of tensors and the works that their actions name."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ficco_rt.device.ir import (
    CallCollective,
    DeviceLaunch,
    DevicePlan,
    Move,
    StreamName,
)
from ficco_rt.geometry.region import Region
from ficco_rt.graph.ir import Copy, Gemm, Quantize, Reduce
from ficco_rt.graph.scales import spread
from ficco_rt.plan.ir import Work

Numbers: TypeAlias = npt.NDArray[np.uint64]
Place: TypeAlias = tuple[str, int]  # a tensor of a rank


class Harm(Exception):
    """What a device plan did wrong."""


class WrongNumbers(Harm):
    """Who reads the outputs of a plan does not find what the schedule says."""

    def __init__(self, text: str, of: int) -> None:
        super().__init__(text)
        self.of = of


class Part:
    """A region, ready to be read and written."""

    __slots__ = ("pieces", "place", "region", "shape", "single")

    def __init__(self, region: Region, shapes: dict[Place, tuple[int, ...]]) -> None:
        self.place: Place = (region.tensor, region.rank)
        self.region, self.shape = region, region.shape
        shape = shapes.get(self.place)
        if shape is None:
            raise Harm(f"{region}: there is no such tensor")
        self.pieces = []
        for box, logical in region.logical_boxes():
            if len(box.start) != len(shape):
                raise Harm(f"{region}: the tensor has {len(shape)} dimensions")
            if any(a < 0 or b > n or a > b for a, b, n in zip(box.start, box.stop, shape, strict=True)):
                raise Harm(f"{region}: outside of the tensor")
            if box.elements:
                self.pieces.append((box.slices(), logical.slices()))
        self.single = self.pieces[0][0] if len(self.pieces) == 1 else None

    def read(self, memory: dict[Place, Numbers]) -> Numbers:
        tensor = memory[self.place]
        if self.single is not None:
            return tensor[self.single].reshape(self.shape).copy()
        found = np.zeros(self.shape, np.uint64)
        for at, logical in self.pieces:
            found[logical] = tensor[at].reshape(found[logical].shape)
        return found

    def write(self, memory: dict[Place, Numbers], value: Numbers) -> None:
        tensor = memory[self.place]
        for at, logical in self.pieces:
            tensor[at] = value[logical].reshape(tensor[at].shape)

    def spoil(self, memory: dict[Place, Numbers], garbage: np.uint64) -> None:
        tensor = memory[self.place]
        for at, _ in self.pieces:
            tensor[at] = garbage

    def holds(self, memory: dict[Place, Numbers], garbage: np.uint64) -> bool:
        tensor = memory[self.place]
        return all(bool((tensor[at] == garbage).all()) for at, _ in self.pieces)

    def barrier_peers(self, other: Part) -> bool:
        if self.place != other.place:
            return False
        return any(a.meet(b) is not None for a in self.region.boxes for b in other.region.boxes)


def _transposed(value: Numbers, does: bool) -> Numbers:
    return value.T if does else value


def evaluated(body: Any, values: Sequence[Numbers]) -> list[Numbers]:
    """What the work writes, of what it reads."""
    match body:
        case Gemm():
            own = len(values) - len(body.scales)
            operands = list(values[:2])
            for i, scales in enumerate(values[own:]):
                operands[i] = operands[i] * spread(scales, operands[i].shape)
            left, right = (
                _transposed(operands[0], body.left_transposed),
                _transposed(operands[1], body.right_transposed),
            )
            out: Numbers = left @ right
            for addend in values[2:own]:
                out = out + addend
            return [out]
        case Reduce() if not isinstance(body, Quantize):
            out = values[0]
            for term in values[1:]:
                out = out + term
            return [out]
        case Copy():
            return [values[0]]
    mixed = sum(int((v * np.arange(1, v.size + 1, dtype=np.uint64).reshape(v.shape)).sum()) for v in values)
    return [np.full(r.shape, (mixed * (i + 3)) & (2**64 - 1), np.uint64) for i, r in enumerate(body.writes)]


class Task:
    """A work, or works that are made as one, ready to run."""

    def __init__(
        self, works: Sequence[Work], unraised: frozenset[int], semaphores: dict[int, int], shapes: Any, read_only: Any
    ) -> None:
        self.steps = []
        signals: list[int] = []
        outs = [[Part(r, shapes) for r in work.writes] for work in works]
        self.outs = outs[-1]
        for number, work in enumerate(works):
            waits = [_semaphore(semaphores, flag) for flag in work.waits if flag not in unraised]
            reads = [Part(r, shapes) for r in work.reads]
            registers = [number > 0 and r in work.writes for r in work.reads]  # of the works before
            stable = [not any(part.barrier_peers(out) for out in self.outs) for part in reads]
            early = [i < 2 and isinstance(work.body, Gemm) and read_only[i] for i in range(len(reads))]
            self.steps.append((waits, reads, registers, stable, early, work.body))
            signals += [_semaphore(semaphores, flag) for flag in work.signals if flag not in unraised]
            try:
                made = evaluated(work.body, [np.zeros(part.shape, np.uint64) for part in reads])
            except ValueError as error:
                raise Harm(f"a work of operands that do not fit: {error}") from error
            if [value.shape for value in made] != [part.shape for part in outs[number]]:
                raise Harm("a work whose operands do not fit its result")
        if any(tuple(w.writes) != tuple(works[-1].writes) for w in works):
            raise Harm("works of several results made as one")
        self.signals = signals
        self.waits_for = {semaphore for waits, *_ in self.steps for semaphore in waits}


def _semaphore(semaphores: dict[int, int], flag: int) -> int:
    if flag not in semaphores:
        raise Harm(f"flag {flag} has no semaphore")
    return semaphores[flag]


class Program:
    """A device plan, ready to be issued: what can be said of it before it runs. Raises Harm."""

    def __init__(self, plan: DevicePlan) -> None:
        self.plan = plan
        self.shapes = {(t.name, rank): shape for t in plan.tensors for rank, shape in enumerate(t.shapes)}
        self.scratch = {t.name for t in plan.tensors if t.kind == "scratch"}
        self.device_of = {s.name: s.device for s in plan.streams}
        self.flags: dict[int, int] = {}
        for number, semaphore in enumerate(plan.semaphores):
            if semaphore.flag is not None:
                self.flags.setdefault(semaphore.flag, number)
        self.places = [(semaphore.device, semaphore.index) for semaphore in plan.semaphores]
        self.counting = {(w.device, w.index) for w in plan.semaphores if w.tells_runs}
        self.tasks: dict[int, list[Task]] = {}
        self.resets: dict[int, list[int]] = {}
        self.moves: dict[int, Any] = {}
        self._kept: list[Move] = []
        self.collectives = self._collectives()

    def device(self, name: StreamName) -> int:
        if name not in self.device_of:
            raise Harm(f"{name}: there is no such stream")
        return self.device_of[name]

    def place(self, semaphore: int) -> tuple[int, int]:
        if not 0 <= semaphore < len(self.places):
            raise Harm(f"there is no semaphore {semaphore}")
        return self.places[semaphore]

    def _collectives(self) -> dict[int, int]:
        """By the identity of a call: its rank. The calls of all ranks stand side by side."""
        found: dict[int, int] = {}
        ranks = len(self.plan.placement.devices)
        together = 0
        for action in self.plan.body:
            if isinstance(action, CallCollective):
                found[id(action)] = together % ranks
                together += 1
        if together % ranks:
            raise Harm("a collective without some rank's call")
        return found

    def launch(self, number: int) -> tuple[DeviceLaunch, list[Task], list[int]]:
        if not 0 <= number < len(self.plan.launches):
            raise Harm(f"there is no launch {number}")
        launch = self.plan.launches[number]
        if number not in self.tasks:
            config, works = launch.config, launch.works
            if config.blocks < 1 or config.threads < 1:
                raise Harm("a launch without blocks or threads")
            groups = config.merged or tuple((i,) for i in range(len(works)))
            if sorted(i for group in groups for i in group) != list(range(len(works))):
                raise Harm("the works that are made as one are not those of the launch")
            unraised = frozenset(config.unraised)
            self.tasks[number] = [
                Task([works[i] for i in group], unraised, self.flags, self.shapes, config.read_only) for group in groups
            ]
            self.resets[number] = [_semaphore(self.flags, flag) for flag in config.resets]
        return launch, self.tasks[number], self.resets[number]

    def move(self, move: Move, batch: bool) -> tuple[Part, Part]:
        if id(move) not in self.moves:
            dst, src = Part(move.dst, self.shapes), Part(move.src, self.shapes)
            if prod(dst.shape) != prod(src.shape) or dst.shape != src.shape:
                raise Harm(f"{move.dst} <- {move.src}: of different shapes")
            self.moves[id(move)] = dst, src, not dst.barrier_peers(src)
            self._kept.append(move)
        if batch and move.pitched:
            raise Harm("rows of a pitch in a batch")
        found: tuple[Part, Part] = self.moves[id(move)]
        return found

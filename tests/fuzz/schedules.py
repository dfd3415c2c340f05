"""Random schedules in which much is in flight at once: several queues, streamed stages, steps around stages, `after`,
reordered copies, collectives, sums in place. Nothing is claimed; what they mean is what a plain interpreter of
their ops gives (`interpreted`)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np

from ficco_rt.driver.api import Array
from ficco_rt.geometry.region import Region
from ficco_rt.graph import ir

N = 12  # what 2, 3 and 4 ranks divide
HOLDERS = ("X", "Y", "Z", "V", "C", "E", "D[0]", "D[1]")
CUTS = ("2", "3", "4", "5", "[5, 0, 7]")
QUEUES = ("dma", "links", "first", "second", "vendor")
HEAD = f"""\
schedule orders
input   A[{N}, {N}] : fp32
input   B[{N}, {N}] : fp32
output  C[{N}, {N}] : fp32 unproven
output  E[{N}, {N}] : fp32 unproven
scratch X[{N}, {N}] : fp32
scratch Y[{N}, {N}] : fp32
scratch Z[{N}, {N}] : fp32
scratch V[{N}, {N}] : fp32
scratch D[2, {N}, {N}] : fp32
queue first  {{ engine = sm }}
queue second {{ engine = sm }}
queue vendor {{ engine = nccl }}
"""


class Orders:
    """A schedule of a few random stages. `bounded`: every streamed stage says `sms`, so that it leaves room."""

    def __init__(self, rng: random.Random, *, bounded: bool) -> None:
        self.rng, self.bounded = rng, bounded
        self.ranks = rng.choice((2, 3, 4))
        self.names: list[str] = []
        self.text = self._write()

    def _write(self) -> str:
        lines = [HEAD.rstrip()]
        lines += [f"queue {q} {{ engine = copy {self._maybe(0.4, 'order = auto ')}}}" for q in ("dma", "links")]
        fill = " ".join(f"copy {t} <- {'AB'[i % 2]}" for i, t in enumerate(HOLDERS))
        lines.append(f"stage fill on first {{ {fill} }}")
        self.names.append("fill")
        for _ in range(self.rng.randint(2, 5)):
            if self.rng.random() < 0.3:
                inner = " ".join(self._stage("t") for _ in range(self.rng.randint(1, 3)))
                lines.append(f"step t in 0..3 {{ {inner} }}")
            else:
                lines.append(self._stage(""))
        return "\n".join(lines) + "\n"

    def _maybe(self, chance: float, text: str) -> str:
        return text if self.rng.random() < chance else ""

    def _stage(self, step: str) -> str:
        pick, name = self.rng.choice, f"s{len(self.names)}"
        queue = pick(QUEUES)
        streamed = queue in ("first", "second") and self.rng.random() < 0.5
        kinds = ("copy",) if queue in ("dma", "links") else ("gemm", "reduce", "copy")
        body = (
            self._collective() if queue == "vendor" else " ".join(self._block(kinds, step) for _ in range(pick((1, 2))))
        )
        words = f" on {queue}" + " streamed" * streamed + self._maybe(0.2, f" after {pick(self.names)}")
        words += " with sms = 40" if streamed and (self.bounded or self.rng.random() < 0.5) else ""
        self.names.append(name)
        return f"stage {name}{words} {{ {body} }}"

    def _block(self, kinds: Sequence[str], step: str) -> str:
        if self.rng.random() < 0.3:
            return self._statement(kinds, "", "", step)
        cut = self.rng.choice(CUTS)
        members = f"0..{3 if cut[0] == '[' else cut}"
        inner = " ".join(self._statement(kinds, "c", cut, step) for _ in range(self.rng.choice((1, 1, 2))))
        return f"{self.rng.choice(('for', 'for', 'step'))} c in {members} {{ {inner} }}"

    def _tensor(self, step: str, written: bool = False) -> str:
        name = self.rng.choice(HOLDERS if written else (*HOLDERS, "A", "B"))
        if step and name[0] == "D":
            return f"D[({step} + {self.rng.randrange(2)}) % 2]"
        return name

    def _statement(self, kinds: Sequence[str], variable: str, cut: str, step: str) -> str:
        pick = self.rng.choice
        piece = pick((variable, variable, "0")) if variable else ""
        peer = pick((" @ rank", " @ (rank + 1) % ranks", " @ (rank + ranks - 1) % ranks"))
        out, source = self._tensor(step, written=True), self._tensor(step)

        def part(tensor: str, axis: str) -> str:
            return f"{tensor}.{axis}({piece} of {cut})" if piece else tensor

        def terms(count: int) -> list[str]:
            return [part(self._tensor(step), axis) + self._maybe(0.5, peer) for _ in range(count)]

        axis, turned, sign, added = pick(("rows", "cols")), pick(("", "", ".T")), pick(("=", "=", "+=")), ""
        there = self._maybe(0.3, peer) if sign == "=" else ""
        match pick(kinds):
            case "copy":
                here, there = pick((("", peer), (peer, "")))
                return f"copy {part(out, axis)}{here} <- {part(source, axis)}{there}"
            case "reduce":
                summed = terms(pick((1, 2)))
                summed = [part(out, axis), *summed] if self.rng.random() < 0.4 else summed
                return f"reduce {part(out, axis)} = sum({', '.join(summed)})"
        other = self._tensor(step)
        if sign == "=" and self.rng.random() < 0.5:
            added = f" + sum({', '.join(terms(pick((1, 2))))})"
        if axis == "rows":
            return f"gemm {part(out, 'rows')}{there} {sign} {part(source, 'rows')} * {other}{turned}{added}"
        return f"gemm {part(out, 'cols')}{there} {sign} {source}{turned} * {part(other, 'cols')}{added}"

    def _collective(self) -> str:
        out, source = self.rng.sample(("X", "Y", "Z", "V", "C", "E"), 2)
        return self.rng.choice(
            (
                f"all_reduce {out} <- {source}", f"all_reduce {out} <- {out}", f"all_to_all {out} <- {source}",
                f"all_gather {out} <- {source}.rows(0 of ranks)", f"reduce_scatter {out}.rows(1 of ranks) <- {source}",
            )
        )  # fmt: skip


class Chains:
    """Streamed products behind one another on one queue, fed and followed by copies: several stages are one launch."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ranks = rng.choice((1, 2, 3, 4))
        lines = ["schedule orders", *(f"input {t}[{N}, {N}] : fp32" for t in "AB")]
        for i in range(6):
            lines += [f"output O{i}[{N}, {N}] : fp32 unproven", f"scratch R{i}[{N}, {N}] : fp32"]
        lines += ["queue compute { engine = sm }", "queue dma { engine = copy }", "queue links { engine = copy }"]
        fill = " ".join(f"copy {t}{i} <- {'AB'[i % 2]}" for t in "OR" for i in range(6))
        lines.append(f"stage fill on dma {{ {fill} }}")
        for i in range(rng.randint(3, 7)):
            turns = rng.random() < 0.2
            inner = " ".join(self._stage(f"s{i}_{j}") for j in range(rng.randint(1, 3) if turns else 1))
            lines.append(f"step t in 0..3 {{ {inner} }}" if turns else inner)
        self.text = "\n".join(lines) + "\n"

    def _stage(self, name: str) -> str:
        pick, sends = self.rng.choice, self.rng.random() < 0.4
        cut = pick(CUTS)
        body = " ".join(
            f"for c in 0..{3 if cut[0] == '[' else cut} {{ {self._copy(cut) if sends else self._gemm(cut)} }}"
            for _ in range(pick((1, 1, 2)))
        )
        if self.rng.random() < 0.2:  # some ranks have nothing to do
            body = f"if rank % 2 == {pick((0, 1))} {{ {body} }}"
        words = pick(("dma", "links")) if sends else "compute" + pick((*[" streamed"] * 9, ""))
        return f"stage {name} on {words}{pick((*[''] * 14, ' after fill'))} {{ {body} }}"

    def _copy(self, cut: str) -> str:
        to, of, peer = (self.rng.randrange(n) for n in (6, 6, 4))
        return f"copy R{to}.rows(c of {cut}) @ (rank + {peer}) % ranks <- O{of}.rows(c of {cut})"

    def _gemm(self, cut: str) -> str:
        pick, out = self.rng.choice, f"O{self.rng.randrange(6)}"
        left, right, term = (pick((*given, f"R{self.rng.randrange(6)}")) for given in ("AA", "BB", ""))
        axis = pick(("rows", "rows", "cols"))
        sides = f"{left}.rows(c of {cut}) * {right}" if axis == "rows" else f"{left} * {right}.cols(c of {cut})"
        there, sign, added = pick((*[("", "=", "")] * 3, ("", "+=", ""), (" @ (rank + 1) % ranks", "=", ""),
                                   *[("", "=", f" + sum({term}.{axis}(c of {cut}))")] * 4))  # fmt: skip
        return f"gemm {out}.{axis}(c of {cut}){there} {sign} {sides}{added}"


# ---------------------------------------------------------------- what a graph means

Memory = dict[tuple[str, int], Array]


def interpreted(graph: ir.Graph, inputs: Mapping[str, Sequence[Array]]) -> tuple[Memory, float]:
    """All tensors after the graph's ops, one after another in double precision; and the largest magnitude that a
    partial sum can have had."""
    memory: Memory = {
        (t.name, r): inputs[t.name][r].astype(np.float64) if t.kind == "input" else np.full(shape, np.nan)
        for t in graph.tensors
        for r, shape in enumerate(t.shapes)
    }
    largest = 0.0

    def get(region: Region, turned: bool = False) -> Array:
        value = memory[region.tensor, region.rank][_index(region)].reshape(region.shape)
        return value.T if turned else value

    def put(region: Region, value: Array) -> None:
        memory[region.tensor, region.rank][_index(region)] = value.reshape(tuple(a.size for a in region.axes))

    done: set[int] = set()
    for op in graph.ops:
        match op.body:
            case ir.Copy(dst=dst, src=src):
                put(dst, get(src))
            case ir.Gemm() as gemm:
                left, right = get(gemm.left, gemm.left_transposed), get(gemm.right, gemm.right_transposed)
                parts = [get(t) for t in ((gemm.out,) if gemm.accumulate else gemm.addends)]
                sizes = np.abs(left) @ np.abs(right) + sum(map(np.abs, parts))
                largest = max(largest, float(sizes.max()))
                put(gemm.out, left @ right + sum(parts))
            case ir.Reduce() as total:
                terms = [get(t) for t in total.terms]
                largest = max(largest, float(sum(map(np.abs, terms)).max()))
                put(total.out, sum(terms))
            case ir.Collective(kind=kind, group=group) if group not in done:
                done.add(group)
                calls = [
                    (o.where.rank, c) for o in graph.ops if isinstance(c := o.body, ir.Collective) and c.group == group
                ]
                values = [get(call.src) for _, call in sorted(calls, key=lambda c: c[0])]
                largest = max(largest, float(sum(map(np.abs, values)).max()))
                for rank, call in calls:
                    put(call.dst, _collected(kind, values, rank))
    return memory, largest


def _index(region: Region) -> tuple[Array, ...]:
    return np.ix_(*(np.concatenate([np.arange(s.start, s.stop) for s in axis.segments]) for axis in region.axes))


def _collected(kind: str, values: Sequence[Array], rank: int) -> Array:
    match kind:
        case "all_gather":
            return np.concatenate(values)
        case "all_to_all":
            return np.concatenate([np.split(v, len(values))[rank] for v in values])
        case "all_reduce":
            return sum(values)
    return np.split(sum(values), len(values))[rank]

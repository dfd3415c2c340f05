"""Random programs with large numbers in every place that takes one. Most are legal up to their cost: what they reach is
what costs. A seed names its program."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests import cases

HUGE = (10**6, 2**31 - 1, 2**31, 10**9, 10**12, 10**18, 2**62 - 1)
QUEUES = {"dma": "copy", "auto": "copy", "sm": "sm", "sn": "sm", "vendor": "nccl"}


@dataclass(frozen=True, slots=True)
class Program:
    """A text, or the name of a shipped schedule, with the command line that it is given to."""

    text: str | None
    command: tuple[str, ...]  # FILE stands for the text's file
    ranks: int

    def __str__(self) -> str:
        return f"{' '.join(self.command)}\n{self.text or ''}"


def program(seed: int, ops: int) -> Program:
    """The program of a seed, for a compiler that takes so many operations."""
    rng = random.Random(seed)
    kind = rng.random()
    if kind < 0.15:
        return _shipped(rng)
    return _Writer(rng, ops).program(proven=kind < 0.35)


def amount(rng: random.Random, most: int = 300_000) -> int:
    """A number whose length is random."""
    return max(0, int(most ** rng.random()) - 1)


def written(rng: random.Random, most: int = 300_000) -> int:
    """A number for the text: seldom one without bounds."""
    return rng.choice(HUGE) if rng.random() < 0.05 else amount(rng, most)


def _ranks(rng: random.Random) -> int:
    return rng.choice((1, 1, 2, 2, 3, 4, 8, 16, 64, 256, 1024))


def _command(rng: random.Random, target: str, ranks: int, settings: list[str]) -> tuple[str, ...]:
    common = ["--gpus", str(ranks), *(word for s in settings for word in ("--set", s))]
    kind = rng.random()
    if kind < 0.6:
        return ("ficco", "check", target, *common)
    if kind < 0.7:
        return ("ficco", "explain", target, *common)
    if kind < 0.85:
        return ("ficco-run", target, "--backend", "sim", *common)
    graph = rng.choice(([], ["--graph"]))
    return ("ficco-run", target, "--emit", rng.choice(("device-plan", "plan", "graph")), *graph, *common)


def _shipped(rng: random.Random) -> Program:
    """A shipped schedule with numbers that nobody meant."""
    name, ranks = rng.choice(cases.SCHEDULES), _ranks(rng)
    settings = []
    for param in cases.schedule(name).params:
        if rng.random() < 0.5:
            if param.name in ("M", "N", "K"):
                value = str(ranks * rng.choice((1, 16, 128)) * (written(rng) or 1))
            elif param.name in ("counts", "taper", "first", "middle", "last"):
                value = f"[{','.join(str(amount(rng, 50)) for _ in range(1 + amount(rng, 300)))}]"
            else:
                value = str(written(rng, 5000))
            if len(value) < 100_000:
                settings.append(f"{param.name}={value}")
    return Program(None, _command(rng, name, ranks, settings), ranks)


class _Writer:
    """Writes one program."""

    def __init__(self, rng: random.Random, ops: int) -> None:
        self.rng = rng
        self.ranks = _ranks(rng)
        self.turns = amount(rng, 2 * ops // self.ranks)  # about as many as a stage has
        self.rows = rng.choice((4, 64, 1000, 65_536, 10**6, 2**31 - 1))
        self.columns = rng.choice((1, 4, 64, 1000, 65_536))
        self.stages: list[str] = []

    def pick(self, *of: str) -> str:
        return self.rng.choice(of)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def program(self, proven: bool) -> Program:
        text = self._proven() if proven else self._free()
        settings = []
        for name in ("n", "m"):
            if self.chance(0.2):
                settings.append(f"{name}={written(self.rng, 100_000)}")
        if self.chance(0.1):
            settings.append(f"L=[{','.join(str(amount(self.rng, 9)) for _ in range(1 + amount(self.rng, 5000)))}]")
        return Program(text, _command(self.rng, "FILE", self.ranks, settings), self.ranks)

    # ---- what all programs have

    def _params(self) -> list[str]:
        n = written(self.rng, 70_000)
        lines = [
            f"param n = {written(self.rng, 70_000)}",
            f"param m = {1 + written(self.rng, 1000)}",
            f"param L = [{self.pick('1', 'i', 'i % 3', '7 - i % 7')} for i in 0..{n}]",
            f"param R = 1..{1 + written(self.rng, 70_000)}",
            f"param LL = [[j + 1 for j in 0..{written(self.rng, 300)}] for i in 0..{written(self.rng, 300)}]",
        ]
        if self.chance(0.2):
            lines.append(f"param deep = {self._long(amount(self.rng, 10_000), ('1', '2', 'n', 'm'))}")
        if self.chance(0.1):
            lines += [f"param p{i} = {'n' if i == 0 else f'p{i - 1} + 1'}" for i in range(amount(self.rng, 5000))]
        return lines

    def _long(self, terms: int, of: tuple[str, ...]) -> str:
        return f"max({', '.join(self.rng.choice(of) for _ in range(terms + 1))})"

    def _list(self) -> str:
        return self.pick("L", "R", "LL[0]", "[1, 2, 3]", "reversed(L)", "[i for i in 1..m]", "0..n", "peers", "all")

    def number(self, *names: str) -> str:
        simple = self.pick("0", "1", "2", "n", "m", "rank", "ranks", "len(L)", *names, *names, *names)
        kind = self.rng.random()
        if kind < 0.7:
            return simple
        if kind < 0.8:
            return f"({simple} {self.pick('+', '*', '-')} {self.pick('1', '3', 'm', 'n', *names)})"
        if kind < 0.84:
            return str(written(self.rng))
        if kind < 0.88:
            return f"{self.pick('sum', 'max', 'min', 'len')}({self._list()})"
        if kind < 0.91:
            return f"part({self.rng.choice((7, 65_000))}, {simple} % len(L) of {self.pick('L', 'R', 'LL[0]')})"
        if kind < 0.93:
            return self._long(amount(self.rng, 2000), ("1", "rank", simple))
        if kind < 0.95:
            return f"sum([{simple} + k for k in 0..{written(self.rng, 2000)}])"
        if kind < 0.97:
            return "*".join(["2"] * amount(self.rng, 60) + ["1"])
        return f"(1 - {simple})"

    def _loop(self, body: Callable[[tuple[str, ...]], str], names: tuple[str, ...], turns: int) -> str:
        """Loops of about so many turns in all, around a body."""
        name = f"v{len(names)}"
        here = turns if self.chance(0.6) else max(1, int(turns ** self.rng.random()))
        domain = f"0..{here}"
        if self.chance(0.1):
            domain = self.pick(self._list(), f"reversed(0..{here})", f"[i * 3 % 7 for i in 0..{here}]")
        left = turns // max(1, here)
        inner = self._loop(body, (*names, name), left) if left > 1 and len(names) < 6 else body((*names, name))
        if self.chance(0.1):
            inner = f"let w{len(names)} = {self.number(*names, name)} {inner}"
        if self.chance(0.1):
            inner = f"if {self.number(name)} >= {self.number()} {{ {inner} }}"
        return f"{self.pick('for', 'for', 'for', 'step')} {name} in {domain} {{ {inner} }}"

    # ---- programs whose outputs are not proven

    def _free(self) -> str:
        dims = self.rng.choice((1, 2, 2, 2, 2, 3, 4, 8))
        shape = [self.rows, self.columns] if dims == 2 else [self.rng.choice((2, 8, 30, 100)) for _ in range(dims)]
        extents = ", ".join(map(str, shape))
        self.shape = shape
        lines = ["schedule costly", *self._params()]
        if self.chance(0.1):
            lines += [f"scratch t{i}[{self.number()} + 1] : fp32" for i in range(amount(self.rng, 2000))]
        lines += [f"input X[{extents}] : fp32", f"output Y[{extents}] : fp32 unproven"]
        lines += [f"scratch {t}[{extents}] : fp32" for t in ("Z", "W")]
        lines += self._queues()
        lines.append("stage first on dma { copy Y <- X copy Z <- X copy W <- X }")
        self.stages.append("first")
        for _ in range(self.rng.choice((1, 1, 2, 3, 5))):
            lines.append(self._outer())
        return "\n".join(lines) + "\n"

    def _queues(self) -> list[str]:
        lines = [f"queue {q} {{ engine = {e}{' order = auto' if q == 'auto' else ''} }}" for q, e in QUEUES.items()]
        if self.chance(0.15):
            self.many = 1 + amount(self.rng, 800)
            value = self._long(amount(self.rng, 100), ("1", "rank * 0 + 1", "n * 0 + 2"))
            lines += [f"queue q{i} {{ engine = sm {self.pick('', f'sms = {value}')} }}" for i in range(self.many)]
        else:
            self.many = 0
        return lines

    def _outer(self) -> str:
        if self.many and self.chance(0.5):
            body = "copy Z[0] <- X[0]" if len(self.shape) == 2 else "copy Z <- X"
            return "\n".join(
                self._head(f"m{len(self.stages)}x{i}", f"q{i}", False) + f" {{ {body} }}" for i in range(self.many)
            )
        if self.chance(0.25):
            depth = self.rng.choice((1, 1, 2, 3))
            text = " ".join(self._stage(max(1, self.turns // 30)) for _ in range(self.rng.choice((1, 2))))
            for i in range(depth):
                text = f"step s{i} in {self.pick('0..' + str(written(self.rng, 3000)), self._list())} {{ {text} }}"
            return text
        return self._stage(self.turns)

    def _head(self, name: str, queue: str, streamed: bool) -> str:
        text = f"stage {name} on {queue}{' streamed' if streamed else ''}"
        if self.stages and self.chance(0.2):
            text += " after " + ", ".join(self.rng.choice(self.stages) for _ in range(1 + amount(self.rng, 30)))
        if queue in ("sm", "sn") and self.chance(0.2):
            text += f" with sms = {self.pick('1', '16', self.number() + ' % 100 + 1')}"
        self.stages.append(name)
        return text

    def _stage(self, turns: int) -> str:
        queue = self.pick("dma", "auto", "sm", "sm", "sn", "vendor")
        streamed = queue in ("sm", "sn") and self.chance(0.4)
        kinds: tuple[str, ...] = {"copy": ("copy",), "nccl": ("call",), "sm": ("copy", "reduce", "gemm", "reduce")}[
            QUEUES[queue]
        ]
        head = self._head(f"s{len(self.stages)}", queue, streamed)

        def body(names: tuple[str, ...]) -> str:
            return " ".join(self._statement(self.rng.choice(kinds), names) for _ in range(self.rng.choice((1, 1, 2))))

        loops = [self._loop(body, (), max(1, turns // 2)) for _ in range(self.rng.choice((1, 1, 2)))]
        return f"{head} {{ {' '.join(loops)} }}"

    def _cut(self, names: tuple[str, ...]) -> str:
        """A part of a tensor, the same on both sides of a copy."""
        i = self.number(*names)
        if len(self.shape) != 2:
            entries = [self.pick(f"({i}) % {e}", f"0:{e}", f"({i} * 3) % {e}") for e in self.shape]
            return f"[{', '.join(entries)}]"
        rows, columns = self.shape
        whole = self.pick("m", "n + 1", "L", "R", str(rows), "LL[0]", "ranks", "[i + 1 for i in 0..m]")
        count = f"len({whole})" if whole[0] in "LR[" else f"({whole})"
        index = f"({i}) % {count}"
        kind = self.rng.random()
        if kind < 0.35:
            return f".rows({index} of {whole})"
        if kind < 0.45:
            return f".cols({index} of {whole})"
        if kind < 0.55:
            return f".rows({index} of {whole}).cols({self.pick(index, '0')} of {whole})"
        if kind < 0.65:
            members = self.pick(
                f"0..{count}", "reversed(0..m)", f"[k * 2 % {count} for k in 0..m // 2]", "peers", "all"
            )
            return f".rows({members} of {self.pick(whole, '65536', '2 * m')})"
        if kind < 0.75:
            return f".rows({index} of {whole}, {self.pick('0', f'0..{count}')} of {whole})"
        if kind < 0.95:
            return f"[({i}) % {rows}, 0:{columns}]"
        return ""

    def _statement(self, kind: str, names: tuple[str, ...]) -> str:
        cut, to, of = self._cut(names), self.pick("Y", "Z", "W"), self.pick("X", "X", "Z", "W")
        of = "X" if of == to else of
        peer = self.pick("", "", "", " @ (rank + 1) % ranks", f" @ ({self.number(*names)}) % ranks", " @ 0")
        if kind == "copy":
            left, right = (peer, "") if self.chance(0.5) else ("", peer)
            return f"copy {to}{cut}{left} <- {of}{cut}{right}"
        if kind == "reduce":
            many = ", ".join(f"{of}{cut}{peer if i == 0 else ''}" for i in range(1 + amount(self.rng, 30)))
            return f"reduce {to}{cut} = sum({self.pick(many, f'{of}{cut} @ peers', f'{of}{cut} @ all')})"
        if kind == "gemm":
            return f"gemm {to}[0:1, 0:1] = X[({self.number(*names)}) % {self.shape[0]} : 1, 0:1] * X[0:1, 0:1]"
        collective = self.pick("all_reduce", "all_to_all", "all_reduce")
        return f"{collective} {to} <- {of}"

    # ---- programs with claims

    def _proven(self) -> str:
        """C = f(A, B) in many small steps, right or wrong."""
        rows, pick, turns = self.rng.choice((64, 1000, 65_536)), self.pick, max(1, self.turns)
        head = ["schedule costly", *self._params()]
        head += [
            f"input A[{rows} * ranks, 64] : fp32",
            "input B[64, 64] : fp32",
            f"output C[{rows} * ranks, 64] : fp32",
        ]
        head += [f"scratch {t}[{rows} * ranks, 64] : fp32" for t in ("P", "Q")]
        head += ["queue q { engine = sm }", "queue d { engine = copy }", "queue v { engine = nccl }"]
        nested = "A"
        for _ in range(self.rng.choice((0, 0, 0, 1, 2, 5, 50))):
            nested = pick(f"all_to_all({nested}, rows)", f"all_reduce({nested})", f"all_gather({nested}, rows)")
        claim = pick("C = A * B", "C = A * B", f"C = {nested} * B", f"C = {nested}")
        if self.chance(0.2):
            claim = f"C.rows(i of {turns}) = A.rows(i of {turns}) * B for i in 0..{turns}"
        head.append(f"computes {claim}")
        doubled = "reduce Q = sum(P, P) reduce P = sum(Q, Q)"
        shifted = f"copy P.rows(i of {turns}) @ (rank + 1) % ranks <- Q.rows(i of {turns})"
        bodies = (
            f"for i in 0..{turns} {{ gemm C.rows(i of {turns}) = A.rows(i of {turns}) * B }}",
            f"for i in 0..{turns} {{ gemm C += A.cols(i of {turns}) * B.rows(i of {turns}) }}",
            f"for i in 0..{turns} {{ gemm C.rows(i of {turns}) = A.rows(({turns} - 1 - i) of {turns}) * B }}",
            f"reduce P = sum(A) for i in 0..{amount(self.rng, 200)} {{ {doubled} }} gemm C = P * B",
            f"for i in 0..{turns} {{ reduce P.rows(i of {turns}) = sum(A.rows(i of {turns}) @ all) }} gemm C = P * B",
            f"reduce P = sum(A) reduce Q = sum(A) for i in 0..{turns} {{ {shifted} }} gemm C = P * B",
            f"for j in 0..64 {{ for i in 0..{turns} {{ gemm C.rows(i of {turns}).cols(j of 64) = "
            f"A.rows(i of {turns}) * B.cols(j of 64) }} }}",
            f"reduce P = sum(A) step i in 0..{turns} {{ copy Q @ (rank + 1) % ranks <- P reduce P = sum(A, Q) }} "
            "gemm C = P * B",
        )
        stages = [f"stage s on q{pick('', '', ' streamed')} {{ {self.rng.choice(bodies)} }}"]
        if self.chance(0.2):
            stages.insert(0, f"stage v on v {{ for i in 0..{turns} {{ all_reduce P <- A all_to_all Q <- P }} }}")
        return "\n".join(head + stages) + "\n"

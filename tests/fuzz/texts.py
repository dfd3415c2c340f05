"""Where the fuzzers' texts come from. Every generator is a function of a `random.Random`: a seed names its text."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Sequence

from ficco_dsl import grammar
from tests import cases

NAMES = (
    "A",
    "B",
    "C",
    "G",
    "S",
    "M",
    "N",
    "K",
    "c",
    "p",
    "rank",
    "ranks",
    "peers",
    "all",
    "q",
    "dma",
    "x",
    "counts",
    "row",
)
NUMBERS = ("0", "1", "2", "3", "4", "7", "8", "16", "65536", "1_000_000", "4611686018427387903", "96 KiB", "9 GiB")

# ---------------------------------------------------------------- from the grammar's own rules


@functools.cache
def _rules() -> dict[str, list[list[tuple[bool, str]]]]:
    """Rule -> its expansions; each a list of (is it a terminal, its name). Read from the parser's tables, so that
    a construct that is new in the grammar is fuzzed from its first day."""
    found: dict[str, list[list[tuple[bool, str]]]] = {}
    for rule in grammar.load_parser().rules:
        found.setdefault(rule.origin.name, []).append([(s.is_term, s.name) for s in rule.expansion])
    return found


@functools.cache
def _heights() -> dict[str, int]:
    """The least depth at which a rule comes to an end."""
    heights: dict[str, int] = {}
    while len(heights) < len(_rules()):
        for name, expansions in _rules().items():
            known = [e for e in expansions if all(t or s in heights for t, s in e)]
            if name not in heights and known:
                heights[name] = 1 + min(max((0 if t else heights[s] for t, s in e), default=0) for e in known)
    return heights


def _terminal(name: str, rng: random.Random) -> str:
    if name == "NAME":
        return rng.choice(NAMES)
    if name == "INT":
        return rng.choice(NUMBERS)
    if name == "SMS":
        return f"{rng.randrange(200)} sms"
    if name == "BLOCK":
        return rng.choice(("1x128", "128x128", "2x3"))
    if name == "STRING":
        return rng.choice(('"k.cu"', '"k"', '""', '"k.py:k"'))
    return grammar.terminal_texts()[name]


def from_grammar(rng: random.Random, start: str = "start", depth: int = 14) -> str:
    """A text that parses, of random rules; its names seldom make sense."""
    out: list[str] = []
    todo: list[tuple[bool, str, int]] = [(False, start, depth)]
    while todo and len(out) < 3000:
        terminal, name, left = todo.pop()
        if terminal:
            out.append(_terminal(name, rng))
            continue
        expansions = _rules()[name]
        fitting = [e for e in expansions if max((0 if t else _heights()[s] for t, s in e), default=0) < left]
        chosen = rng.choice(fitting or [min(expansions, key=lambda e: sum(0 if t else _heights()[s] for t, s in e))])
        todo.extend((t, s, left - 1) for t, s in reversed(chosen))
    text = " ".join(out)
    return text if rng.random() < 0.2 else re.sub(r" (?=(?:stage|param|copy|gemm|input|output|queue)\b)", "\n", text)


# ---------------------------------------------------------------- programs that nearly make sense


class Program:
    """A schedule made of known-good parts, each chosen at random, then bent in a few places."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ranks = rng.choice((1, 2, 3, 4))
        self.text = self._write()

    def pick(self, *options: str) -> str:
        return self.rng.choice(options)

    def number(self, depth: int = 0) -> str:
        """An expression for a number."""
        simple = ("0", "1", "2", "3", "rank", "ranks", "rank + 1", "(rank + 1) % ranks", "chunks", "len(peers)", "M")
        if depth > 2 or self.rng.random() < 0.7:
            return self.rng.choice(simple)
        a, b = self.number(depth + 1), self.number(depth + 1)
        return self.pick(
            f"({a} + {b})", f"({a} - {b})", f"{a} * {b}", f"{a} // {b}", f"{a} / {b}", f"{a} % {b}", f"-{a}",
            f"min({a}, {b})", f"max([{a}, {b}])", f"ceil({a}, {b})", f"part({a}, {b} of ranks)", f"counts[{a}]",
            f"sum([i for i in 0..{a}])", f"rows(G) // {a}", f"len([{a}, {b}])",
        )  # fmt: skip

    def whole(self) -> str:
        return self.pick("ranks", "chunks", "counts", "2", "3", "[2, 1, 1]", "[0, 1, 3]", self.number())

    def members(self) -> str:
        return self.pick(
            "peers", "all", "reversed(peers)", "0..chunks", "0..2", "[0, 1]", "[1, 1]", f"0..{self.number()}"
        )

    def region(self, tensor: str) -> str:
        text = tensor
        for _ in range(self.rng.choice((0, 1, 1, 1, 2))):
            index = self.members() if self.rng.random() < 0.25 else self.number()
            text += self.pick(
                f".rows({index} of {self.whole()})", f".cols({index} of {self.whole()})",
                f".rows(rank of ranks, {index} of {self.whole()})", f"[{self.number()}]",
                f"[{self.number()}:{self.number()}]", f"[:, {self.number()}:]",
            )  # fmt: skip
        return text + (".T" if self.rng.random() < 0.05 else "")

    def statement(self, queue: str, depth: int = 0) -> str:
        """A statement that the queue can run; seldom one that it cannot."""
        g = lambda: self.region(self.pick("A", "B", "G", "S"))  # noqa: E731
        to = lambda: self.region(self.pick("G", "S", "S", "C"))  # noqa: E731
        if depth < 2 and self.rng.random() < 0.4:
            inner = self.statement(queue, depth + 1)
            return self.pick(
                f"for p in {self.members()} {{ {inner} }}", f"for c in 0..chunks, p in {self.members()} {{ {inner} }}",
                f"step s in {self.members()} {{ {inner} }}", f"if {self.number()} < {self.number()} {{ {inner} }}",
                f"let x = {self.number()} {inner}", f"if rank == {self.number()} {{ {inner} }} else {{ {inner} }}",
            )  # fmt: skip
        at = self.pick("", "", " @ (rank + 1) % ranks", f" @ {self.number()}")
        copies = [
            f"copy {to()}{at} <- {g()}",
            f"copy {to()} <- {g()}{at}",
            "copy S <- G",
            "copy S.rows(0 of 2) <- G.rows(1 of 2)",
        ]
        products = [
            f"gemm {to()} = {g()} * {g()}", f"gemm {to()} += {g()} * {g()}", f"reduce {to()} = sum({g()}, {g()})",
            "reduce S = sum(G, G)", "reduce S.rows(0 of 2) = sum(G.rows(0..2 of 2))", "gemm C += S * B",
            f"gemm {to()} = {g()} * {g()} + sum({g()})", "gemm C = G * B + sum(C, C @ peers)",
        ]  # fmt: skip
        calls = [f"all_gather {to()} <- {g()}", "all_gather G <- A", "all_reduce S <- G", f"all_to_all {to()} <- {g()}"]
        launches = [f"launch k({g()}, {to()}, {self.number()})"] if self.rng.random() < 0.2 else []
        options = {"dma": copies, "compute": [*products, *products, *copies, *launches], "vendor": calls}
        return self.rng.choice(options[queue if self.rng.random() < 0.95 else self.pick(*options)])

    def _gather(self) -> str:
        """All of A into G, in one of several right ways."""
        cut = self.pick("", ", c of chunks", ", c of counts")
        over = {"": "", ", c of chunks": "c in 0..chunks, ", ", c of counts": "c in 0..len(counts), "}[cut]
        src = f"A.rows({cut[2:]})" if cut else "A"
        own = f"{f'for {over[:-2]} ' if over else ''}{{ copy G.rows(rank of ranks{cut}) <- {src} }}"
        own = own if over else f"copy G.rows(rank of ranks) <- {src}"
        push = f"for {over}p in peers {{ copy G.rows(rank of ranks{cut}) @ p <- {src} }}"
        pull = f"for {over}p in peers {{ copy G.rows(p of ranks{cut}) <- {src} @ p }}"
        every = f"for {over}p in all {{ copy G.rows(rank of ranks{cut}) @ p <- {src} }}"
        shift = f"step s in 1..ranks {{ copy G.rows(rank of ranks) @ (rank + s) % ranks <- A }} {own}"
        return self.pick(f"{push} {own}", f"{pull} {own}", every, shift)

    def _multiply(self) -> str:
        """C = G * B, in one of several right ways."""
        return self.pick(
            "gemm C = G * B",
            "for p in all { gemm C.rows(p of ranks) = G.rows(p of ranks) * B }",
            "for c in 0..chunks { gemm C.rows(all of ranks, c of chunks) = G.rows(all of ranks, c of chunks) * B }",
            "for c in 0..chunks { gemm C += G.cols(c of chunks) * B.rows(c of chunks) }",
            "for c in 0..len(counts) { gemm C.cols(c of counts) = G * B.cols(c of counts) }",
            "for c in 0..chunks, j in 0..2 "
            "{ gemm C.rows(c of chunks).cols(j of 2) = G.rows(c of chunks) * B.cols(j of 2) }",
            "for p in reversed(peers) { gemm C.rows(p of ranks) = G.rows(p of ranks) * B } "
            "gemm C.rows(rank of ranks) = A * B",
        )  # fmt: skip

    def _write(self) -> str:
        r = self.rng
        m, n, k = (r.choice((1, 2, 3, 4, 6, 8)) for _ in range(3))
        stages = [("gather", self.pick("dma", "dma", "compute"), self._gather()), ("mm", "compute", self._multiply())]
        for i in range(r.choice((0, 0, 0, 1, 2))):
            queue = self.pick("dma", "compute", "vendor")
            stages.insert(r.randrange(len(stages) + 1), (f"extra{i}", queue, self.statement(queue)))
        kind = self.pick("fp32", "fp32", "bf16")
        given, claim = "input A[M / ranks, K] : T", "all_gather(A, rows) * B"
        types = [f"type T = {kind}", "type W = T", f"type O = {kind}", "input B[K, N] : W"]
        fast = ""
        if r.random() < 0.3:
            left, right = r.choice(cases.SCALINGS)
            k = r.choice((96, 128, 256, 320))
            types = [f"type T = fp8_e4m3 scaled {left}", f"type W = fp8_e5m2 scaled {right}", f"type O = {kind}"]
            types.append("input B[K, N] : W transposed")
            fast = " fast = 1" if "128" not in left and r.random() < 0.5 else ""
            if left in ("row", "1x128") and r.random() < 0.5:
                given = f"input X[M / ranks, K] : {kind} scratch A[M / ranks, K] : T"
                quantized = self.pick(
                    "quantize A = X", "quantize A = X with scale = pow2", "quantize A = sum(X)",
                    "for c in 0..chunks { quantize A.rows(c of chunks) = X.rows(c of chunks) }",
                    "quantize A = silu_mul(sum(X), X)",
                    "for c in 0..chunks { quantize A.rows(c of chunks) = silu(sum(X.rows(c of chunks))) }",
                )  # fmt: skip
                of = "silu_mul(X, X)" if "silu_mul" in quantized else "silu(X)" if "silu" in quantized else "X"
                claim = f"all_gather({of}, rows) * B within fp8_e4m3"
                stages.insert(0, ("round", "compute", quantized))
        lines = [
            "schedule fuzzed", f"param M = {m} * ranks", f"param N = {n}", f"param K = {k}",
            f"param chunks = {r.choice((1, 2, 3, 4))}", f"param counts = {self.pick('[1, 2]', '[3, 0, 1]', '[1]')}",
            *types, given, "output C[M, N] : O", "scratch G[M, K] : T", "scratch S[M, K] : T", f"computes C = {claim}",
            "queue dma { engine = copy " + self.pick("", "order = auto ", "priority = high ") + "}",
            f"queue compute {{ engine = sm{fast} {self.pick('', 'sms = 8', 'residency = 2', 'smem = 64 KiB')} }}",
            "queue vendor { engine = nccl }",
            'kernel k(read x, write y, int n) from "k.cu" entry "k" { grid = ceil(rows(x), 4) block = 32 }',
        ]  # fmt: skip
        for i, (name, queue, body) in enumerate(stages):
            streamed = " streamed" if queue == "compute" and "copy" not in body and r.random() < 0.3 else ""
            after = f" after {stages[r.randrange(i)][0]}" if i and r.random() < 0.15 else ""
            lines.append(f"stage {name} on {queue}{streamed}{after} {{ {body} }}")
        text = "\n".join(lines) + "\n"
        kind = r.random()
        return bent(text, r, r.choice((1, 2, 4))) if kind < 0.1 else self._turned(text) if kind < 0.6 else text

    def _turned(self, text: str) -> str:
        """The text with a word or two of its stages replaced by another of its kind: often wrong, seldom nonsense."""
        kinds = (
            ("rank", "p", "0", "1", "(rank + 1) % ranks", "(p + 1) % ranks"), ("G", "S", "A"), ("rows", "cols"),
            ("chunks", "ranks", "2", "3", "counts"), ("peers", "all", "reversed(peers)", "0..ranks"), ("=", "+="),
        )  # fmt: skip
        start = text.index("\nstage")
        return text[:start] + turned(text[start:], kinds, self.rng)


# ---------------------------------------------------------------- texts that were right, damaged

_TOKEN = re.compile(r"\s+|\w+|\.\.|<-|\+=|==|//|[^\w\s]")
_GLYPHS = ("{", "}", "(", ")", "[", "]", "<-", "=", "+=", "*", ".", "..", ",", ":", "@", '"', "#", "-", "%", "/", "\n")


def bent(text: str, rng: random.Random, times: int) -> str:
    """`text` with tokens dropped, doubled, swapped or replaced."""
    tokens = _TOKEN.findall(text)
    for _ in range(times):
        i, j = (rng.randrange(len(tokens)) for _ in range(2))
        kind = rng.randrange(6)
        if kind == 0:
            tokens[i] = ""
        elif kind == 1:
            tokens[i] += " " + tokens[i]
        elif kind == 2:
            tokens[i], tokens[j] = tokens[j], tokens[i]
        elif kind == 3:
            tokens[i] = rng.choice(NAMES)
        elif kind == 4:
            numbers = [n for n, token in enumerate(tokens) if token.isdigit()]
            tokens[rng.choice(numbers) if numbers else i] = rng.choice(NUMBERS)
        else:
            tokens[i] += rng.choice(_GLYPHS)
    return "".join(tokens)


def turned(text: str, kinds: Sequence[Sequence[str]], rng: random.Random) -> str:
    """`text` with one to three words replaced by another of their kind."""
    tokens = _TOKEN.findall(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = [(i, kind) for i, token in enumerate(tokens) for kind in kinds if token in kind]
        i, kind = rng.choice(places)
        tokens[i] = rng.choice(kind)
    return "".join(tokens)


_KINDS = (
    ("rank", "p", "q", "(rank + 1) % ranks", "(p + 1) % ranks"), ("c", "0", "1", "2", "s", "(c + 1) % chunks"),
    ("ranks", "chunks", "2"), ("peers", "all", "reversed(peers)", "[(rank + 1) % ranks]"), ("rows", "cols"),
    ("A", "B", "C", "G", "P", "S", "R"), ("B", "B.T"), ("for", "step"), ("=", "+="), ("+", "-"), ("streamed", ""),
    ("dma", "compute"),
)  # fmt: skip


def shipped_and_turned(rng: random.Random) -> str:
    """A shipped schedule with a few words of its stages turned, a statement dropped or doubled, or two stages
    swapped."""
    text = _text(rng.choice(cases.SCHEDULES))
    head, *stages = re.split(r"(?m)^(?=step |stage )", text)
    kind = rng.random()
    if kind < 0.8:
        stages = [turned("".join(stages), _KINDS, rng)]
    elif kind < 0.9 and len(stages) > 1:
        i, j = rng.sample(range(len(stages)), 2)
        stages[i], stages[j] = stages[j], stages[i]
    else:
        lines = "".join(stages).splitlines(keepends=True)
        i = rng.choice([i for i, line in enumerate(lines) if re.match(r"\s*(copy|gemm|reduce|quantize|all_)", line)])
        lines[i] *= rng.choice((0, 2))
        stages = lines
    return head + "".join(stages)


def small_sizes(text: str, ranks: int, rng: random.Random) -> dict[str, object]:
    """Sizes for a shipped schedule that a run takes milliseconds for; most divide well, some do not."""
    declared = re.findall(r"(?m)^param (\w+)", text)
    size = rng.choice((24, 12 * ranks, 30 * ranks))
    chosen = {name: size if rng.random() < 0.8 else rng.choice((24, 36, 48)) for name in "MNK"}
    sizes: dict[str, object] = {**chosen, "chunks": rng.choice((1, 2, 3, 5)), "transb": 0}
    if "type Weight" in text and rng.random() < 0.25:
        left, right = rng.choice(cases.SCALINGS)
        types = {"T": f"fp8_e4m3 scaled {left}", "Weight": f"fp8_e4m3 scaled {right}", "Sum": "fp32"}
        return {k: v for k, v in {**sizes, "transb": 1}.items() if k in declared} | types
    return {k: v for k, v in sizes.items() if k in declared}


def shipped(rng: random.Random) -> str:
    """A shipped schedule with a few tokens damaged, or with lines of another."""
    text = _text(rng.choice(cases.SCHEDULES))
    if rng.random() < 0.2:
        lines, others = text.splitlines(), _text(rng.choice(cases.SCHEDULES)).splitlines()
        for _ in range(3):
            lines[rng.randrange(len(lines))] = rng.choice(others)
        return "\n".join(lines)
    return bent(text, rng, rng.choice((1, 1, 2, 3, 8)))


@functools.cache
def _text(name: str) -> str:
    from ficco_rt.files import shipped

    return shipped.find(name).read_text(encoding="utf-8")


def shipped_bytes(rng: random.Random) -> bytes:
    """A shipped schedule with bytes damaged."""
    data = bytearray(_text(rng.choice(cases.SCHEDULES)).encode())
    for _ in range(rng.choice((1, 2, 5, 40))):
        i = rng.randrange(len(data))
        edit: Sequence[Callable[[], None]] = (
            lambda i=i: data.__setitem__(i, rng.randrange(256)),
            lambda i=i: data.__delitem__(slice(i, i + rng.randrange(1, 30))),
            lambda i=i: data.__setitem__(slice(i, i), data[i : i + rng.randrange(1, 60)]),
        )
        rng.choice(edit)()
        if not data:
            break
    return bytes(data)

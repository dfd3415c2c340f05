"""docs/language.md holds: its examples run, its errors are said word for word, its grammar is the parser's.

The info string of a ```ficco block says what it is:

    ficco                whole schedule: proven, checked, and run on the host at 1, 2 and 4 ranks
    ficco frame          the same, and what fragments are put into
    ficco in=PLACE       a fragment, put between the frame's stages: in the `file`, or into a stage on its queue
                         `dma`, `compute` or `vendor`; `values` are conditions, true on rank 1 of 4
    … ranks=2,4          other numbers of ranks than 1, 2, 4
    … error              wrong: the ```text block after it is the exact message, with lines counted from the
                         first of the block
    … warning            right, and the ```text block after it is what the lint says at 4 ranks
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

import lark
import pytest

import ficco_dsl
from ficco_dsl import ScheduleError
from ficco_dsl.vocabulary import BUILTINS, DTYPES, ENGINES, ON_KERNEL, ON_QUEUE
from ficco_rt import compiler
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.files import shipped
from ficco_rt.machine.profiles import DEFAULT, profile
from tests.unit import pages

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
GRAMMAR = (ROOT / "dsl" / "ficco_dsl" / "grammar.lark").read_text(encoding="utf-8")
PATH = "example.ficco"
RANKS = (1, 2, 4)


@dataclass(frozen=True)
class Block:
    line: int  # in docs/language.md
    words: tuple[str, ...]  # of the info string, after the language
    text: str
    said: str | None  # the ```text block that follows

    def value(self, key: str, default: str) -> str:
        return next((w.partition("=")[2] for w in self.words if w.startswith(f"{key}=")), default)

    @property
    def ranks(self) -> tuple[int, ...]:
        given = self.value("ranks", "")
        return tuple(map(int, given.split(","))) if given else RANKS


def blocks(language: str) -> list[tuple[int, tuple[str, ...], str, int]]:
    found = []
    for m in re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL):
        if m[1] == language:
            found.append((DOC.count("\n", 0, m.start()) + 1, tuple(m[2].split()), m[3], m.end()))
    return found


def examples() -> list[Block]:
    found = []
    for line, words, text, end in blocks("ficco"):
        said = re.match(r"\s*```text\n(.*?)\n```", DOC[end:], re.DOTALL)
        wants = "error" in words or "warning" in words
        found.append(Block(line, words, text, said[1] if said and wants else None))
    return found


EXAMPLES = examples()
FRAME = next(b.text for b in EXAMPLES if "frame" in b.words)
VALUES = [b for b in EXAMPLES if b.value("in", "") == "values"]
WRONG = [b for b in EXAMPLES if "error" in b.words]
RIGHT = [b for b in EXAMPLES if b not in VALUES and b not in WRONG]


def name(block: Block) -> str:
    return f"line {block.line}"


def whole(block: Block) -> tuple[str, int]:
    """The schedule that a block is or stands in, and how many lines of it come before the block."""
    place = block.value("in", "")
    if not place:
        return block.text, 0
    above, fill, last = re.split(r"^(?=stage )", FRAME, flags=re.MULTILINE)
    before, after = above + fill, "\n" + last
    if place != "file":
        before, after = f"{before}stage example on {place} {{\n", "}" + after
    return before + block.text + after, before.count("\n")


def run(text: str, ranks: int) -> None:
    """Everything from text to verified numbers, with products and sums that are exact."""
    schedule = ficco_dsl.parse(text, PATH)
    machine = profile(DEFAULT, ranks)
    plan = compiler.plan_of(compiler.build(schedule, ranks), machine)
    with Executor(plan, machine=machine, order="adversarial") as executor:
        result = verified_run(executor, values="exact")
    assert result.ok, str(result.worst)


@pytest.fixture(autouse=True)
def _twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python twins of the page's kernels, beside the example."""
    monkeypatch.chdir(tmp_path)
    for _, words, text, _ in blocks("python"):
        Path(words[0]).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("block", RIGHT, ids=name)
def test_example_runs(block: Block) -> None:
    text, _ = whole(block)
    for ranks in block.ranks:
        run(text, ranks)
    if "warning" in block.words:
        machine = profile(DEFAULT, 4)
        graph = compiler.build(ficco_dsl.parse(text, PATH), 4)
        assert "\n".join(map(str, compiler.lint(graph, machine))) == block.said


@pytest.mark.parametrize("block", RIGHT, ids=name)
def test_example_is_formatted(block: Block) -> None:
    text, before = whole(block)
    formatted = ficco_dsl.format_text(text, PATH).split("\n")[before:]
    shown = block.text.rstrip("\n").split("\n")
    indent = "  " if block.value("in", "") in ("dma", "compute", "vendor") else ""
    assert [line.removeprefix(indent) for line in formatted[: len(shown)]] == shown


@pytest.mark.parametrize("block", VALUES, ids=name)
def test_values_hold(block: Block) -> None:
    conditions = [line.partition("#")[0].strip() for line in block.text.splitlines()]
    # a false one reads the memory of a rank that does not exist
    checks = "".join(f"if rank == 1 and not ({c}) {{ copy H <- A @ ranks }}\n" for c in conditions)
    text, before = whole(Block(block.line, ("in=dma",), checks, None))
    try:
        compiler.build(ficco_dsl.parse(text, PATH), 4)
    except ScheduleError as error:
        raise AssertionError([conditions[d.span.line - 1 - before] for d in error.diagnostics]) from error


@pytest.mark.parametrize("block", WRONG, ids=name)
def test_error_is_said(block: Block) -> None:
    text, before = whole(block)
    with pytest.raises(ScheduleError) as caught:
        run(text, int(block.value("ranks", "4")))
    said = re.sub(rf"{PATH}:(\d+)", lambda m: f"{PATH}:{int(m[1]) - before}", str(caught.value))
    assert said == block.said


def test_every_block_is_known() -> None:
    known = re.compile(r"frame|error|warning|in=(file|dma|compute|vendor|values)|ranks=[\d,]+")
    for block in EXAMPLES:
        assert all(known.fullmatch(w) for w in block.words), name(block)
        assert (block.said is not None) == bool({"error", "warning"} & set(block.words)), name(block)
    assert len(RIGHT) > 20
    assert len(WRONG) > 8


# ---------------------------------------------------------------- the grammar


def keywords() -> set[str]:
    return {m[1] for m in re.finditer(r'^[A-Z_]+: "([a-z_]+)"$', GRAMMAR, re.MULTILINE)}


def test_the_contents_name_every_heading() -> None:
    """In order: a reader finds the page's best examples from its top."""
    contents, _, rest = pages.prose(DOC).partition("\n## ")
    assert pages.links(contents) == [f"#{pages.anchor(h)}" for h in pages.headings(f"## {rest}")]


def test_reserved_words_are_listed() -> None:
    section = re.search(r"^## Reserved words\n(.*?)^## ", DOC, re.MULTILINE | re.DOTALL)
    assert section is not None
    table = "\n".join(line for line in section[1].splitlines() if line.startswith("|"))
    assert set(re.findall(r"`(\w+)`", table)) == keywords()


def test_built_in_names_are_listed() -> None:
    """Functions with their arguments, attributes, engines, types and names."""
    for word in (*BUILTINS, *DTYPES, *ENGINES, *ON_QUEUE, *ON_KERNEL):
        assert re.search(rf"`{word}\b", DOC), word
    for form in ("reversed(set)", "min(list)", "sum(list)", "len(list)", "ceil(a, b)", "part(extent, i of n)"):
        assert f"`{form}`" in DOC, form


def doc_grammar() -> str:
    """The page's EBNF as lark reads it."""
    ((_, _, text, _),) = blocks("ebnf")
    rules = re.sub(r"\n +", " ", re.sub(r" *#.*", "", text)).replace("::=", ":")
    terminals = re.findall(r"^(?:NAME|INT|STRING|SMS|BLOCK)(?:\.1)?: .*$|^%ignore .*$", GRAMMAR, re.MULTILINE)
    return rules + "\n" + "\n".join(terminals)


def test_grammar_names_every_rule_and_keyword() -> None:
    ((_, _, text, _),) = blocks("ebnf")
    rules = re.findall(r"^[?]?(_?[a-z_]+):", GRAMMAR, re.MULTILINE)
    rules += re.findall(r"-> ([a-z_]+)$", GRAMMAR, re.MULTILINE)
    inlined = {"claim_product", "claim_collective", "claim_sum", "claim_function", "binary", "unary", "item",
               "reach", "number", "name", "parenthesized", "list_of", "comprehension", "call", "region", "range",
               "operation"}  # fmt: skip
    for rule in {r.strip("_") for r in rules} - inlined:
        assert re.search(rf"^{rule} +::=", text, re.MULTILINE), rule
    for word in keywords():
        assert f'"{word}"' in text, word


def test_grammar_is_the_implemented_one() -> None:
    """The page's grammar and the parser's accept the same texts: shipped schedules, the page's examples, and
    what is left of them after seeded damage to their tokens."""
    ours = lark.Lark(GRAMMAR, parser="lalr", lexer="basic")
    page = lark.Lark(doc_grammar(), parser="lalr", lexer="basic")

    def accepts(parser: lark.Lark, text: str) -> bool:
        try:
            parser.parse(text)
        except lark.exceptions.UnexpectedInput:
            return False
        return True

    texts = [e.path.read_text(encoding="utf-8") for e in shipped.entries()]
    texts += [whole(b)[0] for b in EXAMPLES if b.value("in", "") != "values"]
    rng = random.Random(1)
    words = sorted({t for text in texts for t in re.findall(r"\w+|<-|\.\.|[^\w\s]", re.sub(r"#.*", "", text))})
    refused = 0
    count = len(shipped.entries())
    for number, text in enumerate(texts):
        assert accepts(ours, text) == accepts(page, text)
        tokens = [str(t) for t in ours.lex(text)] if accepts(ours, text) else []
        # the page has each construct; shipped schedules are long, and have a few of them over and over
        for _ in range((2 if number < count else 6) if tokens else 0):
            damaged = tokens.copy()
            for _ in range(rng.choice((1, 1, 2))):
                i = rng.randrange(len(damaged))
                change = rng.randrange(4)
                if change == 0:
                    del damaged[i]
                elif change == 1:
                    damaged.insert(i, rng.choice(words))
                elif change == 2:
                    damaged[i] = rng.choice(words)
                else:
                    j = rng.randrange(len(damaged))
                    damaged[i], damaged[j] = damaged[j], damaged[i]
            joined = " ".join(damaged)
            accepted = accepts(ours, joined)
            assert accepted == accepts(page, joined), joined
            refused += not accepted
    assert refused > 100

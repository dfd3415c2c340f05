"""The answers of the language server that need only a text's syntax and names. Pure functions.

Spans count characters from 1, editors count lines and UTF-16 units from 0; `Text` converts places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ficco_dsl import names, vocabulary
from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span
from ficco_dsl.nodes import Schedule
from ficco_dsl.parser import parse_syntax
from ficco_dsl.symbols import Occurrence, Symbol, occurrences
from ficco_dsl.verbs import VERBS

WORDS = {  # what the language's words mean, for hovers and completion
    "schedule": "names the schedule of the file",
    "param": "declares a size that --set replaces",
    "type": "names an element type",
    "input": "declares what each rank is given; it is never written",
    "output": "declares what each rank makes",
    "scratch": "declares memory of each rank that begins unwritten",
    "computes": "claims what an output holds; it is proven before anything runs",
    "queue": "declares a stream on every rank: engine = copy, sm or nccl",
    "kernel": "declares a kernel of yours; kernel = …: who makes gemms, vendor, or a kernel of ours by its name",
    "stage": "a part of the work, on a queue; stages happen in the order written, as far as data asks for it",
    "streamed": "one launch a rank, whose tiles wait for the pieces that they read",
    "step": "a loop that all ranks take together, turn by turn",
    "for": "a loop of each rank",
    "if": "chooses by a condition",
    "let": "names a value for the rest of its block",
    **{word: meaning for verb in VERBS for word, meaning in verb.keywords.items()},
    "rank": "the number of this rank, from 0",
    "ranks": "how many ranks there are",
    "all": "all ranks, as a set",
    "peers": "the other ranks, from rank + 1 on, wrapping",
    "after": "the stage begins behind these stages, whatever data say",
    "with": "sets priority, smem, residency, sms, leave, order, kernel, fast or scale",
    "within": "types that the claimed value may be rounded to on its way",
    "unproven": "no claim is made for this output",
    "scaled": "tensor, row, 1x128 or 128x128: elements of fp8 that share a scale",
    "transposed": "stored the other way round in its last two dimensions; if …: under this condition",
    "priority": "high, normal or low",
    "engine": "copy: copy engines; sm: multiprocessors; nccl: the vendor's collectives and messages",
    "smem": "bytes of shared memory that each block of a gemm asks for",
    "residency": "blocks of a gemm on a multiprocessor",
    "sms": "multiprocessors that a launch keeps to",
    "leave": "what stays free: bytes of shared memory or a block of nccl on each multiprocessor, or so many sms",
    "order": "text, or auto: copies go out in rounds in which no rank receives from two",
    "fast": "1: the tensor cores alone add up a gemm of fp8, in some 14 bits, without fp32 sums between",
    "scale": "pow2: a quantize computes powers of two",
    "ctas": "blocks at most that a collective of the vendor's library takes; 0: copy engines where it can",
    "threads": "threads at most of a block of the vendor's library",
    **{name: form for name, (_, _, form) in vocabulary.FUNCTIONS.items()},
    "sum": "sum(list) adds numbers; sum(X, …) holds the terms of a gemm or a reduce",
}

AFTER_DOT = {
    ".rows": "rows(i of n): part i of the n parts of the rows",
    ".cols": "cols(i of n): part i of the n parts of the columns",
    ".T": "the region with its last two dimensions exchanged",
}
_VALUES = {**vocabulary.WORDS, "leave": (vocabulary.LEFT,)}
_ON_QUEUE = re.compile(r"^\s*stage\s+\w+\s+on\s+\w*$")
_AFTER = re.compile(r"^\s*stage\b.*\bafter\s+[\w\s,]*$")
_VALUE = re.compile(r"\b(engine|priority|order|kernel|leave)\s*=\s*\w*$")
_DOT = re.compile(r"\.\w*$")


@dataclass(frozen=True, slots=True)
class Text:
    """A document's lines."""

    lines: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Text:
        return cls(tuple(text.split("\n")))

    def line(self, number: int) -> str:
        """A line by its number from 0; empty beyond the end."""
        return self.lines[number] if 0 <= number < len(self.lines) else ""

    def units(self, line: int, column: int) -> tuple[int, int]:
        """A span in an editor's units. Places beyond the text become its end."""
        number = min(line, len(self.lines)) - 1
        if line > len(self.lines):
            return number, _units(self.line(number))
        return number, _units(self.line(number)[: column - 1])

    def column(self, line: int, character: int) -> tuple[int, int]:
        """An editor's place as spans count it."""
        units = 0
        for index, letter in enumerate(self.line(line)):
            if units >= character:
                return line + 1, index + 1
            units += _units(letter)
        return line + 1, len(self.line(line)) + 1


def _units(text: str) -> int:
    return len(text) + sum(letter > "\uffff" for letter in text)


def holds(span: Span, line: int, column: int) -> bool:
    """Whether a place is inside a span or right after it, as a cursor may be."""
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column)


@dataclass(frozen=True, slots=True)
class Analysis:
    """A document as last read. `schedule` and `occurrences` are of the last text whose syntax was right."""

    text: Text
    schedule: Schedule | None
    occurrences: tuple[Occurrence, ...]
    mistakes: tuple[Diagnostic, ...]

    def at(self, line: int, column: int) -> Occurrence | None:
        """The name at a place, in the last text whose syntax was right."""
        return next((o for o in self.occurrences if holds(o.span, line, column)), None)

    def of(self, symbol: Symbol) -> list[Occurrence]:
        return [o for o in self.occurrences if o.symbol == symbol]

    def alive(self, line: int, column: int) -> Iterator[Symbol]:
        """The names that are in scope at a place."""
        for symbol in dict.fromkeys(o.symbol for o in self.occurrences):
            if holds(symbol.lives, line, column):
                yield symbol

    def declared(self) -> Iterator[Symbol]:
        """The names of the whole file, in the order of the text."""
        for o in self.occurrences:
            if o.declares and o.symbol.what not in ("loop variable", "let", "argument"):
                yield o.symbol


def analyse(text: str, path: str, before: Analysis | None = None) -> Analysis:
    """Syntax and names. Where the syntax is wrong, names are those of the text before."""
    lines = Text.of(text)
    try:
        schedule = parse_syntax(text, path)
    except ScheduleError as error:
        known = (before.schedule, before.occurrences) if before is not None else (None, ())
        return Analysis(lines, *known, error.diagnostics)
    return Analysis(lines, schedule, occurrences(schedule), tuple(names.check(schedule)))


def word_at(text: Text, line: int, column: int) -> str:
    """The word at a place, with a dot before it; empty if there is none."""
    words = re.finditer(r"\.?[A-Za-z_]\w*", text.line(line - 1))
    return next((found[0] for found in words if found.start() + 1 <= column <= found.end() + 1), "")


def completions(analysis: Analysis, line: int, column: int) -> list[tuple[str, str]]:
    """Completions at a place: words, and the kind of each."""
    begun = analysis.text.line(line - 1)[: column - 1]
    value = _VALUE.search(begun)
    if "#" in begun:
        return []
    if value is not None:
        return [(word, f"a value of {value[1]}") for word in _VALUES[value[1]]]
    if _DOT.search(begun) and not begun.rstrip().endswith(".."):
        return [(word[1:], meaning) for word, meaning in AFTER_DOT.items()]
    symbols = list(analysis.alive(line, column))
    kinds = {"queue"} if _ON_QUEUE.match(begun) else {"stage"} if _AFTER.match(begun) else None
    found = [(s.name, s.what) for s in symbols if kinds is None or s.what in kinds]
    return found if kinds else [*dict.fromkeys(found), *WORDS.items()]


def rename(analysis: Analysis, symbol: Symbol, name: str) -> str | list[Span]:
    """The spans to be rewritten, or why the name cannot be changed."""
    if analysis.schedule is None or not re.fullmatch(r"[A-Za-z_]\w*", name):
        return f"'{name}' is no name"
    spans = [o.span for o in analysis.of(symbol)]
    lines = list(analysis.text.lines)
    for span in sorted(spans, key=lambda s: (s.line, s.column), reverse=True):
        line = lines[span.line - 1]
        lines[span.line - 1] = line[: span.column - 1] + name + line[span.end_column - 1 :]
    after = analyse("\n".join(lines), analysis.schedule.path)
    if len(after.mistakes) > len(analysis.mistakes):
        return after.mistakes[0].message
    return spans

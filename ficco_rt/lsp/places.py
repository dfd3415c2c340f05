"""Converts positions in a text: spans count characters from 1, editors count lines and UTF-16 units from 0."""

from __future__ import annotations

from dataclasses import dataclass

from ficco_dsl.diagnostics import Span


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

"""Output on a terminal: colours if wanted, diagnostics with their source line, progress, tables."""

from __future__ import annotations

import os
import sys
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TextIO

from ficco_dsl.diagnostics import Diagnostic, Span

from ..report.sources import Sources, show_place

_STYLES = {"bold": "1", "dim": "2", "red": "1;31", "yellow": "1;33", "green": "1;32", "blue": "1;34", "cyan": "36"}
_SHOWN = 120  # columns of a source line that are shown
_SLOW = 1.0  # seconds after which a step says that it is running
_BAR = 20  # columns of a bar that shows how much of a step is done


class Style:
    """Puts words into colours if the stream is a terminal that wants them."""

    def __init__(self, stream: TextIO) -> None:
        wanted = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self.on = wanted and stream.isatty()

    def __call__(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.on else text

    def rgb(self, text: str, colour: str) -> str:
        """Text in a colour such as `#2f6fb8`."""
        if not self.on:
            return text
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return f"\x1b[38;2;{red};{green};{blue}m{text}\x1b[0m"


def show_diagnostic(diagnostic: Diagnostic, sources: Sources, style: Style, kind: str = "") -> str:
    """The message with its place, the source line with a caret, notes and help."""
    colour = "yellow" if kind == "warning: " else "red"
    lines = [f"{style(show_place(diagnostic.span), 'bold')}: {style(kind, colour)}{diagnostic.message}"]
    lines += _excerpt(diagnostic.span, sources, style, colour)
    for note in diagnostic.notes:
        place = f"{show_place(note.span)}: " if note.span else ""
        lines.append(f"  {style('note:', 'cyan')} {place}{note.text}")
        if note.span:
            lines += _excerpt(note.span, sources, style, "cyan")
    if diagnostic.help:
        lines.append(f"  {style('help:', 'green')} {diagnostic.help}")
    return "\n".join(lines)


def _excerpt(span: Span, sources: Sources, style: Style, colour: str) -> list[str]:
    text = sources.line(span)
    if text is None or not text.strip():
        return []
    start = span.column - 1
    stop = span.end_column - 1 if span.end_line == span.line else len(text)
    stop = max(min(stop, len(text.rstrip())), start + 1)
    first = max(0, start - _SHOWN // 2) if len(text) > _SHOWN else 0
    cut = text[first : first + _SHOWN]
    before, after = ("…" if first else ""), ("…" if first + _SHOWN < len(text) else "")
    shown = "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in cut)
    lead = "".join("\t" if c == "\t" else " " * _width(c) for c in text[first:start])
    carets = "^" * max(1, sum(map(_width, cut[start - first : stop - first])))
    number = str(span.line)
    gutter = style(f"{number:>5} |", "dim")
    blank = style(f"{'':>5} |", "dim")
    return [f"{gutter} {before}{shown.rstrip()}{after}", f"{blank} {' ' * len(before)}{lead}{style(carets, colour)}"]


def _width(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 0 if unicodedata.combining(character) else 1


class Progress:
    """Says on stderr what is going on, once a step takes more than a second."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self.part: float | None = None  # how much of the step is done, where it is known

    def report(self, part: float) -> None:
        """`part` of the step, 0 … 1, is done."""
        self.part = part

    @contextmanager
    def step(self, words: str) -> Iterator[None]:
        """While the block runs, `words` say what it does."""
        done = threading.Event()
        self.part = None
        watcher = threading.Thread(target=self._watch, args=(words, done), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _watch(self, words: str, done: threading.Event) -> None:
        start = time.monotonic()
        if done.wait(_SLOW):
            return
        if not self._live:
            self._say(f"{words} …\n")
            return
        while True:
            self._say(f"\r\x1b[K{words} … {self._state(time.monotonic() - start)}")
            if done.wait(0.25):
                self._say("\r\x1b[K")
                return

    def _state(self, seconds: float) -> str:
        """`12 s`; where it is known how much is done, `12 s, 40 % ████████░░░░░░░░░░░░ 18 s left`."""
        part = self.part
        if part is None:
            return f"{seconds:.0f} s"
        full = round(_BAR * part)
        left = f" {seconds * (1 - part) / part:.0f} s left" if 0 < part < 1 else ""
        return f"{seconds:.0f} s, {100 * part:.0f} % {'█' * full}{'░' * (_BAR - full)}{left}"

    def _say(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody listens: progress is not worth an error
            return


def table(rows: Iterable[Sequence[str]], indent: str = "  ", right: frozenset[int] = frozenset()) -> str:
    """Columns of equal width, two spaces apart; the columns in `right` are flush right."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip_longest(*cells, fillvalue="")]
    lines = []
    for row in cells:
        parts = [c.rjust(widths[i]) if i in right else c.ljust(widths[i]) for i, c in enumerate(row)]
        lines.append((indent + "  ".join(parts)).rstrip())
    return "\n".join(lines)

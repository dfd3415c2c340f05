"""The table of mutations, read from `mutations.txt`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_suffix(".txt")


@dataclass(frozen=True, slots=True)
class Mutation:
    """`old` stands once in the file and becomes `new`. `tests` are arguments of pytest; `by_hand` is a command for a
    machine with GPUs."""

    name: str
    kind: str
    path: str  # in ficco_rt
    old: str
    new: str
    tests: tuple[str, ...]
    by_hand: str


def read(path: Path = TABLE) -> tuple[Mutation, ...]:
    """Paragraphs are told by how they begin; see the file's head."""
    return tuple(_mutations(path.read_text(encoding="utf-8").rstrip("\n").split("\n\n")))


def _mutations(paragraphs: list[str]) -> Iterator[Mutation]:
    names: dict[str, str] = {}
    kind = file = ""
    for paragraph in paragraphs:
        first, *rest = paragraph.split("\n")
        if first.startswith("["):
            kind, _, file = first[1:].partition("] ")
        elif first.startswith("* "):
            yield _mutation(first[2:], kind, file, rest, names)
        elif not first.startswith("#"):
            names = dict(line.split(" = ", 1) for line in (first, *rest))


def _mutation(name: str, kind: str, file: str, lines: list[str], names: dict[str, str]) -> Mutation:
    marked: dict[str, list[str]] = {mark: [line[2:] for line in lines if line[:1] == mark] for mark in "@-+"}
    assert sum(map(len, marked.values())) == len(lines), f"{name}: a line begins with something else than @, - and +"
    tests = tuple(_spelled(test, names) for test in marked["@"] if test != "gpu")
    by_hand = names["gpu"] if "gpu" in marked["@"] else ""
    return Mutation(name, kind, file, "\n".join(marked["-"]), "\n".join(marked["+"]), tests, by_hand)


def _spelled(test: str, names: dict[str, str]) -> str:
    first, _, more = test.partition(" ")
    return f"{names.get(first, first)} {more}".rstrip()

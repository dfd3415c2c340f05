"""Where the fields of C structs lie: a header's structs, measured by the C compiler."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.mock.standin import COMPILER

_STRUCT = re.compile(r"typedef struct (\w+) \{(.*?)\} \1;", re.DOTALL)
_FIELDS = re.compile(r"\s*(?:ALIGNED\(\d+\)\s*)?(?:const\s+)?(\w+)(.*)", re.DOTALL)
_NAME = re.compile(r"\s*(\**)\s*(\w+)\s*(?:\[(\d+)\])?\s*")


@dataclass(frozen=True, slots=True)
class Field:
    """A number or pointer of a struct. Those of nested structs and arrays are named like `table.tiles`, `unused_1`."""

    name: str
    offset: int  # bytes from the struct's start
    size: int

    def read(self, data: bytes) -> int:
        """Its value in a struct's bytes; numbers are positive in tests."""
        return int.from_bytes(data[self.offset : self.offset + self.size], "little")


@dataclass(frozen=True, slots=True)
class Struct:
    size: int
    fields: tuple[Field, ...]

    def __getitem__(self, name: str) -> Field:
        return next(f for f in self.fields if f.name == name)


def structs(header: Path, folder: Path) -> dict[str, Struct]:
    """The structs of a header by their names. `folder` is for the program that prints sizes and offsets."""
    declared = _declared(re.sub(r"//[^\n]*", "", header.read_text(encoding="utf-8")))
    lines = ['#include "' + str(header) + '"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for struct, members in declared.items():
        lines.append(f'    printf("{struct} %zu\\n", sizeof({struct}));')
        for name, _, _ in members:
            place = f"offsetof({struct}, {name}), sizeof((({struct} *)0)->{name})"
            lines.append(f'    printf("{struct}.{name} %zu %zu\\n", {place});')
    source, program = folder / "print.c", folder / "print"
    source.write_text("\n".join([*lines, "    return 0;", "}", ""]), encoding="utf-8")
    subprocess.run([*COMPILER, "-std=gnu11", "-Wall", "-Werror", "-o", str(program), str(source)], check=True)
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    numbers = {name: [int(n) for n in rest] for name, *rest in (line.split() for line in printed.splitlines())}

    def fields(struct: str, prefix: str, start: int) -> list[Field]:
        found: list[Field] = []
        for name, kind, count in declared[struct]:
            offset, size = numbers[f"{struct}.{name}"]
            for i in range(count or 1):
                label, at = (
                    f"{prefix}{name}" + f"_{i}" * (count is not None),
                    start + offset + i * (size // (count or 1)),
                )
                if kind in declared:
                    found += fields(kind, label + ".", at)
                else:
                    found.append(Field(label, at, size // (count or 1)))
        return found

    return {name: Struct(numbers[name][0], tuple(fields(name, "", 0))) for name in declared}


def _declared(text: str) -> dict[str, list[tuple[str, str, int | None]]]:
    """Of each struct its members: name, type ("*" for a pointer), elements of an array."""
    found: dict[str, list[tuple[str, str, int | None]]] = {}
    for struct, body in _STRUCT.findall(text):
        members = found[struct] = []
        for declaration in body.split(";")[:-1]:
            matched = _FIELDS.fullmatch(declaration)
            assert matched, declaration
            for declarator in matched[2].split(","):
                name = _NAME.fullmatch(declarator)
                assert name, declaration
                members.append((name[2], name[1] or matched[1], int(name[3]) if name[3] else None))
    return found

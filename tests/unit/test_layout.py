"""Who imports whom, read from the sources: the arrows that docs/internals/architecture.md draws."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter, deque
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the ground up. A place imports what stands on its own floor and below.
FLOORS: tuple[set[str], ...] = (
    {"ficco_dsl"},
    {"ficco_rt.env", "ficco_rt.errors", "ficco_rt.types", "ficco_rt.version"},
    {"ficco_rt.files", "ficco_rt.process"},
    {"ficco_rt.geometry", "ficco_rt.trace"},
    {"ficco_rt.graph", "ficco_rt.machine"},
    {"ficco_rt.kernels"},
    {"ficco_rt.plan"},
    {"ficco_rt.compiler", "ficco_rt.device"},
    {"ficco_rt.analysis", "ficco_rt.driver", "ficco_rt.sim"},
    {"ficco_rt.exec"},
    {"ficco_rt.calibrate", "ficco_rt.explore", "ficco_rt.select"},
    {"ficco_rt.report", "ficco_rt.torch"},
    {"ficco_rt.lsp"},
    {"ficco_rt", "ficco_rt.cli"},  # the package's own __init__: the public names
)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}

FOREIGN: dict[str, set[str]] = {
    "ficco_dsl": {"lark"},
    "ficco_rt.cli": {"click"},
    "ficco_rt.calibrate": {"numpy"},
    "ficco_rt.lsp": {"pygls", "lsprotocol"},
    "ficco_rt.driver": {"numpy", "ml_dtypes"},
    "ficco_rt.kernels": {"numpy"},
    "ficco_rt.exec": {"numpy", "ml_dtypes"},
    "ficco_rt.plan": {"numpy"},
    "ficco_rt.device": {"numpy"},
    "ficco_rt.graph": {"numpy"},
    "ficco_rt.types": {"numpy"},
    "ficco_rt.process.transports": {"mpi4py", "torch"},  # what callers have
    "ficco_rt.torch": {"torch"},
}
SOURCES = ("ficco_rt", "dsl", "tests", "tools", "examples")
SUFFIXES = {".py", ".c", ".h", ".cu", ".cuh", ".lark", ".js", ".css"}
LONGEST = 700  # lines of a source file
LONG: dict[str, str] = {}  # a longer file: why it stays one

VENDOR = {"cuda", "hip", "nccl", "nvmath"}  # imported in the places below only, and never at the top of a file
BINDS = {"ficco_rt.driver", "ficco_rt.kernels.kernel_compiler"}


def modules() -> dict[str, Path]:
    """Every module of the two packages, by its dotted name."""
    found = {}
    for package, base in (("ficco_rt", ROOT), ("ficco_dsl", ROOT / "dsl")):
        for path in sorted((base / package).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@cache  # what is read of a tree, and no tree: the garbage collector would look at all of them again and again
def imports(name: str) -> tuple[tuple[int, str, bool], ...]:
    """(line, absolute module, at the top of the file) of every import, those in functions too."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    top = {id(node) for node in tree.body}
    found: list[tuple[int, str, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, node.module] if node.module else above)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.append((node.lineno, full if full in MODULES else base, id(node) in top))
    return tuple(found)


def place(name: str) -> str:
    """Where a module stands."""
    return max((row for row in FLOOR if name == row or name.startswith(row + ".")), key=len)


def inside(name: str, places: set[str]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in places)


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down(name: str) -> None:
    row = place(name)
    wrong = []
    for line, target, at_top in imports(name):
        root = target.split(".")[0]
        if root in VENDOR:
            good = inside(name, BINDS) and not at_top
        elif root in ("ficco_rt", "ficco_dsl"):
            good = FLOOR[place(target)] <= FLOOR[row]
        else:
            known = {other for at, others in FOREIGN.items() if inside(name, {at}) for other in others}
            good = root in sys.stdlib_module_names or root in known
        if not good:
            wrong.append(f"{MODULES[name].relative_to(ROOT)}:{line} imports {target}")
    assert not wrong, "\n".join(wrong)


def circle(graph: Mapping[str, set[str]], start: str) -> list[str]:
    """The shortest way along the imports from a module back to it; nothing if there is none."""
    came_from: dict[str, str] = {}
    ahead = deque([start])
    while ahead:
        name = ahead.popleft()
        for target in sorted(graph[name]):
            if target == start:
                way = [name]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return [*reversed(way), start]
            if target not in came_from:
                came_from[target] = name
                ahead.append(target)
    return []


def test_no_circle_of_imports() -> None:
    """Imports inside functions and under TYPE_CHECKING count too: two modules that need each other are one thing."""
    graph = {name: {target for _, target, _ in imports(name)} & set(MODULES) for name in MODULES}
    circles = {frozenset(way): " → ".join(way) for name in MODULES if (way := circle(graph, name))}
    assert not circles, "\n".join(circles.values())


def test_a_circle_of_imports_is_seen() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}
    assert circle(graph, "a") == ["a", "b", "c", "a"]
    assert circle(graph, "d") == []


# Names of modules that may stand in several folders, and why. Any other name means one thing.
TWINS = {
    "each level has one": {"ir", "text", "codec", "check", "build", "prove", "model", "launches", "collectives"},
    "each family of kernels has one": {"family", "variants", "cost", "tables"},
    "each vendor of GPUs, and the part that vendors share": {"vendor", "call", "gemm_library", "sharing"},
    "each driver has one": {"driver", "peers"},
    "a command, and what it calls": {"check", "choose", "tune", "run"},
    "a value, and what asks for it or fills it": {"inside"},
    "what callers see, and the drivers' part of it": {"workspace"},
}


def test_no_two_modules_share_a_name_with_different_meanings() -> None:
    stems = Counter(path.stem for path in MODULES.values() if path.name not in ("__init__.py", "__main__.py"))
    repeated = {stem for stem, count in stems.items() if count > 1}
    assert repeated == set[str]().union(*TWINS.values())


def test_no_source_is_longer_than_a_reader_holds() -> None:
    """A file over the limit is mostly two things: it comes apart where they meet, each part under a name of its own."""
    found = {
        str(path.relative_to(ROOT)): lines
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SUFFIXES and (lines := path.read_bytes().count(b"\n")) > LONGEST
    }
    wrong = [f"{path} has {lines} lines; at most {LONGEST}" for path, lines in found.items() if path not in LONG]
    wrong += [f"{path} is in LONG and is no longer than {LONGEST} lines" for path in LONG if path not in found]
    assert not wrong, "\n".join(wrong)


def test_only_the_command_line_prints_and_exits() -> None:
    wrong = []
    for name, path in MODULES.items():
        if inside(name, {"ficco_rt.cli"}):
            continue
        text = path.read_text(encoding="utf-8")
        if inside(name, {"ficco_rt.report"}) and re.search(r"\bsys\.std(out|err)\b", text):
            wrong.append(f"{path.relative_to(ROOT)} writes to a standard stream")
        if not re.search(r"\b(exit|quit|_exit|print)\(", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            if not isinstance(node.func, ast.Name | ast.Attribute):
                continue
            called = ast.unparse(node.func)
            if called in ("exit", "quit", "sys.exit", "os._exit", "print"):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} calls {called}")
    assert not wrong, "\n".join(wrong)


def test_environment_is_read_in_one_place() -> None:
    # the others read what is not ours: NO_COLOR and TERM, XDG_CACHE_HOME
    allowed = {"ficco_rt.env", "ficco_rt.cli.console", "ficco_rt.kernels.kernel_compiler"}
    wrong = [
        f"{path.relative_to(ROOT)}: reads os.environ"
        for name, path in MODULES.items()
        if name not in allowed and ("os.environ" in (text := path.read_text(encoding="utf-8")) or "getenv" in text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", ["ficco_rt", "ficco_rt.cli.main", "ficco_rt.cli.app"])
def test_importing_the_front_is_light(module: str) -> None:
    heavy = "{'numpy', 'ml_dtypes', 'lark', 'cuda', 'hip', 'rich', 'asyncio'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    path = f"{ROOT}:{ROOT / 'dsl'}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path}, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_source_distribution_has_what_tests_read() -> None:
    """Folders and files of the checkout's root that some test names stand in the distribution too."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        built = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    named = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r'\bROOT / "([^"]+)"', path.read_text(encoding="utf-8"))
        if (ROOT / name).exists()
    }
    assert {".ci", "editors", "examples"} <= named
    lacking = {name for name in named if not any(fnmatch(name, pattern.lstrip("/")) for pattern in built)}
    assert lacking == {"pyproject.toml"}  # always there

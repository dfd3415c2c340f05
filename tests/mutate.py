"""Do the tests see small mistakes? Each mutation of `tests/mutations.txt` is made in a copy of the tree, one at a time.

    python -m tests.mutate [--only N,…] [--list]     # counts who caught them; exit code 1 if one survives
    python -m tests.mutate --gpus [--only N,…]       # the kernels' mutations on one or two GPUs, instead of tests

`--jobs N` makes so many at a time, each in a copy of its own.

First the tests that are named run on the tree as it is: all must pass. Then each mutation's tests run until one fails.
With `--gpus` it is `python -m tests.simt.on_gpus` that runs, in a process of its own: a mutation is caught there by
wrong numbers, by a launch that does not end, or by an error of the device. A mutation that no GPU of this kind shows is
said to have survived; what orders memory anyway on such a GPU need not do so on the next one.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from tests.mutations import Mutation, read

T = TypeVar("T")
R = TypeVar("R")

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("ficco_rt", "dsl", "schedules", "tests", "tools", "pyproject.toml")
LIMIT = 240  # seconds of a test
BY_HAND = "on GPUs, by hand"
GPU_LIMIT = 180  # seconds of a run on GPUs
ON_GPUS = ("kernels/src/sm90", "kernels/src/sm80")


@dataclass(frozen=True, slots=True)
class Result:
    """What a mutation came to: who caught it, the first line of the failure, and the seconds that it took."""

    mutation: Mutation
    by: str  # empty: it survived
    why: str
    seconds: float


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="numbers of mutations, as --list has them: 3,10-14")
    parser.add_argument("--list", action="store_true", help="say which mutations there are, and run none")
    parser.add_argument("--gpus", action="store_true", help="mutations of NVIDIA's kernels, on this machine's GPUs")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutations at a time (1)")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs is a number from 1")
    numbered = [(i, m) for i, m in enumerate(read()) if options.only is None or i in _numbers(options.only)]
    if options.list:
        for i, m in numbered:
            print(f"{i:3} {m.kind:13} {m.path}: {m.name}")
        return 0
    if options.gpus:
        numbered = [(i, m) for i, m in numbered if m.path.startswith(ON_GPUS)]
    with tempfile.TemporaryDirectory(prefix="ficco-mutate-") as folder:
        trees = [_copied(Path(folder) / str(number)) for number in range(options.jobs)]
        if options.gpus:
            said = _gpu_run(trees[0], "")
            if said is not None:
                raise SystemExit(f"without a mutation: {said}")
        tests = list(dict.fromkeys(test for _, m in numbered for test in m.tests if not options.gpus))
        for test, failed in zip(tests, _at_once(trees, _failure, tests), strict=True):
            if failed is not None:
                raise SystemExit(f"without a mutation {test} fails:\n{failed}")
        tried = _on_gpus if options.gpus else _tried
        results = list(_at_once(trees, partial(_reported, tried), numbered))
    print(summary(results))
    return 1 if any(not r.by for r in results) else 0


def _at_once(trees: Sequence[Path], work: Callable[[Path, T], R], items: Sequence[T]) -> Iterator[R]:
    """What the work gives for each item, in their order; as many at a time as there are trees."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def one(item: T) -> R:
        tree = free.get()
        try:
            return work(tree, item)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        yield from pool.map(one, items)


def _reported(tried: Callable[[Path, Mutation], Result], tree: Path, numbered: tuple[int, Mutation]) -> Result:
    number, mutation = numbered
    r = tried(tree, mutation)
    told = f"{number:3} {mutation.name}: {r.by or 'SURVIVED'} ({r.seconds:.0f} s) {r.why}"
    print(told, file=sys.stderr, flush=True)
    return r


def _on_gpus(tree: Path, mutation: Mutation) -> Result:
    begun = time.monotonic()
    only = "sm80" if "sm80" in mutation.path else "sm90" if "sm90" in mutation.path else ""
    with _made(tree, mutation):
        caught = _gpu_run(tree, only)
    return Result(mutation, f"on GPUs: {caught}" if caught else "", "", time.monotonic() - begun)


def _gpu_run(tree: Path, only: str) -> str | None:
    """What went wrong on GPUs; None: all was right."""
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'dsl'}", "FICCO_CACHE": str(tree / "cache")}
    command = [sys.executable, "-m", "tests.simt.on_gpus", "--only", only]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=GPU_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it takes more than {GPU_LIMIT} s"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stdout.splitlines() if not line.endswith(": right")]
    if done.returncode not in (4, 6) and "the launch fails" not in done.stderr:
        raise SystemExit(f"{shlex.join(command)} ends with {done.returncode}\n{done.stdout}{done.stderr}")
    return lines[0] if lines else done.stderr.strip().splitlines()[-1]


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _copied(folder: Path) -> Path:
    folder.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / part, folder / part)
    return folder


def _tried(tree: Path, mutation: Mutation) -> Result:
    begun = time.monotonic()
    by, why = f"{BY_HAND}: `{mutation.by_hand}`" if mutation.by_hand else "", ""
    with _made(tree, mutation):
        for test in mutation.tests:
            output = _failure(tree, test)
            if output is not None:
                by, why = _told(test, output)
                break
    return Result(mutation, by, why, time.monotonic() - begun)


@contextmanager
def _made(tree: Path, mutation: Mutation) -> Iterator[None]:
    path = tree / "ficco_rt" / mutation.path
    text = path.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.name}: the old text stands {text.count(mutation.old)} times in {mutation.path}")
    _write(path, text.replace(mutation.old, mutation.new))
    try:
        yield
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    """NOTE bytecode is kept by time and size of its source, which two texts of one second may share."""
    path.write_text(text, encoding="utf-8")
    if path.suffix == ".py":
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def _failure(tree: Path, test: str) -> str | None:
    """The output of tests of which one fails; None: all pass."""
    # all cases: a row names those that it needs; bytecode where `_write` looks for it
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'dsl'}", "FICCO_ALL": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = (sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *shlex.split(test))
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"FAILED {test} - it takes more than {LIMIT} s"
    if done.returncode > 2:  # neither passed, nor failed, nor not to be imported, nor killed
        raise SystemExit(f"{test}: pytest ends with {done.returncode}\n{done.stdout}{done.stderr}")
    return None if done.returncode == 0 else done.stdout + done.stderr


def _told(test: str, output: str) -> tuple[str, str]:
    """Who caught it, for the summary, and why."""
    said = re.findall(r"^E\s+(.*)$", output, re.MULTILINE)
    why = (said or output.strip().splitlines()[-1:] or ["it ends without a word"])[0][:200]
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", output, re.MULTILINE)
    name = f"`{failed[0] if failed else shlex.split(test)[0]}`"
    if "PlanError" in output:
        return f"the device plan's check{'' if 'test_device_plans' in name else f', in {name}'}", why
    return ("golden device plans", "") if "differs (pytest --update-golden" in output else (name, why)


def summary(results: Sequence[Result]) -> str:
    """Counts by kind and by who caught the mutation, as docs/internals/testing.md has them; then what survived."""
    columns = ("the device plan's check", "golden device plans", "other tests", "GPUs", "survived")
    lines = [f"| kind | mutations | {' | '.join(columns)} |", "|---|" + "--:|" * (len(columns) + 1)]
    kinds = dict.fromkeys(r.mutation.kind for r in results)
    for name, kind in (*((kind, kind) for kind in kinds), ("all", "")):
        count = Counter(_column(r.by) for r in results if kind in ("", r.mutation.kind))
        lines.append(f"| {name} | {count.total()} | {' | '.join(str(count[column]) for column in columns)} |")
    return "\n".join([*lines, *(f"survived: {r.mutation.path}: {r.mutation.name}" for r in results if not r.by)])


def _column(by: str) -> str:
    """The column of the summary in which `Result.by` counts."""
    known = {"": "survived", "the": "the device plan's check", "golden": "golden device plans", "on": "GPUs"}
    return known.get(by.partition(" ")[0], "other tests")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

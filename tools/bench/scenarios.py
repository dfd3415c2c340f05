"""What is measured: an operation and its global sizes. Read from a file, or the decode list made here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ficco_rt.errors import UsageError
from ficco_rt.files.atomic import read_text
from ficco_rt.graph.ir import CollectiveKind
from ficco_rt.select.operations import OPERATIONS as DECLARED

from .data import Layout

OPERATIONS = tuple(name for name, operation in DECLARED.items() if operation.short is not None)
DEFAULT_FILE = Path(__file__).with_name("scenarios.json")
DECODE_ROWS = (16, 64, 128, 256, 512, 1024, 2048)
DECODE_FEW = (16, 64, 128, 256)  # rows that processes of a GPU each are measured on, with all operations
DECODE_N, DECODE_K = 10240, 8192
SCALES = {"1x128": "128x128", "row": "row"}  # of A, and of B beside it
DEEP = 512  # what K of a rank is a multiple of in fp8: rows of scales of blocks are then multiples of 16 bytes


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table; sizes over all ranks; bf16, or fp8_e4m3 A and B with `scales`, and a bf16 C.

    ag_gemm: C = all_gather(A, rows) · B, A[M/ranks, K], B[K, N/ranks], C[M, N/ranks].
    gemm_rs: C = reduce_scatter(A · B, rows), A[M, K/ranks], B[K/ranks, N], C[M/ranks, N].
    gemm_ar: C = all_reduce(A · B), A and B as for gemm_rs, C[M, N].
    transb = 1: B is stored transposed, as nn.Linear stores weights, and as fp8 is.
    """

    operation: str
    name: str
    m: int
    n: int
    k: int
    transb: int = 0
    scales: str = ""

    @property
    def label(self) -> str:
        stored = f" fp8 {self.scales}" if self.scales else " transb" if self.transb else ""
        return f"{DECLARED[self.operation].short} {self.name}{stored}"

    @property
    def sizes(self) -> dict[str, object]:
        """What `choose` and `compile_schedule` take; the usual layout is left out, as in what is measured."""
        found: dict[str, object] = {"M": self.m, "N": self.n, "K": self.k, "T": "bf16"}
        if self.scales:
            weight = f"fp8_e4m3 scaled {SCALES[self.scales]}"
            found |= {"T": f"fp8_e4m3 scaled {self.scales}", "Weight": weight, "Sum": "bf16"}
        return found | {"transb": 1} if self.transb else found

    @property
    def collective(self) -> CollectiveKind:
        """The one that brings A, or takes the product."""
        return DECLARED[self.operation].collective

    @property
    def gathers(self) -> bool:
        return self.collective == "all_gather"

    def shapes(self, ranks: int) -> dict[str, tuple[int, int]]:
        """The shape in which A, B and C are stored on one rank."""
        m, n, k = self.m, self.n, self.k
        b = (k, n // ranks) if self.gathers else (k // ranks, n)
        stored = b[::-1] if self.transb else b
        if self.gathers:
            return {"A": (m // ranks, k), "B": stored, "C": (m, n // ranks)}
        rows = m // ranks if self.collective == "reduce_scatter" else m
        return {"A": (m, k // ranks), "B": stored, "C": (rows, n)}

    def layouts(self, ranks: int) -> dict[str, Layout]:
        """A, B and C as they are stored on one rank."""
        blocks = {"1x128": ((1, 128), (128, 128)), "row": ((1, self.shapes(ranks)["A"][1]),) * 2}
        found = dict(zip("AB", blocks.get(self.scales, ()), strict=False))
        return {name: (shape, found.get(name)) for name, shape in self.shapes(ranks).items()}

    def weight(self, b: Any) -> Any:
        """B as PyTorch multiplies by it; with its scales it is left as it is."""
        return b.t() if self.transb and not self.scales else b

    def misfit(self, ranks: int) -> str | None:
        """Why it cannot be cut evenly for `ranks` GPUs (the peers need that), or None."""
        cut = {"M": self.m, "N": self.n} if self.gathers else {"M": self.m, "K": self.k}
        bad = [f"{name} = {size}" for name, size in cut.items() if size % ranks]
        if bad:
            return f"{' and '.join(bad)}: not a multiple of {ranks} GPUs"
        n, k = (self.n // ranks, self.k) if self.gathers else (self.n, self.k // ranks)
        if self.scales and (n % 128 or k % DEEP):
            return f"N = {n} and K = {k} on a GPU: with scales N is a multiple of 128, and K of {DEEP}"
        return None


def decode(
    rows: Sequence[int] = DECODE_ROWS, operations: Sequence[str] = ("ag_gemm", "gemm_rs")
) -> tuple[Scenario, ...]:
    """Sizes of a token or few at a time: every M of `rows`."""
    return tuple(Scenario(operation, f"decode_{m}", m, DECODE_N, DECODE_K) for operation in operations for m in rows)


def load(path: Path | str) -> tuple[tuple[Scenario, ...], tuple[str, ...]]:
    """The scenarios of a file, and notes on what of it is left out.

    The file: {"ag_gemm": [{"name": "x", "M": 8192, "N": 10240, "K": 8192}, …], "gemm_rs": […], "gemm_ar": […]}.
    A scenario may have "transb": 1, or "scales": "1x128" or "row". "about" and "models" are for readers, as its "model"
    and "split" are (`families`); lists of other operations are left out with a note. Raises UsageError.
    """
    text = read_text(path)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}:{error.colno}: is not JSON: {error.msg}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: is nested too deep to be a list of scenarios") from error
    if not isinstance(data, dict):
        raise UsageError(f'{path}: wanted an object of operations, such as {{"ag_gemm": [...]}}')
    found: list[Scenario] = []
    notes: list[str] = []
    for operation, rows in data.items():
        if operation in ("about", "models"):
            continue
        if operation not in OPERATIONS:
            notes.append(f"{path}: '{operation}' is left out; operations here are {', '.join(OPERATIONS)}")
            continue
        if not isinstance(rows, list):
            raise UsageError(f"{path}: {operation}: wanted a list of scenarios")
        found += [_scenario(operation, row, f"{path}: {operation}[{i}]") for i, row in enumerate(rows)]
    labels = [s.label for s in found]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice:
        raise UsageError(f"{path}: there are two scenarios '{twice}'; give each its own name")
    return tuple(found), tuple(notes)


def _scenario(operation: str, row: object, where: str) -> Scenario:
    if not isinstance(row, dict):
        raise UsageError(f'{where}: wanted an object such as {{"name": "x", "M": 8192, "N": 10240, "K": 8192}}')
    name = row.get("name")
    if not isinstance(name, str) or not name:
        raise UsageError(f"{where}: 'name' is missing or no text")
    unknown = sorted(set(row) - {"name", "M", "N", "K", "transb", "scales", "model", "split"})
    if unknown:
        raise UsageError(f"{where} ({name}): '{unknown[0]}' is not known; a scenario has name, M, N, K, transb, scales")
    if row.get("transb", 0) not in (0, 1):
        raise UsageError(f"{where} ({name}): transb is 0 or 1; it is {json.dumps(row['transb'])}")
    sizes = []
    for key in ("M", "N", "K"):
        size = row.get(key)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"{where} ({name}): {key} must be a whole number from 1; it is {json.dumps(size)}")
        sizes.append(size)
    m, n, k = sizes
    scales = row.get("scales", "")
    if scales not in ("", *SCALES):
        raise UsageError(f"{where} ({name}): scales are {' or '.join(SCALES)}; it is {json.dumps(scales)}")
    return Scenario(operation, name, m, n, k, 1 if scales else row.get("transb", 0), scales)


def chosen(scenarios: Sequence[Scenario], only: Sequence[str], ranks: int) -> tuple[Scenario, ...]:
    """Those whose label contains one of `only` (all, if there are none), each cut evenly by `ranks`.

    Raises UsageError: nothing matches, a size does not divide.
    """
    for text in only:
        if not any(text in s.label for s in scenarios):
            raise UsageError(f"--only {text}: no scenario matches; there are {', '.join(s.label for s in scenarios)}")
    kept = tuple(s for s in scenarios if not only or any(text in s.label for text in only))
    if not kept:
        raise UsageError("there is no scenario to measure")
    for scenario in kept:
        if misfit := scenario.misfit(ranks):
            raise UsageError(f"{scenario.label}: {misfit}")
    return kept

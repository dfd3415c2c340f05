"""`ficco characterise`: what cutting and overlapping work cost on a machine (its two losses), by the size of a GPU's
GEMM."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Any, TypeAlias

from ..errors import UsageError
from ..explore.losses import PIECES, Losses, Operator, losses
from ..files.atomic import FileKind, check_outputs, write_atomic
from ..report.plots import signatures
from ..report.request import machine_of
from ..report.settings import SettingValue, number_list, parse_choices
from ..report.wording import count
from .console import Progress, Style, table
from .messages import tell

DRAWING = FileKind("drawing", (".svg",))
_SIZES: dict[str, tuple[SettingValue, ...]] = {
    "M": (256, 512, 1024, 2048, 4096, 8192, 16384),
    "N": (4096,),
    "K": (8192,),
    "T": ("bf16",),
}
OPERATORS = tuple(Operator(m, 4096, 8192) for m in (256, 512, 1024, 2048, 4096, 8192, 16384))
_MOST = 2000  # operators

Shares: TypeAlias = dict[tuple[Operator, Any], float]


def characterise(
    machine: str | None, gpus: int | None, settings: tuple[str, ...], pieces: str, output: str | None, as_json: bool
) -> int:
    """Print or draw both losses."""
    check_outputs([(DRAWING, output)])
    choices = _SIZES | parse_choices(settings, "--set")
    target = machine_of(machine, gpus)
    operators, dtype = _operators(choices)
    with Progress().step(f"modelling {count(len(operators), 'operator')}"):
        found = losses(target, operators, number_list("--pieces", pieces, 2, 1024, ",".join(map(str, PIECES))), dtype)
    if output is not None:
        write_atomic(output, signatures(found))
    written = output and f"{output}: losses of {found.machine}, {found.source}\n"
    return tell(as_json, lambda: found, lambda style: written or _text(found, style))


def _operators(choices: dict[str, tuple[SettingValue, ...]]) -> tuple[list[Operator], str]:
    unknown = next((name for name in choices if name not in _SIZES), None)
    if unknown is not None:
        raise UsageError(f"--set {unknown}: a GEMM here has the sizes M, N and K, and the type T")
    if len(choices["T"]) > 1 or not isinstance(choices["T"][0], str):
        raise UsageError("--set T: one type at a time, such as T=bf16")
    numbers: list[list[int]] = []
    for name in ("M", "N", "K"):
        wrong = next((v for v in choices[name] if not isinstance(v, int) or v < 1), None)
        if wrong is not None:
            raise UsageError(f"--set {name}: {wrong} is no size; sizes are whole numbers from 1")
        numbers.append([value for value in choices[name] if isinstance(value, int)])
    together = prod(map(len, numbers))
    if together > _MOST:
        raise UsageError(f"--set: these are {together} operators; at most {_MOST} are characterised at once")
    return [Operator(*sizes) for sizes in product(*numbers)], choices["T"][0]


def _text(of: Losses, style: Style) -> str:
    words = "modelled, not measured" if of.source == "modelled" else "measured"
    lines = [style(f"{of.machine}, {count(of.ranks, 'rank')}: {words}", "bold")]
    counts = {n: f"{n} pieces" for n in sorted({d.pieces for d in of.decomposition})}
    for axis in ("rows", "K"):
        shares: Shares = {(d.of, d.pieces): d.share for d in of.decomposition if d.axis == axis}
        lines += _table(f"decomposition: time of a GEMM over its time in pieces of {axis}", shares, counts)
    shares = {(c.of, c.subject): c.share for c in of.contention}
    titles = {"gemm": "GEMM", "copies": "copies"}
    lines += _table("contention: time alone over time beside the other", shares, titles)
    return "\n".join(lines) + "\n"


def _table(title: str, shares: Shares, columns: Mapping[Any, str]) -> list[str]:
    """A line for each operator; nothing if there is none."""
    operators = dict.fromkeys(op for op, _ in shares)
    if not operators:
        return []
    rows = [["M", "N", "K", *columns.values()]]
    for op in operators:
        found = (shares.get((op, column)) for column in columns)
        told = ("–" if share is None else f"{share:.3f}" for share in found)
        rows.append([*map(str, (op.m, op.n, op.k)), *told])
    return [title, table(rows, right=frozenset(range(len(rows[0]))))]

"""Which GEMM blocks of ours fit beside a block of the vendor's collectives, by the model: docs/reproduce/block_fit.md.

    python -m tools.fit_table [--device sm_90a] [--write]

For each device it prints a table in Markdown: each variant that fits beside some block of the library, with its threads
and registers, blocks a multiprocessor alone, and how its blocks can be shaped to leave room for the library's block.
`--write` puts the tables into the page. Nothing here was measured; `tests/gpu/test_block_fit.py` measures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from ficco_rt.kernels.block_fit import Footprint, Several, fit, fits, left, shape
from ficco_rt.kernels.collective_blocks import ASSUMED, planned, symmetric
from ficco_rt.kernels.families import footprints
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.kernels.target import compute_capability
from ficco_rt.machine.profiles import stored

PAGE = Path(__file__).parents[1] / "docs" / "reproduce" / "block_fit.md"
BEGIN, END = "<!-- tables: python -m tools.fit_table --write -->", "<!-- end of tables -->"
NAMES = {"sm_90a": "H200 (sm_90)", "sm_80": "A100 (sm_80)", "gfx90a": "one die of an MI250X (gfx90a)"}


def limits_of(arch: str) -> Limits:
    return Limits.of(stored({"sm_90a": "h200-switch", "sm_80": "a100-switch", "gfx90a": "mi250x"}[arch]).device)


def neighbours(limits: Limits) -> dict[str, Footprint]:
    """Blocks of the library, by how a table heads them."""
    if compute_capability(limits.arch) is None:
        (block,) = planned({"all_reduce"}, None, limits.arch)
        return {"RCCL": block}
    found = {"NCCL": planned({"all_reduce"}, None, limits.arch)[0]}
    for threads in (512, 384, 256, 128):
        found[f"threads = {threads}"] = planned({"all_reduce"}, threads, limits.arch)[0]
    found["NCCL ≥ 2.29, threads = 256"] = planned({"all_reduce"}, 256, limits.arch, (2, 29))[0]
    found["symmetric memory"] = symmetric(ASSUMED)
    return found


def shaped(own: Footprint, other: Footprint, limits: Limits) -> str:
    """What of a kernel fits beside the other's block: shaped by shared memory, if that is possible."""
    for count in range(fit(own, (), limits).blocks, 0, -1):
        found = shape(own, count, (other,), limits)
        if found is not None:
            return f"{count}, {max(found.least, own.dynamic_smem)}–{found.most}"
    if fits((Several(own), Several(other)), limits):
        return "fits, not kept"
    return "no: " + ", ".join(fit(own, (Several(other),), limits).limited_by)


def table(arch: str) -> Iterator[str]:
    limits = limits_of(arch)
    others = neighbours(limits)
    whole = left((), limits)
    measured = "" if arch == "sm_90a" else " Not measured."
    yield f"### {NAMES[arch]}"
    yield ""
    yield (
        f"A multiprocessor has {whole.registers} registers, {limits.smem_per_sm} bytes of shared memory, "
        f"{whole.threads} threads.{measured}"
    )
    yield ""
    if arch != "sm_80":  # whose blocks of NCCL are taken to be those of sm_90
        yield "| block of the library | threads | registers | shared memory |"
        yield "|---|--:|--:|--:|"
        for name, other in others.items():
            yield f"| {name} | {other.threads} | {other.threads * other.registers} | {other.smem} |"
        yield ""
    shown = [name for name in others if name not in ("threads = 512", "threads = 384", "symmetric memory")]
    yield "| our block | threads | registers | alone | " + " | ".join(f"beside {name}" for name in shown) + " |"
    yield "|---|--:|--:|---|" + "---|" * len(shown)
    alike: dict[str, list[str]] = {}  # variants that fit beside some block, those whose cells are the same in one row
    for own in footprints(limits):
        alone = fit(own, (), limits)
        cells = [shaped(own, others[name], limits) for name in shown]
        if all(cell.startswith("no") for cell in cells):
            continue
        row = f"{own.threads} | {own.threads * own.registers} | {alone.blocks}: {', '.join(alone.limited_by)} | "
        alike.setdefault(row + " | ".join(cells), []).append(f"`{own.kernel}`")
    for row, kernels in alike.items():
        yield f"| {', '.join(kernels)} | {row} |"
    yield "\nThread blocks of our kernels that the table omits fit beside none of the library's blocks in it.\n"


def page(text: str) -> str:
    """The page's text with its tables written anew."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    tables = "\n".join(line for arch in NAMES for line in table(arch))
    return f"{head}{BEGIN}\n\n{tables}\n{END}{tail}"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=list(NAMES))
    parser.add_argument("--write", action="store_true", help="put all tables into the page")
    args = parser.parse_args(words)
    if args.write:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    for arch in [args.device] if args.device else NAMES:
        print("\n".join(table(arch)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Every rule of a plan, by one plan that keeps them all and a table of changes that each break one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import ficco_dsl
from ficco_rt import compiler
from ficco_rt.errors import PlanError
from ficco_rt.geometry.region import Axis, Interval
from ficco_rt.graph.ir import CollectiveSettings, Kernel
from ficco_rt.machine.profiles import profile
from ficco_rt.plan import codec
from ficco_rt.plan.check import check
from ficco_rt.plan.ir import Order, Plan
from ficco_rt.plan.plan_rules import RULES
from ficco_rt.plan.text import to_text
from tests.host.handmade import box, line, segments

TEXT = """\
schedule ruled
input   A[8, 4] : fp32
input   B[4, 4] : fp32
output  C[8, 4] : fp32
output  D[8, 4] : fp32 unproven
scratch P[16, 4] : fp32
scratch Q[16, 4] : fp32
scratch S[8, 4] : fp32
scratch H[8, 4] : bf16
scratch W[2, 8, 4] : fp32
computes C = reduce_scatter(all_gather(A, rows) * B, rows)
queue dma { engine = copy }
queue compute { engine = sm }
queue vendor { engine = nccl }
kernel twist(read x, write y, int n) from "k.cu" entry "k" { grid = 1 block = 32 }
stage gather on dma { for p in all { copy P.rows(rank of ranks) @ p <- A } }
stage mm on compute streamed { for p in all { gemm Q.rows(p of ranks) = P.rows(p of ranks) * B } }
stage total on compute { reduce C = sum(Q.rows(rank of ranks) @ all) }
stage twisted on compute { launch twist(C, D, 3) }
stage last on vendor after mm { all_reduce S <- A }
"""

# Where things stand in the plan; rank 0's streams are 0–2 and rank 1's 3–5.
COPY = "streams.0.commands.0"
SIGNAL = "streams.0.commands.1"
COMPUTE = "streams.1.commands"
GEMMS, RECORD, WAIT, REDUCE, TWIST = (f"{COMPUTE}.{i}" for i in range(5))
CALL = "streams.2.commands.1"
OTHER_CALL = "streams.5.commands.1"
GEMM_WORK, SECOND_WORK = f"{GEMMS}.works.0", f"{GEMMS}.works.1"
GEMM, SECOND, SUM = f"{GEMM_WORK}.body", f"{SECOND_WORK}.body", f"{REDUCE}.works.0.body"
MINE, FIRST = (0, 8), (0, 4)  # rows and columns


@cache
def whole_plan() -> Plan:
    return compiler.plan_of(compiler.build(ficco_dsl.parse(TEXT, "ruled.ficco"), 2), profile("h200-switch", 2))


def changed(value: Any, path: str, new: Any) -> Any:
    """`value` with what stands at `path` replaced by `new`, or by what `new` makes of it."""
    if not path:
        return new(value) if callable(new) else new
    name, _, rest = path.partition(".")
    if isinstance(value, tuple):
        i = int(name)
        return (*value[:i], changed(value[i], rest, new), *value[i + 1 :])
    return replace(value, **{name: changed(getattr(value, name), rest, new)})


def twice(members: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*members, members[0])


def with_empty_axis(region: Any) -> Any:
    return segments(region.tensor, region.rank, [], [FIRST])


KERNEL = Kernel("twist", "k.cu", "k", None, line(15, "ruled.ficco"))
VALUE = "claims.0.value"
CLAIM = "C = reduce_scatter(all_gather(A, rows) * B, rows)"

# name: (place of the change, what is put there, the message)
DAMAGE: dict[str, tuple[str, Any, str]] = {
    # the plan
    "version": ("version", 2, "plan:1:1: the plan has version 2; this ficco reads version 1"),
    "no ranks": ("ranks", 0, "plan:1:1: the plan is for 0 ranks; a plan is for 1 to 1024"),
    "absurdly many ranks": ("ranks", 10**30, f"plan:1:1: the plan is for {10**30} ranks; a plan is for 1 to 1024"),
    # the machine
    "memory of another node": (
        "made_for.links.reach", "messages",
        "ruled.ficco:16:38: rank 0 writes P@1, the memory of another node: ranks reach each other by messages alone "
        "over tier 'node' of h200-switch, whose nodes have 1 GPU",
    ),
    "no machine": ("made_for", None, "plan:1:1: the plan is for h200-switch, and does not hold that machine"),
    "another machine": (
        "made_for", replace(profile("h200-ring", 2), name="mine"),
        "plan:1:1: the plan is for 2 ranks on h200-switch, and holds mine of 2 ranks",
    ),
    "a small machine": (
        "made_for", profile("h200-switch", 1),
        "plan:1:1: the plan is for 2 ranks on h200-switch, and holds h200-switch of 1 ranks",
    ),
    **{
        f"machine's {path} {value}": (
            "made_for", changed(profile("h200-switch", 2), path, value),
            f"plan:1:1: the machine h200-switch of the plan: {message}",
        )
        for path, value, message in (
            ("device.sms", 0, "device.sms: is 0; it must be 1 or more"),
            ("device.memory_rate", float("nan"),
             "device.memory_rate: is nan (bytes a microsecond); it must be 1 or more"),
            ("links.rate", float("inf"),
             "tiers[0].rate: is inf (bytes a microsecond); it must be 1 or more, and 1e+18 at most"),
            ("device.warp", 10**400, f"device.warp: is 1{'0' * 38}…; it must be 1 or more, and 1e+18 at most"),
            ("links.copy_time", -1.0, "tiers[0].copy_time: is -1.0 (microseconds); it must be 0 or more"),
            ("device.gemm_rate", (), "device.gemm_rate: has no rate; at least one type needs one, such as bf16"),
        )
    },
    # streams
    "stream id": ("streams.1.id", 4, "plan:1:1: stream 4 (rank 0) stands at place 1"),
    "stream's rank": ("streams.1.rank", 2, "plan:1:1: stream 1 (rank 2) stands at place 1"),
    "engine": ("streams.1.engine", "dma", "plan:1:1: stream 1 has engine 'dma' and priority 'normal', not both known"),
    "priority": ("streams.0.priority", 9, "plan:1:1: stream 0 has engine 'copy' and priority '9', not both known"),
    "link": ("streams.0.link", 77, "plan:1:1: stream 0, engine copy, has link 77 in a plan of 2 ranks"),
    "link of kernels": ("streams.1.link", 1, "plan:1:1: stream 1, engine sm, has link 1 in a plan of 2 ranks"),
    # tensors
    "tensor twice": ("tensors", twice, "plan:1:1: A is declared 2 times"),
    "dtype": ("tensors.0.dtype", "int8", "ruled.ficco:2:1: A has type 'int8', which is unknown"),
    "a shape too few": ("tensors.0.shapes", ((8, 4),), "ruled.ficco:2:1: A has 1 shapes for 2 ranks"),
    "dimensions": ("tensors.0.shapes.1", (8,), "ruled.ficco:2:1: A has shapes of [1, 2] dimensions"),
    "negative size": ("tensors.0.shapes.1", (-8, 4), "ruled.ficco:2:1: A has a dimension that is no size"),
    "scaled": ("tensors.0.scaling", "row", "ruled.ficco:2:1: A is scaled row, and is no matrix of fp8"),
    "huge size": ("tensors.0.shapes.1", (2**31, 4), "ruled.ficco:2:1: A has a dimension that is no size"),
    # regions
    "no such tensor": (f"{GEMM}.left.tensor", "X", "ruled.ficco:17:47: X@0[0:8, 0:4] is in no tensor of the plan"),
    "no such rank": (f"{GEMM}.left.rank", 2, "ruled.ficco:17:47: P@2[0:8, 0:4] is in no tensor of the plan"),
    "a region's dimensions": (
        f"{GEMM}.left", box("P", 0, MINE), "ruled.ficco:17:47: P@0[0:8] has 1 dimensions; the tensor has 2",
    ),
    "outside": (
        f"{GEMM}.left", box("P", 0, (9, 17), FIRST),
        "ruled.ficco:17:47: P@0[9:17, 0:4] is outside its tensor, 16 × 4",
    ),
    "backwards": (
        f"{GEMM}.left", box("P", 0, (8, 0), FIRST),
        "ruled.ficco:17:47: P@0[8:0, 0:4] is outside its tensor, 16 × 4",
    ),
    "nothing": (f"{GEMM}.out", with_empty_axis, "ruled.ficco:17:47: Q@0[, 0:4] is outside its tensor, 16 × 4"),
    "claim outside": (
        "claims.0.targets.0", box("C", 0, (0, 400), FIRST),
        "ruled.ficco:11:1: C@0[0:400, 0:4] is outside its tensor, 8 × 4",
    ),
    "claim on no tensor": (
        "claims.0.targets.0.tensor", "X", "ruled.ficco:11:1: X@0[0:8, 0:4] is in no tensor of the plan",
    ),
    "claim of no tensor": (
        f"{VALUE}.operand.right.regions.1.tensor", "X", "ruled.ficco:11:1: X@1[0:4, 0:4] is in no tensor of the plan",
    ),
    # writes
    "input written": (
        f"{COPY}.transfers.0", lambda t: replace(t, dst=box("A", 0, (0, 4), FIRST), src=box("A", 0, (4, 8), FIRST)),
        "ruled.ficco:16:38: A@0[0:4, 0:4] is written; A is an input",
    ),
    "element twice": (
        f"{GEMM}.out", segments("Q", 0, [(0, 4), (2, 6)], [FIRST]),
        "ruled.ficco:17:47: Q@0[0:4+2:6, 0:4] is written; it names an element twice",
    ),
    # claims
    "too few targets": (
        "claims.0.targets", lambda t: t[:1],
        f"ruled.ficco:11:1: {CLAIM}: the claim has 1 targets; it needs one a rank, in order",
    ),
    "no output": (
        "claims.0.targets", tuple(box("S", r, MINE, FIRST) for r in (0, 1)),
        f"ruled.ficco:11:1: {CLAIM}: the claim's targets are not of one output",
    ),
    "target's shape": (
        "claims.0.targets.1", box("C", 1, FIRST, FIRST),
        f"ruled.ficco:11:1: {CLAIM}: the value is 8 × 4 on rank 1, but C@1[0:4, 0:4] is 4 × 4",
    ),
    "operands too few": (
        f"{VALUE}.operand.right.regions", lambda r: r[:1],
        f"ruled.ficco:11:1: {CLAIM}: an operand is not one tensor's, with one region a rank",
    ),
    "operand no input": (
        f"{VALUE}.operand.right.regions", tuple(box("S", r, FIRST, FIRST) for r in (0, 1)),
        f"ruled.ficco:11:1: {CLAIM}: S is no input; a claim speaks of inputs",
    ),
    "operand's dimensions": (
        f"{VALUE}.operand.right.regions.1.axes.0", Axis((Interval(0, 1),), dropped=True),
        f"ruled.ficco:11:1: {CLAIM}: B has not the dimensions of an operand",
    ),
    "no product": (
        f"{VALUE}.operand.right.regions.1", box("B", 1, (0, 2), FIRST),
        f"ruled.ficco:11:1: {CLAIM}: 16 × 4 times 2 × 4 on rank 1 is no matrix product",
    ),
    "axis": (f"{VALUE}.axis", 2, f"ruled.ficco:11:1: {CLAIM}: reduce_scatter along axis 2 of 2 dimensions"),
    "all_gather of other columns": (
        f"{VALUE}.operand.left.operand.regions.1", box("A", 1, MINE, (0, 2)),
        f"ruled.ficco:11:1: {CLAIM}: 8 × 4 on rank 0 and 8 × 2 on rank 1 do not fit",
    ),
    "shares of all_gather": (
        f"{VALUE}.operand.left.shares", ((4, 4), (4, 4)),
        f"ruled.ficco:11:1: {CLAIM}: all_gather is not cut into shares",
    ),
    "shares": (
        f"{VALUE}.shares", ((8, 8), (8, 7)),
        f"ruled.ficco:11:1: {CLAIM}: reduce_scatter: the shares are not a cut of 16, 16 for each rank",
    ),
    "negative shares": (
        f"{VALUE}.shares", ((-1, 17), (-1, 17)),
        f"ruled.ficco:11:1: {CLAIM}: reduce_scatter: the shares are not a cut of 16, 16 for each rank",
    ),
    "other shares": (
        f"{VALUE}.shares", ((8, 8), (9, 7)), f"ruled.ficco:11:1: {CLAIM}: reduce_scatter: the ranks' shares differ",
    ),
    # engines, copies
    "copy of NCCL": ("streams.0.engine", "nccl", "ruled.ficco:16:38: CopyAsync on stream dma, whose engine is nccl"),
    "threads of NCCL": (
        "streams.2.collectives", CollectiveSettings(threads=100),
        "plan:1:1: stream vendor of rank 0: threads = 100; it is a multiple of 32 from 64 to 512",
    ),
    "launch of a copy engine": (
        "streams.1.engine", "copy", "ruled.ficco:17:47: Launch on stream compute, whose engine is copy",
    ),
    "call of kernels": (
        "streams.2.engine", "sm", "ruled.ficco:20:33: CollectiveCall on stream vendor, whose engine is sm",
    ),
    "empty copy": (f"{COPY}.transfers", (), "plan:1:1: an empty copy on stream dma of rank 0"),
    "transfer's shape": (
        f"{COPY}.transfers.0.src", box("A", 0, FIRST, FIRST),
        "ruled.ficco:16:38: copy from A, 4 × 4, to P, 8 × 4: the sizes differ",
    ),
    "transfer's dimensions": (
        f"{COPY}.transfers.0.dst", box("W", 0, (0, 1), MINE, FIRST),
        "ruled.ficco:16:38: copy from A, 8 × 4, to W, 1 × 8 × 4: the sizes differ",
    ),
    "transfer's types": (
        f"{COPY}.transfers.0.dst", box("H", 0, MINE, FIRST),
        "ruled.ficco:16:38: copy from A (fp32) to H (bf16): a copy does not change the type",
    ),
    "transfer between others": (
        f"{COPY}.transfers.0", lambda t: replace(t, dst=t.dst.on(1), src=t.src.on(1)),
        "ruled.ficco:16:38: rank 0 copies between ranks 1 and 1; one of them must be its own",
    ),
    "transfer over itself": (
        f"{COPY}.transfers.0", lambda t: replace(t, dst=box("P", 0, (0, 4), FIRST), src=box("P", 0, (2, 6), FIRST)),
        "ruled.ficco:16:38: copy within P: source and destination overlap",
    ),
    "two boxes": (
        f"{COPY}.transfers.0.dst", segments("P", 0, [(0, 4), (8, 12)], [FIRST]),
        "ruled.ficco:16:38: transfer A@0[0:8, 0:4] → P@0[0:4+8:12, 0:4]: not one box to one box",
    ),
    "two pitches": (
        f"{COPY}.transfers.0", lambda t: replace(
            t, dst=box("W", 0, (0, 2), (0, 4), (0, 2)), src=box("W", 1, (0, 2), (4, 8), (0, 2)),
        ),
        "ruled.ficco:16:38: transfer W@1[0:2, 4:8, 0:2] → W@0[0:2, 0:4, 0:2]: more than one pitch",
    ),
    # launches
    "empty launch": (f"{REDUCE}.works", (), "plan:1:1: an empty launch on stream compute of rank 0"),
    "flags of a plain launch": (
        f"{GEMMS}.streamed", False,
        "ruled.ficco:17:47: a launch that is not streamed has one work, or several copies, and no flags",
    ),
    "streamed user kernel": (
        f"{TWIST}.streamed", True,
        "ruled.ficco:19:28: a streamed launch has GEMMs, reduces, quantizations and copies, no user kernel",
    ),
    **{
        name: (
            f"{REDUCE}.attributes.{name}", -4,
            f"ruled.ficco:18:26: launch on stream compute of rank 0: no sizes are smem = {smem}, "
            f"residency = {residency}, sms = {sms}",
        )
        for name, smem, residency, sms in (("smem", -4, None, None), ("residency", 0, -4, None), ("sms", 0, None, -4))
    },
    # works
    "gemm's shapes": (
        f"{GEMM}.left", box("P", 0, FIRST, FIRST),
        "ruled.ficco:17:47: P is 4 × 4 and B is 4 × 4, so the product is 4 × 4, but Q is 8 × 4",
    ),
    "gemm's inner size": (
        f"{GEMM}.left_transposed", True, "ruled.ficco:17:47: P is 4 × 8 and B is 4 × 4: the inner sizes differ",
    ),
    "gemm's dimensions": (
        f"{GEMM}.left", box("W", 0, (0, 1), MINE, FIRST),
        "ruled.ficco:17:47: gemm takes matrices; W has 3 dimensions here: 1 × 8 × 4",
    ),
    "gemm's types": (
        f"{GEMM}.left", box("H", 0, MINE, FIRST),
        "ruled.ficco:17:47: H is bf16 and B is fp32; a gemm takes one type, or two of fp8",
    ),
    "gemm in place": (
        f"{GEMM}.out", box("P", 0, MINE, FIRST), "ruled.ficco:17:47: gemm writes the part of P that it reads",
    ),
    "gemm's term of another shape": (
        f"{GEMM}.addends", (box("Q", 0, (8, 12), FIRST),), "ruled.ficco:17:47: gemm: Q is 8 × 4, the term Q is 4 × 4",
    ),
    "gemm's term of another type": (
        f"{GEMM}.addends", (box("H", 0, MINE, FIRST),),
        "ruled.ficco:17:47: gemm: Q is fp32, the term H is bf16; a term is fp32",
    ),
    "gemm's term moved": (
        f"{SECOND}.addends", (box("Q", 0, (4, 12), FIRST),),
        "ruled.ficco:17:47: gemm: a term overlaps the part of Q that is written",
    ),
    "gemm's term outside": (
        f"{GEMM}.addends", (box("P", 0, (9, 17), FIRST),),
        "ruled.ficco:17:47: P@0[9:17, 0:4] is outside its tensor, 16 × 4",
    ),
    "gemm adds terms and its result": (
        GEMM, lambda g: replace(g, accumulate=True, addends=(g.out,)), "ruled.ficco:17:47: '+=' takes no sum",
    ),
    "gemm reads a peer": (
        f"{GEMM}.right.rank", 1, "ruled.ficco:17:47: a gemm reads its operands in its own rank's memory",
    ),
    "gemm adds on a peer": (
        GEMM, lambda g: replace(g, accumulate=True, addends=(), out=replace(g.out, rank=1)),
        "ruled.ficco:17:47: '+=' adds to Q on rank 1; a gemm adds in its own rank's memory: store there with '=', each "
        "product in its own place, and sum those",
    ),
    "term's shape": (
        f"{SUM}.terms.1", box("Q", 1, FIRST, FIRST),
        "ruled.ficco:18:26: reduce: C is 8 × 4, the term Q is 4 × 4",
    ),
    "no terms": (f"{SUM}.terms", (), "ruled.ficco:18:26: reduce: there is no term to sum"),
    "reduce writes a peer": (
        f"{SUM}.out.rank", 1, "ruled.ficco:18:26: a reduce writes its own rank's memory",
    ),
    "kernel reads a peer": (
        f"{TWIST}.works.0.body.arguments.0.value.rank", 1,
        "ruled.ficco:19:28: launch twist: a kernel works on its own rank's memory",
    ),
    "no grid": (
        f"{TWIST}.works.0.body.grid", (),
        "ruled.ficco:19:28: kernel 'twist' has no grid or block of one to three sizes",
    ),
    "negative grid": (
        f"{TWIST}.works.0.body.grid", (-1,),
        "ruled.ficco:19:28: launch twist: grid = [-1]; every number of it is 1 to 2147483647",
    ),
    "huge block": (
        f"{TWIST}.works.0.body.block", (64, 64),
        "ruled.ficco:19:28: launch twist: block = [64, 64] has 4096 threads; a block has 1 to 1024",
    ),
    "argument's mode": (
        f"{TWIST}.works.0.body.arguments.0.mode", "int",
        "ruled.ficco:19:28: kernel 'twist' has an argument that is a number and a region",
    ),
    "rounded to TF32": (
        f"{GEMM}.tf32", True, "ruled.ficco:17:47: a product is rounded to TF32, which a claim does not admit",
    ),
    # kernels
    "no such gemm": (
        f"{GEMMS}.kernel", "no_such_kernel",
        "ruled.ficco:17:47: there is no kernel 'no_such_kernel' for the works of the launch",
    ),
    "gemm's kernel reduces": (
        f"{REDUCE}.kernel", "naive_gemm",
        "ruled.ficco:18:26: there is no kernel 'naive_gemm' for the works of the launch",
    ),
    "undeclared kernel": (
        "kernels", (), "ruled.ficco:19:28: there is no kernel 'twist' for the works of the launch",
    ),
    "kernel of another work": (
        f"{TWIST}.works.0.body.kernel", "turn",
        "ruled.ficco:19:28: there is no kernel 'twist' for the works of the launch",
    ),
    "kernel twice": ("kernels", (KERNEL, KERNEL), "ruled.ficco:15:3: kernel 'twist' is declared 2 times"),
    "tiles": (
        f"{SECOND_WORK}.tiles", (-5, 10**9),
        "ruled.ficco:17:47: gemm Q@0[8:16, 0:4] has -5 × 1000000000 tiles; sm80_gemm_64x64 makes 1 × 1",
    ),
    # ops
    "op below zero": (f"{TWIST}.works.0.op", -5, "ruled.ficco:19:28: there is no op -5"),
    "op twice": (f"{TWIST}.works.0.op", 4, "ruled.ficco:19:28: op 4 stands in two places"),
    "op in two works": (f"{SECOND_WORK}.op", 4, "ruled.ficco:17:47: op 4 stands in two places"),
    "after of no op": (
        "orders", (Order(99, 12, line(20, "ruled.ficco")),),
        "ruled.ficco:20:3: 'after' speaks of op 99, which is not in the plan",
    ),
    # events and flags
    "event twice": (f"{RECORD}.event", 1, "plan:1:1: event 1 is given 2 times"),
    "event outside": (f"{RECORD}.event", 7, "plan:1:1: event 7 is not in the plan's table of 2"),
    "events too many": ("events", 10**7, "plan:1:1: the plan's table has 10000000 events, of which 2 are given"),
    "flag twice": (f"{SIGNAL}.flag", 1, "plan:1:1: flag 1 is given 2 times"),
    "flags too many": ("flag_homes", twice, "plan:1:1: the plan's table has 7 flags, of which 6 are given"),
    "wait for nothing": (
        f"{WAIT}.flag", 9, "ruled.ficco:18:26: rank 0 stream compute waits for flag 9, which nothing gives",
    ),
    "no such home": ("flag_homes.0", 99, "plan:1:1: flag 0 lives on rank 99; the plan has 2 ranks"),
    "negative home": ("flag_homes.0", -1, "plan:1:1: flag 0 lives on rank -1; the plan has 2 ranks"),
    "work waits elsewhere": (
        f"{GEMM_WORK}.waits", (1,), "ruled.ficco:17:47: rank 0 waits for flag 1, which lives on rank 1",
    ),
    "stream waits elsewhere": (
        f"{WAIT}.flag", 3, "ruled.ficco:18:26: rank 0 waits for flag 3, which lives on rank 1",
    ),
    # collectives
    "other kinds": (
        f"{CALL}.kind", "all_to_all",
        "ruled.ficco:20:33: all_to_all is called by ranks [0, 1]; all take part once",
    ),
    "other group": (f"{CALL}.group", 1, "ruled.ficco:20:33: all_reduce is called by ranks [0]; all take part once"),
    "call on a peer": (f"{CALL}.dst.rank", 1, "ruled.ficco:20:33: all_reduce of rank 0 works on another rank's memory"),
    "shared memory of a library": (
        f"{GEMMS}.kernel", "vendor_gemm",
        "ruled.ficco:17:47: vendor_gemm has no smem, residency or priority of its own",
    ),
    "a streamed launch by a library": (
        GEMMS, lambda c: replace(c, kernel="vendor_gemm", attributes=replace(c.attributes, smem=0)),
        "ruled.ficco:17:47: vendor_gemm does not do this: the stage is streamed, and the library's kernels wait for no "
        "pieces; leave out 'streamed'",
    ),
    "call's shapes": (
        f"{CALL}.src", box("A", 0, FIRST, FIRST),
        "ruled.ficco:20:33: all_reduce of A, 4 × 4, gives 4 × 4, but S is 8 × 4",
    ),
    "calls of other sizes": (
        OTHER_CALL, lambda c: replace(c, src=box("A", 1, FIRST, FIRST), dst=box("S", 1, FIRST, FIRST)),
        "ruled.ficco:20:33: all_reduce: the sources of the ranks differ in shape or type",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_broken_rule_is_named(name: str) -> None:
    path, new, message = DAMAGE[name]
    check(whole_plan())
    with pytest.raises(PlanError) as caught:
        check(changed(whole_plan(), path, new))
    assert str(caught.value.diagnostics[0]) == message


def test_every_rule_is_broken_once() -> None:
    """A rule that is new has its row in the table."""
    first: set[Callable[..., object]] = set()
    for path, new, _ in DAMAGE.values():
        damaged = changed(whole_plan(), path, new)
        first.add(next(rule for rule in RULES if any(rule(damaged))))
    assert first == set(RULES)


def test_every_rule_says_what_it_holds() -> None:
    assert all(rule.__doc__ for rule in RULES)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("claims", 0, "targets", 0, 1), True, "a region is [tensor, rank, axis, …], not"),
        (("claims", 0, "targets", 0, 2), True, "an axis is an index or a list of [start, stop], not True"),
        (("claims", 0, "origin", 0), 0, "a span is [line, column, end line, end column], counted from 1"),
        (("claims", 0, "text"), "\ud800", 'plan.claims[0].text: "\\ud800" is no text'),
        (("tensors", 0, "dtype"), "int8", "plan.tensors[0].dtype: 'int8' is none of 'bf16', 'fp16', 'fp32'"),
        (("streams", 0, "engine"), 7, "plan.streams[0].engine: 7 is none of 'copy', 'sm', 'nccl'"),
        (("streams", 0, "priority"), [], "plan.streams[0].priority: [] is none of 'high', 'normal', 'low'"),
    ],
)
def test_what_no_plan_can_hold_is_not_read(place: tuple[Any, ...], value: Any, message: str) -> None:
    data = json.loads(codec.to_json(whole_plan()))
    *way, last = place
    inner = data
    for key in way:
        inner = inner[key]
    inner[last] = value
    with pytest.raises(PlanError) as caught:
        codec.from_json(json.dumps(data))
    assert message in str(caught.value)


def test_a_gemm_with_terms_has_them_in_text_and_json() -> None:
    term = box("S", 0, MINE, FIRST)
    plan = changed(whole_plan(), f"{GEMM}.addends", (term, replace(term, rank=1)))
    assert " · B@0[0:4, 0:4] + S@0[0:8, 0:4] + S@1[0:8, 0:4] tiles 1×1" in to_text(plan)
    assert codec.from_json(codec.to_json(plan)) == plan
    assert codec.content_hash(plan) != codec.content_hash(whole_plan())


def test_fields_with_a_default_are_left_out_of_json_and_may_be_given() -> None:
    text = codec.to_json(whole_plan())
    work = json.loads(text)["streams"][1]["commands"][0]["works"][0]
    assert work["type"] == "GemmWork"
    assert "terms" not in work
    given = text.replace('"type": "GemmWork", ', '"type": "GemmWork", "terms": [], ')
    assert given != text
    assert codec.from_json(given) == whole_plan()

"""`ficco explain`: what a schedule does, in plain words. `--json` prints the facts behind the words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..files.records import plain
from ..graph.kinds import KINDS
from ..report.job import compile_job
from ..report.request import Request
from ..report.schedule_facts import Explanation, OperationFacts, gather, least_and_most
from ..report.wording import count, join_words, show_bytes, show_flops, show_params, show_time
from .console import Progress, Style, table
from .messages import tell, warn

_NOUNS = {kind.word: kind.noun for kind in KINDS}
SHAPES = 3  # different sizes of a stage's operations that are listed


def explain(target: str, gpus: int | None, settings: tuple[str, ...], machine: str | None, as_json: bool) -> int:
    """Print the explanation of a schedule."""
    why = "; explain works on the schedule, 'ficco-run --emit plan' prints a plan"
    job = compile_job(Request.of(target, gpus, settings, machine, why), Progress().step)
    facts = gather(job)
    code = tell(as_json, lambda: facts, lambda style: render(facts, style))
    if not as_json:
        warn(job.warnings, job.texts)
    return code


def render(facts: Explanation, style: Style) -> str:
    """The explanation for people."""
    out = [style(facts.schedule, "bold") + (f": {facts.title}" if facts.title else "")]
    out.append(
        f"{count(facts.ranks, 'rank')} of {facts.machine}, with " + (show_params(facts.params.items()) or "no params")
    )
    out += facts.given
    for text in facts.computes:  # a claim without its proof has been an error
        out.append(f"computes {text.removeprefix('computes').strip()}: proven")
    if facts.unproven:
        out.append(style(f"UNPROVEN: nothing says what {join_words(facts.unproven)} must hold", "yellow"))
    for title, lines in (
        ("Stages, in order", _stage_lines(facts)),
        ("What waits for what", _wait_lines(facts)),
        ("Bytes moved", _traffic_lines(facts)),
        ("Computation, a rank", _compute_lines(facts)),
        ("Memory, a rank", _memory_lines(facts)),
        ("Blocks that fit on a multiprocessor, rank 0", _fit_lines(facts)),
        ("Plan", _plan_lines(facts)),
    ):
        out += ["", style(title, "bold"), *lines]
    return "\n".join(out) + "\n"


def _stage_lines(facts: Explanation) -> list[str]:
    lines = []
    engines = {"copy": "copy engine", "sm": "multiprocessors", "nccl": "the vendor's library"}
    for number, stage in enumerate(facts.stages, 1):
        where = f"on queue {stage.queue} ({engines[stage.engine]}"
        where += "".join(
            f", {name} {n}" for name, n in plain(stage.asked_of_the_library or {}).items() if n is not None
        )
        where += f", priority {stage.priority})" if stage.priority else ")"
        more = [f"line {stage.line}"]
        if stage.iterations > 1:
            more.append(f"{stage.iterations} iterations")
        elif stage.phases > 1:
            more.append(f"{stage.phases} steps, each finished by all ranks before the next")
        if stage.after:
            more.append(f"after {join_words(stage.after)}")
        lines.append(f"  {number}. {stage.name} {where}; {'; '.join(more)}")
        lines += [f"       each rank: {_doing(does)}" for does in stage.does]
        launches = stage.launches_a_rank
        if stage.streamed:
            persistent = _spread(launches, "persistent launch")
            if stage.launched_with:
                persistent += f" with {join_words(stage.launched_with)}"
            lines.append(f"       streamed: {persistent}, whose works wait for flags or raise them")
        elif launches[1]:
            lines.append(f"       {_spread(launches, 'launch')} a rank")
        if not stage.does:
            lines.append("       nothing to do with this many ranks")
    return lines


def _doing(does: OperationFacts) -> str:
    kind, a_rank = does.kind, does.a_rank
    far = (("read from", does.bytes_from_others), ("written to", does.bytes_to_others))
    between = "".join(f", {_spread_of(size, show_bytes)} {verb} other ranks" for verb, size in far if size)
    if kind == "copy":
        ways = does.ways
        verb = join_words(
            {"push": "pushed to others", "pull": "pulled from others", "local": "within the rank"}[w] for w in ways
        )
        each = _some(show_bytes(b) for b in does.bytes_each)
        to = f" ({_spread(does.peers, 'peer')})" if does.peers[1] else ""
        return f"{_spread(a_rank, 'copy')} {verb}{to}, {each} each, {_spread_of(does.bytes_a_rank, show_bytes)} in all"
    if kind == "gemm":
        shapes = _some(" × ".join(map(str, s)) for s in does.shapes)
        adding = ", adding up" if does.accumulates else ""
        adding += f", with a sum of {_terms(does)}" if any(does.terms) else ""
        adding += f", then {join_words(does.functions)}" if does.functions else ""
        library = does.by_library
        of_them = "" if library == a_rank else f"{_spread_of(library, str)} of them "
        by = f", {of_them}by the vendor's library" if library[1] else ""
        flops = _spread_of(does.flops_a_rank, show_flops)
        return f"{_spread(a_rank, 'GEMM')} of {shapes} (m × n × k){adding}, {flops}{by}{between}"
    if kind == "collective":
        each = _some(show_bytes(b) for b in does.bytes_each)
        if does.collectives == ("send_recv",):
            return f"{_spread(a_rank, 'message')} sent to one rank, as one of another rank is received, {each} each"
        return f"{_spread(a_rank, 'call')} of {join_words(does.collectives)}, {each} each"
    if kind == "launch":
        return f"{_spread(a_rank, 'launch')} of {join_words(does.kernels)} (not seen by the proof){between}"
    shapes = f"{_terms(does)} of " if does.terms else ""
    shapes += _some(" × ".join(map(str, s)) for s in does.shapes)
    then = f", then {join_words(does.functions)}" if does.functions else ""
    return f"{_spread(a_rank, _NOUNS[kind])} of {shapes}{then}{between}"


def _terms(does: OperationFacts) -> str:
    """`3 terms`, `0 or 1 term`."""
    *others, most = does.terms
    return _some([*map(str, others), count(most, "term")])


def _wait_lines(facts: Explanation) -> list[str]:
    lines = []
    for wait in facts.waits_for:
        tensors = join_words(dict.fromkeys(b.tensor for b in wait.because))
        hazards = join_words(dict.fromkeys(b.hazard for b in wait.because))
        same = " earlier" if wait.stage == wait.for_ else ""
        kind, before = (_NOUNS.get(k, k) for k in wait.kinds)
        each, a_rank = _spread(wait.each_for, before), _spread(wait.operations_a_rank, kind)
        whose = "another rank" if wait.from_ == "other ranks" and wait.each_for[1] == 1 else wait.from_
        who = f"{wait.stage} waits for{same} {wait.for_}"
        lines.append(f"  {who}: {a_rank} a rank, each for {each} by {whose} ({tensors}, {hazards})")
    waiting = {w.stage for w in facts.waits_for}
    free = [s.name for s in facts.stages if s.name not in waiting and s.operations]
    if free:
        lines.append(f"  {join_words(free)} {'waits' if len(free) == 1 else 'wait'} for nothing")
    return lines


def _traffic_lines(facts: Explanation) -> list[str]:
    traffic, ranks = facts.traffic, facts.ranks
    lines = []
    if traffic.links_used:
        out = _spread_of(least_and_most(traffic.out), show_bytes)
        lines.append(f"  a rank sends {out} and receives {_spread_of(least_and_most(traffic.in_), show_bytes)}")
        pairs = traffic.pairs
        if pairs:
            between = {pairs[a][b] for a in range(ranks) for b in range(ranks) if a != b}
            if len(between) == 1:
                lines.append(f"  every rank sends every other {show_bytes(between.pop())}")
            else:
                rows = [["from \\ to", *map(str, range(ranks))]]
                rows += [[str(a), *(show_bytes(s) if s else "·" for s in row)] for a, row in enumerate(pairs)]
                lines.append(table(rows, right=frozenset(range(ranks + 1))))
        several = len(traffic.tiers) > 1
        for tier in traffic.tiers:
            if (busiest := tier.busiest_link) is None:
                continue
            kind = {"switch": "port", "mesh": "link", "ring": "link"}[tier.topology]
            load = f"{show_bytes(busiest.bytes)}, {show_time(busiest.time)} at its rate"
            which = f"each {kind} that is used" if tier.links_even else f"the busiest {kind} ({busiest.link})"
            name = f"{tier.topology} of tier {tier.name}" if several else tier.topology
            lines.append(f"  {name}: {which} carries {load}")
    if traffic.by_launches:
        lines.append(f"  of this, launches read and write {show_bytes(traffic.by_launches)} themselves, over all ranks")
    if traffic.within_ranks:
        lines.append(f"  copies within ranks: {show_bytes(traffic.within_ranks)} over all ranks")
    calls = [d for s in facts.stages for d in s.does if d.kind == "collective"]
    calls = [d for d in calls if d.collectives != ("send_recv",)]
    if calls:
        lines.append(f"  besides what {count(sum(d.a_rank[1] for d in calls), 'collective')} a rank move:")
        lines.append("    by NCCL or RCCL where it is installed and each rank has a GPU of its own, else by copies and")
        lines.append("    sums; a run says which")
    return lines or ["  nothing"]


def _compute_lines(facts: Explanation) -> list[str]:
    compute = facts.compute
    if not compute.launches_a_rank[1]:
        return ["  nothing"]
    flops = _spread_of(compute.gemm_flops_a_rank, show_flops)
    lines = [f"  GEMMs: {flops}, {show_time(compute.gemm_time)} at the rate of large ones"]
    tiles = f" with {_spread(compute.tiles_a_rank, 'output tile')}" if compute.tiles_a_rank[1] else ""
    lines.append(f"  {_spread(compute.launches_a_rank, 'launch')}{tiles}")
    return lines


def _memory_lines(facts: Explanation) -> list[str]:
    memory = facts.memory
    rows = []
    for tensor in memory.tensors:
        shape = f"[{', '.join(map(str, tensor.shape))}]"
        varies = "" if tensor.same_on_all else "the largest; it differs from rank to rank"
        rows.append((tensor.name, tensor.kind, f"{shape} {tensor.dtype}", show_bytes(tensor.bytes), varies))
    peak, device = memory.peak_bytes_a_rank, memory.device_bytes
    share = f"{100 * peak / device:.1f} %" if 1000 * peak > device else "less than 0.1 %"
    fits = f"{share} of the device" if peak <= device else f"MORE than the device's {show_bytes(device)}"
    return [table(rows, right=frozenset((3,))), f"  in all {show_bytes(peak)}, {fits}"]


def _fit_lines(facts: Explanation) -> list[str]:
    fits = facts.block_fit
    has, kernels = fits.multiprocessor, fits.kernels
    if not kernels:
        return ["  no kernels"]
    rows = [["kernel", "queue", "threads", "registers", "smem", "cluster", "blocks", "limited by"]]
    for number, k in enumerate(kernels, 1):
        name = f"{number} {k.kernel}"
        if k.threads is None:
            rows.append([name, k.queue, *"????", "?", k.source])
            continue
        smem = f"{k.static_smem} + {k.dynamic_smem}"
        sizes = [str(k.threads), str(k.registers), smem, str(k.cluster), str(k.blocks)]
        limits = join_words(k.limited_by) + ("" if k.measured else "; not measured")
        rows.append([name, k.queue, *sizes, limits])
    lines = [
        f"  {fits.device}: {has.registers} registers, {has.smem} bytes of shared memory, {has.threads} "
        f"threads, {has.blocks} blocks",
        table(rows, right=frozenset((2, 3, 4, 5, 6))),
    ]
    for b in fits.beside:
        own, other = kernels[b.kernel], kernels[b.beside]
        what = count(b.blocks, "block") if b.blocks else "no block"
        held = f"{count(other.blocks or 0, 'block')} of kernel {b.beside + 1}"
        leave = f" (leave = {own.leave})" if own.leave else ""
        lines.append(f"  beside {held}: {what} of kernel {b.kernel + 1}, limited by {join_words(b.limited_by)}{leave}")
    return lines


def _plan_lines(facts: Explanation) -> list[str]:
    plan = facts.plan
    names = plan.streams_of_rank_0
    listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    streams = f"{_spread(plan.streams_a_rank, 'stream')} a rank ({listed})"
    carriers = [count(getattr(plan, n), n[:-1]) for n in ("events", "flags", "waits")]
    return [
        f"  {streams}, {count(plan.commands, 'command')} over all ranks",
        f"  order beyond that of the streams: {', '.join(carriers)}",
    ]


def _spread(limits: Sequence[int], noun: str) -> str:
    """`7 copies`, `3 to 5 copies`."""
    least, most = limits
    return count(most, noun) if least == most else f"{least} to {count(most, noun)}"


def _spread_of(limits: Sequence[int], show: Any) -> str:
    least, most = show(limits[0]), show(limits[1])
    return str(most) if least == most else f"{least} to {most}"


def _some(words: Iterable[str]) -> str:
    listed = list(dict.fromkeys(words))
    if len(listed) <= SHAPES:
        return " or ".join(listed)
    return f"{listed[0]} to {listed[-1]}"

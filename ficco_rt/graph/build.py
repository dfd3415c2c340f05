"""Schedule → Graph: bind all sizes, expand all loops on all ranks, make exact regions, find dependencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import prod
from typing import Any, cast

from ficco_dsl import nodes as n
from ficco_dsl.diagnostics import Diagnostic, Span
from ficco_dsl.verbs import Launch
from ficco_dsl.vocabulary import OF_COLLECTIVES

from . import evaluate, ir, scales
from .attributes import Attributes
from .bind import bind
from .budget import OPERATIONS, PIECES, STATEMENTS, Budget
from .claims import build_claims
from .kinds import BY_NODE
from .link import link
from .op_rules import broken
from .ops.collective import sent_and_received
from .ops.kind import Names
from .sums import begin_sums


def build(schedule: n.Schedule, ranks: int, params: Mapping[str, object] | None = None) -> ir.Graph:
    """The graph of `schedule` for `ranks` ranks, with `params` in place of the text's defaults.

    Params are ints or (nested) sequences of ints; a declared type's name takes a dtype, e.g. T="fp32".
    Raises ScheduleError with every mistake found, UsageError for a param that the schedule lacks.
    """
    sizes = bind(schedule, ranks, params or {})
    by_name = {t.name: t for t in sizes.tensors}
    names = Names(by_name, sizes.transposed, {k.name: k for k in schedule.kernels})
    program = _Program(schedule, sizes.scopes, names, sizes.expressions)
    program.expand()
    claims, mistakes = build_claims(schedule, sizes.scopes, names, sizes.types, program.pieces_left, sizes.expressions)
    evaluate.refuse(program.mistakes + mistakes)
    ops = begin_sums(scales.together(program.ops, by_name), by_name)
    if claims and all(claim.tf32 for claim in claims):
        ops = tuple(_in_tf32(op, by_name) for op in ops)
    return ir.Graph(
        schedule=schedule.name,
        path=schedule.path,
        ranks=ranks,
        params=sizes.params,
        tensors=sizes.tensors,
        queues=tuple(program.queues.values()),
        stages=tuple(program.stages),
        kernels=program.kernels,
        claims=claims,
        ops=ops,
        deps=link(ops, by_name, program.stages),
    )


def _in_tf32(op: ir.Op, tensors: Mapping[str, ir.Tensor]) -> ir.Op:
    if not isinstance(op.body, ir.Gemm) or tensors[op.body.left.tensor].dtype != "fp32":
        return op
    return replace(op, body=replace(op.body, tf32=True))


# ---------------------------------------------------------------- the program

STAGE_COST = 20  # beginning a stage on one rank costs as much as this many parts of expressions
REGION_COST = 8  # and looking at a region, or at a pair of regions that might overlap, this many

Emit = Callable[[evaluate.Scope], None]


@dataclass(slots=True)
class _RankRun:
    """What one rank has emitted in the stage at hand."""

    phases: list[list[ir.Op]] = field(default_factory=lambda: [[]])
    boundaries: list[Span] = field(default_factory=list)
    paired: dict[int, int] = field(default_factory=dict)  # phases of one copy, sent and received: the call's group

    def new_phase(self, origin: Span) -> None:
        self.boundaries.append(origin)
        self.phases.append([])


class _Program:
    """Expands the stages. One object a build; nothing outlives it."""

    def __init__(
        self,
        schedule: n.Schedule,
        scopes: Sequence[evaluate.Scope],
        names: Names,
        expressions: Budget,
    ) -> None:
        self.schedule, self.scopes, self._names = schedule, scopes, names
        self.mistakes: list[Diagnostic] = []
        self.queues: dict[str, ir.Queue] = {}
        self.stages: list[ir.Stage] = []
        self.ops: list[ir.Op] = []
        self.expressions = expressions
        self.statements_left, self.ops_left = Budget(STATEMENTS), Budget(OPERATIONS)
        self.pieces_left = Budget(PIECES)
        self._failed: set[Span] = set()
        self._locals: dict[str, None] = {}  # loop variables and lets, in order, for messages
        self._run = _RankRun()
        self._stage = 0
        self._resources = ir.Resources()
        self._wheres: dict[tuple[int, int, Span], ir.Where] = {}
        self._bodies: dict[int, list[Emit]] = {}  # by the identity of the node in the syntax tree, like the next two
        self._domains: dict[int, Callable[[evaluate.Scope], Sequence[Any]]] = {}
        self._attributes: dict[int, Attributes] = {}
        self._latest: dict[str, int] = {}  # for each name, the stage of that name that was expanded last
        self._groups: dict[tuple[int, int], int] = {}
        for q in schedule.queues:
            self._guard(q.span, lambda q=q: self._queue(q))  # type: ignore[misc]
        self.kernels = tuple(
            ir.Kernel(k.name, k.file, k.entry, _text(k.attributes, "host"), k.span) for k in schedule.kernels
        )

    # -- mistakes

    def _guard(self, span: Span, action: Callable[[], None], scope: evaluate.Scope | None = None) -> None:
        """Run `action`; keep its mistake, once a statement."""
        if span in self._failed:
            return
        try:
            action()
        except evaluate.Mistake as m:
            self._failed.add(span)
            self.mistakes.append((m if scope is None else self._placed(m, scope)).diagnostic)

    # -- declarations

    def _queue(self, q: n.QueueDecl) -> None:
        others = [a for a in q.attributes if a.name not in ("engine", *OF_COLLECTIVES)]
        asked = [a for a in q.attributes if a.name in OF_COLLECTIVES]
        resources = Attributes(others, self.expressions).common(ir.Resources(), self.scopes)
        settings = Attributes(asked, self.expressions).common(ir.CollectiveSettings(), self.scopes)
        engine = cast(ir.Engine, q.engine)
        self.queues[q.name] = ir.Queue(q.name, engine, resources, q.span, settings if asked else None)

    # -- stages

    def expand(self) -> None:
        if len(self.queues) == len(self.schedule.queues):
            self._stages(self.schedule.program, (), {})

    def _stages(
        self, items: Sequence[n.StageDecl | n.StageStep], iteration: tuple[int, ...], bound: evaluate.Scope
    ) -> None:
        for item in items:
            if isinstance(item, n.StageDecl):
                self._guard(item.span, lambda item=item: self._expand_stage(item, iteration, bound))  # type: ignore[misc]
                continue
            binding = item.binding
            try:
                if id(item) not in self._domains:
                    self._domains[id(item)] = evaluate.sequence(
                        evaluate.compile_expr(binding.domain), binding.domain.span
                    )
                domain = self._domains[id(item)]
                self.expressions.spend(len(self.scopes) * evaluate.size(binding.domain), binding.span)
                domains = [domain(scope) for scope in self._with(bound, binding.span)]
                self._same_domain(domains, binding)
                self.statements_left.spend(len(domains[0]) * len(self.scopes), binding.span)
            except evaluate.Mistake as m:
                self.mistakes.append(m.diagnostic)
                continue
            self._locals[binding.name] = None
            for value in domains[0]:
                self._stages(item.body, (*iteration, value), {**bound, binding.name: value})

    def _with(self, bound: evaluate.Scope, span: Span) -> Sequence[evaluate.Scope]:
        """The ranks' scopes, with the variables of the steps around."""
        return [evaluate.copied(scope, span) | bound for scope in self.scopes] if bound else self.scopes

    def _same_domain(self, domains: Sequence[Sequence[Any]], binding: n.Binding) -> None:
        if isinstance(domains[0], tuple):
            self.scopes[0][evaluate.STEPS].spend(len(domains) * len(domains[0]) // 8, binding.span)
        rank = evaluate.first_other(domains)
        if rank is not None:
            raise evaluate.Mistake(
                binding.domain.span,
                f"step {binding.name} runs over {evaluate.show(domains[0])} on rank 0 and "
                f"{evaluate.show(domains[rank])} on rank {rank}; all ranks take a step together",
            )

    def _expand_stage(self, decl: n.StageDecl, iteration: tuple[int, ...], bound: evaluate.Scope) -> None:
        queue = self.queues[decl.queue]
        self.expressions.spend(STAGE_COST * (len(self.scopes) + len(decl.after)), decl.span)
        if id(decl) not in self._attributes:
            self._attributes[id(decl)] = Attributes(decl.attributes, self.expressions)
        attributes = self._attributes[id(decl)]
        scopes = self.scopes if attributes.constant else self._with(bound, decl.span)
        self._resources = attributes.common(queue.resources, scopes)
        after = tuple(self._before(name) for name in decl.after)
        self.stages.append(ir.Stage(decl.name, decl.queue, iteration, decl.streamed, after, decl.span))
        self._stage = self._latest[decl.name] = len(self.stages) - 1
        # the compiled body serves every iteration and every rank
        if id(decl) not in self._bodies:
            self._bodies[id(decl)] = [self._compile(s) for s in decl.body]
        body = self._bodies[id(decl)]
        mistakes = len(self.mistakes)
        runs = []
        for scope in self.scopes:
            self._run = _RankRun()
            inner = evaluate.copied(scope, decl.span) | bound
            for emit in body:
                emit(inner)
            runs.append(self._run)
        if len(self.mistakes) == mistakes:  # otherwise a mistake stopped some ranks earlier than others
            self._join(decl, runs)

    def _before(self, name: n.Name) -> int:
        """The stage that an `after` means: the last one of its name."""
        if name.id in self._latest:
            return self._latest[name.id]
        raise evaluate.Mistake(name.span, f"stage '{name.id}' has not run before this one")

    def _join(self, decl: n.StageDecl, runs: list[_RankRun]) -> None:
        """All ranks' ops in one order: phase by phase, rank by rank."""
        for rank, run in enumerate(runs):
            for mine, other in zip_longest(run.boundaries, runs[0].boundaries):
                if mine != other:
                    raise evaluate.Mistake(
                        mine or other or decl.span,
                        f"rank 0 and rank {rank} do not come through the steps and collectives of stage "
                        f"'{decl.name}' alike; all ranks take them together",
                        "put them outside of conditions and of loops that differ from rank to rank",
                    )
        for phase in range(len(runs[0].phases)):
            group = runs[0].paired.get(phase)
            if group is None:
                for run in runs:
                    self.ops.extend(run.phases[phase])
                continue
            calls = sent_and_received(group, [run.phases[phase][0] for run in runs])
            for op in calls:
                message = broken(op, self._names.tensors)
                if message is not None:
                    raise evaluate.Mistake(op.where.origin, f"{message} (rank {op.where.rank})")
            if any(op.writes for op in calls):  # nothing is called if all of the copies are empty
                self.ops.extend(calls)

    # -- statements

    def _compile(self, s: n.Statement) -> Emit:
        match s:
            case n.For():
                return self._loop(s.bindings, s.body)
            case n.Step():
                return self._loop((s.binding,), s.body, s.span)
            case n.If():
                return self._if(s)
            case n.Let():
                return self._let(s)
            case n.Operation() if self.queues[self.stages[self._stage].queue].engine == "nccl":
                return self._together(s)
            case _:
                return self._op(s)

    def _loop(self, bindings: Sequence[n.Binding], body: Sequence[n.Statement], step: Span | None = None) -> Emit:
        """A rank's own loop; of a `step` that stands at `step` each turn is a phase of all ranks."""
        first, rest = bindings[0], bindings[1:]
        domain = evaluate.sequence(evaluate.compile_expr(first.domain), first.domain.span)
        name = first.name
        self._locals[name] = None
        inner = [self._loop(rest, body)] if rest else [self._compile(s) for s in body]
        parts = evaluate.size(tuple(bindings))
        names = {b.name for b in bindings}
        fixed = [b for b in rest if names.isdisjoint(n.names_in(b.domain))]  # their turns multiply
        turns = [evaluate.sequence(evaluate.compile_expr(b.domain), b.domain.span) for b in fixed]

        def emit(scope: evaluate.Scope) -> None:
            members = domain(scope)
            if members and turns:
                self.statements_left.foresee(prod(len(t(scope)) for t in (domain, *turns)), first.span)
            self.statements_left.foresee(len(members), first.span)
            self._pay(parts, first.span)
            # a turn costs as little as a member of a list; the statements inside the loop are counted separately
            scope[evaluate.STEPS].spend(len(members), first.span)
            if step is not None:
                self.statements_left.spend(len(members), first.span)  # phases stay
            shadow = evaluate.copied(scope, first.span)
            for value in members:
                if step is not None:
                    self._run.new_phase(step)
                shadow[name] = value
                for e in inner:
                    e(shadow)
            if step is not None:
                self._run.new_phase(step)

        return self._guarded(step or first.span, emit)

    def _pay(self, parts: int, span: Span) -> None:
        """Pay for a statement with so many parts of expressions. A long statement counts as several."""
        self.statements_left.spend(1 + parts // 100, span)
        self.expressions.spend(parts, span)

    def _guarded(self, span: Span, emit: Emit) -> Emit:
        """A mistake in the set of a loop, or in a condition, ends that loop only; the search for other mistakes goes
        on."""
        return lambda scope: self._guard(span, lambda: emit(scope), scope)

    def _if(self, s: n.If) -> Emit:
        condition = evaluate.compile_condition(s.condition)
        body = [self._compile(x) for x in s.body]
        otherwise = [self._compile(x) for x in s.otherwise]
        parts = evaluate.size(s.condition)

        def emit(scope: evaluate.Scope) -> None:
            self._pay(parts, s.condition.span)
            for e in body if condition(scope) else otherwise:
                e(scope)

        return self._guarded(s.span, emit)

    def _let(self, s: n.Let) -> Emit:
        value = evaluate.compile_expr(s.value)
        self._locals[s.name] = None
        parts = evaluate.size(s.value)

        def emit(scope: evaluate.Scope) -> None:
            self._pay(parts, s.span)
            try:
                scope[s.name] = value(scope)
            except evaluate.Mistake as m:
                raise self._placed(m, scope) from None

        return emit  # not guarded: without the name the rest of the block has no meaning

    def _maker(self, s: n.Operation) -> Callable[[evaluate.Scope], ir.Op]:
        """A function that makes the op of `s` in a scope. It serves every rank and every turn of a loop."""
        kind = BY_NODE[type(s)]
        self._guard(s.span, lambda: kind.check_layout(s, self._names))
        where, make = self._where(s.span, s.attributes), kind.maker(s, self._names)
        return lambda scope: make(scope, where(scope))

    def _where(self, span: Span, attributes: Sequence[n.Attribute]) -> Callable[[evaluate.Scope], ir.Where]:
        own = Attributes(attributes, self.expressions)

        def where(scope: evaluate.Scope) -> ir.Where:
            rank, phase = scope["rank"], len(self._run.phases) - 1
            resources = own.on(self._resources, scope) if attributes else self._resources
            if attributes:
                return ir.Where(rank, self._stage, phase, resources, span)
            key = (rank, phase, span)
            found = self._wheres.get(key)
            if found is None or found.stage != self._stage:
                self._wheres[key] = found = ir.Where(rank, self._stage, phase, resources, span)
            return found

        return where

    def _op(self, s: n.Operation) -> Emit:
        make = self._maker(s)
        parts = evaluate.size((s, self._names.kernels[s.kernel]) if isinstance(s, Launch) else s)

        def emit(scope: evaluate.Scope) -> None:
            self._pay(parts, s.span)
            op = make(scope)
            if self._legal(op, s.span):
                self._run.phases[-1] += self._moves(op)

        return self._guarded(s.span, emit)

    def _legal(self, op: ir.Op, span: Span) -> bool:
        """Whether the op does anything: a piece may be empty. Raises Mistake where the op breaks a rule."""
        regions = (*op.reads, *op.writes)
        self.pieces_left.spend(sum(len(r.boxes) for r in regions), span)
        self.expressions.spend(REGION_COST * (len(regions) + len(op.writes) ** 2), span)
        message = broken(op, self._names.tensors)
        if message is not None:
            raise evaluate.Mistake(span, message)
        idle = isinstance(op.body, ir.Gemm) and op.body.accumulate and not op.body.left.elements
        if idle or not all(region.elements for region in op.writes):
            return False
        self.ops_left.spend(1, span)
        return True

    def _moves(self, op: ir.Op) -> list[ir.Op]:
        """An op, and before it the one that moves its scales."""
        found = [replace(op, body=body) for body in self._names.scales.moves(op.body)]
        self.ops_left.spend(len(found) - 1, op.where.origin)
        return found

    def _placed(self, m: evaluate.Mistake, scope: evaluate.Scope) -> evaluate.Mistake:
        """The mistake with the rank and the loop variables at which it happened."""
        if not m.placed:
            at = "".join(f", {name} = {evaluate.show(scope[name])}" for name in self._locals if name in scope)
            m.diagnostic = replace(m.diagnostic, message=f"{m.diagnostic.message} (rank {scope['rank']}{at})")
            m.placed = True
        return m

    def _together(self, s: n.Operation) -> Emit:
        """A call of the vendor's library: all ranks take one together, in a phase of its own. A copy is sent and
        received."""
        make = self._maker(s)
        parts = evaluate.size(s)

        def emit(scope: evaluate.Scope) -> None:
            self._pay(parts, s.span)
            made = make(scope)
            legal = self._legal(made, s.span)
            for op in self._moves(made):
                self._run.new_phase(s.span)
                phase = len(self._run.phases) - 1
                # stage and phase identify the collective on all ranks
                group = self._groups.setdefault((self._stage, phase), len(self._groups))
                if isinstance(op.body, ir.Collective):
                    op = replace(op, body=replace(op.body, group=group))
                else:
                    self._run.paired[phase] = group
                if legal or phase in self._run.paired:
                    self._run.phases[-1].append(op)
                self._run.new_phase(s.span)

        return self._guarded(s.span, emit)


def _text(attributes: Sequence[n.Attribute], name: str) -> str | None:
    return next((a.value for a in attributes if a.name == name and isinstance(a.value, str)), None)

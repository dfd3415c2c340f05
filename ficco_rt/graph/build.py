"""Schedule → Graph: bind all sizes, expand all loops on all ranks, make exact regions, find dependencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from math import prod
from typing import Any, cast

from ficco_dsl import nodes as n
from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from ..errors import UsageError
from ..region import BoxMap, Region, describe
from ..types import TYPES, Dtype
from . import ir
from .budget import CELLS, NAMES, PIECES, Budget, most_ops, steps
from .claims import build_claims
from .evaluate import (
    DEEPEST,
    LARGEST,
    LONGEST,
    STEPS,
    Mistake,
    Scope,
    base_scope,
    compile_condition,
    compile_expr,
    first_other,
    number,
    sequence,
    show,
    size,
)
from .evaluate import describe as describe_value
from .link import link
from .references import Reference
from .rules import broken

MOST_RANKS = 1024
MOST_EXTENT = 2**31 - 1  # kernels count elements of a dimension in 32 bits
MOST_BYTES = 2**46  # of one tensor on one rank
MOST_MISTAKES = 20


def build(schedule: n.Schedule, ranks: int, params: Mapping[str, object] | None = None) -> ir.Graph:
    """The graph of `schedule` for `ranks` ranks, with `params` in place of the text's defaults.

    Params are ints or (nested) sequences of ints; a declared type's name takes a dtype, e.g. T="fp32".
    Raises ScheduleError with every mistake found, UsageError for a param that the schedule lacks.
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise UsageError(f"{ranks} ranks; a schedule runs on 1 to {MOST_RANKS}")
    bound, types = bind_params(schedule, ranks, params or {})
    budget = steps()
    names = Budget(NAMES * most_ops(), "the schedule declares more than {most} names over all ranks", "declare fewer")
    names.spend(ranks * (ranks + len(bound) + 2 * len(schedule.tensors)), schedule.span)
    scopes = [{**base_scope(rank, ranks, budget), **bound} for rank in range(ranks)]
    tensors = build_tensors(schedule, scopes, types)
    by_name = {t.name: t for t in tensors}
    program = _Program(schedule, scopes, by_name)
    program.expand()
    claims, mistakes = build_claims(schedule, scopes, by_name, types, program.pieces_left)
    _raise(program.mistakes + mistakes)
    ops = _begin_sums(program.ops, by_name)
    return ir.Graph(
        schedule=schedule.name,
        path=schedule.path,
        ranks=ranks,
        params=tuple(bound.items()) + tuple(types.items()),
        tensors=tensors,
        queues=tuple(program.queues.values()),
        stages=tuple(program.stages),
        kernels=program.kernels,
        claims=claims,
        ops=ops,
        deps=link(ops, by_name, program.stages),
    )


def _raise(mistakes: Sequence[Diagnostic]) -> None:
    if mistakes:
        ordered = sorted(mistakes, key=lambda d: (d.span.line, d.span.column))
        raise ScheduleError(tuple(ordered[:MOST_MISTAKES]))


# ---------------------------------------------------------------- params and tensors


def bind_params(
    schedule: n.Schedule, ranks: int, given: Mapping[str, object]
) -> tuple[dict[str, Any], dict[str, Dtype]]:
    """The value of every param and the dtype of every type."""
    known = {p.name: p for p in schedule.params}
    types: dict[str, Dtype] = {t.name: cast(Dtype, t.dtype) for t in schedule.types}
    bound: dict[str, Any] = {}
    budget = steps()
    for name, value in given.items():
        if name in types:
            if value not in TYPES:
                raise UsageError(f"type {name} = {value}: the types are {', '.join(TYPES)}")
            types[name] = cast(Dtype, value)
        elif name in known:
            try:
                bound[name] = _frozen(value, name, known[name].span, budget)
            except Mistake as m:
                raise UsageError(m.diagnostic.message) from None
        else:
            has = ", ".join([*known, *types]) or "none"
            raise UsageError(f"schedule {schedule.name} has no param '{name}'; its params are {has}")
    scope: Scope = {"ranks": ranks, "all": tuple(range(ranks)), STEPS: budget, **bound}
    mistakes: list[Diagnostic] = []
    failed: set[str] = set()  # and those made from them, of which nothing can be said
    uses = {p.name: _names(p.value) & known.keys() for p in schedule.params}
    for name in TopologicalSorter(uses).static_order():  # the parser has refused circles
        param = known[name]
        if name in bound:
            continue
        if failed & uses[name]:
            failed.add(param.name)
            continue
        try:
            value = compile_expr(param.value)(scope)
            scope[param.name] = _frozen(value, param.name, param.value.span, budget)
        except Mistake as m:
            mistakes.append(m.diagnostic)
            failed.add(param.name)
    for param in schedule.params:
        if param.check is None or failed & {param.name, *_names(param.check)}:
            continue
        value = scope[param.name]
        try:
            if not compile_condition(param.check)(scope):
                raise Mistake(param.check.span, f"{param.name} = {show(value)} breaks its check: {param.check_text}")
        except Mistake as m:
            mistakes.append(m.diagnostic)
    _raise(mistakes)
    return {p.name: scope[p.name] for p in schedule.params}, types


def _frozen(value: object, name: str, span: Span, budget: Budget, depth: int = 0) -> Any:
    """The value of a param: a number, or a (nested) tuple of numbers."""
    if type(value) is int:
        if abs(value) < LARGEST:
            return value
        raise Mistake(span, f"param {name} = {value} is too large; numbers stay below 2^62")
    if isinstance(value, range | list | tuple) and depth < DEEPEST:
        if len(value) > LONGEST:
            raise Mistake(span, f"param {name}: a list of {len(value)} members; the most is {LONGEST}")
        budget.spend(len(value), span)
        return tuple(_frozen(v, name, span, budget, depth + 1) for v in value)
    if isinstance(value, range | list | tuple):
        raise Mistake(span, f"param {name}: lists nest more than {DEEPEST} deep")
    found = describe_value(value) if isinstance(value, bool) else repr(value)
    raise Mistake(span, f"param {name}: a whole number or a list of them is needed, this is {found}")


def _names(e: object) -> set[str]:
    """Names that an expression uses, bound ones included (harmless: they are then looked up early)."""
    found: set[str] = set()
    todo = [e]
    while todo:
        x = todo.pop()
        if isinstance(x, n.Name):
            found.add(x.id)
        elif isinstance(x, tuple):
            todo.extend(x)
        elif hasattr(x, "__dataclass_fields__"):
            todo.extend(getattr(x, f) for f in x.__dataclass_fields__)
    return found


def build_tensors(schedule: n.Schedule, scopes: Sequence[Scope], types: Mapping[str, Dtype]) -> tuple[ir.Tensor, ...]:
    """Every tensor's shape on every rank. Puts ("rows", name) and ("cols", name) into the scopes."""
    mistakes: list[Diagnostic] = []
    tensors = []
    budget = Budget(
        most_ops(), "the schedule declares more than {most} tensors over all ranks", "declare fewer tensors"
    )
    for decl in schedule.tensors:
        budget.spend(len(scopes), decl.span)
        dtype = cast(Dtype, types.get(decl.dtype, decl.dtype))
        dims = [number(compile_expr(e), e.span) for e in decl.shape]
        shapes = []
        try:
            for scope in scopes:
                shape = tuple(f(scope) for f in dims)
                _check_shape(decl, shape, dtype, scope["rank"])
                shapes.append(shape)
                scope["rows", decl.name] = shape[-2] if len(shape) > 1 else shape[0]
                scope["cols", decl.name] = shape[-1]
        except Mistake as m:
            mistakes.append(m.diagnostic)
            continue
        tensors.append(ir.Tensor(decl.name, decl.kind, dtype, tuple(shapes), decl.unproven, decl.span))
    _raise(mistakes)
    return tuple(tensors)


def _check_shape(decl: n.TensorDecl, shape: tuple[int, ...], dtype: Dtype, rank: int) -> None:
    size = TYPES[dtype].bytes
    for i, extent in enumerate(shape):
        size *= extent
        if extent < 1:
            raise Mistake(
                decl.shape[i].span, f"dimension {i} of {decl.name} is {extent} on rank {rank}; sizes start at 1"
            )
        if extent > MOST_EXTENT:
            raise Mistake(
                decl.shape[i].span,
                f"dimension {i} of {decl.name} is {extent} on rank {rank}; the largest is {MOST_EXTENT}",
            )
    if size > MOST_BYTES:
        gib = 2**30
        raise Mistake(
            decl.span,
            f"{decl.name} takes {size / gib:,.0f} GiB on rank {rank}; the most for one tensor is {MOST_BYTES // gib:,}",
        )


# ---------------------------------------------------------------- the program

Emit = Callable[[Scope], None]
_UNITS: dict[str, tuple[str, ...]] = {
    "engine": ("copy", "sm", "nccl"),
    "priority": ("high", "normal", "low"),
    "order": ("text", "auto"),
}
_LEAST = {"smem": 0, "residency": 1, "sms": 1}


@dataclass(slots=True)
class _RankRun:
    """What one rank has emitted in the stage at hand."""

    phases: list[list[ir.Op]] = field(default_factory=lambda: [[]])
    boundaries: list[Span] = field(default_factory=list)

    def new_phase(self, origin: Span) -> None:
        self.boundaries.append(origin)
        self.phases.append([])


class _Program:
    """Expands the stages. One object a build; nothing outlives it."""

    def __init__(self, schedule: n.Schedule, scopes: Sequence[Scope], tensors: Mapping[str, ir.Tensor]) -> None:
        self.schedule, self.scopes, self.tensors = schedule, scopes, tensors
        self.mistakes: list[Diagnostic] = []
        self.queues: dict[str, ir.Queue] = {}
        self.kernel_decls = {k.name: k for k in schedule.kernels}
        self.stages: list[ir.Stage] = []
        self.ops: list[ir.Op] = []
        self.ops_left = Budget(
            most_ops(),
            "the schedule expands to more than {most} statements over all ranks",
            "take fewer chunks or ranks, or raise FICCO_MAX_OPS",
        )
        self.pieces_left = Budget(
            PIECES * most_ops(), "the regions of the schedule have more than {most} pieces over all ranks"
        )
        self._failed: set[Span] = set()
        self._locals: dict[str, None] = {}  # loop variables and lets, in order, for messages
        self._run = _RankRun()
        self._stage = 0
        self._resources = ir.Resources()
        self._wheres: dict[tuple[int, int, Span], ir.Where] = {}
        self._bodies: dict[int, list[Emit]] = {}
        self._groups: dict[tuple[int, int], int] = {}
        for q in schedule.queues:
            self._guard(q.span, lambda q=q: self._queue(q))  # type: ignore[misc]
        self.kernels = tuple(
            ir.Kernel(k.name, k.file, k.entry, _text(k.attributes, "host"), k.span) for k in schedule.kernels
        )

    # -- mistakes

    def _guard(self, span: Span, action: Callable[[], None]) -> None:
        """Run `action`; keep its mistake, once a statement."""
        if span in self._failed:
            return
        try:
            action()
        except Mistake as m:
            self._failed.add(span)
            self.mistakes.append(m.diagnostic)

    # -- declarations

    def _queue(self, q: n.QueueDecl) -> None:
        engine = next((a for a in q.attributes if a.name == "engine"), None)
        if engine is None:
            raise Mistake(q.span, f"queue {q.name} has no engine", "say engine = copy, sm or nccl")
        others = tuple(a for a in q.attributes if a.name != "engine")
        word = cast(ir.Engine, _word(engine))
        self.queues[q.name] = ir.Queue(q.name, word, _common(ir.Resources(), others, self.scopes), q.span)

    # -- stages

    def expand(self) -> None:
        if len(self.queues) == len(self.schedule.queues):
            self._stages(self.schedule.program, (), {})

    def _stages(self, items: Sequence[n.StageDecl | n.StageStep], iteration: tuple[int, ...], bound: Scope) -> None:
        for item in items:
            if isinstance(item, n.StageDecl):
                self._guard(item.span, lambda item=item: self._expand_stage(item, iteration, bound))  # type: ignore[misc]
                continue
            binding = item.binding
            try:
                domain = sequence(compile_expr(binding.domain), binding.domain.span)
                domains = [domain({**scope, **bound}) for scope in self.scopes]
                self._same_domain(domains, binding)
                self.ops_left.spend(len(domains[0]) * len(self.scopes), binding.span)
            except Mistake as m:
                self.mistakes.append(m.diagnostic)
                continue
            self._locals[binding.name] = None
            for value in domains[0]:
                self._stages(item.body, (*iteration, value), {**bound, binding.name: value})

    def _same_domain(self, domains: Sequence[Sequence[Any]], binding: n.Binding) -> None:
        rank = first_other(domains)
        if rank is not None:
            raise Mistake(
                binding.domain.span,
                f"step {binding.name} runs over {show(domains[0])} on rank 0 and {show(domains[rank])} on rank {rank}; "
                "all ranks take a step together",
            )

    def _expand_stage(self, decl: n.StageDecl, iteration: tuple[int, ...], bound: Scope) -> None:
        queue = self.queues[decl.queue]
        self._resources = _common(queue.resources, decl.attributes, [{**s, **bound} for s in self.scopes])
        after = tuple(self._latest(name) for name in decl.after)
        self.stages.append(ir.Stage(decl.name, decl.queue, iteration, decl.streamed, after, decl.span))
        self._stage = len(self.stages) - 1
        # the compiled body serves every iteration and every rank
        if id(decl) not in self._bodies:
            self._bodies[id(decl)] = [self._compile(s) for s in decl.body]
        body = self._bodies[id(decl)]
        mistakes = len(self.mistakes)
        runs = []
        for scope in self.scopes:
            self._run = _RankRun()
            inner = {**self._inner(scope, decl.span), **bound}
            for emit in body:
                emit(inner)
            runs.append(self._run)
        if len(self.mistakes) == mistakes:  # else some ranks went through less of it than others
            self._join(decl, runs)

    def _latest(self, name: n.Name) -> int:
        for i in range(len(self.stages) - 1, -1, -1):
            if self.stages[i].name == name.id:
                return i
        raise Mistake(name.span, f"stage '{name.id}' has not run before this one")

    def _join(self, decl: n.StageDecl, runs: list[_RankRun]) -> None:
        """All ranks' ops in one order: phase by phase, rank by rank."""
        for rank, run in enumerate(runs):
            first = runs[0].boundaries
            for i in range(max(len(run.boundaries), len(first))):
                mine = run.boundaries[i] if i < len(run.boundaries) else None
                other = first[i] if i < len(first) else None
                if mine != other:
                    span = mine or other or decl.span
                    raise Mistake(
                        span,
                        f"rank 0 and rank {rank} do not come through the steps and collectives of stage "
                        f"'{decl.name}' alike; all ranks take them together",
                        "put them outside of conditions and of loops that differ from rank to rank",
                    )
        for phase in range(len(runs[0].phases)):
            for run in runs:
                self.ops.extend(run.phases[phase])

    # -- statements

    def _compile(self, s: n.Statement) -> Emit:
        match s:
            case n.For():
                return self._for(s.bindings, s.body)
            case n.Step():
                return self._step(s)
            case n.If():
                return self._if(s)
            case n.Let():
                return self._let(s)
            case n.Collective():
                return self._collective(s)
            case _:
                return self._op(s)

    def _for(self, bindings: Sequence[n.Binding], body: Sequence[n.Statement]) -> Emit:
        first, rest = bindings[0], bindings[1:]
        domain = sequence(compile_expr(first.domain), first.domain.span)
        name = first.name
        self._locals[name] = None
        inner = [self._for(rest, body)] if rest else [self._compile(s) for s in body]
        weight = _weight(first)
        names = {b.name for b in bindings}
        fixed = [b for b in rest if not names & _names(b.domain)]  # their turns multiply
        turns = [sequence(compile_expr(b.domain), b.domain.span) for b in fixed]

        def emit(scope: Scope) -> None:
            members = domain(scope)
            if members and turns:
                self.ops_left.foresee(prod(len(t(scope)) for t in (domain, *turns)), first.span)
            self._turns(scope, len(members), weight, first.span)
            shadow = self._inner(scope, first.span)
            for value in members:
                shadow[name] = value
                for e in inner:
                    e(shadow)

        return self._guarded(first.span, emit)

    def _turns(self, scope: Scope, count: int, weight: int, span: Span) -> None:
        """Pay for a loop. Its turns count as little as a list's members: what they hold is counted by itself."""
        self.ops_left.foresee(count, span)
        self.ops_left.spend(weight, span)
        scope[STEPS].spend(count, span)

    def _inner(self, scope: Scope, span: Span) -> Scope:
        """A copy of the scope for the inside of a loop."""
        scope[STEPS].spend(len(scope), span)
        return dict(scope)

    def _guarded(self, span: Span, emit: Emit) -> Emit:
        """A mistake of a loop's own set or a condition ends that loop, not the search for mistakes."""

        def safe(scope: Scope) -> None:
            if span in self._failed:
                return
            try:
                emit(scope)
            except Mistake as m:
                self._failed.add(span)
                self.mistakes.append(self._placed(m, scope).diagnostic)

        return safe

    def _step(self, s: n.Step) -> Emit:
        name = s.binding.name
        domain = sequence(compile_expr(s.binding.domain), s.binding.domain.span)
        self._locals[name] = None
        inner = [self._compile(x) for x in s.body]
        weight = _weight(s.binding)

        def emit(scope: Scope) -> None:
            members = domain(scope)
            self._turns(scope, len(members), weight, s.binding.span)
            shadow = self._inner(scope, s.binding.span)
            for value in members:
                self._run.new_phase(s.span)
                shadow[name] = value
                for e in inner:
                    e(shadow)
            self._run.new_phase(s.span)

        return self._guarded(s.span, emit)

    def _if(self, s: n.If) -> Emit:
        condition = compile_condition(s.condition)
        body = [self._compile(x) for x in s.body]
        otherwise = [self._compile(x) for x in s.otherwise]
        weight = _weight(s.condition)

        def emit(scope: Scope) -> None:
            self.ops_left.spend(weight, s.condition.span)
            for e in body if condition(scope) else otherwise:
                e(scope)

        return self._guarded(s.span, emit)

    def _let(self, s: n.Let) -> Emit:
        value = compile_expr(s.value)
        self._locals[s.name] = None
        weight = _weight(s.value)

        def emit(scope: Scope) -> None:
            self.ops_left.spend(weight, s.span)
            try:
                scope[s.name] = value(scope)
            except Mistake as m:
                raise self._placed(m, scope) from None

        return emit  # not guarded: without the name the rest of the block means nothing

    def _where(self, span: Span, attributes: Sequence[n.Attribute]) -> Callable[[Scope], ir.Where]:
        def where(scope: Scope) -> ir.Where:
            rank, phase = scope["rank"], len(self._run.phases) - 1
            resources = _resources(self._resources, attributes, scope) if attributes else self._resources
            if attributes:
                return ir.Where(rank, self._stage, phase, resources, span)
            key = (rank, phase, span)
            found = self._wheres.get(key)
            if found is None or found.stage != self._stage:
                self._wheres[key] = found = ir.Where(rank, self._stage, phase, resources, span)
            return found

        return where

    def _op(self, s: n.Copy | n.Gemm | n.Reduce | n.Launch) -> Emit:
        make = self._maker(s)
        tensors = self.tensors
        weight = _weight(s, *([self.kernel_decls[s.kernel]] if isinstance(s, n.Launch) else []))

        def emit(scope: Scope) -> None:
            self.ops_left.spend(weight, s.span)
            op = make(scope)
            self.pieces_left.spend(sum(len(r.boxes) for r in (*op.reads, *op.writes)), s.span)
            message = broken(op, tensors)
            if message is not None:
                raise Mistake(s.span, message)
            idle = isinstance(op.body, ir.Gemm) and op.body.accumulate and not op.body.left.elements
            if all(region.elements for region in op.writes) and not idle:  # a piece may be empty: nothing to do
                self._run.phases[-1].append(op)

        return self._guarded(s.span, emit)

    def _placed(self, m: Mistake, scope: Scope) -> Mistake:
        """The mistake, saying on which rank it is and in which turn of the loops."""
        if not m.placed:
            at = "".join(f", {name} = {show(scope[name])}" for name in self._locals if name in scope)
            m.diagnostic = replace(m.diagnostic, message=f"{m.diagnostic.message} (rank {scope['rank']}{at})")
            m.placed = True
        return m

    def _maker(self, s: n.Copy | n.Gemm | n.Reduce | n.Launch) -> Callable[[Scope], ir.Op]:
        where = self._where(s.span, s.attributes)
        match s:
            case n.Copy():
                dst, src = Reference(s.dst, self.tensors), Reference(s.src, self.tensors)
                return lambda scope: ir.Op(where(scope), ir.Copy(dst.one(scope), src.one(scope)))
            case n.Gemm():
                out, left, right = (Reference(r, self.tensors) for r in (s.out, s.left, s.right))
                added = self._terms(s.terms)
                turned = left.transposed, right.transposed

                def gemm(scope: Scope) -> ir.Op:
                    where_now = where(scope)
                    operands = out.one(scope), left.one(scope), right.one(scope)
                    return ir.Op(where_now, ir.Gemm(*operands, *turned, s.accumulate, added(scope)))

                return gemm
            case n.Reduce():
                target, terms = Reference(s.out, self.tensors), self._terms(s.terms)
                return lambda scope: ir.Op(where(scope), ir.Reduce(target.one(scope), terms(scope)))
            case n.Launch():
                return self._launch(s, where)

    def _terms(self, refs: Sequence[n.RegionRef]) -> Callable[[Scope], tuple[Region, ...]]:
        """The terms of a sum: a set in a reference makes one for each member."""
        references = [Reference(r, self.tensors) for r in refs]
        return lambda scope: tuple(region for r in references for region in r.each(scope))

    def _launch(self, s: n.Launch, where: Callable[[Scope], ir.Where]) -> Callable[[Scope], ir.Op]:
        decl = self.kernel_decls[s.kernel]
        values: list[Callable[[Scope], Region | int]] = []
        for a in s.arguments:
            if isinstance(a, n.RegionRef):
                values.append(Reference(a, self.tensors).one)
            else:
                values.append(number(compile_expr(a), a.span))
        shape = {a.name: (compile_expr(a.value), a.span) for a in decl.attributes if not isinstance(a.value, str)}

        def make(scope: Scope) -> ir.Op:
            arguments = tuple(ir.Argument(p.name, p.mode, v(scope)) for p, v in zip(decl.params, values, strict=True))
            inner = dict(scope)
            for a in arguments:
                inner[a.name] = a.value
                if isinstance(a.value, Region):
                    dims = a.value.shape or (1,)
                    inner["rows", a.name] = dims[-2] if len(dims) > 1 else dims[0]
                    inner["cols", a.name] = dims[-1]

            def sizes(name: str) -> tuple[int, ...]:
                if name not in shape:
                    return (1,)
                f, span = shape[name]
                v = f(inner)
                sized = v if isinstance(v, tuple) else (v,)
                if not 1 <= len(sized) <= 3 or not all(type(x) is int for x in sized):
                    raise Mistake(span, f"{name} is one to three numbers, this is {describe_value(v)}")
                return sized

            smem = sizes("smem")[0] if "smem" in shape else 0
            here = where(scope)
            here = replace(here, resources=replace(here.resources, smem=smem))
            return ir.Op(here, ir.KernelCall(s.kernel, arguments, sizes("grid"), sizes("block")))

        return make

    def _collective(self, s: n.Collective) -> Emit:
        where = self._where(s.span, s.attributes)
        dst, src = Reference(s.dst, self.tensors), Reference(s.src, self.tensors)

        weight = _weight(s)

        def emit(scope: Scope) -> None:
            self.ops_left.spend(weight, s.span)
            self._run.new_phase(s.span)
            phase = len(self._run.phases) - 1
            # stage and phase name the operation, alike on all ranks
            group = self._groups.setdefault((self._stage, phase), len(self._groups))
            call = ir.Collective(s.kind, group, dst.one(scope), src.one(scope))
            op = ir.Op(where(scope), call)
            self.pieces_left.spend(len(call.src.boxes) + len(call.dst.boxes), s.span)
            message = broken(op, self.tensors)
            if message is not None:
                raise Mistake(s.span, message)
            self._run.phases[-1].append(op)
            self._run.new_phase(s.span)

        return self._guarded(s.span, emit)


def _weight(*parts: object) -> int:
    """As how many statements one with these expressions counts: a long one takes longer to evaluate."""
    return 1 + sum(map(size, parts)) // 100


def _text(attributes: Sequence[n.Attribute], name: str) -> str | None:
    return next((a.value for a in attributes if a.name == name and isinstance(a.value, str)), None)


def _word(a: n.Attribute) -> str:
    word = a.value.id if isinstance(a.value, n.Name) else a.value if isinstance(a.value, str) else None
    if word not in _UNITS[a.name]:
        raise Mistake(a.span, f"{a.name} is one of {', '.join(_UNITS[a.name])}")
    return word


def _resources(base: ir.Resources, attributes: Sequence[n.Attribute], scope: Scope) -> ir.Resources:
    """`base` with `attributes` on top."""
    changes: dict[str, Any] = {}
    for a in attributes:
        if a.name in _UNITS:
            changes[a.name] = _word(a)
            continue
        if isinstance(a.value, str):
            raise Mistake(a.span, f"{a.name} is a number")
        value = number(compile_expr(a.value), a.span)(scope)
        if value < _LEAST[a.name]:
            raise Mistake(a.span, f"{a.name} = {value}; it is at least {_LEAST[a.name]}")
        if value >= 2**31:
            raise Mistake(a.span, f"{a.name} = {value}; it is at most {2**31 - 1}")
        changes[a.name] = value
    return replace(base, **changes) if changes else base


def _common(base: ir.Resources, attributes: Sequence[n.Attribute], scopes: Sequence[Scope]) -> ir.Resources:
    """`base` with `attributes` on top, which must come out alike on all ranks."""
    found = _resources(base, attributes, scopes[0])
    for a in attributes if any(not isinstance(a.value, n.Int | str) for a in attributes) else ():
        if any(getattr(_resources(base, (a,), s), a.name) != getattr(found, a.name) for s in scopes):
            raise Mistake(a.span, f"{a.name} differs from rank to rank", "give it on a statement, whose rank it is")
    return found


# ---------------------------------------------------------------- `+=`


def _begin_sums(ops: Sequence[ir.Op], tensors: Mapping[str, ir.Tensor]) -> tuple[ir.Op, ...]:
    """The first `+=` on an element starts from zero: it becomes `=`."""
    summed = {g.out.tensor for op in ops if isinstance(g := op.body, ir.Gemm) and g.accumulate}
    if not summed:
        return tuple(ops)
    begun: dict[tuple[str, int], BoxMap[bool]] = {}
    budget = Budget(CELLS * most_ops(), "the sums of the schedule meet in more than {most} pieces of its tensors")
    mistakes: dict[Span, Diagnostic] = {}
    out: list[ir.Op] = []
    for op in ops:
        new, body = op, op.body
        if isinstance(body, ir.Gemm) and body.accumulate:
            pieces = [p for box in body.out.boxes for p in _written(begun, tensors, body.out).items(box)]
            budget.spend(len(pieces), op.where.origin)
            states = {state for _, state in pieces}
            if len(states) == 2 and op.where.origin not in mistakes:
                first = next(describe(box) for box, state in pieces if not state)
                second = next(describe(box) for box, state in pieces if state)
                mistakes[op.where.origin] = Diagnostic(
                    op.where.origin,
                    f"'+=' on rank {op.where.rank} finds {body.out.tensor} {second} begun and {first} not",
                    help="give the parts statements of their own, or begin the whole with '='",
                )
            if states == {False}:
                new = ir.Op(op.where, replace(body, accumulate=False))
        for region in op.writes:
            if region.tensor in summed:
                written = _written(begun, tensors, region)
                for box in region.boxes:
                    budget.spend(written.update(box, lambda _: True), op.where.origin)
        out.append(new)
    _raise(tuple(mistakes.values()))
    return tuple(out)


def _written(
    begun: dict[tuple[str, int], BoxMap[bool]], tensors: Mapping[str, ir.Tensor], region: Region
) -> BoxMap[bool]:
    key = (region.tensor, region.rank)
    if key not in begun:
        begun[key] = BoxMap(tensors[region.tensor].shapes[region.rank], False)
    return begun[key]

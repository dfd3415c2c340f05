"""Checks a schedule before sizes are known: names, words of attributes, positions and numbers of arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .diagnostics import Diagnostic, Note, Span
from .nodes import (
    Attribute,
    ClaimCollective,
    ClaimExpr,
    ClaimFunction,
    ClaimProduct,
    ClaimSum,
    Computes,
    For,
    If,
    KernelDecl,
    Let,
    Multiprocessors,
    Name,
    Operation,
    Param,
    RegionRef,
    Schedule,
    StageDecl,
    StageStep,
    Statement,
    names_in,
)
from .uses import MAX_MISTAKES, Declared, Uses, indefinite, spot
from .verbs import VERB_OF, Collective, Copy, Launch
from .vocabulary import (
    BUILTINS,
    DTYPES,
    ENGINES,
    FUNCTIONS,
    LEFT,
    NAMED,
    OF_COLLECTIVES,
    ON_KERNEL,
    ON_QUEUE,
    RESOURCES,
    SCALINGS,
    STRINGS,
    WITHIN,
    WORDS,
)

MAX_DIMENSIONS = 8


def check(schedule: Schedule) -> list[Diagnostic]:
    """Every static mistake of a schedule, in the order of the text (the first 100)."""
    checker = _Checker(schedule)
    checker.run()
    found = sorted(checker.mistakes, key=lambda m: (m.span.line, m.span.column))
    return found[:MAX_MISTAKES]


class _Checker(Uses):
    """One walk over one schedule: its declarations, stages and statements. What a walk finds is in `mistakes`."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.schedule = schedule
        self.queues = {q.name: q for q in reversed(schedule.queues)}
        self.kernels = {k.name: k for k in reversed(schedule.kernels)}
        self.stages: dict[str, Span] = {}
        self.all_stages = {s.name for s in schedule.stages}

    def run(self) -> None:
        s = self.schedule
        if not s.name:
            self.mistake(s.span, "the schedule has no name", help="begin the file with: schedule NAME")
        self._declare()
        self._params()
        types: set[str] = set()  # a type may name an earlier one
        for t in s.types:
            if t.dtype not in DTYPES and t.dtype not in types:
                self.mistake(spot(t.dtype, t.span), f"unknown type '{t.dtype}'", help=f"the types are {_list(DTYPES)}")
            types.add(t.name)
        for scaling, span in [(d.scaling, d.span) for group in (s.types, s.tensors) for d in group]:
            if scaling is not None and scaling not in SCALINGS:
                help = f"a tensor is scaled {_list(SCALINGS)}"
                self.mistake(spot(scaling, span), f"unknown scaling '{scaling}'", help=help)
        for tensor in s.tensors:
            if tensor.dtype not in types and tensor.dtype not in DTYPES:
                message = f"'{tensor.name}' is of unknown type '{tensor.dtype}'"
                self.mistake(spot(tensor.dtype, tensor.span), message, help=self.like(tensor.dtype, [*types, *DTYPES]))
            if len(tensor.shape) > MAX_DIMENSIONS:
                message = f"'{tensor.name}' has {len(tensor.shape)} dimensions; at most {MAX_DIMENSIONS} are allowed"
                self.mistake(tensor.shape[MAX_DIMENSIONS].span, message)
            for extent in tensor.shape:
                self.expr(extent)
            if tensor.transposed and len(tensor.shape) < 2:
                message = f"'{tensor.name}' has one dimension; what is transposed has two or more"
                self.mistake(spot(tensor.name, tensor.span), message)
            if not isinstance(tensor.transposed, bool):
                self.expr(tensor.transposed)
            if tensor.condition is not None:
                self.expr(tensor.condition)
                if tensor.kind != "input":
                    message = f"only an input may be left out; '{tensor.name}' is {indefinite(tensor.kind)}"
                    self.mistake(tensor.condition.span, message)
            self.shaped.add(tensor.name)
        self._claims()
        for queue in s.queues:
            allowed = (*ON_QUEUE, *OF_COLLECTIVES) if queue.engine == "nccl" else ON_QUEUE
            self.attributes(queue.attributes, allowed, f"queue '{queue.name}'")
            if all(a.name != "engine" for a in queue.attributes):
                self.mistake(
                    spot(queue.name, queue.span),
                    f"queue '{queue.name}' has no engine",
                    help="write engine = copy, sm or nccl",
                )
        for kernel in s.kernels:
            self._kernel(kernel)
        if not any(isinstance(x, StageDecl) or x.body for x in s.program):
            self.mistake(s.span, "the schedule has no stage", help="add: stage NAME on QUEUE { ... }")
        self._program(s.program)

    # ------------------------------------------------------------ declarations

    def _declare(self) -> None:
        """One namespace for params, types and tensors; one each for queues, kernels and stages."""
        s = self.schedule
        values = [(p.name, Declared("param", spot(p.name, p.span))) for p in s.params]
        values += [(t.name, Declared("type", spot(t.name, t.span))) for t in s.types]
        values += [(t.name, Declared(t.kind, spot(t.name, t.span))) for t in s.tensors]
        values.sort(key=lambda x: (x[1].span.line, x[1].span.column))
        for name, declared in values:
            if name in BUILTINS:
                self.mistake(declared.span, f"'{name}' is built in and cannot be a {declared.what}")
            elif name in FUNCTIONS:
                self.mistake(declared.span, f"'{name}' is a built-in function and cannot be a {declared.what}")
            elif name in DTYPES:
                self.mistake(declared.span, f"'{name}' is a built-in type and cannot be a {declared.what}")
            elif name in self.values:
                first = self.values[name]
                note = Note(f"{first.what} '{name}' is declared here", first.span)
                self.mistake(declared.span, f"{declared.what} '{name}' is declared already", note)
            else:
                self.values[name] = declared
        self._once("queue", [(q.name, spot(q.name, q.span)) for q in s.queues])
        self._once("kernel", [(k.name, spot(k.name, k.span)) for k in s.kernels])

    def _once(self, what: str, declared: Iterable[tuple[str, Span]]) -> None:
        first: dict[str, Span] = {}
        for name, span in declared:
            if name in first:
                note = Note(f"{what} '{name}' is declared here", first[name])
                self.mistake(span, f"{what} '{name}' is declared already", note)
            first.setdefault(name, span)

    def _params(self) -> None:
        self.in_param = True
        for p in self.schedule.params:
            self.expr(p.value)
            if p.check is not None:
                self.expr(p.check)
        self.in_param = False
        self._cycles(self.params)

    def _cycles(self, params: Mapping[str, Param]) -> None:
        """Name every circle of params once. Loops, not recursion: a chain of params may be long."""
        uses = {name: [u for u in names_in(p.value) if u in params] for name, p in params.items()}
        users: dict[str, list[str]] = {name: [] for name in params}
        open_uses = {name: len(us) for name, us in uses.items()}
        for name, us in uses.items():
            for u in us:
                users[u].append(name)
        ready = [name for name, n in open_uses.items() if n == 0]
        while ready:  # remove params that use no open param: those that remain lead into a circle
            for user in users[ready.pop()]:
                open_uses[user] -= 1
                if open_uses[user] == 0:
                    ready.append(user)
        seen: set[str] = set()
        for name in (p.name for p in self.schedule.params):
            path: dict[str, None] = {}
            at = name
            while open_uses[at] and at not in seen:
                seen.add(at)
                path[at] = None
                at = next(u for u in uses[at] if open_uses[u])
            if at in path:
                names = list(path)
                circle = names[names.index(at) :]
                first = min(circle, key=lambda c: (params[c].span.line, params[c].span.column))
                turn = circle.index(first)
                circle = [*circle[turn:], *circle[:turn], first]
                if len(circle) == 2:
                    self.mistake(spot(params[first].name, params[first].span), f"param '{first}' refers to itself")
                else:
                    shown = circle if len(circle) <= 10 else [*circle[:5], "...", *circle[-4:]]
                    message = f"params refer to each other in a circle: {' -> '.join(shown)}"
                    self.mistake(spot(params[first].name, params[first].span), message)

    def _claims(self) -> None:
        whole: dict[str, Computes] = {}
        claimed: dict[str, Computes] = {}
        for claim in self.schedule.claims:
            if claim.binding is not None:
                self.binding(claim.binding)
            name = claim.target.tensor
            self.region(claim.target, "the target of computes")
            tensor = self.tensors.get(name)
            if tensor is not None and tensor.kind != "output":
                self.mistake(claim.target.span, f"computes is for outputs; '{name}' is {indefinite(tensor.kind)}")
            elif tensor is not None and tensor.unproven:
                note = Note(f"output '{name}' is declared here", spot(tensor.name, tensor.span))
                help = "drop the word unproven, or the computes line"
                self.mistake(claim.span, f"'{name}' has a computes line and is unproven", note, help=help)
            is_whole = not claim.target.accessors and claim.binding is None
            before = claimed.get(name) if is_whole else whole.get(name)
            if before is not None:
                note = Note("the first computes line", before.span)
                self.mistake(claim.span, f"'{name}' has two computes lines", note)
            if is_whole:
                whole.setdefault(name, claim)
            claimed.setdefault(name, claim)
            self._claim(claim.value)
            for dtype in claim.within:
                if dtype not in WITHIN and (dtype not in self.values or self.values[dtype].what != "type"):
                    types = [t.name for t in self.schedule.types]
                    at = spot(dtype, claim.span)
                    self.mistake(at, f"within unknown type '{dtype}'", help=self.like(dtype, [*types, *WITHIN]))
            self.scope.clear()
        for tensor in self.schedule.tensors:
            if tensor.unproven and tensor.kind != "output":
                self.mistake(tensor.span, f"unproven is for outputs; '{tensor.name}' is {indefinite(tensor.kind)}")
            if tensor.kind == "output" and not tensor.unproven and tensor.name not in claimed:
                help = f"add: computes {tensor.name} = ..., or write unproven after its type"
                self.mistake(spot(tensor.name, tensor.span), f"output '{tensor.name}' has no computes line", help=help)

    def _claim(self, value: ClaimExpr) -> None:
        if isinstance(value, (ClaimProduct, ClaimSum)):
            self._claim(value.left)
            if isinstance(value, ClaimSum) and isinstance(value.right, RegionRef):
                self.region(value.right, optional=True)
            else:
                self._claim(value.right)
        elif isinstance(value, ClaimFunction):
            for argument in value.arguments:
                self._claim(argument)
        elif isinstance(value, ClaimCollective):
            self._claim(value.operand)
            if value.shares is not None:
                self.expr(value.shares)
        else:
            self.region(value)

    def _kernel(self, kernel: KernelDecl) -> None:
        first: set[str] = set()
        for p in kernel.params:
            if p.name in first:
                self.mistake(spot(p.name, p.span), f"kernel '{kernel.name}' has two arguments '{p.name}'")
            elif p.name in BUILTINS or p.name in FUNCTIONS:
                self.mistake(spot(p.name, p.span), f"'{p.name}' is built in and cannot be an argument's name")
            first.add(p.name)
        self.arguments = {p.name: p.mode for p in reversed(kernel.params)}
        self.attributes(kernel.attributes, ON_KERNEL, f"kernel '{kernel.name}'")
        self.arguments = {}

    # ------------------------------------------------------------ attributes

    def attributes(self, attributes: Sequence[Attribute], allowed: Sequence[str], place: str) -> None:
        first: dict[str, Span] = {}
        for a in attributes:
            if a.name not in allowed:
                if a.name == "engine":
                    help: str | None = "a queue has one engine; use a queue of the other engine"
                elif a.name in OF_COLLECTIVES:
                    help = f"{a.name} is said on a queue with engine = nccl, for all of its collectives"
                else:
                    help = self.like(a.name, allowed) or f"it may have {_list(allowed)}"
                self.mistake(spot(a.name, a.span), f"{place} has no attribute '{a.name}'", help=help)
                continue
            if a.name in first:
                self.mistake(a.span, f"'{a.name}' is given twice", Note("the first time", first[a.name]))
            first.setdefault(a.name, a.span)
            self._value(a)

    def _value(self, a: Attribute) -> None:
        words = WORDS.get(a.name)
        if words is not None:
            if not isinstance(a.value, Name):
                self.mistake(a.span, f"{a.name} is {_list(words)}" + ", or a name" * (a.name in NAMED))
            elif a.value.id not in words and a.name not in NAMED:
                message = f"{a.name} is {_list(words)}, not '{a.value.id}'"
                self.mistake(a.value.span, message, help=self.like(a.value.id, words))
        elif a.name in STRINGS:
            if not isinstance(a.value, str):
                self.mistake(a.span, f'{a.name} is a string: {a.name} = "file.py:function"')
        elif isinstance(a.value, str):
            self.mistake(a.span, f"{a.name} is a number, not a string")
        elif isinstance(a.value, Multiprocessors):
            if a.name != "leave":
                message = f"{a.name} is a number; '{a.value.count} sms' is what leave takes"
                self.mistake(a.value.span, message, help=f"write {a.name} = {a.value.count}, or leave = …")
        elif a.name == "leave" and isinstance(a.value, Name) and a.value.id == LEFT:
            if all(queue.engine != "nccl" for queue in self.schedule.queues):
                self.mistake(
                    a.value.span,
                    "leave = nccl: no queue has engine = nccl, so nothing says for which collectives",
                    help="say how much: leave = 100 KiB on each multiprocessor, or leave = 8 sms",
                )
        elif a.name == "leave" and isinstance(a.value, Name) and not self._known(a.value.id):
            message = f"leave is nccl, a number of bytes, or a number of sms, not '{a.value.id}'"
            self.mistake(a.value.span, message, help=self.like(a.value.id, (LEFT,)))
        elif isinstance(a.value, Name) and a.value.id == "copy":
            self.mistake(a.value.span, f"{a.name} is a number, not the word 'copy'")
        else:
            self.expr(a.value)

    def _known(self, name: str) -> bool:
        return any(name in names for names in (self.scope, self.params, self.values, self.arguments, BUILTINS))

    # ------------------------------------------------------------ stages and statements

    def _program(self, program: Sequence[StageDecl | StageStep]) -> None:
        for item in program:
            if isinstance(item, StageStep):
                live = dict(self.scope)
                self.binding(item.binding)
                if not item.body:
                    self.mistake(item.span, "the step has no stages", help="put stages into it, or delete it")
                self._program(item.body)
                self.scope = live
            else:
                self._stage(item)

    def _stage(self, stage: StageDecl) -> None:
        place = f"stage '{stage.name}'"
        queue = self.queues.get(stage.queue)
        if queue is None:
            help = self.like(stage.queue, self.queues)
            self.mistake(spot(stage.queue, stage.span), f"{place} is on unknown queue '{stage.queue}'", help=help)
        engine = self._engine(stage)
        if stage.streamed and queue is not None and engine not in ("sm", None):
            note = Note(f"queue '{stage.queue}' has engine {engine}", spot(queue.name, queue.span))
            self.mistake(
                spot(stage.queue, stage.span), f"{place} is streamed, which needs a queue with engine sm", note
            )
        for name in stage.after:
            if name.id == stage.name:
                self.mistake(name.span, f"{place} cannot come after itself")
            elif name.id not in self.stages:
                late = name.id in self.all_stages
                message = f"stage '{name.id}' is not before {place}" if late else f"unknown stage '{name.id}'"
                help = "after names a stage that stands earlier in the text" if late else None
                self.mistake(name.span, message, help=help or self.like(name.id, self.stages))
        if stage.name in self.stages:
            note = Note(f"{place} is declared here", self.stages[stage.name])
            self.mistake(spot(stage.name, stage.span), f"{place} is declared already", note)
        self.stages.setdefault(stage.name, spot(stage.name, stage.span))
        self.attributes(stage.attributes, RESOURCES, place)
        if not stage.body:
            self.mistake(spot(stage.name, stage.span), f"{place} has no statements", help="fill it, or delete it")
        self._block(stage.body, stage)

    def _engine(self, stage: StageDecl) -> str | None:
        """The engine of a stage's queue; None if that is unknown."""
        queue = self.queues.get(stage.queue)
        return queue.engine if queue is not None and queue.engine in ENGINES else None

    def _block(self, body: Sequence[Statement], stage: StageDecl) -> None:
        live = dict(self.scope)
        for statement in body:
            self._statement(statement, stage)
        self.scope = live

    def _statement(self, s: Statement, stage: StageDecl) -> None:
        if isinstance(s, Operation):
            self._operation(s, stage)
        elif isinstance(s, Let):
            self.expr(s.value)
            self.bind(s.name, "let", spot(s.name, s.span))
        elif isinstance(s, If):
            self.expr(s.condition)
            self._block(s.body, stage)
            self._block(s.otherwise, stage)
        else:
            live = dict(self.scope)
            for binding in s.bindings if isinstance(s, For) else (s.binding,):
                self.binding(binding)
            self._block(s.body, stage)
            self.scope = live

    def _operation(self, s: Operation, stage: StageDecl) -> None:
        verb = VERB_OF[type(s)]
        word = s.kind if isinstance(s, Collective) else next(iter(verb.keywords))
        engine = self._engine(stage)
        if engine is not None and engine not in verb.engines:
            queue = self.queues[stage.queue]
            message = f"{word} runs on engine {' or '.join(verb.engines)}; queue '{stage.queue}' has engine {engine}"
            self.mistake(s.span, message, Note(f"queue '{stage.queue}' is declared here", spot(queue.name, queue.span)))
        if stage.streamed and engine == "sm" and not verb.streams:
            message = f"{word} cannot stand in stage '{stage.name}', which is streamed"
            self.mistake(s.span, message, help="a streamed stage is one kernel of its own; add another stage")
        elif stage.streamed and s.attributes:
            message = f"'with' on a statement of stage '{stage.name}', which is streamed and one launch"
            self.mistake(s.attributes[0].span, message, help="say it on the stage, or take the statement out of it")
        self.attributes(s.attributes, RESOURCES, word)

        for part in verb.parts:
            held = getattr(s, part.field)
            for region in held if isinstance(held, tuple) else (held,) if held is not None else ():
                called = part.called.format(word)
                optional = part.field == "terms" and getattr(s, "summed", True)
                self.region(
                    region, called, at=part.at, transposed=part.transposed, writes=part.writes, optional=optional
                )
        if isinstance(s, Copy) and s.dst.at is not None and s.src.at is not None:
            message = "'@' stands on both sides of the copy; one of them is this rank's"
            self.mistake(s.span, message, help="a rank pushes (@ on the left) or pulls (@ on the right)")
        if isinstance(s, Launch):
            self._launch(s)

    def _launch(self, s: Launch) -> None:
        kernel = self.kernels.get(s.kernel)
        if kernel is None:
            self.mistake(spot(s.kernel, s.span), f"unknown kernel '{s.kernel}'", help=self.like(s.kernel, self.kernels))
        elif len(kernel.params) != len(s.arguments):
            n = len(kernel.params)
            message = f"kernel '{s.kernel}' takes {n} argument{'' if n == 1 else 's'}, not {len(s.arguments)}"
            self.mistake(s.span, message, Note(f"kernel '{s.kernel}' is declared here", spot(kernel.name, kernel.span)))
        params = kernel.params if kernel is not None and len(kernel.params) == len(s.arguments) else ()
        for i, argument in enumerate(s.arguments):
            param = params[i] if params else None
            is_region = isinstance(argument, RegionRef)
            if param is not None and param.mode != "int" and isinstance(argument, Name) and self._unknown(argument.id):
                help = self.like(argument.id, self.tensors)
                self.mistake(argument.span, f"unknown tensor '{argument.id}'", help=help)
                continue
            if param is not None and is_region == (param.mode == "int"):
                wanted = "an int" if param.mode == "int" else f"a region to {param.mode}"
                message = f"argument '{param.name}' of kernel '{s.kernel}' is {wanted}, not "
                self.mistake(argument.span, message + ("a region" if is_region else "a number"))
                continue
            if isinstance(argument, RegionRef):
                writes = param is not None and param.mode in ("write", "update")
                self.region(argument, "an argument of launch", writes=writes)
            else:
                self.expr(argument)


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"

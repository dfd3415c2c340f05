"""Nothing but the family of errors comes out, soon, whatever goes in; and what is proven lowers, checks and runs.

Seeded: the failing seed and the text stand in the failure. FICCO_FUZZ=100 takes a hundred times as many texts.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ficco_dsl
from ficco_dsl.nodes import Schedule
from ficco_dsl.parser import parse_syntax
from ficco_rt import compiler
from ficco_rt.errors import PlanError, ScheduleError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.graph.ir import KernelCall
from ficco_rt.graph.prove import prove
from ficco_rt.machine.profiles import NAMES, profile
from ficco_rt.plan import codec
from ficco_rt.plan.check import check
from ficco_rt.plan.ir import Plan
from ficco_rt.plan.lint import lint
from ficco_rt.plan.lower import lower
from ficco_rt.plan.text import to_text
from tests import cases
from tests.fuzz import texts

TIMES = int(os.environ.get("FICCO_FUZZ", "1"))
FAMILY = (ScheduleError, UsageError)
SECONDS = 20  # for one text, on a busy machine; most take milliseconds
FEW_OPS = "3000"


@pytest.fixture(autouse=True)
def _few_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FICCO_MAX_OPS", FEW_OPS)


@contextmanager
def limited(what: str) -> Iterator[None]:
    """Fail, with the text, where something hangs or leaves with an error that is none of ours."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    except FAMILY:
        raise
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{what}") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def seeds(count: int) -> range:
    return range(count * TIMES)


def parsed(text: str) -> Schedule | None:
    """The schedule of a text, if it is one. Whatever has no mistake of syntax has one stable layout, which means
    the same."""
    try:
        formatted = ficco_dsl.format_text(text, "fuzz.ficco")
        assert ficco_dsl.format_text(formatted, "fuzz.ficco") == formatted
        assert parse_syntax(formatted, "fuzz.ficco") == parse_syntax(text, "fuzz.ficco")
        return ficco_dsl.parse(text, "fuzz.ficco")
    except ScheduleError as error:
        lines = text.count("\n") + 1
        for d in error.diagnostics:
            assert 1 <= d.span.line <= lines, d
            assert d.span.column >= 1, d
        return None


def compiled(schedule: Schedule, ranks: int, params: Mapping[str, object], machine: str, stages: Counter[str]) -> None:
    """All the way; what is proven must pass what comes after, and give right numbers."""
    graph = compiler.build(schedule, ranks, params)
    stages["built"] += 1
    prove(graph)
    stages["proven"] += 1
    target = profile(machine, ranks)
    try:
        plan = lower(graph, target)
    except PlanError:
        raise
    except ScheduleError:
        return  # the machine lacks something
    try:
        check(plan)
    except PlanError as error:
        raise AssertionError(f"proven, lowered, and the check says {error}") from error
    lint(graph, target)
    assert codec.from_json(codec.to_json(plan)) == plan
    assert to_text(plan)
    small = sum(prod(shape) for t in plan.tensors for shape in t.shapes) < 50_000
    if small and not any(isinstance(op.body, KernelCall) for op in graph.ops):  # its kernels do not exist
        stages["run"] += 1
        hostile = ("adversarial", f"lazy({len(plan.streams) // 2})")
        with Executor(plan, "host", machine=target, order="random(1)") as executor:
            found = verified_run(executor, seed=1)
            assert found.ok or found.rel_err is None, found
            for order in hostile:
                executor.order = order
                found = verified_run(executor, seed=1, values="exact")
                assert found.ok or found.rel_err is None, f"{order}: {found}"


def went_through(
    text: str, seed: int, stages: Counter[str], ranks: int = 3, params: Mapping[str, object] | None = None
) -> None:
    """Compile a text, and count how far it comes."""
    stages["all"] += 1
    machine = NAMES[seed % len(NAMES)]
    try:
        with limited(f"seed {seed}, {ranks} ranks, {machine}, {params}\n{text}"):
            schedule = parsed(text)
            if schedule is not None:
                stages["parsed"] += 1
                compiled(schedule, ranks, params or {}, machine, stages)
    except FAMILY:
        pass


def test_texts_from_the_grammar() -> None:
    stages: Counter[str] = Counter()
    for seed in seeds(200):
        rng = random.Random(seed)
        went_through(texts.from_grammar(rng, depth=rng.choice((8, 14, 25))), seed, stages)


def test_programs() -> None:
    """Schedules of good parts, some of them bent: many are proven, and those give right numbers."""
    stages: Counter[str] = Counter()
    for seed in seeds(150):
        program = texts.Program(random.Random(seed))
        went_through(program.text, seed, stages, program.ranks)
    assert stages["proven"] * 8 > stages["all"], stages
    assert stages["run"] * 10 > stages["all"], stages


def test_turned_schedules() -> None:
    """Shipped schedules with a word in another's place: what is still proven still gives right numbers."""
    stages: Counter[str] = Counter()
    for seed in seeds(120):
        rng = random.Random(seed)
        text, ranks = texts.shipped_and_turned(rng), rng.choice((2, 3, 4))
        went_through(text, seed, stages, ranks, params=texts.small_sizes(text, ranks, rng))
    assert stages["run"] * 10 > stages["all"], stages


def test_damaged_schedules() -> None:
    stages: Counter[str] = Counter()
    for seed in seeds(120):
        rng = random.Random(seed)
        went_through(texts.shipped(rng), seed, stages, rng.choice((1, 2, 4)))
    assert stages["parsed"] * 10 > stages["all"], stages


def test_damaged_bytes() -> None:
    for seed in seeds(200):
        data = texts.shipped_bytes(random.Random(seed))
        try:
            with limited(f"seed {seed}\n{data!r}"):
                ficco_dsl.parse_bytes(data, "fuzz.ficco")
        except ScheduleError:
            pass


# ---------------------------------------------------------------- sizes and expressions, by hypothesis

LITTLE = settings(
    max_examples=40 * TIMES,
    deadline=None,
    derandomize=TIMES == 1,
    database=None,
    suppress_health_check=list(HealthCheck),
)
INTEGERS = st.one_of(st.integers(-3, 9), st.sampled_from([0, 1, 2**31, 2**62 - 1, 2**62, -(2**62), 10**30]))
VALUES = st.recursive(INTEGERS, lambda inner: st.lists(inner, max_size=5), max_leaves=12)
ATOMS = st.one_of(
    st.integers(0, 9).map(str),
    st.sampled_from(["rank", "ranks", "peers", "all", "a", "b", "rows(X)", "cols(X)", "4611686018427387903", "1 GiB"]),
)


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["+", "-", "*", "/", "//", "%", "<", "<=", "==", "!=", "and", "or"])
    functions = st.sampled_from(["min", "max", "sum", "len", "reversed", "rows", "cols"])
    return st.one_of(
        st.tuples(inner, operators, inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(functions, st.lists(inner, max_size=3)).map(lambda t: f"{t[0]}({', '.join(t[1])})"),
        st.tuples(inner, inner).map(lambda t: f"ceil({t[0]}, {t[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"part({t[0]}, {t[1]} of {t[2]})"),
        st.lists(inner, max_size=4).map(lambda t: f"[{', '.join(t)}]"),
        st.tuples(inner, inner).map(lambda t: f"[{t[0]} for i in [{t[1]}, i]]"),
        st.tuples(inner, inner).map(lambda t: f"[i for i in 0..{t[0]}][{t[1]}]"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]})[{t[1]}]"),
        inner.map(lambda t: f"-{t}"),
        inner.map(lambda t: f"(not {t})"),
    )


EXPRESSIONS = st.recursive(ATOMS, _compound, max_leaves=10)
SETS = st.one_of(EXPRESSIONS, st.tuples(EXPRESSIONS, EXPRESSIONS).map(lambda t: f"{t[0]}..{t[1]}"))
CUTS = st.one_of(
    st.tuples(st.sampled_from(["rows", "cols"]), SETS, EXPRESSIONS).map(lambda t: f".{t[0]}({t[1]} of {t[2]})"),
    EXPRESSIONS.map(lambda t: f"[{t}]"),
    st.tuples(EXPRESSIONS, EXPRESSIONS).map(lambda t: f"[{t[0]}:, :{t[1]}]"),
)
REGIONS = st.tuples(st.sampled_from("XYZV"), st.lists(CUTS, max_size=3)).map(lambda t: t[0] + "".join(t[1]))
STATEMENTS = st.one_of(
    st.tuples(REGIONS, REGIONS).map(lambda t: f"copy {t[0]} <- {t[1]}"),
    st.tuples(REGIONS, REGIONS, EXPRESSIONS).map(lambda t: f"copy {t[0]} <- {t[1]} @ {t[2]}"),
    st.tuples(REGIONS, REGIONS, REGIONS).map(lambda t: f"gemm {t[0]} += {t[1]} * {t[2]}"),
    st.tuples(REGIONS, REGIONS, REGIONS).map(lambda t: f"gemm {t[0]} = {t[1]} * {t[2]} + sum({t[1]}, {t[0]})"),
    st.tuples(REGIONS, REGIONS, REGIONS).map(lambda t: f"reduce {t[0]} = sum({t[1]}, {t[2]})"),
)
LOOPS = st.one_of(
    STATEMENTS,
    st.tuples(SETS, STATEMENTS).map(lambda t: f"for j in {t[0]} {{ {t[1]} }}"),
    st.tuples(SETS, STATEMENTS).map(lambda t: f"step j in {t[0]} {{ {t[1]} }}"),
    st.tuples(EXPRESSIONS, STATEMENTS).map(lambda t: f"if {t[0]} {{ {t[1]} }}"),
    st.tuples(EXPRESSIONS, STATEMENTS).map(lambda t: f"let j = {t[0]} {t[1]}"),
)
FRAME = """\
schedule hypothetical
param a = {a}
param b = {b}
input X[{m}, 4] : fp32
output Y[8, 4] : fp32 unproven
scratch Z[8, 4] : fp32
scratch V[4, 4, 2] : fp32
queue q {{ engine = sm }}
stage first on q {{ copy Y <- X[0:8] copy Z <- X[0:8] }}
stage last on q {{ {body} }}
"""


@LITTLE
@given(a=EXPRESSIONS, b=SETS, m=EXPRESSIONS, body=st.lists(LOOPS, min_size=1, max_size=3), ranks=st.integers(1, 3))
def test_expressions(a: str, b: str, m: str, body: list[str], ranks: int) -> None:
    for given_a, given_m in ((a, m), ("2", "8")):
        text = FRAME.format(a=given_a, b=b if given_a == a else "[1, 3]", m=given_m, body=" ".join(body))
        went_through(text, 0, Counter(), ranks)


@LITTLE
@given(name=st.sampled_from(cases.SCHEDULES), sizes=st.dictionaries(st.sampled_from("MNKT"), VALUES), ranks=INTEGERS)
def test_sizes(name: str, sizes: dict[str, Any], ranks: int) -> None:
    schedule = cases.schedule(name)
    try:
        with limited(f"{name} {sizes} {ranks}"):
            compiled(schedule, min(ranks, 5), sizes, NAMES[0], Counter())
    except FAMILY:
        pass


# ---------------------------------------------------------------- stored plans

JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    3,
    2**40,
    10**30,
    1.5,
    "",
    "x",
    "gemm",
    [],
    [[]],
    [0, 4],
    {},
    {"type": "Launch"},
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything in a JSON value."""
    todo = [value]
    while todo:
        x = todo.pop()
        for key in list(x) if isinstance(x, dict) else range(len(x)) if isinstance(x, list) else ():
            yield x, key
            todo.append(x[key])


def damage(plan: dict[str, Any], rng: random.Random) -> None:
    """Change a few values anywhere in a plan's JSON, mostly into others of the same plan."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = list(_places(plan))
        container, key = rng.choice(places)
        value = container[key]
        other, other_key = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0:
            container[key] = rng.choice(JUNK)
        elif kind == 1:
            del container[key]
        elif kind == 2 and isinstance(value, int):
            container[key] = value + rng.choice((-1, 1, 100))
        elif kind == 3 and isinstance(value, list):
            value.reverse()
        elif kind == 4 and isinstance(container, list):
            container.append(json.loads(json.dumps(other[other_key])))
        else:
            same = [c[k] for c, k in rng.sample(places, min(300, len(places))) if type(c[k]) is type(value)]
            container[key] = json.loads(json.dumps(rng.choice(same or [None])))


def rehashed(text: str) -> str:
    """The text with the hash that its content has, where it has one: damage that the hash does not find."""
    data = json.loads(text)
    try:
        plan = codec.Reader("x", "x").read(
            Plan, {k: v for k, v in data.items() if k not in ("ficco_plan", "hash", "path")}, "plan"
        )
    except ScheduleError:
        return text
    return json.dumps({**data, "hash": codec.content_hash(plan)})


def test_damaged_plans() -> None:
    plans = []
    for name in ("ag_gemm/streamed", "gemm_rs/ring", "ag_gemm/hetero_fused_1d", "a2a_gemm/overlapped"):
        params = {**cases.sizes(name, 2, True), **cases.few_chunks(name)}
        graph = compiler.build(cases.schedule(name), 2, params)
        plans.append(codec.to_json(compiler.plan_of(graph, profile("h200-switch", 2))))
    outcomes: Counter[str] = Counter()
    for seed in seeds(250):
        rng = random.Random(seed)
        original = rng.choice(plans)
        data = json.loads(original)
        damage(data, rng)
        text = json.dumps(data)
        if rng.random() < 0.1:
            cut = rng.randrange(len(text))
            text = text[:cut] + rng.choice(("", "}", "\x00", "9" * 5000)) + text[cut + rng.randrange(3) :]
        try:
            with limited(f"seed {seed}\n{text[:3000]}"):
                text = rehashed(text) if rng.random() < 0.8 and text == json.dumps(data) else text
                plan = codec.from_json(text)
                outcomes["read"] += 1
                check(plan)
                outcomes["checked"] += 1
                to_text(plan)
                if sum(prod(shape) for t in plan.tensors for shape in t.shapes) < 50_000:
                    runs(plan)
                    outcomes["run"] += 1
        except FAMILY:
            pass
    assert outcomes["run"] > 20 * TIMES, outcomes


def runs(plan: Plan) -> None:
    """A checked plan runs to its end on the host; its numbers may be wrong, where its text was changed too."""
    with Executor(plan, "host", order="random(1)") as executor:
        verified_run(executor)
        assert executor.trace

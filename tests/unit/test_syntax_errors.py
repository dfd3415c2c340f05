"""Texts that are no schedules: what is said about each, where, and how soon."""

from __future__ import annotations

import random
import time

import pytest

from ficco_dsl import Diagnostic, ScheduleError, parse, parse_bytes
from tests.unit.test_parser import AG_GEMM


def said(text: str | bytes) -> str:
    with pytest.raises(ScheduleError) as caught:
        parse_bytes(text, "x.ficco") if isinstance(text, bytes) else parse(text, "x.ficco")
    return str(caught.value)


MISTAKES = [
    (
        ("schedule x\n  # foo\n"),
        ("x.ficco:1:1: the schedule has no stage\n  help: add: stage NAME on QUEUE { ... }"),
    ),
    (
        ("schedule x\nstag a on b {}"),
        ("x.ficco:2:1: expected a declaration, found 'stag'\n  help: did you mean 'stage'?"),
    ),
    (
        ("schedule x\nparam for = 3\nparam M = * 4\nqueue q { engine copy }"),
        (
            "x.ficco:2:7: expected a name after 'param', found the keyword 'for'\n"
            "  help: keywords cannot be names; choose another\n"
            "x.ficco:3:11: expected an expression, found '*'\n"
            "x.ficco:4:18: expected '=', found 'copy'"
        ),
    ),
    (
        (
            "schedule x\n"
            "stage g on d {\n"
            "  copy A.rows(c of 2) G\n"
            "}\n"
            "stage h on d {\n"
            "  gemm A = B + C\n"
            "}\n"
            "stage i on d { cpoy G <- A }"
        ),
        (
            "x.ficco:3:23: expected '<-' after the destination of copy, found 'G'\n"
            "x.ficco:6:14: expected '*' between the operands of gemm, found '+'\n"
            "x.ficco:8:16: expected a statement or '}', found 'cpoy'\n"
            "  help: did you mean 'copy'?"
        ),
    ),
    (
        ("schedule x\nstage g on d {\n  for c in 0..3 {\n   copy G <- A\n}\nstage h on d { copy G <- A }\n"),
        ("x.ficco:2:14: this '{' is never closed\n  note: x.ficco:6:1: 'stage' comes before its end"),
    ),
    (
        ("schedule x\nparam x = 3 +"),
        "x.ficco:2:14: expected an expression, found the end of the file",
    ),
    (
        ("schedule x\nparam x = (3 + \n stage"),
        "x.ficco:2:15: expected an expression, found 'stage' on line 3",
    ),
    (
        ('schedule x\nparam x = "a'),
        "x.ficco:2:11: this string has no closing '\"' on its line",
    ),
    (
        ("schedule x\nparam x = 96KB"),
        ("x.ficco:2:13: unknown unit 'KB'\n  help: bytes may be given in KiB, MiB or GiB"),
    ),
    (
        ("schedule x\nparam x = 12345678901234567890"),
        "x.ficco:2:11: the number has 20 digits; at most 18 are allowed",
    ),
    (
        ("schedule x\nstage s on q { copy G.rws(1 of 2) <- A.t }"),
        ("x.ficco:2:23: expected rows, cols or T after '.', found 'rws'\n  help: did you mean 'rows'?"),
    ),
    (
        ("schedule x\nparam x = 1;"),
        ("x.ficco:2:12: unexpected character ';'\n  help: statements need nothing between them"),
    ),
    (
        ("schedule x\nstage s on q { copy G.rows(1, 2) <- A }"),
        "x.ficco:2:29: expected 'of', as in rows(i of n), found ','",
    ),
    (
        ("schedule x\nstage s on q { copy G.rows(1 of 2 <- A }"),
        ("x.ficco:2:35: expected ')' or ',', found '<-'\n  note: x.ficco:2:27: '(' is opened here"),
    ),
    (
        ("schedule x\nparam x = A.rows(1 of 2) + 3"),
        (
            "x.ficco:2:11: a region cannot be part of an expression\n"
            "  help: regions stand in statements and in launch(...)"
        ),
    ),
    (
        ("schedule x\ninput A : T"),
        "x.ficco:2:9: expected '[' and the shape after the input's name, found ':'",
    ),
    (
        ("schedule x\ninput A[3] T"),
        "x.ficco:2:12: expected ':' and the type after the shape, found 'T'",
    ),
    (
        ("schedule x\nstage a onn b {}"),
        ("x.ficco:2:9: expected 'on' and the queue after the stage's name, found 'onn'\n  help: did you mean 'on'?"),
    ),
    (
        ("schedule x\nstage a on b afetr c {}"),
        ("x.ficco:2:14: expected '{' and the statements of the stage, found 'afetr'\n  help: did you mean 'after'?"),
    ),
    (
        ("schedule x\nstage a on b { if 3 < 4 < 5 {} }"),
        "x.ficco:2:25: expected '{' after the condition, found '<'",
    ),
    (
        ("schedule x\nstage s on q streamed streamed {}"),
        ("x.ficco:2:23: 'streamed' stands twice on stage 's'\n  help: once is enough"),
    ),
    (
        ("schedule x\n}\nparam x = )"),
        (
            "x.ficco:2:1: expected a declaration, found '}'\n"
            "  help: no '{' is open here\n"
            "x.ficco:3:11: expected an expression, found ')'"
        ),
    ),
    (
        "schedule a schedule b",
        ("x.ficco:1:12: a file holds one schedule\n  note: x.ficco:1:1: 'a' is named here"),
    ),
    (
        ("schedule x\nstage s on q { let copy = 3 }"),
        (
            "x.ficco:2:20: expected a name after 'let', found the keyword 'copy'\n"
            "  help: keywords cannot be names; choose another"
        ),
    ),
    (
        "schedule x\nstage s on q { reduce Y = min(A) }",
        "x.ficco:2:27: expected sum(...) after '=', found 'min'\n  help: reduce only sums",
    ),
    (
        "schedule x\nstage s on q { gemm Y = A * B + S.rows(0 of 2) }",
        "x.ficco:2:34: expected sum(...) after '+', found '.'\n  help: write the terms as sum(S, ...)",
    ),
    (
        "schedule x\nstage s on q { reduce Y = A }",
        "x.ficco:2:29: expected sum(...) after '=', found '}'\n  help: write the terms as sum(A, ...)",
    ),
    (
        "schedule x\nstage s on q { reduce Y = 3 }",
        "x.ficco:2:27: expected sum(...) after '=', found '3'",
    ),
    (
        ("schedule x\nkernel k(a b)"),
        (
            "x.ficco:2:10: expected ')', 'int', 'read', 'update' or 'write', found 'a'\n"
            "  note: x.ficco:2:9: '(' is opened here"
        ),
    ),
    (
        ("schedule x\nstage s on q { for i 0..3 { } }"),
        "x.ficco:2:22: expected 'in' after the loop variable, found '0'",
    ),
    (
        ("schedule x\nparam x = 1.5"),
        "x.ficco:2:13: numbers are whole: no fraction can follow the '.'",
    ),
    (
        ("schedule\n"),
        "x.ficco:1:9: expected a name after 'schedule', found the end of the file",
    ),
    (
        ("schedule x\nfoo"),
        "x.ficco:2:1: expected a declaration, found 'foo'",
    ),
    (
        ("schedule x\nstage s on q { copy G <- A"),
        ("x.ficco:2:14: this '{' is never closed\n  note: the end of the file comes before its end"),
    ),
    (
        ("schedule x\nstage s on q { launch k(A.T.T, (A.T), A.T[3], 3 @ 4, f(A.T)) }"),
        (
            "x.ficco:2:25: nothing follows .T in a region\n"
            "x.ficco:2:39: nothing follows .T in a region\n"
            "x.ficco:2:47: a region begins with the name of a tensor\n"
            "x.ficco:2:56: a region cannot be part of an expression\n"
            "  help: regions stand in statements and in launch(...)"
        ),
    ),
    (
        ("schedule x\nparam a = 3\n  param b = *\nparam c = 3"),
        "x.ficco:3:13: expected an expression, found '*'",
    ),
    (
        ("schedule x\ncomputes C = all_gather(A) * B"),
        ("x.ficco:2:26: expected ',' and the axis in all_gather, found ')'\n  help: write all_gather(X, rows)"),
    ),
    (
        ("schedule x\ncomputes C A"),
        "x.ficco:2:12: expected '=' after what is computed, found 'A'",
    ),
    (
        ("schedule x\nqueue q { engine = copy ; }"),
        ("x.ficco:2:25: unexpected character ';'\n  help: statements need nothing between them"),
    ),
    (
        ("schedule x\nparam x = [1, 2"),
        ("x.ficco:2:11: this '[' is never closed\n  note: the end of the file comes before its end"),
    ),
    (
        ("schedule x\nstage s on q { copy G @ p = A }"),
        "x.ficco:2:27: expected '<-' after the destination of copy, found '='",
    ),
    (
        ("schedule x\nstage s on q { if x = 3 { } }"),
        ("x.ficco:2:21: expected '{' after the condition, found '='\n  help: '==' compares"),
    ),
    (
        ("schedule x\nstage s on q { gemm C = A }"),
        "x.ficco:2:27: expected '*' between the operands of gemm, found '}'",
    ),
    (
        ("schedule x\nparam s = rank'"),
        ('x.ficco:2:15: unexpected character "\'"\n  help: strings stand in double quotes'),
    ),
    (
        ("schedule x\nparam é = 3"),
        "x.ficco:2:7: unexpected character 'é'",
    ),
    (
        ("schedule x\ninput A[3] : "),
        "x.ficco:2:13: expected a type after ':', found the end of the file",
    ),
    (
        ("schedule x\nstage s on q { launch k A }"),
        "x.ficco:2:25: expected '(' after the kernel's name, found 'A'",
    ),
    (
        ("schedule x\nstage s on q { copy <- A }"),
        "x.ficco:2:21: expected a name after 'copy', found '<-'",
    ),
    (
        ("schedule x\nstage s on q { copy G <- stage }"),
        (
            "x.ficco:2:26: expected a name after '<-', found the keyword 'stage'\n"
            "  help: keywords cannot be names; choose another"
        ),
    ),
    (
        ("schedule x\nstage on q { }"),
        (
            "x.ficco:2:7: expected a name after 'stage', found the keyword 'on'\n"
            "  help: keywords cannot be names; choose another"
        ),
    ),
    (
        ("schedule x\nparam type = 3"),
        (
            "x.ficco:2:7: expected a name after 'param', found the keyword 'type'\n"
            "  help: keywords cannot be names; choose another"
        ),
    ),
    (
        ("schedule x\nstage s on q { for step in 0..2 { } }"),
        (
            "x.ficco:2:20: expected a name after 'for', found the keyword 'step'\n"
            "  help: keywords cannot be names; choose another"
        ),
    ),
    (
        ("schedule x\nstage s on q { let n = stage }"),
        "x.ficco:2:24: expected an expression, found the keyword 'stage'",
    ),
    (
        ("schedule x\nstep i in 0..2 { for j in 0..2 { } }"),
        "x.ficco:2:18: expected 'stage', 'step' or '}', found 'for'",
    ),
    (
        ("schedule x\ncomputes C = all_reduce(A, rows)"),
        ("x.ficco:2:28: all_reduce takes no axis: every rank gets all of the sum\n  help: write all_reduce(X)"),
    ),
    (
        ("schedule x\ncomputes C = reduce_scatter(A, cols)"),
        ("x.ficco:2:32: reduce_scatter cuts rows, not cols\n  help: write reduce_scatter(X, rows)"),
    ),
    (
        ("schedule x\ncomputes C = all_gather(A, rows of [1])"),
        ("x.ficco:2:36: all_gather cuts equally and takes no 'of'\n  help: only all_to_all takes shares"),
    ),
    (
        ("schedule x\nqueue q {\n  engine = copy\nstage a on q { copy G <- A }\nstage b on q { copy G A }"),
        (
            "x.ficco:2:9: this '{' is never closed\n"
            "  note: x.ficco:4:1: 'stage' comes before its end\n"
            "x.ficco:5:23: expected '<-' after the destination of copy, found 'A'"
        ),
    ),
    (
        ('schedule x\nkernel k(read x) "a.cu"'),
        'x.ficco:2:18: expected from "file" after the arguments, found \'"a.cu"\'',
    ),
    (
        ("schedule x\nparam a = 3 &&"),
        ("x.ficco:2:13: unexpected character '&'\n  help: write 'and'"),
    ),
    (
        ("schedule x\nparam a = 1 | 2"),
        ("x.ficco:2:13: unexpected character '|'\n  help: write 'or'"),
    ),
    (
        ("schedule x\nparam a = !b"),
        ("x.ficco:2:11: unexpected character '!'\n  help: write 'not'"),
    ),
    (
        ("param a = 1\nschedule x"),
        "x.ficco:2:1: the schedule line comes first, before all declarations",
    ),
    (
        ("schedule x\nparam averyveryverylongnamethatgoesonandon 3"),
        "x.ficco:2:44: expected '=' after the param's name, found '3'",
    ),
    (
        ("schedule x\nstage s on q { for c in 0..2 copy G <- A }"),
        "x.ficco:2:30: expected '{' or another binding, found 'copy'",
    ),
    (
        ("schedule x\nstage s on q { if 1 { } els { } }"),
        ("x.ficco:2:25: expected a statement or '}', found 'els'\n  help: did you mean 'else'?"),
    ),
    (
        ("schedule x\nparam a = 0..1..2"),
        "x.ficco:2:15: expected a declaration, found '..'\n  help: a range has two ends: 0..n",
    ),
    (
        ("schedule x\nparam a = a<-b"),
        (
            "x.ficco:2:12: expected a declaration, found '<-'\n"
            "  help: '<-' is one sign; write '< -' to compare with a negative number"
        ),
    ),
    (
        ("schedule x\ninput A[] : T"),
        "x.ficco:2:9: expected an expression, found ']'",
    ),
    (
        ("schedule x\nstage s on q { launch k(A.rows(0 of 2)[0] + 1) }"),
        (
            "x.ficco:2:25: a region cannot be part of an expression\n"
            "  help: regions stand in statements and in launch(...)"
        ),
    ),
    (
        ("schedule x\nstage s on q { allgather G <- A }"),
        ("x.ficco:2:16: expected a statement or '}', found 'allgather'\n  help: did you mean 'all_gather'?"),
    ),
    (
        ("schedule x\nstage s on q { copy G <- A ]\n}\nparam x = \n}\nparam y = ,"),
        ("x.ficco:2:28: expected a statement or '}', found ']'\nx.ficco:6:11: expected an expression, found ','"),
    ),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistake(text: str, message: str) -> None:
    assert said(text) == message


@pytest.mark.parametrize("text", ["", " \n\t", "# only a comment", "# one\n\n  # two\n"])
def test_empty(text: str) -> None:
    fact = "the file holds only comments" if "#" in text else "the file is empty"
    message = f"x.ficco:1:1: {fact}\n  help: a schedule begins with: schedule NAME"
    assert said(text) == message
    assert said(text.encode()) == message


def test_not_text() -> None:
    assert said(b"schedule x\n# \xc3\xa9 ab\xffc") == (
        "x.ficco:2:7: byte 0xff at offset 18 is not UTF-8\n  help: save the file as UTF-8"
    )
    assert said(b"\xef\xbb\xbfa\xff") == (
        "x.ficco:1:2: byte 0xff at offset 4 is not UTF-8\n  help: save the file as UTF-8"
    )
    assert said(b"schedule x\n\0") == ("x.ficco:2:1: a NUL byte at offset 11\n  help: a schedule is plain UTF-8 text")


def test_too_large() -> None:
    size = (1 << 20) + 1
    assert said(b"#" * size) == "x.ficco:1:1: the file has 1,048,577 bytes; a schedule has at most 1,048,576"
    assert said("#" * size) == "x.ficco:1:1: the file has 1,048,577 characters; a schedule has at most 1,048,576"
    assert said("param x = [" + "1, " * 60_000) == (
        "x.ficco:1:150006: the schedule has more than 100,000 words and signs\n  help: write loops instead of copies"
    )


DEEP = "an expression has more than 64 levels; every operator and call is one"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("param x = " + "1 + " * 5000 + "1", f"x.ficco:1:11: {DEEP}\n  help: name a part of it with let or param"),
        ("param x = " + "- " * 5000 + "1", f"x.ficco:1:11: {DEEP}\n  help: name a part of it with let or param"),
        ("computes C = " + "A * " * 5000 + "A", f"x.ficco:1:14: {DEEP}\n  help: name a part of it with let or param"),
        ("param x = " + "(" * 5000 + "1" + ")" * 5000, "x.ficco:1:75: brackets nest more than 64 levels deep"),
        ("stage s on q " + "{ if 1 " * 90, "x.ficco:1:462: brackets nest more than 64 levels deep"),
        (
            "stage s on q { " + "if 1 { } else " * 90 + "{ } }",
            "x.ficco:1:912: blocks nest more than 64 levels deep",
        ),
    ],
)
def test_too_deep(text: str, message: str) -> None:
    assert said(text) == message


def test_at_most_twenty_mistakes() -> None:
    lines = said("schedule x\n" + "param = 1\n" * 50).splitlines()
    assert lines == [f"x.ficco:{i}:7: expected a name after 'param', found '='" for i in range(2, 22)]


WORDS = """
    schedule param type input output scratch computes queue kernel stage step copy gemm reduce launch let for in if
    else of with on after and or not where sum rows cols all_gather A B n T x 1 0 4096 96KiB "s" ( ) [ ] { } , : . ..
    + - * / // % = += == < > <- @ # ; ' é
""".split()  # noqa: SIM905 - a list of these is hard to read


def test_any_text_gets_a_tree_or_diagnostics() -> None:
    for seed in range(1500):
        chance = random.Random(seed)
        if chance.random() < 0.5:
            text = "".join(chance.choice(WORDS) + chance.choice("  \n") for _ in range(chance.randrange(1, 60)))
        else:  # a right schedule with a few words changed
            words = AG_GEMM.split(" ")
            for _ in range(chance.randrange(1, 4)):
                words[chance.randrange(len(words))] = chance.choice(WORDS)
            text = " ".join(words)
        diagnostics = mistakes_of(text)
        lines = text.split("\n")
        places = [(d.span.line, d.span.column) for d in diagnostics]
        assert places == sorted(places), f"seed {seed}"
        assert len(diagnostics) <= 100, f"seed {seed}"
        for line, column in places:
            assert 1 <= line <= len(lines), f"seed {seed}"
            assert 1 <= column <= len(lines[line - 1]) + 1, f"seed {seed}"
        assert not any(word in str(d) for d in diagnostics for word in ("RPAR", "$END", "__")), f"seed {seed}"


def mistakes_of(text: str) -> tuple[Diagnostic, ...]:
    try:
        parse(text, "x.ficco")
    except ScheduleError as error:
        return error.diagnostics
    return ()


@pytest.mark.parametrize(
    "unit",
    [
        "(",
        "[",
        "{",
        "}",
        "-",
        "not ",
        "1+",
        "a ",
        "a.",
        "f(",
        "if a {",
        "else ",
        "param x = 1\n",
        "param\n",
        '"',
        '"\n',
    ],
)
@pytest.mark.parametrize("head", ["", "schedule x\nparam p = ", "schedule x\nstage s on q { "])
def test_a_hostile_megabyte_is_answered_soon(unit: str, head: str) -> None:
    begin = time.process_time()
    said((head + unit * (1 << 20))[: 1 << 20])
    said(head + unit * 30_000)
    assert time.process_time() - begin < 5


def test_mistakes_between_stray_braces() -> None:
    begin = time.process_time()
    assert said("param = 1\n" + "param x = 1 }\n" * 10_000) == ("x.ficco:1:7: expected a name after 'param', found '='")
    assert time.process_time() - begin < 5

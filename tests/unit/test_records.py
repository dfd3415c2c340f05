"""The one reader of stored files, the one encoder, and the schemas of both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator

from ficco_rt.errors import UsageError
from ficco_rt.files.records import (
    HIDDEN,
    INLINE,
    LEFT_OUT,
    PAIRS,
    Count,
    Micros,
    Named,
    Params,
    Reader,
    decoded,
    derived,
    filled,
    plain,
    schema_of,
)
from tests.unit.command_line import Ending


@dataclass(frozen=True, slots=True)
class Size:
    """A size."""

    m: Annotated[int, Named("M")]


@dataclass(frozen=True, slots=True)
class Example:
    """What an example prints.

    time_us: Of a run: the median,
      in microseconds.
    """

    size: Annotated[Size, INLINE]
    time: Micros | None
    params: Annotated[tuple[tuple[str, object], ...], PAIRS]
    code: Literal[1, 2]
    names: tuple[str, ...]
    from_: Count = 0
    more: Params = LEFT_OUT
    secret: Annotated[int, HIDDEN] = 7

    @derived
    def twice(self) -> int:
        return 2 * self.from_


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored value."""

    count: Count
    time: Micros
    code: Literal[1, 2]
    flag: bool = False
    pair: tuple[int, int] = (0, 0)
    params: Params = LEFT_OUT
    shares: Mapping[str, float] = LEFT_OUT


def test_names_units_and_marks_say_what_json_has() -> None:
    value = Example(Size(3), 1.5, (("chunks", (1, 2)),), 2, ("a",), 4)
    told = {"M": 3, "time_us": 1.5, "params": {"chunks": [1, 2]}, "code": 2, "names": ["a"], "from": 4, "twice": 8}
    assert plain(value) == told
    assert plain(Example(Size(3), float("inf"), (), 1, (), 0, {"x": 1}))["time_us"] is None
    schema = schema_of(Example)
    Draft202012Validator(schema).validate(told)
    assert schema["title"] == "What an example prints."
    assert schema["properties"]["time_us"]["description"] == "Of a run: the median, in microseconds."
    assert "more" not in schema["required"]
    assert "secret" not in schema["properties"]
    assert schema["properties"]["from"] == {"type": "integer", "minimum": 0}
    for wrong in ({"code": 3}, {"from": -1}, {"M": 1.5}, {"extra": 1}, {"params": {"x": None}}):
        assert list(Draft202012Validator(schema).iter_errors(told | wrong)), wrong


@dataclass(frozen=True, slots=True)
class Sized:
    """A stored value with the fields of another among its own."""

    size: Annotated[Size, INLINE]
    count: Count = 0


def test_records_are_filled_from_the_first_source_that_has_a_value() -> None:
    found = filled(Stored, Stored(1, 2.0, 1), Sized(Size(3), 4), code=2)
    assert found == Stored(1, 2.0, 2)
    assert filled(Stored, Sized(Size(3), 4), Stored(1, 2.0, 1)) == Stored(4, 2.0, 1)
    assert filled(Sized, size=Size(3)) == Sized(Size(3))


GOOD: dict[str, Any] = {"count": 1, "time_us": 2, "code": 1}


def test_what_is_right_is_read() -> None:
    more = {"pair": [1, 2], "params": {"T": "bf16", "counts": [[1], 2]}, "shares": {"a": 0.5}, "flag": True}
    found = Reader("f.json").read(Stored, GOOD | more, "value")
    assert found == Stored(1, 2, 1, True, (1, 2), {"T": "bf16", "counts": ((1,), 2)}, {"a": 0.5})
    assert Reader("f.json", others=True).read(Stored, GOOD | {"later": 1}, "value") == Stored(1, 2, 1)
    assert Reader("f.json").read(Sized, plain(Sized(Size(3), 4)), "value") == Sized(Size(3), 4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": True}, "value.count: a whole number expected, found true"),
        ({"count": 10**30}, f"value.count: a whole number expected, found {10**30}"),
        ({"count": -1}, "value.count: -1 is less than 0"),
        ({"count": 1.0}, "value.count: a whole number expected, found 1.0"),
        ({"time_us": False}, "value.time_us: a number expected, found false"),
        ({"time_us": float("nan")}, "value.time_us: a number expected, found NaN"),
        ({"time_us": float("inf")}, "value.time_us: a number expected, found Infinity"),
        ({"code": True}, "value.code: True is none of 1, 2"),
        ({"code": 1.0}, "value.code: 1.0 is none of 1, 2"),
        ({"flag": 1}, "value.flag: true or false expected, found 1"),
        ({"pair": [1]}, "value.pair: 2 members expected, found 1"),
        ({"params": {"x": True}}, "value.params.x: a param is a number, a list or a type, not true"),
        ({"params": {"x": 1.5}}, "value.params.x: a param is a number, a list or a type, not 1.5"),
        ({"params": {"x": "\x1b[31m"}}, 'value.params.x: "\\u001b[31m" is no text'),
        ({"shares": []}, "value.shares: an object expected, found []"),
        ({"extra": 1}, "value: unknown extra"),
        ({"code": None}, "value.code: None is none of 1, 2"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Reader("f.json", way_out="; write it again").read(Stored, GOOD | wrong, "value")
    assert str(caught.value) == f"f.json: {message}; write it again"


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match=r"^f\.json: value: missing code, time_us$"):
        Reader("f.json").read(Stored, {"count": 1}, "value")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": }', "f.json:1:7: this is no JSON: Expecting value"),
        ("[" * 200_000, "f.json:1:1: lists or objects are nested too deeply"),
        ("9" * 10_000, "f.json:1:1: a number has thousands of digits"),
    ],
)
def test_what_is_no_json(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        decoded(text, "f.json")
    assert str(caught.value) == message


@pytest.mark.parametrize("form", [True, 2, "1", None])
def test_a_table_of_settings_has_its_form(form: object, run: Callable[..., Ending], tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps({"ficco_shape": form, "rows": []}))
    sizes = ["--set", "M=256", "--set", "N=256", "--set", "K=256", "--set", "iters=3"]
    sweep = ["--sweep", "compute.sms=16", "--backend", "sim", "--gpus", "2"]
    ended = run("ficco", "shape", "concurrent/a2a_vendor", *sizes, *sweep, "--rows", str(rows))
    assert ended.code == 2
    assert f"{rows}: is no table of `ficco shape`, or one of another version; name another file" in ended.err

"""Holds what commands print with --json to the JSON Schemas that `ficco schema` prints."""

from __future__ import annotations

from functools import cache

from jsonschema import Draft202012Validator

from ficco_rt.cli.schema import made


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(made(name))


def hold(name: str, value: object) -> None:
    """Fail where the value is not what the schema of this name says, with the first place that is wrong."""
    errors = sorted(_validator(name).iter_errors(value), key=lambda error: (-len(error.path), str(error.path)))
    assert not errors, f"{name}: {'.'.join(map(str, errors[0].path))}: {errors[0].message}"

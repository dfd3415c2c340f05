"""Holds what commands print with --json to the JSON Schemas that come with ficco."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

FOLDER = Path(__file__).resolve().parents[1] / "ficco_rt" / "cli" / "schemas"


def schema(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@cache
def _validator(name: str) -> Draft202012Validator:
    found = [(path.name, Resource.from_contents(schema(path.stem))) for path in FOLDER.glob("*.json")]
    return Draft202012Validator({"$ref": f"{name}.json"}, registry=Registry().with_resources(found))


def hold(name: str, value: object) -> None:
    """Fail where the value is not what the schema of this name says, with the first place that is wrong."""
    errors = sorted(_validator(name).iter_errors(value), key=lambda error: (-len(error.path), str(error.path)))
    assert not errors, f"{name}.json: {'.'.join(map(str, errors[0].path))}: {errors[0].message}"

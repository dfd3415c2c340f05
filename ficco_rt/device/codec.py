"""Device plans as versioned JSON with a content hash, and back to the same value; the form is that of `plan.codec`."""

from __future__ import annotations

import hashlib
import json

from ..plan.codec import encode, layout, read_document
from .ir import VERSION, Action, DevicePlan

_UNIONS = (Action,)
_BY_LINE = ("streams", "words", "launches", "body")


def to_json(plan: DevicePlan) -> str:
    """The device plan as JSON text. `from_json` gives an equal one."""
    path = plan.tensors[0].origin.path if plan.tensors else "device plan"
    head = {"ficco_device_plan": VERSION, "hash": content_hash(plan), "path": path}
    return layout({**head, **encode(plan, spans=True, unions=_UNIONS)}, _BY_LINE) + "\n"


def content_hash(plan: DevicePlan) -> str:
    """SHA-256 of all that the device plan says; places in the text do not count."""
    text = json.dumps(encode(plan, spans=False, unions=_UNIONS), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def from_json(text: str, path: str = "device-plan.json") -> DevicePlan:
    """Read a device plan back. Raises PlanError for what is none, is of another version, or was changed by hand."""
    plan = read_document(text, path, DevicePlan, "device plan", VERSION, content_hash, _UNIONS)
    assert isinstance(plan, DevicePlan)
    return plan

"""Device plans as versioned JSON with a content hash, and back to the same value, in the form of `plan.codec`. The
document also holds the plan that the device plan was made from, so a reader can make the device plan again."""

from __future__ import annotations

import hashlib
import json

from ..plan import codec as plan_codec
from ..plan.codec import encode, layout, read_document
from ..plan.ir import Plan
from .ir import VERSION, Action, DevicePlan

_UNIONS = (Action,)
_SOURCE = "source"
_BY_LINE = ("streams", "semaphores", "launches", "body")


def to_json(plan: DevicePlan, source: Plan | None = None) -> str:
    """The device plan as JSON text, together with the plan that it was made from. `from_json` gives an equal device
    plan."""
    path = plan.tensors[0].origin.path if plan.tensors else "device plan"
    head = {"ficco_device_plan": VERSION, "hash": content_hash(plan), "path": path}
    text = layout({**head, **encode(plan, spans=True, unions=_UNIONS)}, _BY_LINE)
    if source is not None:
        text = f"{text.removesuffix('}').rstrip()},\n{json.dumps(_SOURCE)}: {plan_codec.to_json(source).rstrip()}\n}}"
    return text + "\n"


def content_hash(plan: DevicePlan) -> str:
    """SHA-256 of all that the device plan says; places in the text do not count."""
    text = json.dumps(encode(plan, spans=False, unions=_UNIONS), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def from_json(text: str, path: str = "device-plan.json") -> DevicePlan:
    """Read a device plan back. Raises PlanError for what is none, is of another version, or was changed by hand."""
    plan = read_document(text, path, DevicePlan, "device plan", VERSION, content_hash, aside=(_SOURCE,))
    assert isinstance(plan, DevicePlan)
    return plan


def source_of(text: str) -> str | None:
    """The text of the plan that a document of a device plan also holds."""
    data = json.loads(text).get(_SOURCE)
    return None if data is None else json.dumps(data)

"""How a caller names the host driver's order, and whether the plan has what it names."""

from __future__ import annotations

import re

from ..errors import UsageError
from ..plan.ir import Plan

SHOWN = 8  # streams that a message names


def order_form(text: str) -> str:
    """The driver's own form, `random(7)`, of that or of `random:7`, which a shell leaves alone."""
    match = re.fullmatch(r"(random|lazy)(?::([0-9]{1,18})|\(([0-9]{1,18})\))", text.strip()) if _is_text(text) else None
    if match:
        return f"{match[1]}({int(match[2] or match[3])})"
    if _is_text(text) and text.strip() in ("fifo", "adversarial"):
        return text.strip()
    raise UsageError(f"order {text}: there are fifo, random:SEED, adversarial and lazy:STREAM, such as random:7")


def host_order(text: str, plan: Plan) -> str:
    """`order_form`, where the plan has the stream that it names."""
    form = order_form(text)
    if form.startswith("lazy(") and int(form[5:-1]) not in (stream.id for stream in plan.streams):
        known = [f"{s.id} ({s.name} of rank {s.rank})" for s in plan.streams]
        if len(known) > SHOWN:
            known[SHOWN - 1 : -1] = ["…"]
        raise UsageError(f"order {text}: the plan has no stream {form[5:-1]}; it has {', '.join(known) or 'none'}")
    return form


def _is_text(value: object) -> bool:
    return isinstance(value, str)

"""`ficco init`: write a first schedule, or a copy of a shipped one."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from ficco_dsl.diagnostics import ScheduleError
from ficco_dsl.parser import parse_syntax

from ..errors import UsageError
from ..files import shipped
from ..files.atomic import SCHEDULE, check_outputs, read_text, write_atomic
from ..report.wording import show_params

GPUS = 4  # of the commands that are named
FIRST = Path(__file__).with_name("first.ficco")


def init(file: str, like: str | None) -> int:
    """Write a first schedule, or a copy of a shipped one, and say what to do next. Nothing is overwritten."""
    check_outputs([(SCHEDULE, file)])
    path = Path(file)
    if path.exists():
        raise UsageError(f"{file}: is there already; name a new file, or remove that one")
    name = re.sub(r"\W", "_", path.stem, flags=re.ASCII)
    name = name if re.fullmatch(r"[A-Za-z_]\w*", name) and _free(name) else f"schedule_{name}"
    source = FIRST if like is None else shipped.find(like)
    kept = "" if like is None else _kept(source)
    write_atomic(path, _called(name, read_text(source)))
    typed = shlex.quote(file)
    sys.stdout.write(
        f"{file}: written\n"
        f"  ficco check {typed} --gpus {GPUS}      proves it\n"
        f"  ficco-run {typed} --gpus {GPUS}        runs it, on virtual GPUs if there are none\n"
        f"  ficco explain {typed} --gpus {GPUS}    says in words what it does\n"
        f"{kept}"
    )
    return 0


def _kept(source: Path) -> str:
    """A line on the parameters that the copy of a shipped schedule has from its text, and the schedule itself by rules;
    empty if no rule speaks of it."""
    from ..compiler import sizes
    from ..machine.profiles import DEFAULT, chosen
    from ..select.candidates import text_of
    from ..select.defaults import open_values

    name = shipped.shipped_name(source)
    given = open_values(source, GPUS, {}, chosen(DEFAULT, GPUS))
    if name is None or not given:
        return ""
    own = sizes(text_of(name), GPUS, {})
    keeps = show_params((value.param, own[value.param]) for value in given)
    gets = show_params((value.param, value.value) for value in given)
    return (
        f"On {GPUS} GPUs the copy has {keeps}, as its text says; {name} itself gets {gets} by rules, which "
        f"`ficco explain {name} --gpus {GPUS}` prints\n"
    )


def _free(name: str) -> bool:
    """Whether a schedule can be called so: words of the language cannot be names."""
    try:
        parse_syntax(_called(name, read_text(FIRST)), "")
    except ScheduleError:
        return False
    return True


def _called(name: str, text: str) -> str:
    """The schedule under another name."""
    return re.sub(r"^schedule \w+", f"schedule {name}", text, count=1, flags=re.MULTILINE)

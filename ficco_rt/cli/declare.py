"""How options and arguments of commands are declared, and what shells complete in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

Decorator = Callable[[Any], Any]
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
EXITS = (
    "Exit codes: 0 ok, 1 the schedule is wrong, 2 usage, 3 device or driver, 4 the numbers are wrong, 5 a bug of ours, "
    "130 interrupted."
)
MANY = 1_000_000


def whole_number(least: int, most: int) -> Callable[[object], int]:
    """An option's type: a whole number in a range, without click's own words for it in every help line."""

    def convert(text: object) -> int:
        written = str(text).strip()
        digits = re.fullmatch(r"[+-]?[0-9]+(_[0-9]+)*", written) and len(written) < 30
        number = int(written) if digits else least - 1
        if not least <= number <= most:
            raise click.BadParameter(f"'{text}' is not a whole number from {least} to {most}")
        return number

    return convert


def option(
    form: str, help: str, default: str | int | None = None, *, or_else: str = "", complete: str = "", **more: Any
) -> Decorator:
    """An option. `form`: its names with blanks between, then what it takes, as in `--gpus -n N`. The help ends with the
    default, or with what happens without the option: `or_else`. Shells complete words that are listed, `auto|cuda`, or
    those of `complete`."""
    *names, takes = form.split()
    if (takes.islower() and takes.isidentifier()) or takes.startswith("-"):
        names, takes = form.split(), ""
    words = or_else or default
    text = help if words is None else f"{help}  [default: {words}]"
    if complete or re.fullmatch(r"[a-z]+(\|[a-z]+)+", takes):
        more["shell_complete"] = complete_from(complete or takes.split("|"))
    if default is not None:  # NOTE Click 8.5 takes None, said, for what a user has said
        more["default"] = default
    return click.option(*names, metavar=takes or None, help=text, **more)


def number(form: str, limits: tuple[int, int], help: str, default: int | None = None, **more: Any) -> Decorator:
    """An option that takes a whole number."""
    return option(form, help, default, type=whole_number(*limits), **more)


def target(metavar: str, complete: str = "", name: str = "target", **more: Any) -> Decorator:
    """What a command works on; shells complete the words of `complete`."""
    return click.argument(name, metavar=metavar, shell_complete=complete_from(complete) if complete else None, **more)


def flag(names: str, help: str, default: bool | None = False, *, or_else: str = "") -> Decorator:
    """An option that is on or off."""
    text = f"{help}  [default: {or_else}]" if or_else else help
    return click.option(*names.split(), help=text, default=default, is_flag="/" not in names or None)


def all_of(*decorators: Decorator) -> Decorator:
    def add(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


# ---------------------------------------------------------------- what shells complete


def complete_from(lists: str | list[str]) -> Complete:
    """The words of a list; or of the lists that are called so, with blanks between, which are made when a shell asks.
    `files` is any file."""

    def complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        words = lists if isinstance(lists, list) else [word for name in lists.split() for word in _known(name)]
        found = [CompletionItem(word) for word in words if word.startswith(begun)]
        return [*found, CompletionItem(begun, type="file")] if "files" in lists else found

    return complete


def _known(what: str) -> Iterable[str]:
    from ..files import shipped
    from ..machine.profiles import NAMES

    return {"machines": NAMES, "schedules": shipped.shipped(), "operations": shipped.operations(), "files": ()}[what]

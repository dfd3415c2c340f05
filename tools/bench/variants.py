"""What of ours is measured: every shipped schedule of an operation, each with a few values of what it leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from ficco_rt import compiler
from ficco_rt.files import shipped
from ficco_rt.select.operations import OPERATIONS
from ficco_rt.select.params import SHARES

from .scenarios import Scenario

MODES = ("graph", "streams")
CHOSEN = 0  # in place of a number of values: `selected.picked`
_LISTS = {name: tuple(map(list, shares)) for name, shares in SHARES.items()}
CHOICES: dict[str, tuple[object, ...]] = {  # parameters beside sizes and type, and the values tried; None: the text's
    "chunks": (2, 1, 4, 8),
    "deep": (None, *_LISTS["deep"][1:]),
    "taper": _LISTS["taper"],
}
SENT: dict[str, tuple[object, ...]] = {  # where products are sent: copies begin behind the first piece
    "first": _LISTS["first"][:1],
    "last": _LISTS["last"],
}
OWN: dict[str, dict[str, tuple[object, ...]]] = {  # of single schedules
    "gemm_rs/direct": {"chunks": (16, 8, 4)},  # stored at peers: a piece has no fixed cost
    "gemm_rs/stationary_c": {"chunks": (2,)},  # copies are few whatever it is
    "ag_gemm/stationary_a": {"chunks": (2, 4), "deep": (None, [1, 1])},
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A schedule of the library with its parameters: `streamed chunks=4`."""

    schedule: str
    parameters: tuple[tuple[str, object], ...]

    @property
    def label(self) -> str:
        short = self.schedule.split("/", 1)[1]
        return " ".join([short, *(f"{name}={_shown(value)}" for name, value in self.parameters)])

    @classmethod
    def of_label(cls, operation: str, label: str) -> Variant:
        """What has this label."""
        short, *given = label.split()
        pairs = (parameter.partition("=") for parameter in given)
        return cls(f"{operation}/{short}", tuple((name, _value(text)) for name, _, text in pairs))

    @property
    def pieces(self) -> int:
        """How many sums at most an element passes through one after another."""
        return max([1, *(v if isinstance(v, int) else len(v) for _, v in self.parameters if isinstance(v, int | list))])

    def arguments(self, scenario: Scenario) -> dict[str, object]:
        """What `compile_schedule` takes beside the schedule and the ranks."""
        return scenario.sizes | dict(self.parameters)


def variants(operation: str, values: int | None = None) -> tuple[Variant, ...]:
    """All of an operation's shipped schedules, with the first `values` of every choice (None: all of them)."""
    found = []
    for entry in shipped.entries():
        if entry.name.split("/", 1)[0] != operation:
            continue
        choices = CHOICES | ({} if OPERATIONS[operation].collective == "all_gather" else SENT) | OWN.get(entry.name, {})
        declared = [p.name for p in compiler.load(entry.name).params if p.name in choices]
        for combination in product(*(choices[name][:values] for name in declared)):
            given = tuple((n, v) for n, v in zip(declared, combination, strict=True) if v is not None)
            found.append(Variant(entry.name, given))
    return tuple(found)


def _value(text: str) -> object:
    """Shares, a number, or a name: of whose kernels make the products."""
    if ":" in text:
        return [int(share) for share in text.split(":") if share]
    return int(text) if text.isascii() and text.isdigit() else text


def _shown(value: object) -> str:
    """A list of one has a colon, too: `1:`."""
    return ":".join(map(str, value)) + ":" * (len(value) == 1) if isinstance(value, list) else str(value)

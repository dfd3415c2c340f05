"""The units of a machine's numbers, with the range of valid values. The data model names a unit for each number; files
are read and written by these units, and `machine_rules` checks every machine by them."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from string import Formatter
from typing import Annotated, Any, TypeAlias

MOST = 1e18  # of anything


def figure(number: float, digits: int = 3) -> str:
    """The number with this many significant digits, without an exponent: `0.00123`, `2,320`."""
    text = f"{number:.{digits}g}"
    return f"{Decimal(text):,f}" if "e" in text else text


class _Told(Formatter):
    """A template's `{x:.3g}` as `figure` writes it."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec[:1] == "." and format_spec.endswith("g"):
            return figure(value, int(format_spec[1:-1]))
        return str(super().format_field(value, format_spec))


TOLD = _Told()


@dataclass(frozen=True, slots=True)
class Unit:
    """`least` is the smallest number that is allowed; where the unit is `positive`, anything above 0 is. What has a
    `unit` of time or of rate can be measured; other numbers are facts of the hardware."""

    words: str
    least: float = 0.0
    positive: bool = False
    most: float = MOST
    measurable: bool = False

    def holds(self, number: float) -> bool:
        """Whether the number is in the valid range; NaN is never valid."""
        return self.least <= number <= self.most and (number > 0 or not self.positive)

    @property
    def range(self) -> str:
        """`above 0`, `0 or more`, `1 or more`, for messages."""
        most = "" if self.most == MOST else f", {self.most:g} at most"
        return ("above 0" if self.positive else f"{self.least:g} or more") + most


Count: TypeAlias = Annotated[int, Unit("", least=1)]
CountOrNone: TypeAlias = Annotated[int, Unit("")]  # 0: all, or none
Bytes: TypeAlias = Annotated[int, Unit("bytes")]
SomeBytes: TypeAlias = Annotated[int, Unit("bytes", least=1)]
Time: TypeAlias = Annotated[float, Unit("microseconds", measurable=True)]
ByteRate: TypeAlias = Annotated[float, Unit("bytes a microsecond", least=1, measurable=True)]
OperationRate: TypeAlias = Annotated[float, Unit("operations a microsecond", least=1, measurable=True)]
TimeOrShare: TypeAlias = Annotated[float, Unit("microseconds or a share", measurable=True)]
Seconds: TypeAlias = Annotated[float, Unit("seconds", positive=True)]
Factor: TypeAlias = Annotated[float, Unit("times", positive=True, most=1000, measurable=True)]

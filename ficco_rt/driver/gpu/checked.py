"""Checks driver calls where they are made: a refused call raises an error with the call, its code and a way to fix
it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from .refused import Refused

Handle: TypeAlias = Any  # whatever the vendor's bindings have for a context, a stream, an event, …
DriverFunction: TypeAlias = Callable[..., tuple[Any, ...]]
DriverCall: TypeAlias = tuple[DriverFunction, tuple[Any, ...]]  # a driver call with its arguments, ready to be made


class Api:
    """The functions of a vendor's bindings, by CUDA's names without their prefix: `api.EventRecord` is `cuEventRecord`
    or `hipEventRecord`. `others`: what is called otherwise there."""

    def __init__(self, bindings: Any, prefix: str, others: Mapping[str, str] | None = None) -> None:
        self._bindings, self._prefix, self._others = bindings, prefix, others or {}

    def __getattr__(self, name: str) -> DriverFunction:
        function: DriverFunction = getattr(self._bindings, self._prefix + self._others.get(name, name))
        setattr(self, name, function)  # found without this call from now on: runs come here
        return function


class Checked:
    """Makes a vendor's calls, whose results begin with a code that is false if all is well. `advice` by its name."""

    def __init__(self, advice: Mapping[str, str]) -> None:
        self._advice = advice

    def __call__(self, function: DriverFunction, *arguments: Any, what: str = "") -> Any:
        """Make a call; its value, or a tuple of several. `what` it is for goes into the error."""
        result = function(*arguments)
        if result[0]:
            raise self.failure(function, result[0], what)
        return result[1] if len(result) == 2 else result[1:]

    def succeeds(self, function: DriverFunction, *arguments: Any, unless: str, what: str = "") -> bool:
        """Make a call that may also answer `unless`: True if it succeeded, False if it gave that."""
        code = function(*arguments)[0]
        if code and code.name != unless:
            raise self.failure(function, code, what)
        return not code

    def failure(self, function: DriverFunction, code: Any, what: str = "") -> Refused:
        """The error of a call that returned `code`; `what` is the purpose of the call."""
        name = getattr(function, "__name__", str(function))
        return Refused(name, code.name, what, self._advice.get(code.name, ""))

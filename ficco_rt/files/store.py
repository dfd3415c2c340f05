"""Keeps what was proven or checked between runs: plans, and checked device plans.

An entry's name is a hash of all that decides on the value: what the caller says, and the content of every file of the
package, so that another version, or a changed file, finds nothing. The entry begins with a keyed hash (HMAC) of its
name and content, by a secret that lies in the folder and that the user alone can read. An entry is trusted if the
keyed hash fits: this user's ficco has written it, for this name. That protects from torn, damaged, exchanged and
foreign files, not from programs that run as the user. The value of any other entry is made again.

Values are trees of the package's dataclasses, pickled, which reads fastest; nothing else is read from a pickle.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import io
import os
import pickle
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import ficco_dsl

from .. import env
from . import private, shipped

T = TypeVar("T")
MOST = 256 << 20  # bytes of all entries: the oldest go first
EVERY = 64  # one put of so many, by its name, looks at all entries: there may be thousands
_MAGIC = b"ficco-store-1\n"
_DIGEST = 32
_SUFFIX = ".entry"
_PACKAGES = ("ficco_rt", "ficco_dsl")


@dataclass(frozen=True, slots=True)
class Store:
    """Values in a folder. Processes share it: an entry appears whole."""

    folder: Path

    def get(self, key: object, kind: type[T]) -> T | None:
        """The value that is kept for what `repr` of the key says; None: there is none that can be trusted."""
        name = _name(key)
        data, secret = private.read(self.folder / f"{name}{_SUFFIX}") or b"", self._secret()
        head = len(_MAGIC) + _DIGEST
        if not secret or not hmac.compare_digest(data[:head], _head(secret, name, data[head:])):
            return None
        value = _loads(data[head:])
        return value if isinstance(value, kind) else None

    def put(self, key: object, value: object) -> None:
        """Keeps a value, if it reads back equal and the folder can be written."""
        name, data = _name(key), _dumps(value)
        if data is None or _loads(data) != value:
            return
        if not self._secret():
            private.publish(self._secret_file, secrets.token_bytes(_DIGEST))
        secret = self._secret()  # of processes that make one at the same time, the last one's
        if secret:
            private.publish(self.folder / f"{name}{_SUFFIX}", _head(secret, name, data) + data)
            if int(name[:8], 16) % EVERY == 0:
                self._trim()

    @property
    def _secret_file(self) -> Path:
        return self.folder / "secret"

    def _secret(self) -> bytes:
        found = private.read(self._secret_file) or b""
        return found if len(found) == _DIGEST else b""

    def _trim(self) -> None:
        entries = []
        with suppress(OSError), os.scandir(self.folder) as found:
            for entry in found:
                with suppress(OSError):  # another process has just removed it
                    if entry.name.endswith(_SUFFIX):
                        state = entry.stat()
                        entries.append((state.st_mtime_ns, state.st_size, self.folder / entry.name))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= MOST:
                return
            with suppress(OSError):  # as above, or the folder is no longer to be written
                path.unlink()
            total -= size


def user_store() -> Store:
    """The user's."""
    return Store(env.cache_folder() / "plans")


def _name(key: object) -> str:
    return hashlib.sha256(f"{sources()} {key!r}".encode()).hexdigest()


def _head(secret: bytes, name: str, data: bytes) -> bytes:
    return _MAGIC + hmac.digest(secret, name.encode() + data, "sha256")


@cache
def sources() -> str:
    """A hash of the content of the package's files and of the shipped schedules, as they are when it is first asked
    for."""
    found = hashlib.sha256()
    for path in _files():
        data = path.read_bytes()
        found.update(f"{path.name} {len(data)} ".encode() + data)
    return found.hexdigest()


def _files() -> Iterator[Path]:
    for folder in (Path(__file__).resolve().parents[1], Path(ficco_dsl.__file__).resolve().parent, shipped.root()):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


# ---------------------------------------------------------------- pickles


class _Pickler(pickle.Pickler):
    """Writes a dataclass as a call with its fields, which reads twice as fast as pickle's own way."""

    def reducer_override(self, value: Any) -> Any:
        cls = type(value)
        if not dataclasses.is_dataclass(cls):
            return NotImplemented
        names, derives = _fields(cls)
        values = [getattr(value, name) for name in names]
        return (_restored, (cls, *values)) if derives else (cls, tuple(values))


@cache
def _fields(cls: Any) -> tuple[tuple[str, ...], bool]:
    """Their names, and whether the class derives some of them, or takes some as keywords alone."""
    fields = dataclasses.fields(cls)
    return tuple(f.name for f in fields), not all(f.init and not f.kw_only for f in fields)


def _restored(cls: type, *values: object) -> object:
    """A value with the fields that its class would derive again."""
    made: object = object.__new__(cls)
    for name, value in zip(_fields(cls)[0], values, strict=True):
        object.__setattr__(made, name, value)
    return made


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., object]:
        """The package's dataclasses, named tuples and words alone, and ranges."""
        if (module, name) == ("builtins", "range"):
            return range
        if (module, name) == (__name__, _restored.__name__):
            return _restored
        found = super().find_class(module, name) if module.partition(".")[0] in _PACKAGES else None
        if isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, tuple | str)):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is no value of the package")


def _dumps(value: object) -> bytes | None:
    """None: the value is none of these."""
    file = io.BytesIO()
    with suppress(pickle.PicklingError, AttributeError, TypeError):
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
        return file.getvalue()
    return None


def _loads(data: bytes) -> object | None:
    with suppress(pickle.UnpicklingError):
        value: object = _Unpickler(io.BytesIO(data)).load()
        return value
    return None

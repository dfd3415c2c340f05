"""The files that the kernels of a schedule name: source or machine code, and Python twins. They run with the rights of
whoever runs the plan. So a plan keeps the hash of each file, and a stored plan may only name files below its own
folder. This module runs no file; docs/trust.md says which commands do.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from ..errors import Diagnostic, PlanError, ScheduleError, UsageError
from ..files.atomic import read_bytes
from ..files.shipped import located
from ..graph.ir import Kernel
from .ir import Plan

Role: TypeAlias = Literal["file", "host"]

WRITTEN = {
    "file": "a kernel's file is named relative to the schedule's folder",
    "host": 'host is written "file.py:function", the file relative to the schedule\'s folder',
}


def read(kernel: Kernel, role: Role) -> tuple[Path, bytes]:
    """Path and content of the file, for a caller that runs it. UsageError: the file is missing, or is not the one that
    the plan was compiled with."""
    wrong = _missing(kernel, role)
    if wrong is None:
        data = read_bytes(_path(kernel, role))
        wrong = _changed(kernel, role, data)
    if wrong is not None:
        raise UsageError(f"{kernel.origin.place}: kernel '{kernel.name}': {wrong}")
    return _path(kernel, role).resolve(), data


def sealed(plan: Plan) -> Plan:
    """The plan with the hashes of its kernels' files, and the folder that their names are relative to. ScheduleError: a
    file is missing."""
    mistakes = [_diagnostic(k, wrong) for k, role in _roles(plan) if (wrong := _missing(k, role)) is not None]
    if mistakes:
        raise ScheduleError(tuple(mistakes))
    kernels = []
    for kernel in plan.kernels:
        code = _hash(read_bytes(_path(kernel, "file")))
        twin = _hash(read_bytes(_path(kernel, "host"))) if kernel.host is not None else ""
        kernels.append(replace(kernel, folder=str(_folder(kernel).absolute()), file_hash=code, host_hash=twin))
    return replace(plan, kernels=tuple(kernels)) if kernels else plan


def held(plan: Plan, folder: Path, trust: bool) -> None:
    """Checks the kernel files of a stored plan in `folder` against their hashes in the plan. PlanError: a file is
    missing, has changed, or, without `trust`, is outside of the folder."""
    mistakes = []
    for kernel, role in _roles(plan):
        path = _path(kernel, role)
        if not trust and not path.resolve().is_relative_to(folder.resolve()):
            mistakes.append(
                _diagnostic(
                    kernel,
                    f"a stored plan names files of its own folder, and '{_name(kernel, role)}' is '{path.resolve()}'",
                    "store the plan beside its schedule; or say --trust (Python: trust=True) if you trust its maker",
                )
            )
            continue
        wrong = _missing(kernel, role)
        if wrong is None and not _kept(kernel, role):
            wrong = f"the plan keeps no hash of '{_name(kernel, role)}': compile it again"
        if wrong is None:
            wrong = _changed(kernel, role, read_bytes(path))
        if wrong is not None:
            mistakes.append(_diagnostic(kernel, wrong))
    if mistakes:
        raise PlanError(tuple(mistakes))


def relative(plan: Plan, folder: Path) -> Plan:
    """The plan with file names relative to `folder`, in which it is stored."""
    kernels = (replace(k, folder=os.path.relpath(_folder(k), folder)) for k in plan.kernels)
    return replace(plan, kernels=tuple(kernels))


def stored_in(plan: Plan, folder: Path) -> Plan:
    """The plan as it was read from `folder`."""
    kernels = (replace(k, folder=str(folder.absolute() / k.folder)) for k in plan.kernels)
    return replace(plan, kernels=tuple(kernels))


def _roles(plan: Plan) -> Iterator[tuple[Kernel, Role]]:
    for kernel in plan.kernels:
        yield kernel, "file"
        if kernel.host is not None:
            yield kernel, "host"


def _folder(kernel: Kernel) -> Path:
    return Path(kernel.folder) if kernel.folder else located(kernel.origin.path).parent


def _name(kernel: Kernel, role: Role) -> str:
    """The file as the schedule names it."""
    return kernel.file if role == "file" else (kernel.host or "").rpartition(":")[0]


def _path(kernel: Kernel, role: Role) -> Path:
    return _folder(kernel) / _name(kernel, role)


def _kept(kernel: Kernel, role: Role) -> str:
    return kernel.file_hash if role == "file" else kernel.host_hash


def _missing(kernel: Kernel, role: Role) -> str | None:
    path = _path(kernel, role)
    return None if _name(kernel, role) and path.is_file() else f"there is no file '{path.resolve()}'; {WRITTEN[role]}"


def _changed(kernel: Kernel, role: Role, data: bytes) -> str | None:
    """A plan that was never sealed keeps no hash, and so takes any file."""
    kept, found = _kept(kernel, role), _hash(data)
    if kept in ("", found):
        return None
    return (
        f"'{_name(kernel, role)}' is not the file that the plan was compiled with: its hash was {kept[:16]}… and is "
        f"{found[:16]}…; compile the schedule again, or bring the file back"
    )


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _diagnostic(kernel: Kernel, message: str, help: str | None = None) -> Diagnostic:
    return Diagnostic(kernel.origin, f"kernel '{kernel.name}': {message}", help=help)

"""ficco_rt: GPU schedules as text: proven, compiled to a plan, run.

import ficco_rt as ficco

plan = ficco.compile("ag_gemm/hetero_fused_1d", ranks=8, M=4096)
with ficco.Executor(plan) as ex:
    ex.run(A=[...], B=[...], C=[...])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Executor", "compile"]

if TYPE_CHECKING:
    from .exec.executor import Executor
    from .machine.model import Machine
    from .plan.ir import Plan


def compile(schedule: str, ranks: int, machine: str | Machine | None = None, **params: object) -> Plan:
    """The proven, checked plan of a schedule (a path, or a library name) for `ranks` GPUs.

    `params` replace the schedule's own, e.g. M=16384 or T="fp32". `machine` is a stored profile's name or a
    Machine; the default is an 8-GPU switch. Raises the errors of `ficco_rt.errors`.
    """
    from .compiler import compile_schedule
    from .machine.profiles import DEFAULT

    return compile_schedule(schedule, ranks, params, DEFAULT if machine is None else machine)


def __getattr__(name: str) -> Any:
    if name == "Executor":  # imported late: it brings numpy
        from .exec.executor import Executor

        return Executor
    raise AttributeError(f"module 'ficco_rt' has no attribute '{name}'")

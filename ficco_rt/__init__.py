"""ficco_rt: schedules of communication and matrix products, written as text, proven, compiled to a plan, and run.

This is a tour. Its code runs as printed here, without a GPU.

    import numpy as np
    import ficco_rt as ficco

A schedule says which rank copies and multiplies what, and in which order. `compile` proves that its outputs hold what
it claims, and makes a plan: streams of commands for each rank. `ficco list` names the schedules that come with the
package; the path of your own file works as well.

    plan = ficco.compile("ag_gemm/streamed", ranks=4, M=256, N=128, K=64, T="fp32")

`choose` finds the schedule and its pieces for an operation of given sizes on a machine, and says why.

    choice = ficco.choose("ag_gemm", ranks=4, M=8192, N=8192, K=8192)
    choice.schedule, choice.why

`simulate` models the times of a run on a machine, in microseconds. No data is moved.

    trace = ficco.simulate(plan, "h200-switch")
    trace.duration

`Executor` runs a plan: on virtual GPUs in this process, or with `driver="cuda"` or `driver="hip"` on GPUs. It takes a
list of arrays for each input and output, one a rank, and writes outputs in place.

    A = [np.ones((64, 64), np.float32) for rank in range(4)]
    B = [np.ones((64, 32), np.float32) for rank in range(4)]
    C = [np.empty((256, 32), np.float32) for rank in range(4)]
    with ficco.Executor(plan) as executor:
        executor.run(A=A, B=B, C=C)
        executor.duration

A `Workspace` has the GPUs, streams and memory that many executors share: `Executor(plan, workspace=…)`. An `Operation`
in it runs with any number of rows: it has plans for some, and takes the next larger one.

    with ficco.Workspace(ranks=4, driver="host") as workspace:
        operation = ficco.Operation(workspace, "ag_gemm", max_m=64, buckets=[64], N=128, K=64, T="fp32")
        operation.run(A=[a[:5] for a in A], B=B, C=[np.empty((20, 32), np.float32) for rank in range(4)])

A `Group` is the set of processes that run one plan together, as started by torchrun or mpirun: `Executor(plan,
group=…)` runs this process's ranks. `empty` makes a tensor on a GPU that other processes of a group may read and write.
A process that was started alone is a group of one.

    group = ficco.Group.from_env()
    group.rank, group.size

A `Machine` is plain data: a `Device`, `Links` between ranks, and where each number comes from. `load_machine` reads a
stored one or a file, `discover` reads the GPUs of this computer, `save_machine` writes a file.

    machine = ficco.load_machine("h200-switch")
    machine.device.sms, machine.links.rate

`save_plan` and `load_plan` keep a plan as JSON. A plan that is read is checked and proven again. Plans with the same
`plan_hash` do the same.

    ficco.save_plan(plan, "plan.json")
    same = ficco.plan_hash(ficco.load_plan("plan.json")) == ficco.plan_hash(plan)

Every error of this package is one of `ficco_rt.errors`: ScheduleError (the text is wrong), PlanError (a plan is wrong),
UsageError (the call is wrong), DeviceError (a device or its driver failed), NumbersError (a verified run gave wrong
numbers), InternalError (a bug in this package). The message of an error gives the place, the mistake and a way to fix
it.

Next, read the pages of docs/: start, language, choose, embed (PyTorch, streams, graphs), machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__

__all__ = [
    "Device",
    "Executor",
    "Group",
    "Links",
    "Machine",
    "Operation",
    "Workspace",
    "choose",
    "compile",
    "discover",
    "empty",
    "errors",
    "load_machine",
    "load_plan",
    "plan_hash",
    "save_machine",
    "save_plan",
    "simulate",
]

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from . import errors
    from .driver.api import DriverName
    from .driver.gpu.symmetric import SymmetricTensor
    from .exec.executor import Executor
    from .exec.workspace import Workspace
    from .machine.model import Device, Links, Machine
    from .machine.profiles import AnyMachine
    from .plan.ir import Plan
    from .process.group import Group
    from .select.choose import By, Choice
    from .select.sized import Operation
    from .trace.model import Trace


def compile(schedule: str | Path, ranks: int, machine: AnyMachine | None = None, **params: object) -> Plan:
    """The proven, checked plan of a schedule (a path, or a library name) for `ranks` GPUs.

    `params` replace the schedule's own, e.g. M=16384 or T="fp32"; numbers may be numpy's. What they leave open of a
    shipped schedule's pieces (`chunks`, …) rules give, for these sizes on this machine (docs/choose.md); a file of
    your own keeps its own defaults. `machine` is a Machine, the path of a machine's file, or a stored one's name; the
    default is h200-switch. The plan holds it whole.

    Raises ScheduleError (the text, with its lines), UsageError (unknown names, values that do not fit).

    Example: `compile("ag_gemm/hetero_fused_1d", ranks=4, M=256, N=128, K=64)`.
    """
    from .machine.profiles import DEFAULT
    from .select.defaults import compile_named

    return compile_named(schedule, ranks, params, DEFAULT if machine is None else machine)


def empty(
    shape: int | Iterable[int],
    dtype: str = "bf16",
    *,
    group: object = None,
    device: int | None = None,
    driver: DriverName = "cuda",
) -> SymmetricTensor:
    """A dense row-major tensor on a GPU of this process that other processes of `group` can map, for an
    `Executor(group=…)`: `torch.from_dlpack(ficco.empty((4096, 8192), "bf16", group=group))`. Its content is undefined.

    `device`: as this process numbers its GPUs; by default the current one, or the one that an executor of the group
    takes, which all processes ask for together. Raises UsageError (no such type), DeviceError (memory).

    Example: `empty((4096, 8192), "bf16", group=Group.from_env())`.
    """
    from .driver.registry import symmetric
    from .process.group import as_group

    return symmetric(driver, shape, dtype, device, None if group is None else as_group(group))


def choose(
    operation: str,
    ranks: int,
    machine: AnyMachine | None = None,
    by: By | None = None,
    candidates: Iterable[object] | None = None,
    vendor: bool = True,
    leave: int = 0,
    **sizes: object,
) -> Choice:
    """Which schedule, with which pieces, for an operation of these sizes on a machine: a `Choice` with the schedule,
    its params, the mode (graph or streams), the predicted microseconds, the reasons in words, the runners-up, and the
    plan, which is compiled and proven when it is first asked for.

    `by`: "rules", within a millisecond, and what it predicts on the virtual clock when asked for; "model", candidates
    simulated on the virtual clock, and kept; "measured", the fastest of what `ficco tune` measured for these sizes on
    such a machine. By default the rules choose on H200 behind a switch, on which they were fitted; elsewhere the
    model. `candidates` are your own in place of the shipped ones: names or paths of schedules, or pairs of one and its
    params. `vendor=False`: the model and measured times offer no schedule whose products the vendor's library makes, as
    where it is not installed. `leave`: multiprocessors that launches which wait leave to other libraries.
    `sizes` are all sizes of the operation, its types where they are not to be bf16, and transb=1 where the weight is
    stored as `nn.Linear` stores it, and bias=1 where a row b is added to the product.

    Raises UsageError (no such operation, sizes missing, nothing measured), ScheduleError (sizes that do not fit).

    Example: `choose("ag_gemm", ranks=8, M=8192, N=10240, K=8192).plan`.
    """
    from .select.choose import choose

    return choose(operation, ranks, machine, by, candidates, sizes=sizes, vendor=vendor, leave=leave)


def discover(
    ranks: int, driver: DriverName = "cuda", ranks_per_gpu: int = 1, processes: int = 1, node: int | None = None
) -> Machine:
    """The GPUs of this machine as `ranks` ranks, to compile for: its kernels, limits and links. `processes`: how many
    processes share the ranks; each of them may see only its own GPUs. `node`: GPUs of a node, if there are several
    nodes; by default the launcher (torchrun, mpirun, Slurm) tells.

    Raises DeviceError (no bindings, no driver, too few GPUs), UsageError (no such driver, numbers below 1, GPUs
    of several kinds).

    Example: `compile("ag_gemm/streamed", ranks=4, machine=discover(4))`.
    """
    from .driver.registry import discover

    return discover(driver, ranks, ranks_per_gpu, processes, node)


def load_machine(machine: str | Path) -> Machine:
    """A stored machine by its name (`ficco machine` lists them), or the machine of a TOML file by its path.

    Another one is made of it with `dataclasses.replace`, or of nothing: `Machine(name, Device(…), Links(…), ranks,
    source)`. docs/machines.md says what each number means.

    Raises UsageError (no such machine or file; all mistakes of a file with their lines).

    Example: `replace(load_machine("h200-switch"), ranks=4)`.
    """
    from .machine.profiles import read

    return read(machine)


def save_machine(machine: Machine, path: str | Path) -> None:
    """Write a machine to a TOML file, which `load_machine` and `--machine` read: the whole file or nothing.

    Raises UsageError (the file cannot be written or is no .toml; numbers that no machine has).

    Example: `save_machine(discover(2), "mine.toml")`.
    """
    from .files.arguments import of_kind
    from .machine.file import save
    from .machine.model import Machine

    save(of_kind(machine, Machine, "a Machine is needed, as load_machine() gives it"), path)


def load_plan(path: str | Path, trust: bool = False) -> Plan:
    """The plan of a file that `save_plan` or `ficco compile` wrote, checked again for races and deadlocks,
    and proven again, from what it does: every output that it claims holds what is claimed.

    It equals the plan that was stored: ranks, params and all shapes are bound in it. If it names files of kernels, a
    run runs them. They must be the files that it was compiled with, and lie below its own folder, or anywhere with
    `trust`.

    Raises UsageError (no such file, not text), PlanError (no plan, of another version, changed by hand, or wrong).

    Example: `Executor(load_plan("plan.json"))`.
    """
    from .compiler import load_plan

    return load_plan(path, trust)


def save_plan(plan: Plan, path: str | Path) -> None:
    """Store a plan as JSON with its content hash: the whole file or nothing, whatever interrupts.

    Raises UsageError (the file cannot be written or is no .json, no plan is given), ScheduleError (a kernel's file is
    missing).

    Example: `save_plan(compile("ag_gemm/serial", ranks=8), "plan.json")`.
    """
    from .compiler import save_plan

    save_plan(plan, path)


def plan_hash(plan: Plan) -> str:
    """The SHA-256, 64 hexadecimal digits, of all that a plan does: plans with the same hash do the same.

    Names of schedules, stages and params count; names of files and places in them do not. Raises UsageError (no
    plan is given).

    Example: `plan_hash(load_plan("plan.json")) == plan_hash(plan)`.
    """
    from .compiler import a_plan
    from .plan.codec import content_hash

    return content_hash(a_plan(plan))


def simulate(plan: Plan, machine: AnyMachine | None = None, mode: str = "streams") -> Trace:
    """When everything of a run would happen on a machine: times modelled in microseconds, no data moved.

    `machine` is a Machine, a file or a stored one's name; the default is the one that the plan was made for. `mode` is
    "streams" or "graph", a graph for each device. The trace has a span (rank, stream, start, stop, bytes, operations)
    for each thing that a stream does, and `duration`.

    Raises UsageError (no such machine or mode, no plan is given, a plan for GPUs of another architecture).

    Example: `simulate(plan).duration`.
    """
    from .compiler import a_plan
    from .errors import UsageError
    from .machine.profiles import chosen
    from .sim.simulate import mode_of, simulate

    on = chosen(a_plan(plan).target if machine is None else machine, plan.ranks)
    if on.device.arch != plan.target.device.arch:
        raise UsageError(
            f"the plan has kernels for {plan.target.device.arch}, and {on.name} has GPUs of {on.device.arch}; compile "
            "the schedule for the machine that it runs on"
        )
    return simulate(plan, on, mode_of(mode))


def __getattr__(name: str) -> Any:
    if name == "Executor":  # imported late: it brings numpy
        from .exec.executor import Executor

        return Executor
    if name == "Operation":
        from .select.sized import Operation

        return Operation
    if name == "Workspace":
        from .exec.workspace import Workspace

        return Workspace
    if name == "Group":
        from .process.group import Group

        return Group
    if name in ("Device", "Links", "Machine"):
        from .machine import model

        return getattr(model, name)
    if name == "errors":
        from importlib import import_module

        return import_module(".errors", __name__)
    raise AttributeError(f"module 'ficco_rt' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

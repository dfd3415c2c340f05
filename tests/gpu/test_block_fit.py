"""Do blocks share a multiprocessor as `kernels.block_fit` says? Measured on a GPU of this machine.

driver   each variant of our GEMMs is compiled, and the driver is asked how many of its blocks fit; it may say more than
         the model, which counts registers by their bounds, never fewer
beside   stand-ins with the registers, threads and shared memory of our blocks hold the GPU; stand-ins of NCCL's blocks
         are launched beside them, and those that begin are counted. Each must be as many as the model says. With
         FICCO_ALL=1 all variants, not only one of each footprint
plain    GEMMs that are not streamed, in builds that record their blocks, one setting after another: as many blocks on a
         multiprocessor as promised
vendor   cuBLASLt's kernels as the driver tells of them, with `leave` beside `kernel = vendor`: which run, and what the
         others take
run      a streamed GEMM with `leave = nccl` beside an all-reduce, on two GPUs with NCCL: what the marks of a traced run
         say of its blocks, and whether both ran at once

`-s` shows what each part has found.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

import ficco_dsl
from ficco_dsl.diagnostics import ScheduleError
from ficco_rt import compiler as front
from ficco_rt.driver.gpu.driver import GpuDriver
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.kernels import kernel_compiler
from ficco_rt.kernels.block_fit import Footprint, Several, fit, left, shape
from ficco_rt.kernels.collective_blocks import planned
from ficco_rt.kernels.families import footprints
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm80 import variants as sm80
from ficco_rt.kernels.sm90 import variants as sm90
from ficco_rt.machine.model import Machine
from tests import cases
from tests.gpu.apart import apart

LIMITS = {"driver": 180, "beside": 120, "plain": 60, "vendor": 60, "run": 120}  # seconds of a part
SETTLED = 0.02  # seconds after which no more blocks begin
STANDIN = r"""
// Holds a multiprocessor until the word is up; `begun` counts the blocks that began. NOTE a kernel that may trade
// registers is given all that it may have at its launch.
extern "C" __global__ void __maxnreg__(REGISTERS) standin(unsigned *begun, volatile unsigned *up) {
    if (threadIdx.x == 0) atomicAdd(begun, 1);
    while (*up == 0) __nanosleep(100);
    if (*up > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
}
"""
SCHEDULE = """schedule beside
input   A[8192, 8192] : bf16
input   B[8192, 4096] : bf16
input   X[8192, 4096] : bf16
output  C[8192, 4096] : bf16
output  Y[8192, 4096] : bf16
computes C = A * B
computes Y = all_reduce(X)
queue compute { engine = sm    priority = low   LEAVE }
queue comm    { engine = nccl  priority = high  THREADS }
stage ar on comm { all_reduce Y <- X }
stage mm on compute streamed { gemm C = A * B }
"""


PLAIN = """schedule alone
param M = 8192
param N = 4096
param K = 2048
input   A[M, K] : bf16
input   B[K, N] : bf16
output  C[M, N] : bf16
computes C = A * B
queue compute { engine = sm  ASKED }
stage mm on compute { gemm C = A * B }
"""
PLAIN_SIZES = (8192, 4096, 2048)
PLAIN_ASKED = (
    "",
    *(f"residency = {n}" for n in (1, 2, 3)),
    *(f"smem = {n} KiB" for n in (96, 64)),
    *(f"leave = {n}" for n in ("64 KiB", "100 KiB", "16 sms")),
)
VENDOR_ASKED = ("leave = 16 KiB", "leave = 64 KiB", "leave = 100 KiB", "leave = 8 sms")
VENDOR_SHAPES = (PLAIN_SIZES, (5000, 1000, 3000), (64, 4608, 7168))


@pytest.mark.parametrize(
    "name",
    [
        *("driver", "beside", "plain"),
        pytest.param("vendor", marks=pytest.mark.nvmath),
        pytest.param("run", marks=[pytest.mark.gpus2, pytest.mark.nccl]),
    ],
)
def test_part(name: str) -> None:
    apart(part, name, cases.ALL, limit=LIMITS[name] * (10 if cases.ALL else 1))


def called(result: tuple[Any, ...]) -> Any:
    """The value of a driver's call."""
    code, *values = result
    if int(code):
        raise RuntimeError(repr(code))
    return values[0] if len(values) == 1 else None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A compiled kernel on the device."""

    function: Any
    registers: int
    static_smem: int


class Bench:
    """The first GPU."""

    def __init__(self, folder: Path) -> None:
        from cuda.bindings import driver as cu

        self.cu, self.folder = cu, folder
        called(cu.cuInit(0))
        self.context = called(cu.cuDevicePrimaryCtxRetain(called(cu.cuDeviceGet(0))))
        cu.cuCtxSetCurrent(self.context)
        self.streams = [called(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(3)]
        self.memory = called(cu.cuMemAlloc(1 << 20))
        self.standins: dict[int, Loaded] = {}  # by registers

    def load(self, source: Path, options: tuple[str, ...], entry: str) -> Loaded:
        cu, code = self.cu, kernel_compiler.compile_file(source, options, self.folder).code
        function = called(cu.cuModuleGetFunction(called(cu.cuModuleLoadData(code)), entry.encode()))
        of = cu.CUfunction_attribute
        return Loaded(
            function,
            called(cu.cuFuncGetAttribute(of.CU_FUNC_ATTRIBUTE_NUM_REGS, function)),
            called(cu.cuFuncGetAttribute(of.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)),
        )

    def fitting(self, loaded: Loaded, threads: int, smem: int) -> int:
        """As the driver says."""
        cu = self.cu
        attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        cu.cuFuncSetAttribute(loaded.function, attribute, smem)
        carveout = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        cu.cuFuncSetAttribute(loaded.function, carveout, 100)  # as launches with `leave` do
        return int(called(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(loaded.function, threads, smem)))

    def standin(self, wanted: Footprint, arch: str) -> tuple[Footprint, Loaded]:
        """A kernel whose blocks take what the footprint says."""
        if wanted.registers not in self.standins:
            source = self.folder / "standin.cu"
            source.write_text(STANDIN)
            options = ("-std=c++17", f"-arch={arch}", f"-DREGISTERS={min(wanted.registers, 255)}")
            self.standins[wanted.registers] = self.load(source, options, "standin")
        made = self.standins[wanted.registers]
        dynamic = wanted.smem - made.static_smem
        return replace(wanted, registers=made.registers, static_smem=made.static_smem, dynamic_smem=dynamic), made

    def begun(
        self, own: tuple[Footprint, Loaded], blocks: int, other: tuple[Footprint, Loaded], more: int
    ) -> tuple[int, int]:
        """How many blocks of each begin, if the first kernel's are there before."""
        cu, words = self.cu, np.zeros(64, np.uint32)
        base = int(self.memory)
        called(cu.cuMemcpyHtoD(base, words.ctypes.data, words.nbytes))
        for stream, (block, loaded), grid, at in ((0, own, blocks, 0), (1, other, more, 4)):
            self.fitting(loaded, block.threads, block.dynamic_smem)
            arguments = ((base + at, base + 8), (ctypes.c_void_p,) * 2)
            on = self.streams[stream]
            shape_of = (grid, 1, 1, block.threads, 1, 1, block.dynamic_smem)
            called(cu.cuLaunchKernel(loaded.function, *shape_of, on, arguments, 0))
            time.sleep(SETTLED)
        called(cu.cuMemcpyDtoHAsync(words.ctypes.data, base, 8, self.streams[2]))
        called(cu.cuStreamSynchronize(self.streams[2]))
        called(cu.cuMemsetD32Async(base + 8, 1, 1, self.streams[2]))
        for stream in self.streams:
            called(cu.cuStreamSynchronize(stream))
        return int(words[0]), int(words[1])


def driver_part(bench: Bench, limits: Limits) -> bool:
    """Each variant's blocks as the driver counts them."""
    good = True
    signature = Signature("bf16", "bf16", False, False)
    sources: list[tuple[Path, tuple[str, ...], str, Footprint]] = []
    blocks = {f.kernel: f for f in footprints(limits)}
    if limits.arch == sm90.ARCH:
        for v in (v for v in (*sm90.VARIANTS, *sm90.ODD[::16], *sm90.LEAN) if v.takes(signature)):
            sources.append((sm90.SOURCE, v.options(signature), signature.entry(v.name), blocks[v.name]))
    for w in sm80.VARIANTS:
        sources.append((sm80.SOURCE, w.options(signature, limits.arch), signature.entry(w.name), blocks[w.name]))
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda wanted: kernel_compiler.compile_file(wanted[0], wanted[1], bench.folder), sources))
    print("kernel                          registers model/compiled   blocks model/driver")
    for source, options, entry, block in sources:
        loaded = bench.load(source, options, entry)
        said, counted = fit(block, (), limits).blocks, bench.fitting(loaded, block.threads, block.dynamic_smem)
        exact = fit(replace(block, registers=loaded.registers, static_smem=loaded.static_smem), (), limits).blocks
        fine = said <= counted == exact and loaded.registers <= block.registers
        good &= fine
        words = f"{block.registers:>3} / {loaded.registers:<3}                {said} / {counted}"
        print(f"{block.kernel:<32}{words}{'' if fine else f'  WRONG: the model says {exact} with these registers'}")
    return good


def settings(limits: Limits) -> Iterator[tuple[str, Footprint]]:
    yield "default", planned({"all_reduce"}, None, limits.arch)[0]
    for threads in (512, 384, 256, 128):
        yield f"threads = {threads}", planned({"all_reduce"}, threads, limits.arch)[0]
    yield "2.29, threads = 256", planned({"all_reduce"}, 256, limits.arch, (2, 29))[0]


def beside_part(bench: Bench, limits: Limits, every: bool) -> bool:
    """Stand-ins of NCCL's blocks beside those of ours, which are there first: shaped ones where a shape exists."""
    if limits.arch != sm90.ARCH:
        print("stand-ins are for Hopper: left out")
        return True
    good, seen, tried = True, set(), 0
    for own in footprints(limits):
        if not every and (own.threads, own.registers) in seen:
            continue
        seen.add((own.threads, own.registers))
        for name, other in settings(limits):
            room = shape(own, 1, (other,), limits)
            smem = own.dynamic_smem if room is None else max(own.dynamic_smem, room.least)
            mine, there = bench.standin(replace(own, dynamic_smem=smem), limits.arch), bench.standin(other, limits.arch)
            alone = fit(mine[0], (), limits).blocks
            wanted = fit(there[0], (Several(mine[0], alone),), limits).blocks
            first, second = bench.begun(mine, alone * limits.sms, there, (wanted + 1) * limits.sms)
            fine = (first, second) == (alone * limits.sms, wanted * limits.sms)
            good, tried = good and fine, tried + 1
            if not fine or room is not None:
                print(
                    f"{alone} × {own.kernel} ({mine[0].registers} registers, {smem} bytes), NCCL {name} "
                    f"({there[0].threads} × {there[0].registers}): {wanted} promised, {second / limits.sms:g} measured"
                    f"{'' if fine else f'  WRONG (ours: {first / limits.sms:g} of {alone})'}"
                )
    print(f"{tried} pairs, {'all as promised' if good else 'NOT all as promised'}")
    return good


def refused(error: Exception) -> str:
    """A refusal in a line."""
    found = getattr(error, "diagnostics", ())
    return " ".join((found[0].message if found else str(error)).split())


def opened(asked: str, machine: Machine, sizes: tuple[int, int, int]) -> Executor:
    """A GEMM on one GPU, with random inputs. ScheduleError, DeviceError: it cannot be had."""
    text = PLAIN.replace("ASKED", asked)
    params = dict(zip("MNK", sizes, strict=True))
    plan = front.plan_of(front.build(ficco_dsl.parse(text, "alone.ficco"), 1, params), machine)
    executor = Executor(plan, "cuda", machine=machine)
    rng = np.random.default_rng(1)
    for name, (rows, columns) in (("A", (params["M"], params["K"])), ("B", (params["K"], params["N"]))):
        executor.write(name, 0, rng.standard_normal((rows, columns), np.float32).astype(bfloat16))
    return executor


def plain_part(machine: Machine, sizes: tuple[int, int, int] = PLAIN_SIZES) -> bool:
    """GEMMs that are not streamed: which multiprocessors their blocks were on."""
    good = True
    for asked in PLAIN_ASKED:
        try:
            executor = opened(asked, machine, sizes)
        except ScheduleError as error:
            print(f"{asked or 'nothing asked'}: refused: {refused(error)}")
            continue
        with executor:
            driver = executor.driver
            assert isinstance(driver, GpuDriver)
            driver._binder.mark_all = True
            for _ in range(3):
                executor.run()
            executor.traced = True
            executor.run()
            (how,) = (s.launched for s in executor.trace.spans if s.kind == "launch" and s.launched is not None)
        promised, blocks = how.residency or 1, how.blocks or 0
        full = blocks >= promised * machine.device.sms
        fine = how.reached == promised if full else how.reached is not None and how.reached <= promised
        good &= fine
        print(
            f"{asked or 'nothing asked'}: {how.kernel}, {blocks} blocks, {how.smem} bytes: {promised} a multiprocessor "
            f"promised{'' if full else ' at most'}, {how.reached} measured{'' if fine else '  WRONG'}"
        )
    return good


def vendor_part(machine: Machine, shapes: Sequence[tuple[int, int, int]] = VENDOR_SHAPES) -> bool:
    """What the driver tells of cuBLASLt's kernels. A refusal says the numbers, and is no failure."""
    good = True
    for sizes in shapes:
        for asked in VENDOR_ASKED:
            what = f"{' × '.join(map(str, sizes))}, {asked}"
            try:
                with opened(f"kernel = vendor  {asked}", machine, sizes) as executor:
                    executor.run()
                    found = executor.read("C", 0).astype(np.float32)
                    good &= bool(np.isfinite(found).all())
                print(f"{what}: runs")
            except (ScheduleError, DeviceError) as error:
                told = refused(error)
                fine = "cannot be had of its kernels" in told and "as many of its blocks as fit" in told
                good &= fine
                print(f"{what}: refused: {told}{'' if fine else '  WRONG'}")
    return good


def run_part() -> bool:
    """Streamed GEMMs beside an all-reduce of NCCL."""
    good = True
    for asked, threads in (
        ("leave = nccl", "threads = 256"),
        ("", "threads = 256"),
        ("leave = 16 sms", "threads = 256"),
    ):
        text = SCHEDULE.replace("LEAVE", asked).replace("THREADS", threads)
        machine = discover("cuda", 2)
        plan = front.plan_of(front.build(ficco_dsl.parse(text, "beside.ficco"), 2), machine)
        with Executor(plan, "cuda", machine=machine, collectives="library") as executor:
            rng = np.random.default_rng(1)
            for name, shape in (("A", (8192, 8192)), ("B", (8192, 4096)), ("X", (8192, 4096))):
                for rank in range(2):
                    executor.write(name, rank, rng.standard_normal(shape, np.float32).astype(bfloat16))
            for _ in range(3):
                executor.run()
            executor.driver.synchronize()
            executor.traced = True
            executor.run()
            executor.driver.synchronize()
            trace = executor.trace
        launches = [s for s in trace.spans if s.kind == "launch" and s.launched is not None]
        sums = [s for s in trace.spans if s.stage == "ar"]
        for s in launches:
            how = s.launched
            assert how is not None
            together = max((min(s.stop, c.stop) - max(s.start, c.start) for c in sums if c.rank == s.rank), default=0.0)
            fine = how.reached is not None and how.reached <= (how.residency or 1)
            good &= fine
            print(
                f"{asked or 'nothing left'}: rank {s.rank} {how.kernel}: {how.residency} a multiprocessor promised, "
                f"{how.reached} measured; {s.stop - s.start:.0f} µs, of which {max(0.0, together):.0f} beside NCCL"
                f"{'' if fine else '  WRONG'}"
            )
    return good


def part(name: str, every: bool) -> bool:
    """Whether what is promised holds. `every`: of all variants."""
    machine = discover("cuda", 1)
    limits = Limits.of(machine.device)
    print(f"{machine.device.name}: {left((), limits)}")
    if name == "plain":
        return plain_part(machine)
    if name == "vendor":
        return vendor_part(machine)
    if name == "run":
        return run_part()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        return driver_part(bench, limits) if name == "driver" else beside_part(bench, limits, every)

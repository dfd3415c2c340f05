"""The launches of tests/unit/test_kernel_waits.py on real GPUs, one or two: their waits and signals, provoked.

    python -m tests.simt.on_gpus [--repeats 20] [--limit 10] [--only waits]

Operands come late: each is NaN until a stream has copied it, after a random pause, and a flag goes up behind the copy.
The launch begins while the kernel before it runs. Where there are two GPUs, the result and the flags that tell of it
lie on the second one, where a stream waits for each flag and takes a copy of what it stands for at once.

Exit code 4 if numbers are wrong, 6 if a launch does not end within the limit, 3 without such a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ficco_rt.driver.cuda.call import api, call
from ficco_rt.driver.cuda.tensor_map import encode
from ficco_rt.errors import DeviceError
from ficco_rt.kernels import by_address, kernel_compiler
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm80 import variants as sm80
from ficco_rt.kernels.sm90 import tables
from ficco_rt.kernels.sm90 import variants as sm90
from ficco_rt.kernels.tile_table import SplitK
from ficco_rt.kernels.tiles import Matrix, MatrixWork
from tests.simt.memory import Memory
from tests.unit.test_kernel_waits import AMPERE, AMPERE_SUMS, HOPPER, SUMS, Run, Shape

BEFORE = """
extern "C" __global__ void before(uint4 *to, const uint4 *from, long long units, long long pause) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    for (long long begin = clock64(); clock64() - begin < pause;) {}
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < units; i += gridDim.x * blockDim.x) to[i] = from[i];
}
"""
PAUSE = 200_000  # clocks of the launch before
HANGS, WRONG, NOTHING = 6, 4, 3


@dataclass(frozen=True)
class Case:
    name: str
    variant: sm90.Variant | sm80.Variant
    signature: Signature
    shape: Shape
    seed: int

    @property
    def hopper(self) -> bool:
        return isinstance(self.variant, sm90.Variant)


def cases(arch: str) -> Iterator[Case]:
    """All that the architecture runs, as the tests number them."""
    if arch.startswith("sm_90"):
        for name in HOPPER:
            variant = next(v for v in (*sm90.VARIANTS, *sm90.ODD) if v.name == name)
            for addends, shapes in ((False, HOPPER[name]), (True, SUMS.get(name, {}))):
                for seed, (key, shape) in enumerate(shapes.items()):
                    if not shape.free:
                        signature = Signature("bf16", shape.out, False, False, addends)
                        yield Case(f"{name} {key}", variant, signature, replace(shape, resident=0), seed)
    ampere = next(v for v in sm80.VARIANTS if v.name == "sm80_gemm_64x64")
    for addends, shapes in ((False, AMPERE), (True, AMPERE_SUMS)):
        for seed, (key, shape) in enumerate(shapes.items()):
            yield Case(f"{ampere.name} {key}", ampere, Signature("bf16", shape.out, False, False, addends), shape, seed)


class Gpu:
    """A device's context, and streams of it."""

    def __init__(self, number: int) -> None:
        self.cu = api()
        self.number = number
        self.context = call(self.cu.cuDevicePrimaryCtxRetain, number)
        self.enter()
        self.streams: list[Any] = []

    def enter(self) -> None:
        call(self.cu.cuCtxSetCurrent, self.context)

    def stream(self) -> Any:
        self.enter()
        self.streams.append(call(self.cu.cuStreamCreateWithPriority, self.cu.CUstream_flags.CU_STREAM_NON_BLOCKING, 0))
        return self.streams[-1]

    def alloc(self, size: int) -> int:
        self.enter()
        return int(call(self.cu.cuMemAlloc, max(size, 256)))

    def put(self, at: int, values: np.ndarray) -> None:
        self.enter()
        call(self.cu.cuMemcpyHtoD, at, values.ctypes.data, values.nbytes)

    def get(self, at: int, like: np.ndarray) -> np.ndarray:
        self.enter()
        values = np.empty_like(like)
        call(self.cu.cuMemcpyDtoH, values.ctypes.data, at, values.nbytes)
        return values


class Late:
    """A case on GPUs: `own` runs the launch, the result lies on `peer`."""

    def __init__(self, case: Case, own: Gpu, peer: Gpu, arch: str) -> None:
        self.case, self.own, self.peer, self.cu = case, own, peer, own.cu
        self.run = run = Run(case.shape, case.seed, early=case.hopper)
        self.at = {id(m): (peer if m is run.c else own).alloc(m.whole.nbytes) for m in (run.a, run.b, run.c, run.d)}
        self.sources = {id(m): self._source(m) for m in (run.a, run.b, run.d)}
        self.snapshot = peer.alloc(run.c.whole.nbytes)
        self.flags, self.told = own.alloc(256), peer.alloc(256)  # those that are waited for, those that are raised
        works = [self._placed(w) for w in run.works]
        self.packed = packed = self._packed(works)
        self.constants, self.scratch = own.alloc(len(packed.table.constants)), own.alloc(packed.table.scratch_bytes)
        own.put(self.constants, np.frombuffer(packed.table.constants, np.uint8))
        own.put(self.scratch, np.zeros(packed.table.scratch_bytes, np.uint8))
        self._prepare(arch)

    def _source(self, memory: Memory) -> int:
        """The operand as it comes, pitch and all."""
        whole = np.zeros_like(memory.whole)
        whole[:, : memory.values.shape[1]] = self.run.held[id(memory)]
        at = self.own.alloc(whole.nbytes)
        self.own.put(at, whole)
        return at

    def _flag(self, address: int) -> int:
        number = (address - int(self.run.flags.ctypes.data)) // 4
        return (self.told if number >= 32 else self.flags) + 4 * number

    def _placed(self, work: MatrixWork) -> MatrixWork:
        at = {m.matrix.address: self.at[id(m)] for m in (self.run.a, self.run.b, self.run.c, self.run.d)}

        def placed(matrix: Matrix) -> Matrix:
            return replace(matrix, address=at[matrix.address])

        addends = tuple(replace(t, operand=replace(t.operand, matrix=placed(t.operand.matrix))) for t in work.addends)
        return replace(
            work,
            left=placed(work.left),
            right=placed(work.right),
            out=placed(work.out),
            addends=addends,
            waits=tuple(map(self._flag, work.waits)),
            signals=tuple(map(self._flag, work.signals)),
            addend_waits=tuple(map(self._flag, work.addend_waits)),
            depth_waits=tuple((start, tuple(map(self._flag, flags))) for start, flags in work.depth_waits),
        )

    def _packed(self, works: Sequence[MatrixWork]) -> Any:
        v, s = self.case.variant, self.case.shape
        if isinstance(v, sm90.Variant):
            resets = [self.flags + 4 * n for _, n in self.run.raises] if s.resets else ()
            return tables.build(
                works, v, self.case.signature, clusters=s.blocks, stages=s.stages, split_k=SplitK(s.splits),
                read_only=(s.left_read_only, s.read_only), resets=resets,
            )  # fmt: skip
        return by_address.build(works, v, self.case.signature, blocks=s.blocks, stages=s.stages, tail_splits=s.splits)

    def _prepare(self, arch: str) -> None:
        v, signature, cu = self.case.variant, self.case.signature, self.cu
        self.own.enter()
        if isinstance(v, sm90.Variant):
            code = kernel_compiler.compile_file(sm90.SOURCE, v.options(signature)).code
            block = self.packed.parameters(self.constants, self.scratch, [encode(m) for m in self.packed.maps])
            smem = v.smem(self.packed.stages, signature.right_transposed)
        else:
            code = kernel_compiler.compile_file(sm80.SOURCE, v.options(signature, arch)).code
            block, smem = self.packed.parameters(self.constants, self.scratch), v.smem(self.packed.stages)
        module = call(cu.cuModuleLoadData, code)
        self.kernel = call(cu.cuModuleGetFunction, module, signature.entry(v.name).encode())
        most = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(cu.cuFuncSetAttribute, self.kernel, most, smem)
        raw = (ctypes.c_uint8 * (len(block) + 64))()
        base = -(-ctypes.addressof(raw) // 64) * 64
        ctypes.memmove(base, block, len(block))
        self.arguments = (raw, (ctypes.c_void_p * 1)(base))
        self.config = cu.CUlaunchConfig()
        self.config.gridDimX = min(
            self.case.shape.blocks * v.cluster, -(-len(self.packed.table.tiles) // v.together) * v.together
        )
        self.config.gridDimY = self.config.gridDimZ = self.config.blockDimY = self.config.blockDimZ = 1
        self.config.blockDimX, self.config.sharedMemBytes = v.threads, smem
        attributes = []
        if v.together > 1:
            attributes.append(cu.CUlaunchAttribute())
            attributes[-1].id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = cu.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = v.together, 1, 1
            attributes[-1].value = value
        if self.case.hopper:
            attributes.append(cu.CUlaunchAttribute())
            attributes[-1].id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            value = cu.CUlaunchAttributeValue()
            value.programmaticStreamSerializationAllowed = 1
            attributes[-1].value = value
        self.config.attrs, self.config.numAttrs = attributes, len(attributes)

    def once(self, main: Any, sides: Sequence[Any], watchers: Sequence[Any], before: Any, draw: random.Random) -> None:
        """Issue it: all flags down, all that comes late NaN; then launch, and let operands come in any order."""
        run, cu, shape = self.run, self.cu, self.case.shape
        for m in (run.a, run.b, run.d):
            self.own.put(self.at[id(m)], m.whole)
        self.own.put(self.flags, np.zeros(64, np.uint32))
        self.peer.put(self.told, np.zeros(64, np.uint32))
        for at in (self.at[id(run.c)], self.snapshot):
            self.peer.put(at, np.full(run.c.whole.nbytes, 0xFF, np.uint8))
        pitch = run.c.whole.strides[0]
        for (number, rows), stream in zip(run.promises, watchers, strict=False):
            self.peer.enter()
            until = cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
            call(cu.cuStreamWaitValue32, stream, self.told + 4 * number, 1, int(until))
            at = rows.start * pitch
            call(cu.cuMemcpyDtoDAsync, self.snapshot + at, self.at[id(run.c)] + at, rows.size * pitch, stream)
        self.own.enter()
        for who, memory, rows, _ in run.gives:
            if who == 0:
                step = memory.whole.strides[0]
                self._before(before, main, memory, rows.start * step, rows.size * step)
        self.config.hStream = main
        call(cu.cuLaunchKernelEx, self.config, self.kernel, ctypes.addressof(self.arguments[1]), 0)
        late = [(who, n) for who, n in run.raises]
        draw.shuffle(late)
        for i, (who, number) in enumerate(late):
            pause(draw)
            stream = sides[i % len(sides)]
            for giver, memory, rows, columns in run.gives:
                if giver == who:
                    self._copy(stream, memory, rows.start, columns.start, rows.size, columns.size)
            call(cu.cuStreamWriteValue32, stream, self.flags + 4 * number, 1, 0)
        assert not shape.free

    def _before(self, before: Any, stream: Any, memory: Memory, start: int, size: int) -> None:
        to, source = self.at[id(memory)] + start, self.sources[id(memory)] + start
        if before is None:  # nothing that runs for a while is there
            call(self.cu.cuMemcpyDtoDAsync, to, source, size, stream)
            return
        config = self.cu.CUlaunchConfig()
        config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX, config.hStream = 256, stream
        values = (to, source, size // 16, PAUSE)
        call(self.cu.cuLaunchKernelEx, config, before, (values, (ctypes.c_uint64,) * 2 + (ctypes.c_int64,) * 2), 0)

    def _copy(self, stream: Any, memory: Memory, row: int, column: int, rows: int, columns: int) -> None:
        item, pitch = memory.whole.itemsize, memory.whole.strides[0]
        c = self.cu.CUDA_MEMCPY2D()
        c.srcMemoryType = c.dstMemoryType = self.cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
        at = row * pitch + column * item
        c.srcDevice, c.dstDevice = self.sources[id(memory)] + at, self.at[id(memory)] + at
        c.srcPitch = c.dstPitch = pitch
        c.WidthInBytes, c.Height = columns * item, rows
        call(self.cu.cuMemcpy2DAsync, c, stream)

    def wrong(self) -> str:
        """What is not as it must be, or nothing."""
        run, n = self.run, self.case.shape.n
        wanted = run.wanted(self.case.shape.twice)
        result = self.peer.get(self.at[id(run.c)], run.c.whole)[:, :n]
        if not np.array_equal(result, wanted):
            return f"{int((result != wanted).sum())} numbers are wrong"
        if not self.case.shape.twice:
            seen = self.peer.get(self.snapshot, run.c.whole)[:, :n]
            for number, rows in run.promises:
                off = int((seen[rows.start : rows.stop] != wanted[rows.start : rows.stop]).sum())
                if off:
                    return f"{off} numbers were not there when flag {number} was up"
        counters = self.own.get(self.scratch, np.zeros(max(1, self.packed.table.counter_bytes), np.uint8))
        return "counters are not left as they were found" if counters[: self.packed.table.counter_bytes].any() else ""


def pause(draw: random.Random) -> None:
    """Up to a tenth of a millisecond, often none."""
    until = time.perf_counter() + draw.choice((0, 0, 1e-5, 5e-5, 1e-4))
    while time.perf_counter() < until:
        pass


def ended(gpus: Sequence[Gpu], limit: float) -> bool:
    until = time.monotonic() + limit
    for gpu in gpus:
        gpu.enter()
        for stream in gpu.streams:
            while (code := int(gpu.cu.cuStreamQuery(stream)[0])) != 0:
                if code != gpu.cu.CUresult.CUDA_ERROR_NOT_READY:
                    raise SystemExit(f"the launch fails: {gpu.cu.CUresult(code).name}")
                if time.monotonic() > until:
                    return False
    return True


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simt.on_gpus", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20, help="of each case")
    parser.add_argument("--limit", type=float, default=10, help="seconds that a launch may take")
    parser.add_argument("--only", default="", help="a part of the names of cases")
    options = parser.parse_args(arguments)
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    cu = api()
    major, minor = (
        call(
            cu.cuDeviceGetAttribute, getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}"), 0
        )
        for part in ("MAJOR", "MINOR")
    )
    arch = f"sm_{major}{minor}{'a' if major >= 9 else ''}"
    if major < 8:
        print(f"on_gpus: device 0 is {arch}; the kernels need sm_80", file=sys.stderr)
        return NOTHING
    gpus = [Gpu(0)]
    if call(cu.cuDeviceGetCount) > 1 and call(cu.cuDeviceCanAccessPeer, 0, 1) and call(cu.cuDeviceCanAccessPeer, 1, 0):
        gpus.append(Gpu(1))
        for gpu, other in (gpus, gpus[::-1]):
            gpu.enter()
            call(cu.cuCtxEnablePeerAccess, other.context, 0)
    own, peer = gpus[0], gpus[-1]
    stream, sides, watchers = own.stream(), [own.stream() for _ in range(4)], [peer.stream() for _ in range(4)]
    own.enter()
    made = kernel_compiler.compile_text(BEFORE, "before.cu", [f"-arch={arch}"]).code
    before = call(cu.cuModuleGetFunction, call(cu.cuModuleLoadData, made), b"before")
    draw, bad = random.Random(1), 0
    for case in cases(arch):
        if options.only not in case.name:
            continue
        late, wrong = Late(case, own, peer, arch), ""
        for _ in range(options.repeats):
            late.once(stream, sides, watchers, before, draw)
            if not ended(gpus, options.limit):
                print(f"{case.name}: does not end", flush=True)
                os._exit(HANGS)  # NOTE nothing can be given back while the kernel waits
            wrong = late.wrong()
            if wrong:
                bad += 1
                break
        print(f"{case.name}: {wrong or 'right'}", flush=True)
    return WRONG if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except DeviceError as error:
        print(f"on_gpus: {error}", file=sys.stderr)
        sys.exit(NOTHING)

"""The stand-in does what a CUDA driver does, as far as the rest of these tests counts on it."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import warnings
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu

from ficco_rt.driver.cuda.call import api, call
from ficco_rt.driver.registry import discover
from ficco_rt.kernels.kernel_compiler import compile_text
from ficco_rt.kernels.naive.plain_kernels import ADDEND, GEMM, REDUCE, TERM
from ficco_rt.kernels.naive.tables import FLAG, RUN, TABLE, Packed
from ficco_rt.types import TYPES, numpy_dtype
from tests.mock.standin import StandIn

NON_BLOCKING = cu.CUstream_flags.CU_STREAM_NON_BLOCKING
SOURCE = """
extern "C" __global__ void double_it(float *out, const float *in, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = 2 * in[i];
}
extern "C" __global__ void faults(float *out, const float *in, int n) { *(float *)0 = 1; }
"""


class Gpus:
    """Contexts of two devices, the first one current; a stream of each."""

    def __init__(self) -> None:
        api()
        self.contexts = [call(cu.cuDevicePrimaryCtxRetain, d) for d in (0, 1)]
        self.streams = []
        for context in reversed(self.contexts):
            call(cu.cuCtxSetCurrent, context)
            self.streams.insert(0, self.stream())

    def stream(self) -> Any:
        return call(cu.cuStreamCreateWithPriority, NON_BLOCKING, 0)

    def on(self, device: int) -> None:
        call(cu.cuCtxSetCurrent, self.contexts[device])

    def put(self, values: np.ndarray) -> int:
        address = int(call(cu.cuMemAlloc, values.nbytes))
        call(cu.cuMemcpyHtoD, address, values.ctypes.data, values.nbytes)
        return address

    def get(self, address: int, count: int) -> list[float]:
        values = np.empty(count, np.float32)
        call(cu.cuMemcpyDtoH, values.ctypes.data, address, values.nbytes)
        return values.tolist()


def event() -> Any:
    return call(cu.cuEventCreate, 0)


def launch(
    stream: Any, function: Any, arguments: list[bytes], grid: int = 1, smem: int = 0, early: bool = False
) -> int:
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 128, 1, 1
    config.hStream, config.sharedMemBytes = stream, smem
    if early:
        attribute = cu.CUlaunchAttribute()
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [attribute], 1
    values = [ctypes.create_string_buffer(a, len(a)) for a in arguments]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    return int(cu.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0)[0])


@pytest.fixture
def gpus(cuda: StandIn) -> Gpus:
    return Gpus()


def test_a_streams_commands_wait_until_the_host_asks(cuda: StandIn, gpus: Gpus) -> None:
    a, b = gpus.put(np.float32([1, 2])), gpus.put(np.float32([0, 0]))
    call(cu.cuMemcpyDtoDAsync, b, a, 8, gpus.streams[0])
    assert ctypes.c_float.from_address(b).value == 0, "nothing runs at the time of the call"
    call(cu.cuStreamSynchronize, gpus.streams[0])
    assert gpus.get(b, 2) == [1, 2]


def test_streams_have_no_order_and_events_give_one(cuda: StandIn, gpus: Gpus) -> None:
    one, two = gpus.streams[0], gpus.stream()
    a, b = gpus.put(np.float32([1])), gpus.put(np.float32([2]))
    at = gpus.put(np.float32([0]))
    seen, ordered = set(), set()
    for seed in range(40):
        for found, wait in ((seen, False), (ordered, True)):
            cuda.set(f"seed {seed}")
            done = event()
            call(cu.cuMemcpyDtoDAsync, at, a, 4, one)
            call(cu.cuEventRecord, done, one)
            if wait:
                call(cu.cuStreamWaitEvent, two, done, 0)
            call(cu.cuMemcpyDtoDAsync, at, b, 4, two)
            for stream in (one, two):
                call(cu.cuStreamSynchronize, stream)
            found.add(gpus.get(at, 1)[0])
    assert seen == {1, 2}
    assert ordered == {2}


def test_a_wait_is_for_the_record_of_its_time(cuda: StandIn, gpus: Gpus) -> None:
    one, two = gpus.streams[0], gpus.stream()
    word = gpus.put(np.uint32([0]))
    mark = event()
    call(cu.cuStreamWaitEvent, two, mark, 0)  # never recorded: no wait
    assert not cu.cuStreamQuery(two)[0]
    call(cu.cuEventRecord, mark, one)
    call(cu.cuStreamWaitEvent, two, mark, 0)
    call(cu.cuStreamWaitValue32, one, word, 1, 0)
    call(cu.cuEventRecord, mark, one)  # behind a wait that nobody ends yet
    call(cu.cuStreamSynchronize, two)
    assert cu.cuEventQuery(mark)[0] == cu.CUresult.CUDA_ERROR_NOT_READY
    call(cu.cuStreamWriteValue32, two, word, 1, 0)
    call(cu.cuEventSynchronize, mark)


def test_what_waits_for_ever_is_told(cuda: StandIn, gpus: Gpus) -> None:
    word = gpus.put(np.uint32([0]))
    call(cu.cuStreamWaitValue32, gpus.streams[0], word, 1, 0)
    assert cu.cuStreamQuery(gpus.streams[0])[0] == cu.CUresult.CUDA_ERROR_NOT_READY
    assert cu.cuStreamSynchronize(gpus.streams[0])[0] == cu.CUresult.CUDA_ERROR_LAUNCH_TIMEOUT
    assert "cuStreamSynchronize blocks for ever" in cuda.violations()


def test_a_peers_memory_needs_access(cuda: StandIn, gpus: Gpus) -> None:
    gpus.on(1)
    there = gpus.put(np.float32([5]))
    gpus.on(0)
    here = gpus.put(np.float32([0]))
    call(cu.cuCtxEnablePeerAccess, gpus.contexts[1], 0)
    again = cu.cuCtxEnablePeerAccess(gpus.contexts[1], 0)[0]
    assert again == cu.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    call(cu.cuMemcpyDtoDAsync, here, there, 4, gpus.streams[0])
    call(cu.cuStreamSynchronize, gpus.streams[0])
    assert gpus.get(here, 1) == [5]
    gpus.on(1)  # the other way it was not enabled
    call(cu.cuMemcpyDtoDAsync, there, here, 4, gpus.streams[1])
    code = cu.cuStreamSynchronize(gpus.streams[1])[0]
    assert code == cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    assert cu.cuMemGetInfo()[0] == code, "the error stays with the device"
    gpus.on(0)
    call(cu.cuMemGetInfo)


def test_handles_are_checked_and_counted(cuda: StandIn, gpus: Gpus) -> None:
    mark = event()
    assert cuda.live() == {"contexts": 2, "streams": 2, "events": 1, "pushed": 1}
    call(cu.cuEventDestroy, mark)
    assert not cuda.violations()
    assert cu.cuEventDestroy(mark)[0] == cu.CUresult.CUDA_ERROR_INVALID_HANDLE
    assert "destroyed" in cuda.violations()
    assert cu.cuStreamQuery(cu.CUstream(int(gpus.contexts[0])))[0] == cu.CUresult.CUDA_ERROR_INVALID_HANDLE
    assert "another kind's handle" in cuda.violations()
    address = gpus.put(np.float32([1]))
    call(cu.cuMemFree, address)
    assert cu.cuMemcpyDtoDAsync(address, address, 4, gpus.streams[0])[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE
    assert "freed memory" in cuda.violations()


def test_a_capture_forks_joins_and_replays(cuda: StandIn, gpus: Gpus) -> None:
    one, two = gpus.streams[0], gpus.stream()
    a, b, c = (gpus.put(np.float32([v])) for v in (1, 0, 0))
    fork, join = event(), event()
    call(cu.cuStreamBeginCapture, one, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    call(cu.cuMemcpyDtoDAsync, b, a, 4, one)
    call(cu.cuEventRecord, fork, one)
    call(cu.cuStreamWaitEvent, two, fork, 0)
    call(cu.cuMemcpyDtoDAsync, c, b, 4, two)
    call(cu.cuEventRecord, join, two)
    call(cu.cuStreamWaitEvent, one, join, 0)
    graph = call(cu.cuStreamEndCapture, one)
    made = call(cu.cuGraphInstantiate, graph, 0)
    call(cu.cuGraphDestroy, graph)
    assert gpus.get(b, 1) == [0], "captured work does not run"
    for value in (3, 4):
        call(cu.cuMemcpyHtoD, a, np.float32([value]).ctypes.data, 4)
        call(cu.cuGraphLaunch, made, one)
        call(cu.cuStreamSynchronize, one)
        assert gpus.get(c, 1) == [value]
    call(cu.cuGraphExecDestroy, made)
    assert "graphs" not in cuda.live()
    assert "execs" not in cuda.live()


def test_a_capture_that_is_not_joined_fails(cuda: StandIn, gpus: Gpus) -> None:
    one, two = gpus.streams[0], gpus.stream()
    a, fork = gpus.put(np.float32([1])), event()
    call(cu.cuStreamBeginCapture, one, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    call(cu.cuEventRecord, fork, one)
    call(cu.cuStreamWaitEvent, two, fork, 0)
    call(cu.cuMemcpyDtoDAsync, a, a, 4, two)
    assert cu.cuStreamEndCapture(one)[0] == cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNJOINED
    assert not cu.cuStreamQuery(two)[0], "and both streams are usable again"
    assert not cuda.violations()


def test_a_query_or_a_batch_spoils_a_capture(cuda: StandIn, gpus: Gpus) -> None:
    one, a = gpus.streams[0], gpus.put(np.float32([1]))
    call(cu.cuStreamBeginCapture, one, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    assert cu.cuStreamQuery(one)[0] == cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    assert cu.cuMemcpyDtoDAsync(a, a, 4, one)[0] == cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    assert cu.cuStreamEndCapture(one)[0] == cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED


def test_kernels_by_name_with_the_launchs_arguments(cuda: StandIn, gpus: Gpus) -> None:
    module = call(cu.cuModuleLoadData, compile_text(SOURCE, "x.cu", ["-arch=sm_75"]).code)
    function = call(cu.cuModuleGetFunction, module, b"double_it")
    assert cu.cuModuleGetFunction(module, b"triple_it")[0] == cu.CUresult.CUDA_ERROR_NOT_FOUND
    a, b = gpus.put(np.float32([1, 2, 3])), gpus.put(np.float32([0, 0, 0]))
    arguments = [struct.pack("<Q", b), struct.pack("<Q", a), struct.pack("<i", 2)]
    assert launch(gpus.streams[0], function, arguments) == 0
    call(cu.cuStreamSynchronize, gpus.streams[0])
    assert gpus.get(b, 3) == [2, 4, 0]
    assert launch(gpus.streams[0], function, arguments, smem=64 << 10), "more shared memory than was allowed"
    call(cu.cuModuleUnload, module)
    assert launch(gpus.streams[0], function, arguments)
    assert "destroyed" in cuda.violations()


def test_code_for_another_architecture_does_not_load(cuda: StandIn, gpus: Gpus) -> None:
    newer = compile_text(SOURCE, "x.cu", ["-arch=sm_80"]).code
    assert cu.cuModuleLoadData(newer)[0] == cu.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU
    assert cu.cuModuleLoadData(b"no code at all\0")[0] == cu.CUresult.CUDA_ERROR_INVALID_IMAGE


def test_a_faulting_kernel_makes_its_device_sick(cuda: StandIn, gpus: Gpus) -> None:
    module = call(cu.cuModuleLoadData, compile_text(SOURCE, "x.cu", ["-arch=sm_75"]).code)
    function = call(cu.cuModuleGetFunction, module, b"faults")
    a = gpus.put(np.float32([1]))
    assert launch(gpus.streams[0], function, [struct.pack("<Q", a)] * 2 + [struct.pack("<i", 1)]) == 0
    assert cu.cuStreamSynchronize(gpus.streams[0])[0] == cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    assert cu.cuMemFree(a)[0] == cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    assert "allocations" not in cuda.live(), "what is given back is given back, whatever the code"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("terms", [0, 2])
def test_the_naive_gemm_reads_its_table(cuda: StandIn, gpus: Gpus, dtype: str, streamed: bool, terms: int) -> None:
    """Two works of 130 × 3 × 5; the second waits for the flag that the first raises, and adds to what it wrote, or
    has it as one of two terms."""
    m, n, k = 130, 3, 5
    rng = np.random.default_rng(3)
    left, right = rng.integers(-3, 4, (m, k)).astype(np.float32), rng.integers(-3, 4, (k, n)).astype(np.float32)

    def stored(values: np.ndarray) -> np.ndarray:
        if dtype == "bf16":
            return (values.view(np.uint32) >> 16).astype(np.uint16)
        return values.astype({"fp16": np.float16, "fp32": np.float32}[dtype])

    a, b, out = gpus.put(stored(left)), gpus.put(stored(right)), gpus.put(np.full((m, n), np.nan, np.float32))
    flag = gpus.put(np.uint32([0]))
    more = rng.integers(-9, 10, (m, n)).astype(np.float32)
    runs = b"".join(RUN.pack(size, 0) for size in (m, n, m, k, k, n))
    put = Packed(GEMM)
    added = b"".join(
        ADDEND.pack(put.place(t), n, 1, 0, 1, 1, 1, TYPES["fp32"].number, 0) for t in (out, gpus.put(more))
    )
    works = b""
    for number, (waits, signals) in enumerate(((0, 1), (1, 0))):
        maps = [v for i in range(6) for v in (i, 1)]
        sync = (0, waits, 0, signals)
        add = (number and not terms, 2 * number, 2, 1, number, *sync, 0, terms * number)
        works += GEMM.pack(*map(put.place, (out, a, b)), n, 1, k, 1, n, 1, *maps, m, n, k, *add, 0, 0)
    parts = (works, added, runs, FLAG.pack(flag))
    table = gpus.put(np.frombuffer(b"".join(parts) + bytes(16), np.uint8))
    at = [table + sum(map(len, parts[:i])) for i in range(5)]
    name = f"naive_gemm_{dtype}_fp32"
    code = compile_text(f'extern "C" __global__ void {name}() {{}}', "x.cu", ["-arch=sm_75"]).code
    function = call(cu.cuModuleGetFunction, call(cu.cuModuleLoadData, code), name.encode())
    arguments = [TABLE.pack(*at, 2, 4, int(streamed), 0, 0, 0, *put.addresses())]
    for _ in range(2):  # the counters are left as they were found
        call(cu.cuMemsetD32Async, flag, 0, 1, gpus.streams[0])
        assert launch(gpus.streams[0], function, arguments, grid=3) == 0
        call(cu.cuStreamSynchronize, gpus.streams[0])
        wanted = 2 * (left @ right) + (more if terms else 0)
        assert np.array_equal(np.float32(gpus.get(out, m * n)).reshape(m, n), wanted)
        assert gpus.get(at[4], 4) == [0, 0, 0, 0]


@pytest.mark.parametrize("dtype", ["fp16", "fp8_e4m3", "fp8_e5m2"])
def test_short_types_round_as_numpy_does(cuda: StandIn, gpus: Gpus, dtype: str) -> None:
    """A sum of one fp32 term, stored in a short type: every rounding, subnormal, overflow."""
    stored = numpy_dtype(dtype)
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2**32, 20000, np.uint32).view(np.float32)
    values = np.concatenate([values, np.float32([65504, 65519, 65520, 2**-24, 2**-25, 1.5 * 2**-25, 0, np.inf])])
    values = np.concatenate([values, np.float32(2.0) ** np.float32(rng.uniform(-26, 17, 20000))])
    values = np.concatenate([values, np.float32([464, 465, 448, 2**-9, 2**-10, 57344, 61439, 61440, np.nan])])
    count = len(values)
    source, out = gpus.put(values), gpus.put(np.zeros(count, stored))
    put = Packed(REDUCE)
    job = REDUCE.pack(put.place(out), count, 1, count, 0, 1, 1, 0, 0, -(-count // 512), 0, 1, 0, 0, 0, 0)
    term = TERM.pack(put.place(source), count, TYPES["fp32"].number, 0)
    table = gpus.put(np.frombuffer(job + term + bytes(16), np.uint8))
    name = f"naive_reduce_{dtype}"
    code = compile_text(f'extern "C" __global__ void {name}() {{}}', "x.cu", ["-arch=sm_75"]).code
    function = call(cu.cuModuleGetFunction, call(cu.cuModuleLoadData, code), name.encode())
    ends = (table + len(job), table + len(job) + len(term))
    arguments = [
        TABLE.pack(table, ends[0], ends[1], ends[1], ends[1], 1, -(-count // 512), 0, 0, 0, 0, *put.addresses())
    ]
    assert launch(gpus.streams[0], function, arguments, grid=2) == 0
    call(cu.cuStreamSynchronize, gpus.streams[0])
    got = np.empty(count, stored)
    call(cu.cuMemcpyDtoH, got.ctypes.data, out, got.nbytes)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = values.astype(stored)
    bits = np.dtype(f"u{stored.itemsize}")
    same = (got.view(bits) == wanted.view(bits)) | (np.isnan(got) & np.isnan(wanted))
    assert same.all(), (values[~same][:3], got[~same][:3], wanted[~same][:3])


def test_faults_hit_the_call_that_was_named(cuda: StandIn, gpus: Gpus) -> None:
    cuda.set("fail cuEventCreate 2 2")
    event()
    assert cu.cuEventCreate(0)[0] == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert cuda.fired() == "cuEventCreate"
    event()
    cuda.calm()
    cuda.set("fail * 3 999")
    codes = [int(cu.cuCtxGetCurrent()[0]) for _ in range(4)]
    assert codes == [0, 0, 999, 0]
    cuda.set("lose 2 46")
    assert [int(cu.cuCtxGetCurrent()[0]) for _ in range(3)] == [0, 46, 46]


def test_copies_are_corrupted_delayed_and_stopped(cuda: StandIn, gpus: Gpus) -> None:
    a, b = gpus.put(np.float32([1, 2])), gpus.put(np.float32([0, 0]))
    cuda.set("corrupt 1")
    call(cu.cuMemcpyDtoDAsync, b, a, 8, gpus.streams[0])
    call(cu.cuStreamSynchronize, gpus.streams[0])
    assert gpus.get(b, 2) != [1, 2]
    cuda.set("delay 1 1000; query_steps 10")
    call(cu.cuMemcpyDtoDAsync, b, a, 8, gpus.streams[0])
    assert cu.cuStreamQuery(gpus.streams[0])[0]
    call(cu.cuStreamSynchronize, gpus.streams[0])
    assert gpus.get(b, 2) == [1, 2]
    cuda.set("stop 1")
    call(cu.cuMemcpyDtoDAsync, b, a, 8, gpus.streams[0])
    assert all(cu.cuStreamQuery(gpus.streams[0])[0] for _ in range(50))


def test_memory_has_an_end(cuda: StandIn, gpus: Gpus) -> None:
    cuda.set("memory 1000")
    address = call(cu.cuMemAlloc, 900)
    assert cu.cuMemAlloc(200)[0] == cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    call(cu.cuMemFree, address)
    assert call(cu.cuMemGetInfo) == (1000, 1000)


def test_machines_know_how_their_gpus_are_joined(library: StandIn) -> None:
    """Rates of links where every two GPUs have one, of the bus where two have none."""
    library.reset("devices 4; name some GPU; arch " + ("sm_80" if library.face == "cuda" else "gfx942"))
    joined = discover(library.face, 4).links
    library.set("link 1 3 2")
    by_bus = discover(library.face, 4).links
    assert joined.rate > by_bus.rate == 20e3
    assert not library.violations()


@pytest.mark.parametrize("queues", ["1", "2", None])
def test_streams_of_one_hardware_queue_keep_each_other_back(
    cuda: StandIn, monkeypatch: pytest.MonkeyPatch, queues: str | None
) -> None:
    """A wait stands before another stream's copy."""
    if queues is None:
        monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    else:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", queues)
    gpus = Gpus()
    one, two = gpus.streams[0], gpus.stream()  # before the default stream is used
    word, a, b = gpus.put(np.uint32([0])), gpus.put(np.float32([1])), gpus.put(np.float32([0]))
    for waiting, copying in ((one, two), (two, one)):
        ctypes.c_uint32.from_address(word).value = 0
        call(cu.cuStreamWaitValue32, waiting, word, 1, 0)
        call(cu.cuMemcpyDtoDAsync, b, a, 4, copying)
        ended = any(not int(cu.cuStreamQuery(copying)[0]) for _ in range(20))
        assert ended is (queues != "1")
        ctypes.c_uint32.from_address(word).value = 1
        for stream in (waiting, copying):
            call(cu.cuStreamSynchronize, stream)
    assert gpus.get(b, 1) == [1]


def test_a_wait_without_the_flush_may_come_before_what_a_peer_wrote(cuda: StandIn, gpus: Gpus) -> None:
    waiting, writing = gpus.streams
    flush = cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_FLUSH
    attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES
    word, data, out = gpus.put(np.uint32([0])), gpus.put(np.float32([0, 0])), gpus.put(np.float32([9, 9]))
    gpus.on(1)
    call(cu.cuCtxEnablePeerAccess, gpus.contexts[0], 0)
    source = gpus.put(np.float32([1, 2]))
    for late in (0, 1):
        cuda.set(f"flush {late}")
        assert call(cu.cuDeviceGetAttribute, attribute, 0) == late
        found = {flags: set[float]() for flags in ((0, flush) if late else (0,))}
        for seed in range(60):
            for flags, values in found.items():
                cuda.set(f"seed {seed}")
                gpus.on(0)
                for zeroed, count in ((word, 1), (data, 2)):
                    call(cu.cuMemcpyHtoD, zeroed, np.zeros(count, np.uint32).ctypes.data, 4 * count)
                call(cu.cuStreamWaitValue32, waiting, word, 1, int(flags))
                call(cu.cuMemcpyDtoDAsync, out, data, 8, waiting)
                gpus.on(1)
                call(cu.cuMemcpyDtoDAsync, data, source, 8, writing)
                call(cu.cuStreamWriteValue32, writing, word, 1, 0)
                for stream in (waiting, writing):
                    call(cu.cuStreamSynchronize, stream)
                gpus.on(0)
                values.add(gpus.get(out, 2)[0])
        assert not late or found[flush] == {1}
        assert found[0] == ({0, 1} if late else {1})
        assert ("remote writes are not flushed" in cuda.violations()) == late


def test_an_early_launch_begins_before_the_one_before_it_ends(cuda: StandIn, gpus: Gpus) -> None:
    """Its blocks take multiprocessors meanwhile, and what it reads is there."""
    count = 5000
    memories = [gpus.put(np.full(count, v, np.float32)) for v in (1, 0, 0)]
    flag = gpus.put(np.uint32([0]))
    name = "naive_reduce_fp32"
    code = compile_text(f'extern "C" __global__ void {name}() {{}}', "x.cu", ["-arch=sm_75"]).code
    function = call(cu.cuModuleGetFunction, call(cu.cuModuleLoadData, code), name.encode())
    tiles = -(-count // 512)

    def table(out: int, term: int, waits: int) -> bytes:
        put = Packed(REDUCE)
        job = REDUCE.pack(put.place(out), count, 1, count, 0, 1, 1, 0, 0, tiles, 0, tiles, 0, waits, 0, 0)
        term_at = TERM.pack(put.place(term), count, TYPES["fp32"].number, 0)
        at = gpus.put(np.frombuffer(job + term_at + FLAG.pack(flag) + bytes(16), np.uint8))
        ends = [at + len(job), at + len(job) + len(term_at), at + len(job) + len(term_at)]
        return TABLE.pack(at, *ends, ends[2] + FLAG.size, 1, tiles, 0, waits, 0, 0, *put.addresses())

    for waits in (0, 1):
        first, second = table(memories[1], memories[0], waits), table(memories[2], memories[1], 0)
        begun = 0
        for seed in range(20):
            cuda.set(f"seed {seed}")
            ctypes.c_uint32.from_address(flag).value = 1
            call(cu.cuMemsetD32Async, memories[1], 0, count, gpus.streams[0])
            before = cuda.early()
            for argument, early in ((first, False), (second, True)):
                assert launch(gpus.streams[0], function, [argument], grid=3, early=early) == 0
            call(cu.cuStreamSynchronize, gpus.streams[0])
            assert gpus.get(memories[2], count) == [1] * count
            begun += cuda.early() - before
        assert (begun > 0) is (waits == 0), "a launch that waits lets none begin"
    assert not cuda.violations()


def test_a_forked_process_has_no_devices(cuda: StandIn, gpus: Gpus) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: none of them is needed in the child
        child = os.fork()
    if not child:
        os._exit(int(cu.cuCtxGetCurrent()[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == cu.CUresult.CUDA_ERROR_NOT_INITIALIZED
    assert not cu.cuCtxGetCurrent()[0]


def test_a_process_stops_at_a_call_and_goes_on(cuda: StandIn) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        cuda.reset("devices 1; pause 2")
        os._exit(int(cu.cuInit(0)[0]) + int(cu.cuInit(0)[0]))
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    os.kill(child, signal.SIGCONT)
    assert os.waitpid(child, 0) == (child, 0)

"""What the device plan counts on, asked of an NVIDIA GPU: what shares a hardware queue waits, and what a flush costs.

    python -m tools.driver_facts                         # one NVIDIA GPU; half a minute
    python -m tools.driver_facts --connections 1 32

For each number of connections (CUDA_DEVICE_MAX_CONNECTIONS) a process of its own issues something that goes on once
the host raises a word, then a write of another word on another stream, and looks whether that write arrives meanwhile.
`no` says that it was kept back. Every answer is the worst of several tries, with other streams each time. Then the time
that a stream's wait for a word that is up takes, without and with CU_STREAM_WAIT_VALUE_FLUSH, where the GPU has it.
With two GPUs, last: do calls go where their stream belongs while the other GPU's context is current?
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

PATIENCE = 0.05  # seconds that a write gets to arrive
TRIES = 3
WAITS = 2000  # in a row, timed
SOURCE = """\
extern "C" __global__ void until_up(int *seen, const volatile int *word, int value) {
  while (*word < value) {}
  *seen = value;
}
"""
GATE, PROBE, SEEN = 0, 1, 2  # words


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", nargs="+", type=int, default=[1, 2, 8, 32])
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(answers()))
        return 0
    from ficco_rt.driver.registry import device_count

    if not device_count("cuda"):
        sys.stderr.write("driver_facts: this machine has no NVIDIA GPU\n")
        return 3
    columns = {}
    for number in options.connections:
        environment = {**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": str(number)}
        command = [sys.executable, "-m", "tools.driver_facts", "--inside"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if ended.returncode:
            sys.stderr.write(ended.stderr)
            return 3
        columns[str(number)] = json.loads(ended.stdout.splitlines()[-1])
    print(table(columns))
    return 0


def table(columns: dict[str, dict[str, str]]) -> str:
    """Rows of Markdown: what was asked, and the answer for each number of connections."""
    first = next(iter(columns.values()))
    lines = [f"| connections | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    lines += [f"| {asked} | {' | '.join(answers[asked] for answers in columns.values())} |" for asked in first]
    return "\n".join(lines)


class Bench:
    """Streams of the first GPU, and words that the host and the GPU see."""

    def __init__(self) -> None:
        from ficco_rt.driver.cuda.call import call
        from ficco_rt.driver.cuda.vendor import Cuda
        from ficco_rt.kernels.kernel_compiler import KernelSource
        from ficco_rt.kernels.target import options

        self.call, self.vendor = call, Cuda()
        self.cu = self.vendor.cu
        self.context = self.vendor.retain(0)
        self.vendor.enter(self.context)
        host = int(call(self.cu.cuMemHostAlloc, 4096, 0))
        self.words = (ctypes.c_uint32 * 8).from_address(host)
        self.at = int(call(self.cu.cuMemHostGetDevicePointer, host, 0))
        self.memory = self.vendor.alloc(1 << 20, "to be copied")
        code = self.vendor.compile(KernelSource("until_up", SOURCE), options(self.vendor.facts(0).arch))
        self.kernel = self.vendor.function(self.vendor.load(code, "until_up"), "until_up", "until_up")
        self.streams = [self.vendor.new_stream(0) for _ in range(48)]

    def close(self) -> None:
        self.words[GATE] = 1
        self.vendor.release(0)

    # ---- what is issued

    def do(self, action: tuple[Callable[..., Any], tuple[Any, ...]]) -> None:
        function, arguments = action
        code = function(*arguments)[0]
        if code:
            raise self.vendor.failure(function, code)

    def wait(self, stream: Any) -> None:
        self.do(self.vendor.wait_flag_action(self.at + 4 * GATE, stream))

    def write(self, stream: Any) -> None:
        self.do(self.vendor.signal_action(self.at + 4 * PROBE, stream))

    def spin(self, stream: Any) -> None:
        from ficco_rt.driver.gpu.vendor import Grid

        addresses = [bytes(ctypes.c_uint64(self.at + 4 * word)) for word in (SEEN, GATE)]
        arguments = [*addresses, bytes(ctypes.c_int(1))]
        self.do(self.vendor.launch_action(self.kernel, Grid((1,), (32,), 0), arguments, stream))

    def copy(self, stream: Any) -> None:
        from ficco_rt.driver.gpu.vendor import LinearCopy

        self.do(self.vendor.copy(LinearCopy(self.memory + (1 << 19), self.memory, 1 << 16), stream))

    def mark(self, stream: Any) -> None:
        self.vendor.record(self.vendor.new_event(timing=True), stream)

    def graph(self, a: Any, b: Any, issue: Callable[[], None]) -> None:
        """Launches what `issue` puts on the two streams, as two branches of a graph."""
        fork, join = (self.vendor.new_event(timing=False) for _ in range(2))
        self.vendor.begin_capture(a)
        self.vendor.record(fork, a)
        self.vendor.wait(b, fork)
        issue()
        self.vendor.record(join, b)
        self.vendor.wait(a, join)
        self.do(self.vendor.graph_action(self.vendor.instantiate(self.vendor.end_capture(a)), a))

    # ---- what is asked

    def passes(self, issue: Callable[[], None]) -> bool:
        """Whether the write arrives while the gate is shut."""
        self.words[GATE] = self.words[PROBE] = 0
        issue()
        begun = time.monotonic()
        while not self.words[PROBE] and time.monotonic() - begun < PATIENCE:
            for stream in self.streams:
                self.vendor.idle(stream)
        arrived = bool(self.words[PROBE])
        self.words[GATE] = 1
        self.call(self.cu.cuCtxSynchronize)
        return arrived

    def worst(self, issue: Callable[[Any, Any], None]) -> str:
        pairs = [(self.streams[2 * i], self.streams[2 * i + 1]) for i in range(TRIES)]
        return "yes" if all(self.passes(lambda a=a, b=b: issue(a, b)) for a, b in pairs) else "no"  # type: ignore[misc]

    def split_overrides(self, streams: Sequence[Any]) -> int:
        """How many of the streams wait without keeping one more back."""
        for count in range(1, len(streams)):

            def issue(count: int = count) -> None:
                for stream in streams[:count]:
                    self.wait(stream)
                self.write(streams[count])

            if not self.passes(issue):
                return count - 1
        return len(streams) - 1

    def anew(self) -> list[Any]:
        """Streams that are made in a row where all those of one queue have gone, if queues go round."""
        queues = int(os.environ["CUDA_DEVICE_MAX_CONNECTIONS"])
        for stream in self.streams[::queues]:
            self.vendor.destroy_stream(stream)
        made = [self.vendor.new_stream(0) for _ in range(queues + 1)]
        self.streams = made + [stream for i, stream in enumerate(self.streams) if i % queues]
        return made

    def cost(self, flags: int) -> float:
        """Microseconds of a wait for a word that is up."""
        stream, times = self.streams[0], []
        self.words[GATE] = 1
        for _ in range(5):
            begin, end = (self.vendor.new_event(timing=True) for _ in range(2))
            self.vendor.record(begin, stream)
            for _ in range(WAITS):
                self.do((self.cu.cuStreamWaitValue32, (stream, self.at + 4 * GATE, 1, flags)))
            self.vendor.record(end, stream)
            self.call(self.cu.cuCtxSynchronize)
            times.append(1e3 * self.vendor.milliseconds(begin, end) / WAITS)
        return statistics.median(times)

    def elsewhere(self) -> Iterator[tuple[str, str]]:
        """Calls on a stream of this GPU while the other GPU's context is current, and what comes of them."""
        from ficco_rt.driver.gpu.vendor import Grid, LinearCopy, MemOp, PitchedCopy

        vendor, stream, of, to = self.vendor, self.streams[0], self.memory, self.memory + 4096
        arguments = [*(bytes(ctypes.c_uint64(address)) for address in (to, of)), bytes(ctypes.c_int(1))]
        for action, wanted in (
            (vendor.copy(LinearCopy(to, of, 4), stream), 1),
            (vendor.copy_rows(PitchedCopy(to, of, 4, 2, 64, 64), stream), 1),
            (vendor.copy_batch([LinearCopy(to, of, 4)], stream), 1),
            (vendor.zero_action(to, 1, stream), 0),
            (vendor.signal_action(to, stream), 1),
            (vendor.mem_op_actions([MemOp(of, False), MemOp(to, True)], stream)[0], 1),
            (vendor.launch_action(self.kernel, Grid((1,), (1,), 0), arguments, stream), 1),
        ):
            for address, value in ((of, 1), (to, 1 - wanted)):
                self.call(self.cu.cuMemcpyHtoD, address, ctypes.addressof(ctypes.c_uint32(value)), 4)
            vendor.enter(vendor.retain(1))
            code = action[0](*action[1])[0]
            vendor.release(1)
            vendor.enter(self.context)
            self.call(self.cu.cuStreamSynchronize, stream)
            found = ctypes.c_uint32()
            self.call(self.cu.cuMemcpyDtoH, ctypes.addressof(found), to, 4)
            yield action[0].__name__, code.name if code else "right" if found.value == wanted else "wrong"


def in_order(*steps: Callable[[], None]) -> None:
    for step in steps:
        step()


def probes(bench: Bench) -> Iterator[tuple[str, Callable[[Any, Any], None]]]:
    """What is asked, with what is issued on two streams."""
    wait, write, spin, copy, mark = bench.wait, bench.write, bench.spin, bench.copy, bench.mark
    yield "passes a stream's wait", lambda a, b: in_order(lambda: wait(a), lambda: write(b))
    yield "passes a kernel that waits", lambda a, b: in_order(lambda: spin(a), lambda: write(b))
    yield (
        "passes an event behind a kernel that waits",
        lambda a, b: in_order(lambda: spin(a), lambda: mark(a), lambda: write(b)),
    )
    yield (
        "passes a kernel that waits, behind a copy",
        lambda a, b: in_order(lambda: spin(a), lambda: copy(b), lambda: write(b)),
    )
    for name, held in (("a wait", wait), ("a kernel that waits", spin)):
        yield (
            f"passes {name} in a graph, captured behind it",
            lambda a, b, held=held: bench.graph(a, b, lambda: in_order(lambda: held(a), lambda: write(b))),  # type: ignore[misc]
        )
        yield (
            f"passes {name} in a graph, captured before it",
            lambda a, b, held=held: bench.graph(a, b, lambda: in_order(lambda: write(b), lambda: held(a))),  # type: ignore[misc]
        )


def answers() -> dict[str, str]:
    """Asked of the GPU in this process, whose environment says how many connections there are."""
    with closing(Bench()) as bench:
        found = {"streams that wait and keep no other back": str(bench.split_overrides(bench.streams))}
        for asked, issue in probes(bench):
            found[asked] = bench.worst(issue)
        flags = bench.cu.CUstreamWaitValue_flags
        plain, flush = int(flags.CU_STREAM_WAIT_VALUE_GEQ), int(flags.CU_STREAM_WAIT_VALUE_FLUSH)
        attribute = bench.cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES
        can = bool(bench.call(bench.cu.cuDeviceGetAttribute, attribute, bench.call(bench.cu.cuDeviceGet, 0)))
        found["µs of a wait for a word that is up"] = f"{bench.cost(plain):.2f}"
        found["the same with a flush of remote writes"] = (
            f"{bench.cost(plain | flush):.2f}" if can else "the GPU has none"
        )
        found["streams made where others have gone, likewise"] = str(bench.split_overrides(bench.anew()))
        if bench.vendor.count() > 1:
            found |= {f"{name}, another GPU's context current": told for name, told in bench.elsewhere()}
    return found


if __name__ == "__main__":
    sys.exit(main())

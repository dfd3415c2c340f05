"""The stand-in driver libraries: built by the C compiler at hand, loaded before the vendors' bindings, steered.

    gpus = standin.cuda()
    gpus.reset("devices 4; arch sm_90; seed 7")
    … the real driver on it …
    assert gpus.live() == {} and not gpus.violations()

What `set` takes, a line or a part between semicolons each; `reset` starts from the defaults:

    devices N            how many there are; 0: the library is there, and no GPU        [8]
    init CODE            what initialisation gives
    arch NAME            sm_90, gfx942, …                                               [sm_75, gfx908]
    name TEXT, memory BYTES, sms N, wavefront N
    smem BLOCK MULTIPROCESSOR RESERVED   bytes that a block may have, a multiprocessor has, each block loses
    link A B 0|1|2       how devices A and B reach each other's memory: not at all, by a link, by the bus  [1]
    seed N               of the order of all that streams and blocks leave open
    order 0|1|2          any stream; streams by rank; a stream as long as it can        [N mod 3]
    query_steps N        most steps that a query makes                                  [64]
    call_steps N         most steps that any call makes                                 [0]
    fail NAME N CODE     the N-th call of a function from now gives CODE; `*` for NAME: of all functions
    lose N CODE          from the N-th call on, every call gives CODE: the device is lost
    interrupt N          the N-th call raises SIGINT, as Ctrl-C does
    uuid N               of device 0; those of the others follow                         [0]
    shared 0|1           ordinary memory can go to other processes as IPC memory         [0]
    way 0|1              whether memory can leave the process as file descriptors        [1]
    reuse 1              freed memory's addresses are given again, the last ones first
    exclusive 1          CUDA: the devices' compute mode, which one process at a time may use
    fabric N             CUDA: and as fabric handles, by the IMEX channel N; -1: devices have such handles, and the
                         process may use no channel; 0: devices have none                [0]
    kill N               the N-th call kills the process
    pause N              the N-th call stops the process until somebody sends SIGCONT
    version N            of the driver; HIP: 70100000 for 7.1                            [13000, 60342134]
    flush 0|1            devices can flush what others write to their memory, and streams that wait for words must ask
                         for it                                                          [0]
    queues N             hardware queues of a device that has no context yet             [as CUDA_DEVICE_MAX_CONNECTIONS
                         or GPU_MAX_HW_QUEUES says; else 8, HIP 4]
    copies_lost 0|1      HIP: whether copies without compute units write nothing         [0]
    corrupt N            the N-th copy from device memory to device memory, of more than a word, writes other bytes
    delay N STEPS        the N-th copy of these waits for so many steps
    nccl N               the version of NCCL or RCCL, 22809 for 2.28.9; 0: it cannot be used            [0]
    apart 0|1            ranks of communicators are in several processes                 [0]
    lose_collective N CODE   the N-th collective of NCCL from now never ends, and its communicators tell of this error
    stop N               the stream that comes to the N-th command from now stops for ever
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

Face: TypeAlias = Literal["cuda", "hip"]

SOURCES = Path(__file__).with_name("src")
HEADERS = Path(__file__).parents[2] / "ficco_rt" / "kernels" / "src"  # of the kernels' structs, which SOURCES include
KINDS = (
    "contexts",
    "streams",
    "events",
    "allocations",
    "modules",
    "functions",
    "graphs",
    "execs",
    "captures",
    "communicators",
    "libraries",
    "descriptors",
    "physicals",
    "mappings",
    "opened",
)
COMPILER = ("cc",) if shutil.which("cc") else (sys.executable, "-m", "ziglang", "cc")  # of the machine, or of the tests
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-shared",
    "-pthread",
    "-Wl,-Bsymbolic",  # each library is made of the same sources: its calls are its own, whichever was loaded first
    f"-Wl,--version-script={SOURCES}/exports.map",
)
LIBRARIES = {  # of each face: name, and where its sources are; those of `nccl` need the first, which has their calls
    "cuda": {"libcuda.so.1": SOURCES, "libnccl.so.2": SOURCES / "nccl"},
    "hip": {"libamdhip64.so": SOURCES, "libhiprtc.so": SOURCES / "hiprtc", "librccl.so": SOURCES / "nccl"},
}
GEMMS = {
    "cuda": "libcublasLt.so.13",
    "hip": "libhipblaslt.so",
}  # in a folder of their own, so that none is found by chance
USUAL = {"cuda": "arch sm_75", "hip": "arch gfx908; smem 65536 65536 0"}  # settings of a reset

NO_PRIORITY = -1000  # of a launch that asks for none

# What the codes are called by both vendors' numbering.
OUT_OF_MEMORY, NOT_READY, ILLEGAL_ADDRESS, LAUNCH_FAILED, UNKNOWN = 2, 600, 700, 719, 999


@cache
def folder(face: str) -> Path:
    """The folder of a built library. Processes may build at once: each publishes by a rename."""
    files = sorted(f for f in SOURCES.rglob("*") if f.is_file())
    digest = hashlib.sha256(repr((face, COMPILER, FLAGS)).encode())
    for file in (*files, *sorted(HEADERS.glob("*.h"))):
        digest.update(file.name.encode() + file.read_bytes())
    target = Path(tempfile.gettempdir()) / f"ficco-standin-{os.getuid()}-{digest.hexdigest()[:16]}"
    if not target.is_dir():
        aside = Path(tempfile.mkdtemp(prefix="ficco-standin-"))
        for name, home in LIBRARIES[face].items():
            sources = [str(f) for f in files if f.suffix == ".c" and f.parent == home]
            if home.name == "nccl":
                sources += ["-Wl,--no-as-needed", str(aside / next(iter(LIBRARIES[face])))]
            subprocess.run([*COMPILER, *FLAGS, f"-Wl,-soname,{name}", "-o", str(aside / name), *sources], check=True)
        (aside / "gemms").mkdir()  # all code is in the driver's library: who looks a call up here finds it there
        of, driver = GEMMS[face], str(aside / next(iter(LIBRARIES[face])))
        linked = ("-shared", "-Wl,--no-as-needed", f"-Wl,-soname,{of}", "-o", str(aside / "gemms" / of), driver)
        subprocess.run([*COMPILER, *linked], check=True)
        try:
            aside.rename(target)
        except OSError:  # another process was faster
            shutil.rmtree(aside)
    return target


@dataclass(frozen=True, slots=True, order=True)
class Asked:
    """What a launch asks of the driver. `priority` is NO_PRIORITY if it asks for none."""

    entry: str
    blocks: int
    threads: int
    smem: int
    cluster: int
    priority: int
    early: bool


def _asked(entry: str, *numbers: str) -> Asked:
    blocks, threads, smem, cluster, priority, early = (int(n) if n != "-" else NO_PRIORITY for n in numbers)
    return Asked(entry, blocks, threads, smem, cluster, priority, bool(early))


class StandIn:
    """One loaded library."""

    def __init__(self, face: Face) -> None:
        self.face = face
        self._loaded: list[ctypes.CDLL] = []
        for name in LIBRARIES[face]:
            self._load(name)
        self._library = self._loaded[0]
        for name in ("calls", "commands", "collectives", "copies", "timed", "early"):
            getattr(self._library, f"standin_{name}").restype = ctypes.c_long
        for name in ("mapped", "pooled", "elsewhere"):
            getattr(self._library, f"standin_{name}").restype = ctypes.c_uint64
        for name in ("violations", "fired", "priorities", "launches"):
            getattr(self._library, f"standin_{name}").restype = ctypes.c_char_p
        self.reset("devices 0")

    def gemms(self) -> None:
        """From here on the process has the vendor's library of GEMMs, too."""
        self._load(f"gemms/{GEMMS[self.face]}")

    def _load(self, name: str) -> None:
        """NOTE NVIDIA's bindings look among the process's global symbols first, and both faces have all calls: those of
        `hip` must not be found there."""
        mode = ctypes.RTLD_GLOBAL if self.face == "cuda" else ctypes.RTLD_LOCAL
        self._loaded.append(ctypes.CDLL(str(folder(self.face) / name), mode=mode))

    def set(self, text: str) -> None:
        self._library.standin_set(text.encode())

    def reset(self, text: str = "") -> None:
        """As freshly loaded, then `text`. Whatever is alive is gone."""
        self._library.standin_reset()
        self.set(USUAL[self.face])
        self.set(text)

    def calm(self) -> None:
        """No fault is to come any more, and counts of calls begin anew."""
        self._library.standin_calm()

    def live(self) -> dict[str, int]:
        """Live objects by kind, and contexts that are still pushed; what is at 0 is left out."""
        counts = (ctypes.c_long * len(KINDS))()
        self._library.standin_live(counts)
        found = dict(zip(KINDS, counts, strict=True)) | {"pushed": int(self._library.standin_pushed())}
        return {kind: n for kind, n in found.items() if n}

    def violations(self) -> str:
        """What was done to handles and memory that nobody may do: a line each."""
        text: bytes = self._library.standin_violations()
        return text.decode()

    def fired(self) -> str:
        """The call that an injected fault has hit, or nothing."""
        text: bytes = self._library.standin_fired()
        return text.decode()

    def priorities(self) -> list[int]:
        """Of the kernels of the graph that was made last; 0 if the graph does not keep them."""
        text: bytes = self._library.standin_priorities()
        return [int(n) for n in text.split()]

    def launches(self) -> list[Asked]:
        """What kernels were launched with since the last `reset` or `calm`, in the order of the calls."""
        text: bytes = self._library.standin_launches()
        return [_asked(*line.split()) for line in text.decode().splitlines()]

    def timed(self) -> int:
        """Live events that take times."""
        return int(self._library.standin_timed())

    def mapped(self, device: int, size: int, pieces: int = 1) -> int:
        """Memory as allocators map it to addresses (cuMemMap), in pieces of `size` bytes side by side: its address.
        Only its own device may touch it, until others are given access."""
        return int(self._library.standin_mapped(device, ctypes.c_uint64(size), pieces))

    def remapped(self, address: int) -> None:
        """The piece there is unmapped, and another one is mapped to its address."""
        self._library.standin_remapped(ctypes.c_uint64(address))

    def pooled(self, device: int, size: int) -> int:
        """Memory of a device's stream-ordered pool (cuMemAllocAsync)."""
        return int(self._library.standin_pooled(device, ctypes.c_uint64(size)))

    def elsewhere(self, device: int, size: int) -> int:
        """Memory of another context than the device's primary one."""
        return int(self._library.standin_elsewhere(device, ctypes.c_uint64(size)))

    def early(self) -> int:
        """Launches that began before the launch before them had ended."""
        return int(self._library.standin_early())

    def calls(self) -> int:
        return int(self._library.standin_calls())

    def commands(self) -> int:
        """That streams have come to."""
        return int(self._library.standin_commands())

    def collectives(self) -> int:
        """Of the library of collectives, that ranks have begun."""
        return int(self._library.standin_collectives())

    def copies(self) -> int:
        return int(self._library.standin_copies())

    def called(self) -> dict[str, int]:
        """How often each function was called."""
        text = ctypes.create_string_buffer(1 << 14)
        self._library.standin_called(text, len(text))
        return {name: int(n) for name, n in (line.split() for line in text.value.decode().splitlines())}


@cache
def cuda() -> StandIn:
    """libcuda.so.1: from here on this process's only one. Tests leave it without devices."""
    return StandIn("cuda")


@cache
def hip() -> StandIn:
    """libamdhip64.so and libhiprtc.so, likewise."""
    return StandIn("hip")


def of(face: Face) -> StandIn:
    """The libraries of a vendor."""
    return {"cuda": cuda, "hip": hip}[face]()

"""CUDA kernels of this project on the CPU: waits, signals and numbers, without a GPU and without NVIDIA's compiler.

The source is preprocessed; each of its `asm` statements becomes a call of the function of `nvidia.h` that does what the
instruction says; and clang compiles the whole. So a changed instruction (an acquire that is relaxed, a fence that is
gone) is a changed program. An instruction that this module does not know is an error.
"""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from tests.simt import amd

HERE = Path(__file__).parent
NOTHING = "(void)0"
ORDERS = {"relaxed": "RELAXED", "acquire": "ACQUIRE", "release": "RELEASE", "acq_rel": "ACQ_REL"}
ONE = r"\{ \.reg \.pred one; elect\.sync _\|one, 0xffffffff; @one "

# An instruction's text, and the call that it becomes: `%0` is its first operand, `{0}` the pattern's first group.
INSTRUCTIONS: Sequence[tuple[str, str]] = (
    (r"", NOTHING),
    # barriers in shared memory
    (ONE + r"mbarrier\.init\.shared::cta\.b64 \[%0\], %1; \}", "if (elected()) barrier_init(%0, %1)"),
    (r"fence\.mbarrier_init\.release\.cluster;", NOTHING),
    (ONE + r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[%0\], %1; \}", "if (elected()) barrier_arrive(%0, %1)"),
    (r"mbarrier\.arrive\.shared::cta\.b64 _, \[%0\];", "barrier_arrive(%0, 0)"),
    (
        r"\{ \.reg \.b32 there, done; mapa\.shared::cluster\.u32 there, %0, %2; "
        r"mapa\.shared::cluster\.u32 done, %1, %2; "
        r"st\.async\.weak\.shared::cluster\.mbarrier::complete_tx::bytes\.v4\.f32 "
        r"\[there\], \{%3, %4, %5, %6\}, \[done\]; \}",
        "store_there(%0, %1, %2, %3, %4, %5, %6)",
    ),
    (
        r"\{ \.reg \.b32 there; mapa\.shared::cluster\.u32 there, %0, %1; "
        r"mbarrier\.arrive\.shared::cluster\.b64 _, \[there\]; \}",
        "barrier_arrive(((%0) & 0xffffff) | ((%1) + 1) << 24, 0)",
    ),
    (
        r"\{ \.reg \.pred done; again: mbarrier\.try_wait\.parity\.shared::cta\.b64 done, \[%0\], %1; "
        r"@!done bra again; \}",
        "barrier_wait(%0, %1)",
    ),
    (r"bar\.sync %0, %1;", "meet(simt::block().numbered[%0], %1)"),
    (r"bar\.arrive %0, %1;", "meet(simt::block().numbered[%0], %1, false)"),
    (r"mov\.u32 %0, %%cluster_ctarank;", "%0 = blockIdx.x % simt::cluster_size"),
    (r"barrier\.cluster\.arrive\.release\.aligned; barrier\.cluster\.wait\.acquire\.aligned;", "meet_cluster()"),
    # TMA
    (
        ONE + r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.tile\.mbarrier::complete_tx::bytes "
        r"\[%0\], \[%1, \{%2, %3\}\], \[%4\]; \}",
        "if (elected()) load_box(%0, %1, %2, %3, %4, 0)",
    ),
    (
        ONE + r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.tile\.mbarrier::complete_tx::bytes"
        r"\.multicast::cluster \[%0\], \[%1, \{%2, %3\}\], \[%4\], %5; \}",
        "if (elected()) load_box(%0, %1, %2, %3, %4, %5)",
    ),
    (
        r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta\.tile\.bulk_group \[%0, \{%1, %2\}\], \[%3\]; "
        r"cp\.async\.bulk\.commit_group;",
        "store_box(%0, %1, %2, %3)",
    ),
    (r"cp\.async\.bulk\.commit_group;", "commit_no_stores()"),
    (r"cp\.async\.bulk\.wait_group\.read %0;", "wait_stores(%0, true)"),
    (r"cp\.async\.bulk\.wait_group 0;", "wait_stores(0, false)"),
    (r"prefetch\.tensormap \[%0\];", NOTHING),
    (r"fence\.proxy\.async;", "fence_async()"),
    (r"fence\.proxy\.async\.shared::cta;", "fence_proxy(simt::number())"),
    # launches
    (r"griddepcontrol\.wait;", "wait_launch_before()"),
    (r"griddepcontrol\.launch_dependents;", "let_next_launch()"),
    (r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32 %0;", NOTHING),
    # memory order
    (r"ld\.(relaxed|acquire)\.(sys|gpu)\.global\.u32 %0, \[%1\];", "%0 = load_word<{0}, {1}>(%1)"),
    (r"st\.(relaxed|release)\.(sys|gpu)\.global\.u32 \[%0\], %1;", "store_word<{0}, {1}>(%0, %1)"),
    (
        r"atom\.(relaxed|acquire|release|acq_rel)\.(sys|gpu)\.global\.add\.u32 %0, \[%1\], 1;",
        "%0 = add_word<{0}, {1}>(%1, 1)",
    ),
    (r"fence\.acq_rel\.(sys|gpu);", "fence(simt::number(), {0})"),
    (r"atom\.(relaxed|acquire)\.cta\.shared::cta\.or\.b32 %0, \[%1\], 0;", "%0 = look_shared<{0}>(%1)"),
    (r"red\.(relaxed|release)\.cta\.shared::cta\.add\.u32 \[%0\], 1;", "add_shared<{0}>(%0, 1)"),
    # functions
    (r"ex2\.approx\.ftz\.f32 %0, %1;", "%0 = power_of_2(%1)"),
    (r"rcp\.approx\.ftz\.f32 %0, %1;", "%0 = 1.0f / (%1)"),
    # loads and stores
    (r"ld\.global\.nc\.v2\.s32 \{%0, %1\}, \[%2\];", "load_ints((const int*)(%2), %0, %1)"),
    (r"ld\.global\.nc\.v4\.s32 \{%0, %1, %2, %3\}, \[%4\];", "load_ints((const int*)(%4), %0, %1, %2, %3)"),
    (
        r"\{ \.reg \.pred there; setp\.ne\.u32 there, %5, 0; "
        r"@there ld\.global\.cg\.v4\.f32 \{%0, %1, %2, %3\}, \[%4\]; \}",
        "load_floats((const float4*)(%4), %0, %1, %2, %3, %5)",
    ),
    (r"ld\.global\.cg\.f32 %0, \[%1\];", "%0 = load_checked((const float*)(%1))"),
    (r"ld\.shared\.v4\.f32 \{%0, %1, %2, %3\}, \[%4\];", "load_shared(%4, %0, %1, %2, %3)"),
    (r"st\.shared\.f32 \[%0\], %1;", "store_shared(%0, %1)"),
    (r"st\.shared\.v2\.f32 \[%0\], \{%1, %2\};", "store_shared(%0, %1, %2)"),
    (r"ld\.shared\.f32 %0, \[%1\];", "load_shared(%1, %0)"),
    (r"ld\.shared\.v2\.f32 \{%0, %1\}, \[%2\];", "load_shared(%2, %0, %1)"),
    (r"ld\.shared\.v4\.u32 \{%0, %1, %2, %3\}, \[%4\];", "load_shared(%4, %0, %1, %2, %3)"),
    (
        r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 \[%0\], \{%1, %2, %3, %4\};",
        "store_matrices(%0, false, %1, %2, %3, %4)",
    ),
    (
        r"stmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16 \[%0\], \{%1, %2, %3, %4\};",
        "store_matrices(%0, true, %1, %2, %3, %4)",
    ),
    (
        r"ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 \{%0, %1, %2, %3\}, \[%4\];",
        "load_matrices(%4, false, %0, %1, %2, %3)",
    ),
    (
        r"ldmatrix\.sync\.aligned\.m8n8\.x4\.trans\.shared\.b16 \{%0, %1, %2, %3\}, \[%4\];",
        "load_matrices(%4, true, %0, %1, %2, %3)",
    ),
    (r"mov\.u32 %0, %%tid\.x;", "%0 = threadIdx.x"),
    (r"cp\.async\.cg\.shared\.global\.L2::128B \[%0\], \[%1\], 16, %2;", "copy_async(%0, %1, %2)"),
    (
        r"\{ \.reg \.pred yes; setp\.ne\.b32 yes, %2, 0; "
        r"@yes cp\.async\.cg\.shared\.global\.L2::128B \[%0\], \[%1\], 16; \}",
        "copy_async_if(%0, %1, %2)",
    ),
    (
        r"\{ \.reg \.pred yes; setp\.ne\.b32 yes, %2, 0; mov\.b16 %0, 0; @yes ld\.global\.b16 %0, \[%1\]; \}",
        "%0 = (%2) ? load_checked((const unsigned short*)(%1)) : (unsigned short)0",
    ),
    (
        r"\{ \.reg \.pred yes; setp\.ne\.b32 yes, %2, 0; mov\.b32 %0, 0; @yes ld\.global\.b32 %0, \[%1\]; \}",
        "%0 = (%2) ? load_checked((const unsigned*)(%1)) : 0u",
    ),
    (r"st\.shared\.u32 \[%0\], %1;", "store_shared(%0, (unsigned short)(%1), (unsigned short)((%1) >> 16))"),
    (r"st\.shared\.v2\.b16 \[%0\], \{%1, %2\};", "store_shared(%0, %1, %2)"),
    (r"ld\.shared\.v4\.f32 \{%0, %1, %2, %3\}, \[%4\];", "load_shared(%4, %0, %1, %2, %3)"),
    (r"cvt\.rna\.tf32\.f32 %0, %1;", "%0 = tf32(%1)"),
    (r"cvt\.rn\.satfinite\.(e4m3|e5m2)x2\.f32 %0, %1, %2;", "%0 = pair_of({0}, %1, %2)"),
    (r"cp\.async\.wait_group 0;", "copies_wait(0)"),
    (r"cp\.async\.commit_group;", "copies_commit()"),
    (r"cp\.async\.wait_group %0;", "copies_wait(%0)"),
    (r"mov\.u64 %0, %%globaltimer;", "%0 = device_time()"),
    (r"mov\.u32 %0, %%smid;", "%0 = blockIdx.x"),
    # numbers
    (r"cvt\.rn\.f16x2\.f32 %0, %1, %2;", "%0 = pack_words(%1, %2, true)"),
    (r"cvt\.rn\.bf16x2\.f32 %0, %1, %2;", "%0 = pack_words(%1, %2, false)"),
    (
        r"\{ \.reg \.f16 l, h; mov\.b32 \{l, h\}, %2; cvt\.f32\.f16 %0, l; cvt\.f32\.f16 %1, h; \}",
        "unpack_halves(%2, %0, %1)",
    ),
    (r"cvt\.f32\.f16 %0, %1;", "%0 = wide(%1, true)"),
    (r"cvt\.rn\.f16\.f32 %0, %1;", "%0 = narrow(%1, true)"),
    (r"", NOTHING),  # of a register that the compiler must not move
    (r"wgmma\.fence\.sync\.aligned;", NOTHING),
    (r"wgmma\.commit_group\.sync\.aligned;", "wgmma_commit()"),
    (r"wgmma\.wait_group\.sync\.aligned %0;", "wgmma_wait(%0)"),
)  # fmt: skip
WGMMA = re.compile(
    r"\{ \.reg \.pred use; setp\.ne\.b32 use, %\d+, 0; "
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(?:16|32)\.f32\.(bf16|f16|e4m3|e5m2)\.(bf16|f16|e4m3|e5m2) "
    r"\{[%\d, ]+\}, %\d+, %\d+, use, 1, 1(?:, ([01]), ([01]))?; \}"
)
MMA = re.compile(
    r"mma\.sync\.aligned\.m16n8k(?:16|8)\.row\.col\.f32\.(bf16|f16|tf32)\.\1\.f32 \{%0, %1, %2, %3\}, "
    r"\{%4, %5, %6, %7\}, \{%8, %9\}, \{%0, %1, %2, %3\};"
)


def translated(source: str) -> str:
    """Preprocessed CUDA as C++ over `nvidia.h`."""
    made, at = [], 0
    for found in re.finditer(r"\basm\b\s*(?:volatile\b\s*)?\(", source):
        if found.start() < at:
            continue
        text, operands, end = _statement(source, found.end())
        made += [source[at : found.start()], _call(text, operands)]
        at = end
    return _shared("".join([*made, source[at:]]))


def _statement(source: str, at: int) -> tuple[str, list[str], int]:
    """An `asm` statement from behind its bracket: the instructions, its operands, and where it ends."""
    parts: list[list[str]] = [[]]  # by colons: instructions, outputs, inputs, clobbers
    depth, piece = 1, ""
    while True:
        c = source[at]
        if c == '"':
            end = at + 1
            while source[end] != '"':
                end += 2 if source[end] == "\\" else 1
            piece += source[at : end + 1]
            at = end + 1
            continue
        depth += (c in "([{") - (c in ")]}")
        at += 1
        if depth == 0 or (depth == 1 and c in ",:"):
            if piece.strip():
                parts[-1].append(piece.strip())
            piece = ""
            if depth == 0:
                break
            if c == ":":
                parts.append([])
        else:
            piece += c
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', " ".join(parts[0])))
    text = re.sub(r"\s+", " ", text.replace("\\n", " ")).strip()
    operands = [re.sub(r'^"[^"]*"\s*', "", o) for part in parts[1:3] for o in part]
    return text, operands, source.index(";", at)


def _call(text: str, operands: list[str]) -> str:
    wgmma, mma = WGMMA.fullmatch(text), MMA.fullmatch(text)
    if wgmma:
        columns, *kinds = wgmma.groups()
        *sums, left, right, use = operands
        types = ", ".join(f"simt::{kind.upper()}" for kind in kinds[:2])
        turned = f"{kinds[2] or 0}, {kinds[3] or 0}"
        return f"simt::wgmma<{columns}, {types}, {turned}>(&{sums[0]}, {left}, {right}, {use})"
    if mma:
        name = "mma_tf32" if mma[1] == "tf32" else f"mma<{str(mma[1] == 'f16').lower()}>"
        return f"simt::{name}({', '.join(operands)})"
    for pattern, call in INSTRUCTIONS:
        found = re.fullmatch(pattern, text)
        if found:
            words = [ORDERS.get(g, g.upper()) for g in found.groups()]
            for i, word in enumerate(words):
                call = call.replace(f"{{{i}}}", f"simt::{word}")
            call = re.sub(r"(?<![\w:])([a-z_]\w*(?:<[^>]*>)?\()", r"simt::\1", call) if call != NOTHING else call
            return re.sub(r"%(\d)", lambda m: operands[int(m[1])], call)
    raise AssertionError(f"nobody has said what this instruction does: {text}")


def _shared(source: str) -> str:
    """Declarations of shared memory as places in a block's memory."""
    source = re.sub(
        r"(?:alignas\(\d+\)\s*)?extern __shared__\s+([\w ]+?)\s+(\w+)\[\];",
        r"\1* const \2 = (\1*)simt::dynamic_shared();",
        source,
    )

    def declared(found: re.Match[str]) -> str:
        kind, names = found[1], found[2]
        made = ""
        for name in re.split(r",\s*", names):
            parts = re.fullmatch(r"(\w+)(\[.*\])?", name.strip())
            assert parts, name
            shape = f"{kind}{parts[2] or ''}"
            made += (
                f"static int place_of_{parts[1]} = -1; auto& {parts[1]} = simt::variable<{shape}>(place_of_{parts[1]});"
            )
        return made

    return re.sub(r"\b__shared__\s+(?:alignas\(\d+\)\s*)?([\w]+)\s+([^;]+);", declared, source)


class Kernel:
    """A kernel whose only argument is a struct, compiled for the CPU."""

    def __init__(
        self,
        folder: Path,
        source: Path,
        options: Sequence[str],
        entry: str,
        argument: str,
        change: tuple[str, str] = ("", ""),
    ) -> None:
        """`argument` is the struct's name, `change` a text of the source and what it becomes."""
        given = [o for o in options if o.startswith(("-D", "-std"))]
        unmarked = "#ifndef IF_MARKS\n#define IF_MARKS(...)\n#endif\n"  # the kernel has no twin that marks
        launch = f"SIMT_LAUNCH({entry}, {argument})\n"
        whole = f'#include "{HERE / "nvidia.h"}"\n@@@@\n#include "{source}"\n{unmarked}{launch}'
        preprocessed, made, library = folder / f"{entry}.ii", folder / f"{entry}.cc", folder / f"{entry}.so"
        amd.zig(folder, "cc", "-x", "c++", *given, *FLAGS, "-E", "-P", "-o", str(preprocessed), "-", text=whole)
        head, _, kernel = preprocessed.read_text().partition("@@@@")
        kernel = re.sub(r"^#pragma unroll.*$", "", kernel, flags=re.MULTILINE)
        old, new = change
        assert not old or kernel.count(old) == 1
        made.write_text(head + translated(kernel.replace(old, new) if old else kernel))
        amd.zig(folder, "cc", *FLAGS, "-shared", "-fPIC", "-o", str(library), str(made))
        self._library = ctypes.CDLL(str(library))
        self._library.simt_fault.restype = self._library.simt_hint.restype = ctypes.c_char_p
        u64, number = ctypes.c_uint64, ctypes.c_int
        self._library.simt_launch.argtypes = (ctypes.c_char_p, number, number, number, number, u64)
        self._library.simt_region.argtypes = (u64, u64, number, number)
        self._library.simt_gives.argtypes = (number, u64, u64, u64, u64, u64, u64)
        self._library.simt_raises.argtypes = (number, u64, ctypes.c_uint32)
        self._library.simt_reads.argtypes = (number, u64, u64, u64, u64)
        self._library.simt_lowers.argtypes = (u64,)
        self._library.simt_promises.argtypes = (u64, u64, u64, u64, u64, u64)

    def forget(self) -> None:
        """What was told of memory and of other devices."""
        self._library.simt_forget()

    def region(self, base: int, size: int, item: int, after: int = -1) -> None:
        """Memory whose writes are told apart by items of so many bytes. `after`: written when that device is done."""
        self._library.simt_region(base, size, item, after)

    def gives(self, who: int, to: int, pitch: int, source: int, source_pitch: int, rows: int, size: int) -> None:
        """Device `who` (0: the launch before) writes rows of `size` bytes there while the launch runs."""
        self._library.simt_gives(who, to, pitch, source, source_pitch, rows, size)

    def raises(self, who: int, flag: int, value: int = 1) -> None:
        """And then raises a flag."""
        self._library.simt_raises(who, flag, value)

    def reads(self, who: int, at: int, pitch: int, rows: int, size: int) -> None:
        """Device `who` reads these rows before it raises its flag."""
        self._library.simt_reads(who, at, pitch, rows, size)

    def lowers(self, flag: int) -> None:
        """The launch before takes the flag down, before any other device goes on."""
        self._library.simt_lowers(flag)

    def marks(self, at: int) -> None:
        """Where a kernel that marks puts its marks from now on."""
        self._library.simt_mark(ctypes.c_uint64(at))

    def promises(self, flag: int, at: int, pitch: int, rows: int, size: int, values: int) -> None:
        """Who sees the flag up on another device finds `values` (of no pitch) in these rows."""
        self._library.simt_promises(flag, at, pitch, rows, size, values)

    def hint(self) -> str:
        """Why the numbers of the last launch are wrong, if they are."""
        text: bytes = self._library.simt_hint()
        return text.decode()

    def __call__(
        self, argument: bytes, grid: int, threads: int, seed: int, *, cluster: int = 1, resident: int = 0
    ) -> str:
        """Run it; `resident`: blocks that run at once, if not all. What was found wrong, or nothing."""
        code = self._library.simt_launch(argument, grid, threads, cluster, resident or grid, seed)
        fault: bytes = self._library.simt_fault()
        return fault.decode() if code == 2 else "the launch comes to a stop" if code else ""


CPU = "x86_64_v2" if platform.machine() == "x86_64" else "baseline"  # whose vectors have a maximum without signs
FLAGS = (
    "-std=c++20", "-O2", f"-mcpu={CPU}", "-U_FORTIFY_SOURCE", "-fno-sanitize=all", "-fno-exceptions", "-fno-rtti",
    "-nostdinc++", "-nostdlib++", "-w",
)  # fmt: skip

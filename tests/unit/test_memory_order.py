"""What orders flags and data in the kernels' code: which of the instructions that order memory stand in it, and in what
order. No GPU is needed, and none would show a missing fence reliably.

A kernel's code is written as a word, a letter for each such instruction, in the order of the text. Equal letters that
stand together count once where the compiler unrolls loops.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ficco_rt.kernels import target
from ficco_rt.kernels.kernel_compiler import KERNELS, KernelSource
from ficco_rt.kernels.mfma import variants as mfma
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm80 import variants as sm80
from ficco_rt.kernels.sm90 import variants as sm90
from tests.simt import amd

NVIDIA = {
    "L": r"ld\.acquire\.sys\.",  # a look at a flag
    "R": r"st\.re(laxed|lease)\.sys\.",  # a flag is raised
    "M": r"membar\.sys|fence\.acq_rel\.sys",
    "A": r"atom\.acq_rel\.gpu",  # warps that have stored are counted
    "l": r"ld\.acquire\.gpu\.",  # a look at how many splits of K have come
    "m": r"membar\.gl|fence\.acq_rel\.gpu",
    "a": r"\batom\.global\.add",
    "G": r"griddepcontrol\.wait",
    "N": r"griddepcontrol\.launch_dependents",
    "P": r"fence\.proxy\.async;",  # between acquiring and what TMA reads, between what TMA stored and releasing
    "D": r"cp\.async\.bulk\.wait_group 0",  # TMA has stored
    "S": r"red\.release\.cta",  # the other warps are told that a wait has ended
    "s": r"atom\.acquire\.cta",  # and look at it
    "T": r"cp\.async\.bulk\.tensor\.\dd\.shared",  # TMA loads
    "C": r"cp\.async\.c[ag]\.",  # loads into shared memory
    "b": r"bar\.sync",
    "w": r"bar\.warp\.sync",
}
AMD = {
    "L": r"_load_dword v\d+, .* sc0 sc1$",
    "R": r"_store_dword .* sc0 sc1$",
    "I": r"buffer_inv sc0 sc1$",  # caches are emptied: acquire
    "W": r"buffer_wbl2 sc0 sc1$",  # caches are written back: release
    "b": r"s_barrier$",
}
REPEATED = "LlRTCw"


def word(code: str, letters: Mapping[str, str]) -> str:
    found = []
    for line in code.splitlines():
        if not line.startswith(("//", ";")):
            found += [letter for letter, pattern in letters.items() if re.search(pattern, line)]
    return re.sub(rf"([{REPEATED}])\1+", r"\1", "".join(found))


def loops(code: str, within: int = 12) -> int:
    """Looks at flags that are made again and again: between a label and a branch to it, so many lines further on."""
    lines, found = code.splitlines(), 0
    for i, line in enumerate(lines):
        if re.search(NVIDIA["L"], line):
            labels = [b.split()[-1].rstrip(";") for b in lines[i : i + within] if "bra " in b]
            found += any(f"{label}:" in lines[:i] for label in labels)
    return found


def ptx(source: Path, options: Sequence[str]) -> str:
    """What NVRTC makes of it before it is made code of an architecture."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is in the extra `cuda`")
    text = KernelSource.of(source)
    names = [[part.encode() for part in column] for column in zip(*text.headers, strict=True)] or [[], []]
    (code, program) = nvrtc.nvrtcCreateProgram(
        text.text.encode(), text.name.encode(), len(text.headers), names[1], names[0]
    )
    assert not code
    virtual = [o.replace("-arch=sm_", "-arch=compute_") for o in options]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(virtual), [o.encode() for o in virtual])
    assert not code
    (code, size) = nvrtc.nvrtcGetPTXSize(program)
    made = bytearray(size)
    assert not code
    assert not nvrtc.nvrtcGetPTX(program, made)[0]
    return made.rstrip(b"\0").decode()


NAIVE = [("GEMM", "-DIN=0", "-DOUT=0"), ("REDUCE", "-DIN=0", "-DOUT=0"), ("COPY",)]


@pytest.mark.parametrize("defines", NAIVE, ids=lambda d: d[0].lower())
def test_the_naive_kernels(defines: tuple[str, ...]) -> None:
    """The launch before has ended (G), flags are up (L, until they are) and the block knows (b); then after all: the
    block's stores are before the fence (M), tiles are counted, and who counted the last one has a fence of its own."""
    kind, *types = defines
    for arch, early in (("sm_90a", True), ("sm_80", False)):
        code = ptx(KERNELS / "naive.cu", [*target.options(arch), f"-D{kind}=entry", *types])
        found = re.sub(r"b+", "b", word(code, NVIDIA))
        ends = "ab" if kind == "REDUCE" else ""  # nothing is left to be waited for: counted before terms are read
        assert re.fullmatch(rf"{'NG' if early else ''}(bab)Lb+{ends}(M)(aM)Ra", found), found
        assert loops(code) == 1
        before, *_ = code.partition("griddepcontrol.launch_dependents")
        assert "bra " in before  # not at once: in a launch that waits, the next one must not take multiprocessors


def test_the_kernel_by_which_devices_meet() -> None:
    """Words of others are raised by a release behind all lanes' steps (w), and whoever waits acquires, again and again.
    Only what is reset, and the device's own count, are stores without order."""
    code = ptx(KERNELS / "device_barrier.cu", target.options("sm_90a"))
    assert loops(code) == 1
    assert set(re.findall(r"ld\.(\w+)\.sys\.", code)) == {"acquire"}
    assert sorted(re.findall(r"st\.(\w+)\.sys\.", code)) == ["relaxed", "relaxed", "release"]
    assert ".local." not in code  # the list of steps is read where the launch has put it
    assert "w" in word(code, NVIDIA).split("R")[0]


@pytest.mark.parametrize("addends", [False, True])
def test_the_hopper_kernel(addends: bool) -> None:
    """The warp that looks at flags waits for the launch before first, looks at each flag until it is up; then all lanes
    have acquired (w), TMA's reads come behind (P), and the loading warps are told (S). They wait for that before they
    load. Flags are raised behind the stores of TMA (D), made visible to other devices (P, M) by who is counted last."""
    variant = next(v for v in sm90.VARIANTS if v.name == "sm90_gemm_128x128_c2")
    code = ptx(sm90.SOURCE, variant.options(Signature("bf16", "bf16", False, False, addends)))
    found = word(code, NVIDIA)
    assert "".join(re.findall(r"G?Lw?P?S?", found)) == "GLwPS" * (2 + addends) + "Lw", found
    assert loops(code, 20) == 3 + addends  # a warp votes; of tiles that accumulate, the storing warps look too
    assert found.count("R") == found.count("DPAMR") > 0, found
    assert all(re.search("s[sw]*$", before) for before in found.replace("b", "").split("T")[:-1]), found
    assert found.count("Gs") == 2 + addends  # each loading warp waits for the launch before where not read-only
    assert "N" in found
    # a split of K is counted (A) and looks for the others (l); if it stops waiting, it first stores its share (m). A
    # second fence, where all have come by then, stands elsewhere
    assert "Aalwmlaw" in found, found
    assert found.count("m") == 2, found
    assert found.count("G") == 2 + addends + 1 + 2 + addends  # loading warps, storing warps, and the looking one


def test_the_hopper_kernel_that_loads_early() -> None:
    """Each loading warp waits for the launch before ahead of its first loads, too, where these are not read-only."""
    variant = next(v for v in sm90.VARIANTS if v.name == "sm90_gemm_64x64_c1")
    found = word(ptx(sm90.SOURCE, variant.options(Signature("bf16", "bf16", False, False))), NVIDIA)
    assert re.match("bGTGT", found), found
    assert found.count("Gs") == 2


def test_the_ampere_kernel() -> None:
    variant = sm80.VARIANTS[0]
    code = ptx(sm80.SOURCE, variant.options(Signature("bf16", "bf16", False, False), "sm_80"))
    found = word(code, NVIDIA)
    assert loops(code) == 1
    assert re.match(r"L[bw]+C", found), found  # the block waits before it loads
    assert re.search(r"Mw?A?[aw]*R", found), found
    assert found.count("R") == 1


def test_the_naive_kernels_on_amd(tmp_path: Path) -> None:
    options = (*target.options("gfx942"), "-DCOPY=entry")
    found = word(amd.compile_device(tmp_path, KERNELS / "naive.cu", options).assembly, AMD)
    assert re.fullmatch(r"bb(LI)+bI.*b(WI)+R", found), found


def test_the_kernel_of_matrix_cores(tmp_path: Path) -> None:
    variant = min(mfma.VARIANTS, key=lambda v: v.tile[0] * v.tile[1])
    options = variant.options(Signature("bf16", "bf16", False, False), "gfx942")
    found = word(amd.compile_device(tmp_path, mfma.SOURCE, options).assembly, AMD)
    assert re.match(r"L?LIL?LIbI", found), found
    assert re.search(r"WL?WR$", found), found

"""Kernel sources to machine code: headers, messages, the cache on disk."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from ficco_rt.errors import InternalError
from ficco_rt.files import private
from ficco_rt.kernels import copy_rows, device_barrier, kernel_compiler
from ficco_rt.kernels.families import FAMILIES
from ficco_rt.kernels.kernel_compiler import KERNELS, KernelSource

SMALL = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
OPTIONS = ("-arch=sm_80",)


def test_the_cache_serves_repairs_and_tells_apart(tmp_path: Path) -> None:
    first = kernel_compiler.compile_text(SMALL, "twice.cu", OPTIONS, tmp_path)
    again = kernel_compiler.compile_text(SMALL, "twice.cu", OPTIONS, tmp_path)
    assert not first.cached
    assert again.cached
    assert again.code == first.code
    other = kernel_compiler.compile_text(SMALL, "twice.cu", ("-arch=sm_90a",), tmp_path)
    assert other.key != first.key
    path = tmp_path / f"{first.key}.cubin"
    for damage in (b"", path.read_bytes()[:-7], path.read_bytes().replace(b"twice", b"thrice")):
        path.write_bytes(damage)
        mended = kernel_compiler.compile_text(SMALL, "twice.cu", OPTIONS, tmp_path)
        assert not mended.cached
        assert mended.code == first.code
        assert kernel_compiler.compile_text(SMALL, "twice.cu", OPTIONS, tmp_path).cached
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".cubin", ".cubin"]


def test_an_entry_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    first = kernel_compiler.compile_text(SMALL, "twice.cu", OPTIONS, folder)
    path = folder / f"{first.key}.cubin"
    assert (folder.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)

    def made_again() -> None:
        again = kernel_compiler.compile_text(SMALL, "twice.cu", OPTIONS, folder)
        assert (again.cached, again.code) == (False, first.code)
        assert (path.is_symlink(), path.stat().st_mode & 0o777) == (False, 0o600)
        assert kernel_compiler.compile_text(SMALL, "twice.cu", OPTIONS, folder).cached

    path.chmod(0o644)  # others may read it
    made_again()
    path.rename(folder / "aside")
    path.symlink_to(folder / "aside")
    made_again()
    path.unlink()
    os.mkfifo(path)  # nobody writes to it
    made_again()
    other = kernel_compiler.compile_text(SMALL, "twice.cu", ("-arch=sm_90a",), folder)
    path.write_bytes((folder / f"{other.key}.cubin").read_bytes())  # whole, and another one's
    made_again()
    monkeypatch.setattr(private.os, "geteuid", lambda: os.getuid() + 1)  # the entry is another owner's
    assert not kernel_compiler.compile_text(SMALL, "twice.cu", OPTIONS, folder).cached


def test_a_refused_text_comes_with_the_log(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match=r"(?s)wrong\.cu does not compile.*wrong\.cu\(1\): error.*nothing_here"):
        kernel_compiler.compile_text("__global__ void f() { nothing_here(); }", "wrong.cu", OPTIONS, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert kernel_compiler.compile_text(SMALL, "twice.cu", OPTIONS, blocked / "below").code


def _compile(folder: str) -> bytes:
    return kernel_compiler.compile_text(SMALL, "twice.cu", OPTIONS, Path(folder)).code


def test_processes_share_the_cache(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        codes = pool.map(_compile, [str(tmp_path)] * 4)
    assert len(set(codes)) == 1
    assert [p.suffix for p in tmp_path.iterdir()] == [".cubin"]


# ---------------------------------------------------------------- headers


def files(folder: Path, texts: dict[str, str]) -> Path:
    """These files; the first is the source."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / next(iter(texts))


INCLUDING = {
    "main.cu": '#include "parts/part.cuh"\nextern "C" __global__ void f(float* x) { *x = part(); }\n',
    "parts/part.cuh": '#pragma once\n#include "../number.h"\n__device__ float part() { return NUMBER; }\n',
    "number.h": "#pragma once\n#define NUMBER 1\n",
}


def test_headers_go_with_their_source(tmp_path: Path) -> None:
    source = KernelSource.of(files(tmp_path / "all", INCLUDING))
    assert source.name == "main.cu"
    assert source.headers == (
        ("parts/part.cuh", INCLUDING["parts/part.cuh"]),
        ("../number.h", INCLUDING["number.h"]),
    )
    assert b"f" in kernel_compiler.compile_source(source, OPTIONS, tmp_path).code


def test_a_message_names_the_header_and_its_line(tmp_path: Path) -> None:
    source = files(
        tmp_path / "all", {**INCLUDING, "number.h": "#pragma once\n\n#define NUMBER nothing_here()\n#error no\n"}
    )
    with pytest.raises(InternalError, match=r"(?s)main\.cu does not compile.*\.\./number\.h\(4\): .*no"):
        kernel_compiler.compile_file(source, OPTIONS, tmp_path)


def test_the_cache_tells_headers_apart(tmp_path: Path) -> None:
    path = files(tmp_path / "all", INCLUDING)
    first = kernel_compiler.compile_file(path, OPTIONS, tmp_path)
    assert kernel_compiler.compile_file(path, OPTIONS, tmp_path).cached
    (path.parent / "number.h").write_text("#pragma once\n#define NUMBER 2\n")
    other = kernel_compiler.compile_file(path, OPTIONS, tmp_path)
    assert not other.cached
    assert other.code != first.code


def test_a_header_has_one_spelling_in_a_source(tmp_path: Path) -> None:
    two = {**INCLUDING, "main.cu": '#include "number.h"\n' + INCLUDING["main.cu"]}
    with pytest.raises(InternalError, match=r'main\.cu: \S+/two/number\.h is "number\.h" and "\.\./number\.h"'):
        KernelSource.of(files(tmp_path / "two", two))
    same = {"main.cu": '#include "a.h"\n#include "d/b.h"\n', "a.h": "", "d/b.h": '#include "a.h"\n', "d/a.h": ""}
    with pytest.raises(InternalError, match=r'main\.cu: "a\.h" is \S+/same/a\.h and \S+/same/d/a\.h'):
        KernelSource.of(files(tmp_path / "same", same))


def test_each_header_of_ours_is_included_by_a_source() -> None:
    sources = [
        KERNELS / source
        for source in (*(family.source for family in FAMILIES), device_barrier.SOURCE, copy_rows.SOURCE)
    ]
    included = {spelling.split("/")[-1] for source in sources for spelling, _ in KernelSource.of(source).headers}
    headers = {f.name for f in KERNELS.rglob("*") if f.suffix in (".h", ".cuh")}
    assert included == headers
    assert {f.name for f in KERNELS.iterdir() if f.is_file()} - headers == {source.name for source in sources}

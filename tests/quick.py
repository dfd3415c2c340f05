"""Which files `pytest -m quick` runs: those of QUICK, without SLOW. A new file of a folder belongs by itself."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent

# Folders and files. Those of host and mock: the host driver, and both vendors' drivers on the stand-ins.
QUICK = ("unit", "errors", "host/test_driver_host.py", "mock/test_requests.py")

# They compile kernels, simulate large schedules, or start many processes or a browser.
SLOW = frozenset(
    {
        "unit/test_calibrate.py",
        "unit/test_cli_pipes.py",
        "unit/test_gemm_bench.py",
        "unit/test_gpu_parts.py",
        "unit/test_kernel_waits.py",
        "unit/test_memory_order.py",
        "unit/test_mfma_gemm.py",
        "unit/test_naive_amd.py",
        "unit/test_page.py",
        "unit/test_plan_check.py",
        "unit/test_readme.py",
        "unit/test_sm80_gemm.py",
        "unit/test_sm90_gemm.py",
    }
)


def is_quick(path: Path) -> bool:
    """Whether all tests of this file have the marker."""
    if not path.is_relative_to(HERE):
        return False
    name = path.relative_to(HERE).as_posix()
    return name not in SLOW and any(name == part or name.startswith(f"{part}/") for part in QUICK)


def ignored(path: Path, expression: str) -> bool | None:
    """For pytest: with `-m quick` the other files are not even imported."""
    is_other = path.name.startswith("test_") and path.suffix == ".py" and not is_quick(path)
    return True if expression == "quick" and is_other else None

"""Compiler options for an architecture, and its features that launches use."""

from __future__ import annotations


def compute_capability(arch: str) -> int | None:
    """90 of sm_90a; None for architectures that are not NVIDIA's."""
    number = arch.removeprefix("sm_").rstrip("af")
    return int(number) if arch.startswith("sm_") and number.isdecimal() else None


def options(arch: str) -> tuple[str, ...]:
    """Compiler options of every source."""
    if compute_capability(arch) is not None:
        return ("-std=c++17", f"-arch={arch}")
    return ("-std=c++17", "-O3", f"--offload-arch={arch}")


def chains(arch: str) -> bool:
    """Whether a launch may start there while the one before it on its stream ends: programmatic dependent launch,
    since Hopper."""
    capability = compute_capability(arch)
    return capability is not None and capability >= 90

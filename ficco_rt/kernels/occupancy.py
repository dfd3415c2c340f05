"""The limits of a device for blocks, and the range that a text's resources (residency, shared memory) leave."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..machine.discover import DeviceFacts
from ..machine.model import Device


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a device for blocks; sizes in bytes."""

    arch: str
    sms: int
    smem_per_sm: int
    smem_per_block: int
    smem_reserved: int  # that the system takes of every block
    max_residency: int
    warp: int  # threads that go together
    max_warps: int  # of all blocks of a multiprocessor

    @classmethod
    def of(cls, device: Device | DeviceFacts) -> Limits:
        return cls(**{f.name: getattr(device, f.name) for f in fields(cls)})

    @property
    def max_threads(self) -> int:
        """Threads of all blocks of a multiprocessor, at most."""
        return self.warp * self.max_warps


def at_once(sms: int, fitting: int, limits: Limits) -> int:
    """Blocks that are at work at once of a launch on at most `sms` multiprocessors, each of which holds `fitting`. NOTE
    the device spreads blocks over all multiprocessors: a launch limited to fewer has one block for each."""
    return sms * max(1, fitting) if sms == limits.sms else sms


@dataclass(frozen=True, slots=True)
class Window:
    """The least and the most shared memory of a block that a text's resources leave, bytes."""

    least: int
    most: int


def out_of_limits(sms: int | None, residency: int | None, smem: int | None, limits: Limits) -> str | None:
    """The request of a launch that no device of this kind can meet; None if all can be met."""
    if sms is not None and sms > limits.sms:
        return f"sms = {sms}, but the device has {limits.sms} multiprocessors"
    if residency is not None and residency > limits.max_residency:
        return f"residency = {residency}, but a multiprocessor holds at most {limits.max_residency} blocks"
    if smem is not None and smem > limits.smem_per_block:
        return f"smem = {smem} bytes, but a block has at most {limits.smem_per_block}"
    return None


def window(residency: int | None, smem: int | None, limits: Limits) -> Window | str:
    """The shared memory that this request leaves to a launch; a text if it leaves none."""
    most = limits.smem_per_block if smem is None else smem
    if residency is None:
        return Window(0, most)
    # with `residency` blocks to share a multiprocessor, and too little left for one more
    share = limits.smem_per_sm // residency - limits.smem_reserved
    least = max(0, limits.smem_per_sm // (residency + 1) - limits.smem_reserved + 1)
    if smem is not None and not least <= smem <= share:
        return f"smem = {smem} bytes does not give residency = {residency}: that takes {least} to {share} bytes a block"
    return Window(min(least, limits.smem_per_block), min(most, share))

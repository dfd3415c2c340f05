"""The kernel family of Hopper's tensor cores: `src/sm90_gemm.cu`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from ...graph.ir import Body, Gemm
from ...machine.model import Device
from ...types import ACCUMULATOR, TYPES, Dtype
from .. import tiles
from ..block_fit import Footprint, resident
from ..family import Chosen, Encode, Family, GemmRequest, KernelConfig, LaunchRequest, Tables, tables_of
from ..gemm_launch import ALIGNMENT, MatrixGemm, gemm_of
from ..leaving import NO_ROOM, footprint, shapes
from ..occupancy import Limits, window
from ..pace import Pace
from ..signature import Signature
from ..tile_table import count
from ..works import Work, only
from .choice import Choice, band, level, lockstep, ranked, split_k_of, wait_groups, whole_lines
from .cost import FEW, FP8, LINES, WaitGroup, alone, pace
from .tables import PackedLaunch, build, refusal
from .variants import ARCH, BESIDE, LEAN, ODD, SOURCE, STATIC_BYTES, VARIANTS, Variant

_ROUNDED = 1024  # bytes of shared memory for the kernel's static barriers, and what the system rounds up to


# Variants that one may try. For 130 products of 44 to 1460 rows on an H200 the best of four takes 0.1 % longer than the
# best of seven, the first 1.8 %, and up to 48 %.
_PROMISING = 4


@lru_cache(maxsize=256)
def _takers(odd: bool, signature: Signature) -> tuple[Variant, ...]:
    """The variants for such a product; with `odd` those of any height or width, too."""
    return tuple(v for v in (*VARIANTS, *BESIDE, *(ODD if odd else ())) if v.takes(signature))


@lru_cache(maxsize=4096)
def _ranked(
    rows: Sequence[int], columns: Sequence[int], k: int, sms: int, smem: int, late: Sequence[WaitGroup], addends: int,
    throttled: bool, odd: bool, lines: tuple[bool, bool], signature: Signature,
) -> list[Choice]:  # fmt: skip
    """NOTE a plan has hundreds of launches: hashing all variants for each of them takes as long as all else."""
    variants = _takers(odd, signature)
    return ranked(
        rows, columns, k, sms, signature.right_transposed, smem, late, addends, throttled, variants, lines,
        signature.scaling, signature.promoted,
    )[:_PROMISING]  # fmt: skip


def _merged(works: Sequence[Work], private: frozenset[int]) -> tuple[MatrixGemm, tuple[tuple[int, ...], ...]] | str:
    """The works, those that add to one product merged in registers, and which works each is made of."""
    gemm = gemm_of(works)
    if isinstance(gemm, str):
        return gemm
    merged = tiles.in_registers(gemm.works, gemm.signature.transposed, private, gemm.signature.step)
    reason = refusal(merged.works, gemm.signature)
    return reason if reason is not None else (replace(gemm, works=merged.works), merged.groups)


def _throttled(request: GemmRequest, gemm: MatrixGemm) -> bool:
    """Whether stores are to be spread over the next tile's steps: those at peers are."""
    return gemm.signature.out_dtype != ACCUMULATOR and any(w.body.stored_afar for w in only(request.works, Gemm))


class Sm90(Family[Variant]):
    name = "sm90"
    source = SOURCE.name
    variants = (*VARIANTS, *BESIDE, *ODD, *LEAN)
    instructions = "wgmma, TMA"

    def serves(self, arch: str) -> bool:
        return arch == ARCH

    def footprints(self, limits: Limits) -> Sequence[Footprint]:
        return [replace(footprint(v, v.smem(2, False), STATIC_BYTES), cluster=v.together) for v in self.variants]

    def fits(self, request: GemmRequest) -> str | None:
        found = _merged(request.works, request.private)
        return found if isinstance(found, str) else None

    def choose(self, request: GemmRequest, limits: Limits) -> Chosen | str:
        found = _merged(request.works, request.private)
        if isinstance(found, str):
            return found
        if request.residency not in (None, 1):
            return f"its blocks take all registers, so that residency = {request.residency} cannot be"
        left = window(request.residency, request.smem, limits)
        if isinstance(left, str):
            return left
        gemm, _ = found
        signature, most, least = gemm.signature, left.most - _ROUNDED, left.least
        transposed, scaling, item = signature.right_transposed, signature.scaling, signature.item
        throttled = _throttled(request, gemm)
        plain = not (throttled or signature.left_transposed or signature.out_dtype == ACCUMULATOR)
        odd = plain and not any(w.accumulate or w.flags for w in gemm.works)
        odd = odd and (not request.streamed or max(gemm.rows) <= FEW)  # with more rows, raising flags, not measured
        room = self._leaving(gemm, request, limits) if request.leave else (_takers(odd, signature), least, most)
        if room is None:
            return NO_ROOM
        variants, least, most = room
        if request.kernel is not None:
            variants = tuple(v for v in variants if v.name == request.kernel)
            if not variants:
                return "it does not make such products" + ", or leaves too little free" * bool(request.leave)
        if all(v.stages(most, transposed, scaling) < 2 for v in variants):
            return f"no variant fits {left.most} bytes of shared memory"
        late: tuple[WaitGroup, ...] = ()
        if request.streamed and request.arrival:
            late = wait_groups(gemm.works, gemm.depth, request.arrival, item)
        sms = request.sms or limits.sms
        lines, depth = whole_lines(gemm.works, item), gemm.depth * item // 2
        rows, columns, addends = gemm.rows, gemm.columns, gemm.addends
        if request.leave or request.kernel:
            made = ranked(
                rows, columns, depth, sms, transposed, most, late, addends, throttled, variants, lines, scaling,
                signature.promoted,
            )  # fmt: skip
        else:
            made = _ranked(rows, columns, depth, sms, most, late, addends, throttled, odd, lines, signature)
        if not made:
            return "its tiles or clusters do not suit such products"
        v, stages = made[0].variant, made[0].stages
        smem = request.smem if request.smem is not None else max(v.smem(stages, transposed, scaling), least)
        return Chosen(self.name, v.name, (*v.tile, signature.step), stages, smem, request.residency, request.sms)

    def _leaving(
        self, gemm: MatrixGemm, request: GemmRequest, limits: Limits
    ) -> tuple[tuple[Variant, ...], int, int] | None:
        """Variants whose blocks, one on each multiprocessor, leave room for others, and the least and the most dynamic
        shared memory of these. Lean ones only where no other does."""
        transposed, scaling = gemm.signature.right_transposed, gemm.signature.scaling
        for every in (VARIANTS, LEAN):
            variants = tuple(v for v in every if v.takes(gemm.signature))
            takers = [footprint(v, v.smem(2, transposed, scaling), STATIC_BYTES) for v in variants]
            found = list(shapes(takers, request, limits, most=1))
            if found:
                most = found[0][1].most if request.smem is None else request.smem
                chosen = tuple(variants[number] for number, _ in found)
                # NOTE the estimate knows nothing of stages, and two hide no load
                chosen = tuple(v for v in chosen if v.stages(most, transposed, scaling) > 2) or chosen
                return chosen, found[0][1].least, most
        return None

    def configure(self, request: LaunchRequest, limits: Limits) -> tuple[KernelConfig, ...] | str:
        v = self.variant(request.kernel)
        found = _merged(request.works, frozenset(request.resets))
        if isinstance(found, str):
            return found
        gemm, groups = found
        works, signature = gemm.works, gemm.signature
        transposed = signature.right_transposed
        if not v.stores(signature.out_dtype):
            return f"{v.name} stores no {signature.out_dtype}"
        if signature.fp8 and not v.takes(signature):
            return f"{v.name} multiplies no {signature.dtype}"
        if v.swapped and any(w.accumulate or w.addends for w in works):
            return f"{v.name} adds nothing to a product"
        budget = min(request.smem, limits.smem_per_block - STATIC_BYTES)
        stages = v.stages(budget, transposed, signature.scaling)
        if stages < 2:
            return f"{v.name} does not fit {request.smem} bytes of shared memory"
        smem = max(budget, v.smem(stages, transposed, signature.scaling))
        clusters = v.clusters(request.sms)
        split_k = split_k_of(
            v, works, gemm.columns, gemm.depth, request.sms, signature.item, transposed, signature.promoted
        )
        tiled = count(works, v.tile, signature.transposed, groups=clusters, cluster=v.cluster, across=v.shares_left,
                      step=signature.step, split_k=split_k)  # fmt: skip
        awaited = {flag for w in works for flag in w.flags}
        stays = {flag for w in works for flag in w.signals}
        inside = {flag for w in request.works for flag in w.signals} - stays  # of merged works: nobody raises these
        return (
            KernelConfig(
                family=self.name,
                kernel=v.name,
                entry=signature.entry(v.name),
                source=self.source,
                options=v.options(signature),
                threads=v.threads,
                registers=v.registers,
                smem=smem,
                static_smem=STATIC_BYTES,
                blocks=min(clusters * v.cluster, -(-tiled // v.together) * v.together),
                cluster=v.together,
                resident=resident(v.threads, v.registers, smem + STATIC_BYTES, limits),
                tiles=tiled,
                works=(0, len(request.works)),
                alignment=ALIGNMENT,
                chained=True,
                read_only=gemm.read_only,
                # storing warps of works that accumulate wait too, and are not counted
                resets=() if any(w.accumulate for w in works) else tuple(f for f in request.resets if f in awaited),
                unraised=tuple(sorted(inside)),
                tile=v.tile,
                stages=stages,
                wave=clusters,
                band=band(v, works, signature.transposed, request.sms, signature.item),
                level=level(v, works, signature, clusters, split_k),
                lockstep=lockstep(v, works, signature, clusters, split_k),
                split_k=split_k,
                merged=groups,
            ),
        )

    def pace(self, config: KernelConfig, device: Device, dtype: str) -> Pace:
        promoted = 0 if "_fast_" in config.entry else 1 + ("_1x128_" in config.entry)
        fp8 = FP8[promoted] if TYPES[dtype].bytes == 1 else 1.0
        return pace(self.variant(config.kernel), config.wave, config.tiles, config.stages, device, dtype, fp8)

    def promising(
        self, m: int, n: int, k: int, right_transposed: bool, device: Device, dtype: Dtype
    ) -> list[tuple[Variant, float]]:
        """A few variants for a plain [m, k] · [k, n] product, the best first, each with the microseconds that it is
        estimated to take in a graph of such launches."""
        most = Limits.of(device).smem_per_block - _ROUNDED
        signature = Signature(dtype, dtype, False, right_transposed)
        sizes = (m,), (n,), k, device.sms
        made = _ranked(*sizes, most, (), 0, False, True, LINES, signature)
        return [(c.variant, alone(c.variant, *sizes, 0, True, LINES, right_transposed)[0]) for c in made]

    def movable(self, bodies: Iterable[Body]) -> bool:
        return True

    def tables(self, config: KernelConfig, works: Sequence[Work], resets: Sequence[int] = ()) -> Tables:
        gemm = gemm_of(works)
        assert isinstance(gemm, MatrixGemm)
        made = build(
            tiles.merged(gemm.works, gemm.signature.transposed, config.merged),
            self.variant(config.kernel),
            gemm.signature,
            clusters=config.wave,
            stages=config.stages,
            split_k=config.split_k,
            band=config.band,
            level=config.level,
            lockstep=config.lockstep,
            read_only=config.read_only,
            resets=resets,
        )

        return _tables(made)


def _tables(made: PackedLaunch) -> Tables:
    def arguments(constants: int, counters: int, partials: int, encode: Encode) -> list[bytes]:
        return [made.parameters(constants, counters, [encode(m) for m in made.maps], partials=partials)]

    return replace(tables_of(made.table, arguments), moved=lambda move: _tables(made.moved(move)))


SM90 = Sm90()

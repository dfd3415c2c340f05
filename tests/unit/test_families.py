"""Families of kernels: who takes which works, how a launch is configured, how many blocks a multiprocessor holds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.graph.ir import Argument, Gemm, KernelCall
from ficco_rt.kernels import families, occupancy
from ficco_rt.kernels.block_fit import resident
from ficco_rt.kernels.families import FAMILIES, choose, configure, plain, tables
from ficco_rt.kernels.family import Chosen, GemmRequest, KernelConfig, LaunchRequest
from ficco_rt.kernels.mfma.family import MFMA
from ficco_rt.kernels.naive.family import COPY, GEMM, NAIVE, REDUCE
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.kernels.sm80.family import SM80
from ficco_rt.kernels.sm90.family import SM90
from ficco_rt.kernels.tile_table import SplitK
from ficco_rt.kernels.user import USER
from ficco_rt.kernels.works import View, Work, WorkOf
from ficco_rt.types import Dtype
from tests.unit.hand_made import copied, product, total

Span = tuple[int, int]


def limits(arch: str, sms: int, kib: int, blocks: int, warps: int, warp: int = 32, reserved: int = 1024) -> Limits:
    return Limits(arch, sms, kib << 10, (kib << 10) - reserved, reserved, blocks, warp, warps)


A100, L40 = limits("sm_80", 108, 164, 32, 64), limits("sm_89", 142, 100, 24, 48)
H100 = limits("sm_90a", 132, 228, 32, 64)
T4 = limits("sm_75", 40, 64, 16, 32, reserved=0)
MI300X = limits("gfx942", 304, 64, 16, 32, warp=64, reserved=0)


def view(
    name: str, rows: Span, columns: Span, shape: tuple[int, ...] | None = None, dtype: Dtype = "bf16", rank: int = 0,
    written: bool = True, address: int = 0,
) -> View:  # fmt: skip
    region = Region(name, rank, (Axis((Interval(*rows),)), Axis((Interval(*columns),))))
    base = address or (1 + ord(name)) << 40
    return View(region, base, shape or (rows[1], columns[1]), dtype, written)


def gemm(
    m: int = 512, n: int = 256, k: int = 512, dtype: Dtype = "bf16", out: Dtype | None = None, rows: int = 0,
    right_t: bool = False, left_t: bool = False, waits: tuple[int, ...] = (), signals: tuple[int, ...] = (),
    addends: tuple[View, ...] = (), rank: int = 0, written: bool = True, accumulate: bool = False,
    stored: View | None = None,
) -> WorkOf[Gemm]:  # fmt: skip
    """Of `m` rows of a larger output, from `rows` on. `stored`: the left operand, as it is."""
    left = view("A", (0, k), (0, m), dtype=dtype) if left_t else view("A", (0, m), (0, k), dtype=dtype)
    right = view("B", (0, n), (0, k), dtype=dtype) if right_t else view("B", (0, k), (0, n), dtype=dtype)
    left, right = replace(left, written=written), replace(right, written=written)
    made = view("C", (rows, rows + m), (0, n), (1 << 14, n), out or dtype, rank)
    return product(made, stored or left, right, left_t, right_t, accumulate, addends, waits, signals)


def along_k(*waits: int) -> tuple[WorkOf[Gemm], ...]:
    """A product in pieces of K, each added to what is there, and told to the next one by a flag."""
    found = []
    for i, flag in enumerate(waits):
        left = view("A", (0, 512), (256 * i, 256 * (i + 1)), (512, 2048))
        right = view("B", (256 * i, 256 * (i + 1)), (0, 256), (2048, 256))
        inside = (100 + i - 1,) if i else ()
        out = view("C", (0, 512), (0, 256))
        found.append(product(out, left, right, accumulate=i > 0, waits=(flag, *inside), signals=(100 + i,)))
    return tuple(found)


def chosen(request: GemmRequest, device: Limits) -> Chosen:
    found = choose(request, device)
    assert isinstance(found, Chosen), found
    return found


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("arch", "device", "family"),
    [
        ("sm_80", A100, "sm80"), ("sm_86", L40, "sm80"), ("sm_89", L40, "sm80"), ("sm_90", H100, "sm80"),
        ("sm_90a", H100, "sm90"), ("sm_100a", H100, "sm80"), ("sm_75", L40, "naive"), ("gfx942", MI300X, "mfma"),
        ("gfx90a", MI300X, "mfma"), ("gfx908", MI300X, "naive"),
    ],
)  # fmt: skip
def test_each_architecture_gets_its_kernel(arch: str, device: Limits, family: str) -> None:
    for m in (16, 128, 4096):
        config = chosen(GemmRequest((gemm(m, 4096, 4096),)), replace(device, arch=arch))
        assert config.family == family
        assert config.kernel.startswith(family)
        assert config.smem <= device.smem_per_block
        assert config.stages >= 2 or family == "naive"
        assert [r.family for r in config.refused] == [f.name for f in FAMILIES][: len(config.refused)]
        assert all(r.reason == f"it does not run on {arch}" for r in config.refused)


def test_what_the_hopper_kernel_refuses_or_cannot_share() -> None:
    assert chosen(GemmRequest((gemm(left_t=True),)), H100).family == "sm90"
    odd = chosen(GemmRequest((gemm(k=100),)), H100)
    assert odd.family == "sm80"
    assert [r.family for r in odd.refused] == ["sm90"]
    for residency in (2, 3, 4):
        config = chosen(GemmRequest((gemm(4096, 4096, 4096),), residency=residency), H100)
        variant = next(v for v in SM80.variants if v.name == config.kernel)
        assert variant.residency >= residency
        assert variant.registers * variant.threads * residency <= 65536
        assert H100.smem_per_sm // (config.smem + H100.smem_reserved) == residency
        assert config.refused[0].reason == f"its blocks take all registers, so that residency = {residency} cannot be"
    assert chosen(GemmRequest((gemm(4096, 4096, 4096),), smem=40 << 10), A100).smem == 40 << 10


def test_last_tiles_overlap_in_the_launch_as_it_is_configured() -> None:
    """The table's tiles, 64 bytes each, begin with rows of the left and of the right operand."""
    request = LaunchRequest("sm90_gemm_96x64_c1_swapped", (gemm(270, 2360, 2048, right_t=True),), 132, smem=230400)
    (config,) = configure(request, H100)
    assert config.level == (True, True)
    starts = np.frombuffer(tables(config, request.works).constants, np.int32).reshape(-1, 16)[: config.tiles, :2]
    assert starts.max(axis=0).tolist() == [270 - 96, 2360 - 64]
    (even,) = configure(replace(request, works=(gemm(288, 2368, 2048, right_t=True),)), H100)
    assert even.level == (False, False)


def test_every_kernel_that_is_named_is_taken_or_refused() -> None:
    added = view("D", (0, 512), (0, 1024))
    requests = [
        GemmRequest((gemm(512, 1024, 512),)),
        GemmRequest((gemm(512, 1024, 512),), sms=1),
        GemmRequest((gemm(512, 1024, 512),), smem=40 << 10),
        GemmRequest((gemm(512, 1024, 512, addends=(added,)),)),
        GemmRequest((gemm(512, 1024, 512, waits=(1,), signals=(2,)),), streamed=True, arrival=20.0),
        GemmRequest((gemm(512, 1024, 512, out="fp32"),)),
    ]
    names = [v.name for family in FAMILIES for v in family.variants]
    found = {name: [choose(replace(request, kernel=name), H100) for request in requests] for name in names}
    for name, answers in found.items():
        for answer in answers:
            if isinstance(answer, Chosen):
                assert answer.kernel == name
            else:
                assert answer.startswith(f"kernel = {name}: ")
                assert answer.endswith("; leave it out, and one is chosen")
    taken = {name for name, (plain, *_) in found.items() if isinstance(plain, Chosen)}
    assert {name.partition("_")[0] for name in taken} == {"sm90", "sm80", "naive"}
    assert len(taken) > 100


def test_transposed_tiles_make_the_plain_product_alone() -> None:
    plain = gemm(5000, 1000, 3000)
    assert chosen(GemmRequest((plain,)), H100).kernel == "sm90_gemm_160x256_c2_swapped"
    few = GemmRequest((gemm(16, 8192, 4096, signals=(1,)),), streamed=True)
    assert chosen(few, H100).kernel == "sm90_gemm_16x64_c1_swapped"
    added = view("D", (0, 5000), (0, 1000))
    for request in (
        GemmRequest((gemm(5000, 1000, 3000, accumulate=True),)),
        GemmRequest((gemm(16, 8192, 4096, waits=(1,)),), streamed=True),
        GemmRequest((gemm(5000, 1000, 3000, signals=(1,)),), streamed=True),
        GemmRequest((gemm(5000, 1000, 3000, out="fp32"),)),
        GemmRequest((gemm(5000, 1000, 3000, addends=(added,)),)),
    ):
        kernel = chosen(request, H100).kernel
        assert kernel.startswith("sm90_gemm_")
        assert not kernel.endswith("_swapped")
    for works in ((gemm(5000, 1000, 3000, accumulate=True),), (gemm(5000, 1000, 3000, addends=(added,)),)):
        asked = LaunchRequest("sm90_gemm_160x256_c2_swapped", works, 132, smem=230400)
        assert SM90.configure(asked, H100) == "sm90_gemm_160x256_c2_swapped adds nothing to a product"


SUM = total(view("S", (0, 64), (0, 64)), (view("T", (0, 64), (0, 64)),))
ADDED = view("D", (0, 512), (0, 256))
LONG = view("A", (0, 512), (0, 512), (512, 1 << 25))
COLUMN = replace(view("A", (0, 512), (0, 512), (512, 512, 2)), region=Region(
    "A", 0, (Axis((Interval(0, 512),)), Axis((Interval(0, 512),)), Axis((Interval(0, 1),), dropped=True))))  # fmt: skip
REFUSED = [
    ((gemm(), SUM), "the launch holds sums or copies as well"),
    ((gemm(), gemm(right_t=True)), "works differ in types or layout"),
    ((gemm(stored=COLUMN),), "an operand's columns are not side by side"),
]
AMPERES = [  # works, why no other kernel takes them, and by how many bytes it loads
    (gemm(dtype="fp32"), "operands are fp32", 16),
    (gemm(k=100), "the left operand's address or pitch is no multiple of 16 bytes", 4),
    (gemm(k=101), "the left operand's address or pitch is no multiple of 16 bytes", 2),
    (gemm(dtype="fp32", n=101), "operands are fp32", 4),
]


@pytest.mark.parametrize(("work", "reason", "access"), AMPERES, ids=[f"{a}, {r}" for _, r, a in AMPERES])
def test_what_the_ampere_kernel_alone_takes(work: Work, reason: str, access: int) -> None:
    request = GemmRequest((work,))
    assert [f.fits(request) for f in (SM90, SM80, MFMA)] == [reason, None, reason]
    found = chosen(request, H100)
    (config,) = configure(LaunchRequest(found.kernel, (work,), 132, found.smem), H100)
    assert (config.family, config.alignment) == ("sm80", access)
    assert f"-DACCESS={access}" in config.options


@pytest.mark.parametrize(("works", "reason"), REFUSED, ids=[r for _, r in REFUSED])
def test_what_no_tensor_core_takes(works: tuple[Work, ...], reason: str) -> None:
    request = GemmRequest(works)
    assert [f.fits(request) for f in (SM90, SM80, MFMA)] == [reason] * 3
    assert NAIVE.fits(request) is None
    assert families.fitting(request, "sm_90a") is NAIVE
    launch = LaunchRequest("sm90_gemm_128x256_c2", works, 132, 200 << 10)
    assert configure(launch, H100)[0].kernel == GEMM


@pytest.mark.parametrize(
    ("work", "sm90", "sm80", "mfma"),
    [
        (gemm(), None, None, None),
        (gemm(out="fp32"), None, None, None),
        (gemm(dtype="fp16", out="bf16"), None, *["operands are fp16, the output bf16"] * 2),
        (gemm(left_t=True), None, None, None),
        (gemm(addends=(ADDED,)), None, None, None),
        (gemm(addends=(replace(ADDED, dtype="fp32"),)), "operands are bf16, an addend is fp32", None, None),
        (gemm(addends=(replace(ADDED, dtype="fp16"),)), *["operands are bf16, an addend is fp16"] * 3),
        (gemm(stored=LONG), None, "a row of the left operand has 67108864 bytes, more than 33554432",
         "a row of the left operand has 67108864 bytes, more than 8388608"),
    ],
)  # fmt: skip
def test_each_family_says_what_it_does_not_take(
    work: Work, sm90: str | None, sm80: str | None, mfma: str | None
) -> None:
    request = GemmRequest((work,))
    assert [f.fits(request) for f in (SM90, SM80, MFMA)] == [sm90, sm80, mfma]


def test_what_is_asked_for_and_cannot_be() -> None:
    works = (gemm(),)
    assert choose(GemmRequest(works, sms=500), H100) == "sms = 500, but the device has 132 multiprocessors"
    assert str(choose(GemmRequest(works, smem=300 << 10), H100)).startswith("smem = 307200 bytes, but a block has at")
    assert str(choose(GemmRequest(works, smem=200 << 10, residency=2), H100)).endswith("bytes a block")
    found = choose(GemmRequest(works, residency=16), H100)
    assert found == "residency = 16, but a multiprocessor holds at most 8 blocks of 256 threads"
    few = choose(GemmRequest(works, smem=8 << 10), H100)
    assert few == "naive_gemm needs 16384 bytes of shared memory a block; 8192 are left to it"
    assert USER.fits(GemmRequest(works)) == USER.choose(GemmRequest(works), H100)


def test_stores_at_other_ranks_are_throttled() -> None:
    many = gemm(1 << 14, 4096, 2048)
    afar = gemm(1 << 14, 4096, 2048, rank=1)
    assert not chosen(GemmRequest((many,)), H100).kernel.endswith("_paced")
    assert chosen(GemmRequest((afar,)), H100).kernel.endswith("_paced")
    single = gemm(1 << 14, 4096, 2048, rank=1, out="fp32")
    assert not chosen(GemmRequest((single,)), H100).kernel.endswith("_paced")


# ---------------------------------------------------------------- configurations

KERNELS = [
    ("sm90_gemm_128x256_c2", H100), ("sm90_gemm_128x160_c2_pp", H100), ("sm90_gemm_64x64_c1", H100),
    ("sm80_gemm_128x128", A100), ("sm80_gemm_64x64", L40), ("mfma_gemm_128x128x32", MI300X), (GEMM, T4), (GEMM, H100),
]  # fmt: skip
WORKS = (gemm(signals=(7,)), gemm(rows=512, waits=(3,)), gemm(300, rows=1024, waits=(3, 5)))


@pytest.mark.parametrize(("kernel", "device"), KERNELS)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_configuration_is_pure_and_holds_no_address(kernel: str, device: Limits, streamed: bool) -> None:
    smem = min(device.smem_per_block, 200 << 10)
    request = LaunchRequest(kernel, WORKS, device.sms, smem, streamed, resets=(3, 5))
    found = configure(request, device)
    assert configure(request, device) == found
    (config,) = found
    assert hash(config) == hash(configure(request, device)[0])
    assert eval(repr(config), {"KernelConfig": KernelConfig, "SplitK": SplitK}) == config
    moved = tuple(replace(w, views=tuple(replace(v, address=v.address << 1) for v in w.views)) for w in WORKS)
    assert configure(replace(request, works=moved), device) == found
    assert config.kernel == kernel
    assert config.entry.startswith(kernel)
    assert config.blocks % config.cluster == 0
    assert 0 < config.blocks <= (device.sms if streamed else device.sms * max(1, config.resident))
    assert config.resident == resident(config.threads, config.registers, config.smem + config.static_smem, device)
    assert config.smem + config.static_smem <= device.smem_per_block
    made = tables(config, WORKS, tuple(8 * f for f in config.resets))
    again = tables(config, WORKS, tuple(8 * f for f in config.resets))
    assert (made.constants, made.counters, made.partials) == (again.constants, again.counters, again.partials)
    assert made.arguments(64, 128, 192, lambda m: bytes(128)) == again.arguments(64, 128, 192, lambda m: bytes(128))


@pytest.mark.parametrize(("kernel", "device"), KERNELS)
def test_the_static_shared_memory_has_its_place_in_the_most_that_a_block_may_have(kernel: str, device: Limits) -> None:
    (config,) = configure(LaunchRequest(kernel, WORKS, device.sms, device.smem_per_block), device)
    assert config.smem + config.static_smem == device.smem_per_block
    assert config.resident == 1


def test_who_resets_flags() -> None:
    def of(kernel: str, works: tuple[Work, ...], resets: tuple[int, ...], device: Limits) -> KernelConfig:
        (config,) = configure(LaunchRequest(kernel, works, 16, 60 << 10, streamed=True, resets=resets), device)
        return config

    assert of("sm90_gemm_64x64_c1", WORKS, (3, 5), H100).resets == (3, 5)
    assert of(GEMM, WORKS, (3, 5), H100).resets == (3, 5)
    assert of("sm80_gemm_64x64", WORKS, (3, 5), A100).resets == ()
    added = (*WORKS, gemm(rows=2048, waits=(5,), accumulate=True))  # whose storing warps wait, too
    assert of("sm90_gemm_64x64_c1", added, (3, 5), H100).resets == ()


def test_pieces_of_k_are_merged_by_the_flags_that_nothing_else_waits_for() -> None:
    works = along_k(1, 2, 3)
    request = LaunchRequest("sm90_gemm_64x64_c1", works, 132, 64 << 10, streamed=True, resets=(1, 2, 3, 100, 101))
    (config,) = configure(request, H100)
    assert config.merged == ((0, 1, 2),)
    assert config.unraised == (100, 101)
    assert config.resets == (1, 2, 3)
    (other,) = configure(replace(request, resets=(1, 2, 3, 100)), H100)  # somebody else waits for flag 101
    assert other.merged == ((0, 1), (2,))
    assert other.unraised == (100,)
    assert other.resets == ()
    # the choice merges as the launch does
    one = chosen(GemmRequest(works, streamed=True, private=frozenset(request.resets)), H100)
    assert one.family == "sm90"


def test_what_may_be_read_before_the_launch_ahead_has_ended() -> None:
    (config,) = configure(LaunchRequest("sm90_gemm_64x64_c1", (gemm(written=False),), 132, 64 << 10), H100)
    assert (config.read_only, config.chained) == ((True, True), True)
    assert not configure(LaunchRequest("sm80_gemm_64x64", (gemm(),), 108, 64 << 10), A100)[0].chained
    assert [configure(LaunchRequest(GEMM, (gemm(),), 40, 16 << 10), d)[0].chained for d in (T4, A100, H100)] == [
        False, False, True,
    ]  # fmt: skip


def test_the_address_of_a_region_that_is_empty() -> None:
    """A user's kernel may be given no rows: the address is that of where they would begin."""
    region = Region("A", 0, (Axis((Interval(3, 3),)), Axis((Interval(2, 8),))))
    assert View(region, 1 << 20, (4, 8), "bf16").first == (1 << 20) + 2 * (3 * 8 + 2)


def test_works_of_several_kinds_are_launches_one_after_another() -> None:
    """The last one resets the flags of all."""
    copy = copied(view("E", (0, 64), (0, 64)), view("F", (0, 64), (0, 64)))
    works = (gemm(), SUM, SUM, copy, gemm(rows=512, waits=(9,)))
    configs = configure(LaunchRequest(GEMM, works, 32, streamed=True, resets=(9,)), H100)
    assert [(c.kernel, c.works, c.resets) for c in configs] == [
        (GEMM, (0, 1), ()), (REDUCE, (1, 2), ()), (COPY, (3, 1), ()), (GEMM, (4, 1), (9,)),
    ]  # fmt: skip
    entries = ["naive_gemm_bf16_bf16", "naive_reduce_bf16", "naive_copy", "naive_gemm_bf16_bf16"]
    assert [c.entry for c in configs] == entries


@pytest.mark.parametrize(("cluster", "blocks", "found"), [(2, 7, (6, 2)), (2, 1, (1, 1)), (1, 7, (7, 1))])
def test_single_blocks_beside_clusters_start_in_such(cluster: int, blocks: int, found: tuple[int, int]) -> None:
    request = LaunchRequest(GEMM, (gemm(2048, 2048),), blocks, streamed=True, cluster=cluster)
    (config,) = configure(request, H100)
    assert (config.blocks, config.cluster) == found


@pytest.mark.parametrize(("kernel", "device"), KERNELS)
def test_blocks_that_may_wait_are_one_a_multiprocessor(kernel: str, device: Limits) -> None:
    smem = min(device.smem_per_block, 200 << 10) if kernel.startswith("sm90") else 30 << 10
    request = LaunchRequest(kernel, (gemm(4096, 4096, waits=(3,)),), 6, smem)
    all_six = replace(device, sms=6)
    (free,), (waiting,) = (configure(replace(request, streamed=streamed), all_six) for streamed in (False, True))
    (few,) = configure(request, device)
    assert waiting.blocks == 6
    assert few.blocks == 6  # of more: the device spreads blocks over all of them
    assert free.blocks == (6 if kernel.startswith("sm90") else 6 * free.resident)


@pytest.mark.parametrize(
    ("kernel", "device", "streamed"),
    [
        ("sm90_gemm_64x64_c1", H100, True),
        ("sm90_gemm_64x64_c1", H100, False),
        ("sm80_gemm_64x64", A100, False),
        ("mfma_gemm_64x64x64", MI300X, False),
    ],
)
def test_a_deep_product_of_few_tiles_is_split(kernel: str, device: Limits, streamed: bool) -> None:
    request = LaunchRequest(kernel, (gemm(64, 256, 1 << 14),), device.sms, 60 << 10, streamed)
    (config,) = configure(request, device)
    assert max(config.split_k.tail, *config.split_k.works, 1) > 1
    assert config.tiles > 4


def test_memory_that_is_not_aligned_takes_the_plain_kernel() -> None:
    request = LaunchRequest("sm90_gemm_64x64_c1", (gemm(),), 132, 64 << 10)
    work = gemm()
    out, left, right = work.views
    shifted = (replace(work, views=(out, left, replace(right, address=right.address + 8))),)
    assert configure(request, H100)[0].alignment > 8
    (other,) = plain(request, H100)
    assert (other.kernel, other.alignment) == (GEMM, 1)
    assert configure(replace(request, works=shifted), H100) == (other,)


def test_a_users_kernel_gets_addresses_and_numbers() -> None:
    read = view("A", (2, 4), (8, 16), (16, 16), "fp32", address=1 << 20)
    arguments = Argument("a", "read", read.region), Argument("n", "int", 5)
    call = WorkOf(KernelCall("mine", arguments, (3, 2), (8, 4)), (read,))
    (config,) = configure(LaunchRequest("mine", (call,), 132, 1024), H100)
    assert (config.family, config.threads, config.blocks, config.smem) == ("user", 32, 6, 1024)
    at, number = tables(config, [call]).arguments(0, 0, 0, lambda m: b"")
    assert int.from_bytes(at, "little") == (1 << 20) + 4 * (2 * 16 + 8)
    assert (int.from_bytes(number, "little"), len(number)) == (5, 4)


# ---------------------------------------------------------------- occupancy


@pytest.mark.parametrize(
    ("device", "threads", "registers", "smem", "blocks"),
    [
        # on an H100 the driver said the same of 2,112 combinations of registers, threads and shared memory
        (H100, 96, 40, 0, 16), (H100, 64, 32, 0, 32), (H100, 1024, 72, 0, 0), (H100, 288, 128, 0, 1),
        # by CUDA's occupancy calculator
        (A100, 256, 32, 0, 8), (A100, 256, 64, 0, 4), (A100, 256, 65, 0, 3), (A100, 256, 128, 0, 2),
        (A100, 256, 255, 0, 1), (A100, 1024, 64, 0, 1), (A100, 1024, 65, 0, 0), (A100, 32, 16, 0, 32),
        (A100, 128, 32, 48 << 10, 3), (A100, 128, 32, 163 << 10, 1),
        (A100, 128, 32, 164 << 10, 0),
        (L40, 128, 32, 0, 12), (L40, 64, 32, 0, 24), (T4, 256, 32, 0, 4), (T4, 256, 32, 32 << 10, 2),
        (H100, 384, 168, 0, 1), (H100, 256, 128, 50 << 10, 2), (H100, 128, 128, 56 << 10, 4),
        # LLVM's AMDGPU usage guide: 512 registers a lane and SIMD, in steps of 8
        (MI300X, 256, 128, 0, 4), (MI300X, 256, 129, 0, 3), (MI300X, 256, 512, 0, 1), (MI300X, 256, 256, 48 << 10, 1),
        (MI300X, 512, 80, 0, 3), (MI300X, 256, 64, 32 << 10, 2), (MI300X, 256, 16, 0, 8),
    ],
)  # fmt: skip
def test_blocks_that_share_a_multiprocessor(
    device: Limits, threads: int, registers: int, smem: int, blocks: int
) -> None:
    assert resident(threads, registers, smem, device) == blocks


def test_each_variant_shares_a_multiprocessor_as_it_says() -> None:
    for v in SM80.variants:
        assert resident(v.threads, v.registers, v.smem(2), A100) >= 1
        assert resident(v.threads, v.registers, 0, A100) == v.residency
    for m in MFMA.variants:
        assert resident(m.threads, m.registers, 0, MI300X) == m.residency
    for h in SM90.variants:
        stages = h.stages(231424, False)
        assert resident(h.threads, h.registers, h.smem(stages, False) + 272, H100) == 1


@pytest.mark.parametrize(("residency", "smem"), [*itertools.product([None, 1, 2, 4], [None, 20 << 10])])
def test_the_shared_memory_of_a_window_gives_the_residency(residency: int | None, smem: int | None) -> None:
    found = occupancy.window(residency, smem, A100)
    if residency is None or isinstance(found, str):
        assert residency is None or "does not give" in str(found)
        return
    for size in (found.least, found.most):
        assert A100.smem_per_sm // (size + A100.smem_reserved) == residency

"""What is compared: runs of tools/bench/scenarios.json, what they cost the host, and compilations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ficco_rt.errors import UsageError
from tools.bench.scenarios import DEFAULT_FILE, Scenario, load
from tools.bench.variants import Variant

GRAPH, STREAMS = "graph", "streams"
QUARTERS = [1, 1, 1, 1]


@dataclass(frozen=True, slots=True)
class Form:
    """A schedule, and how it is run: as a `graph` or on `streams`."""

    variant: Variant
    mode: str

    @property
    def label(self) -> str:
        return f"{self.variant.label} {self.mode}"


@dataclass(frozen=True, slots=True)
class Case:
    """A size, and what is run on it."""

    scenario: Scenario
    form: Form

    @property
    def label(self) -> str:
        return f"{self.scenario.label}, {self.form.label}"


@dataclass(frozen=True, slots=True)
class Compilation:
    """What `ficco_rt.compile` is given, but for the machine, which is the default one."""

    variant: Variant
    ranks: int
    m: int

    @property
    def label(self) -> str:
        _, *parameters = self.variant.label.split()
        return " ".join([self.variant.schedule, *parameters, f"ranks={self.ranks}"])

    @property
    def arguments(self) -> dict[str, object]:
        return {"M": self.m, **dict(self.variant.parameters)}


def _variant(schedule: str, **parameters: object) -> Variant:
    return Variant(schedule, tuple(parameters.items()))


def _streams(schedule: str, **parameters: object) -> Form:
    return Form(_variant(schedule, **parameters), STREAMS)


def _graph(schedule: str, **parameters: object) -> Form:
    return Form(_variant(schedule, **parameters), GRAPH)


# The fastest forms on two GPUs (docs/results/bench.md), and a second one where it takes another way through the driver.
FORMS: dict[str, tuple[Form, ...]] = {
    "qkv70b_8k": (_streams("ag_gemm/shard_ring"),),
    "qkv70b_16k": (_streams("ag_gemm/streamed", chunks=2),),
    "gateup70b_8k": (_streams("ag_gemm/shard_p2p"),),
    "qkv405b_8k": (_streams("ag_gemm/streamed", chunks=1),),
    "gateup405b_8k": (_graph("ag_gemm/hetero_unfused_1d", chunks=2),),
    "qkv8b_16k": (_streams("ag_gemm/streamed", chunks=4), _graph("ag_gemm/stationary_a", chunks=2)),
    "gateup8b_16k": (_streams("ag_gemm/shard_p2p"),),
    "qkv70b_2k": (
        _streams("ag_gemm/streamed", chunks=1),
        _graph("ag_gemm/streamed", chunks=1, deep=QUARTERS),
    ),
    "o70b_16k": (_streams("gemm_rs/stationary_c", chunks=2), _graph("gemm_rs/streamed", chunks=2)),
    "down70b_8k": (_graph("gemm_rs/chunked", chunks=2),),
    "o405b_8k": (_streams("gemm_rs/chunked", chunks=2),),
    "down405b_8k": (_graph("gemm_rs/chunked", chunks=2),),
    "o8b_16k": (
        _streams("gemm_rs/stationary_c", chunks=2),
        _graph("gemm_rs/relay", first=[1, 1, 2], last=[2, 1, 1]),
    ),
    "down8b_16k": (_streams("gemm_rs/chunked", chunks=2),),
}

_SMALL = Scenario("ag_gemm", "2048³", 2048, 2048, 2048)
HOST = tuple(
    Case(_SMALL, Form(variant, mode))
    for variant in (_variant("ag_gemm/hetero_fused_1d", chunks=4), _variant("ag_gemm/streamed", chunks=4))
    for mode in (STREAMS, GRAPH)
)

COMPILATIONS = (
    Compilation(_variant("ag_gemm/hetero_fused_1d", chunks=8), 8, 4096),
    Compilation(_variant("ag_gemm/streamed", chunks=8), 8, 4096),
    Compilation(_variant("gemm_rs/chunked", chunks=8), 8, 4096),
    Compilation(_variant("gemm_rs/relay"), 8, 4096),
    Compilation(_variant("gemm_ar/streamed", chunks=8), 8, 4096),
    Compilation(_variant("ag_gemm/hetero_unfused_1d", chunks=16), 16, 16384),  # 7696 operations
)


def rows(names: Sequence[str] | None, ranks: int) -> tuple[Case, ...]:
    """The cases of these scenarios; None: of all. Raises UsageError: no such scenario, sizes that do not divide."""
    scenarios = {s.name: s for s in load(DEFAULT_FILE)[0]}
    picked = tuple(FORMS) if names is None else tuple(dict.fromkeys(names))
    for name in picked:
        if name not in FORMS:
            raise UsageError(f"--rows: no scenario is called '{name}'; there are {', '.join(FORMS)}")
        misfit = scenarios[name].misfit(ranks)
        if misfit:
            raise UsageError(f"{name}: {misfit}")
    return tuple(Case(scenarios[name], form) for name in picked for form in FORMS[name])

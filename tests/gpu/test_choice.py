"""Choosing on GPUs: candidates of some layers are measured, and the table says what each way of choosing loses.

For each layer the rules' choice, the model's best few and `serial` are verified and timed, on streams and as graphs.
The table, which `-s` shows, has the measured best, and how much slower `serial` and the choices of rules and model are.
`by="measured"` must give back what was measured. One layer is taken with few runs; `--long 2` and more takes as many
layers, with the runs of `ficco tune` from six on.
"""

from __future__ import annotations

import pytest

from ficco_rt.driver.api import DriverName
from ficco_rt.driver.registry import discover, has_gemms
from ficco_rt.select import measurements
from ficco_rt.select.choose import Choice, choose
from ficco_rt.select.tune import Effort, tune
from tests.gpu.apart import apart

LAYERS: tuple[tuple[str, int, int, int], ...] = (
    ("ag_gemm", 8192, 10240, 8192),
    ("gemm_rs", 16384, 8192, 8192),
    ("ag_gemm", 256, 10240, 8192),
    ("gemm_rs", 16384, 4096, 2048),
    ("ag_gemm", 16384, 1024, 4096),
    ("gemm_ar", 8192, 4096, 8192),
)
LIMIT = 180  # seconds of a layer


@pytest.mark.gpus2
def test_choices(backend: str, gpus: int, long: int) -> None:
    apart(as_measured, backend, gpus, min(long, len(LAYERS)), limit=LIMIT * long)


def as_measured(backend: DriverName, ranks: int, layers: int, best: int = 6) -> bool:
    """Whether measured times are what is remembered of them. `best`: candidates of the model's ranking. NumbersError: a
    candidate's numbers are wrong."""
    machine = discover(backend, ranks)
    effort = Effort() if layers == len(LAYERS) else Effort(rounds=2, iters=5)
    remembered, wrong = [], 0
    print(f"{ranks} × {machine.device.name}; µs, medians of {effort.rounds * effort.iters} runs")
    print(f"{'layer':28} {'best measured':44} {'µs':>8}  {'rules':>7} {'model':>7} {'serial':>7}")
    for operation, m, n, k in LAYERS[:layers]:
        sizes: dict[str, object] = {"M": m, "N": n, "K": k}
        rules = choose(operation, ranks, machine, "rules", sizes=sizes)
        model = choose(operation, ranks, machine, "model", sizes=sizes, vendor=has_gemms(backend))
        wanted = [rules.options[0], *model.options[:best]]
        wanted += [o for o in model.options if o.schedule.endswith("/serial")]
        found = tune(operation, ranks, sizes, backend, 1, effort, [(o.schedule, dict(o.params)) for o in wanted])
        remembered.append(found.memory)
        first = found.times[0]
        times: dict[tuple[str, str], float] = {}
        for t in found.times:
            times.setdefault((t.candidate.schedule, str(dict(t.candidate.params))), t.median)

        def lost(choice: Choice, times: dict[tuple[str, str], float] = times, least: float = first.median) -> str:
            time = times.get((choice.schedule, str(dict(choice.options[0].params))))
            return "-" if time is None else f"{100 * (time / least - 1):+.1f} %"

        serial = min((t.median for t in found.times if t.candidate.schedule.endswith("/serial")), default=first.median)
        layer = f"{operation} {m} × {n} × {k}"
        told = f"{first.candidate.label} {first.mode}"
        behind = f"{100 * (serial / first.median - 1):+.1f} %"
        print(f"{layer:28} {told:44} {first.median:8.1f}  {lost(rules):>7} {lost(model):>7} {behind:>7}", flush=True)
        again = choose(operation, ranks, machine, "measured", measured=measurements.merged(remembered), sizes=sizes)
        wrong += again.predicted != first.median
    return not wrong

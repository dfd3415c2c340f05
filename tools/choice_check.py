#!/usr/bin/env python3
"""Choosing on GPUs, in one command: measures candidates of some layers, and says what each way of choosing loses.

    python tools/choice_check.py                    # all GPUs of this machine, six layers, some minutes
    python tools/choice_check.py --quick            # two layers, few runs
    python tools/choice_check.py -o measured.json   # remembers the times as `ficco tune` does

For each layer the rules' choice, the model's best few and `serial` are verified and timed, on streams and as graphs.
The table has the measured best, and how much slower `serial` and the choices of rules and model are. Exit code 3
without GPUs, 4 if a candidate's numbers are wrong, 1 if `--by measured` does not give back what was measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "dsl")]

from ficco_rt.driver.registry import device_count, discover, has_gemms
from ficco_rt.errors import DeviceError, NumbersError
from ficco_rt.select import memory
from ficco_rt.select.choose import Choice, choose
from ficco_rt.select.tune import Effort, gpu_backend, tune

LAYERS: tuple[tuple[str, int, int, int], ...] = (
    ("ag_gemm", 8192, 10240, 8192),
    ("gemm_rs", 16384, 8192, 8192),
    ("ag_gemm", 256, 10240, 8192),
    ("gemm_rs", 16384, 4096, 2048),
    ("ag_gemm", 16384, 1024, 4096),
    ("gemm_ar", 8192, 4096, 8192),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, help="GPUs to take; all if not given")
    parser.add_argument("--best", type=int, default=6, help="candidates of the model's ranking")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("-o", "--output", help="file of measured times to write")
    options = parser.parse_args(arguments)
    try:
        backend = gpu_backend("auto")
        ranks = options.gpus or device_count(backend)
        machine = discover(backend, ranks)
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 3
    effort = Effort(rounds=2, iters=5) if options.quick else Effort()
    remembered, wrong = [], 0
    print(f"{ranks} × {machine.device.name}; µs, medians of {effort.rounds * effort.iters} runs")
    print(f"{'layer':28} {'best measured':44} {'µs':>8}  {'rules':>7} {'model':>7} {'serial':>7}")
    for operation, m, n, k in LAYERS[: 2 if options.quick else None]:
        sizes: dict[str, object] = {"M": m, "N": n, "K": k}
        rules = choose(operation, ranks, machine, "rules", sizes=sizes)
        model = choose(operation, ranks, machine, "model", sizes=sizes, vendor=has_gemms(backend))
        wanted = [rules.options[0], *model.options[: options.best]]
        wanted += [o for o in model.options if o.schedule.endswith("/serial")]
        try:
            found = tune(operation, ranks, sizes, backend, 1, effort, [(o.schedule, dict(o.params)) for o in wanted])
        except NumbersError as error:
            print(f"{operation} {m} × {n} × {k}: {error}", file=sys.stderr)
            return 4
        remembered.append(found.memory)
        best = found.times[0]
        times: dict[tuple[str, str], float] = {}
        for t in found.times:
            times.setdefault((t.candidate.schedule, str(dict(t.candidate.params))), t.median)

        def lost(choice: Choice, times: dict[tuple[str, str], float] = times, least: float = best.median) -> str:
            time = times.get((choice.schedule, str(dict(choice.options[0].params))))
            return "-" if time is None else f"{100 * (time / least - 1):+.1f} %"

        serial = min((t.median for t in found.times if t.candidate.schedule.endswith("/serial")), default=best.median)
        layer = f"{operation} {m} × {n} × {k}"
        told = f"{best.candidate.label} {best.mode}"
        behind = f"{100 * (serial / best.median - 1):+.1f} %"
        print(f"{layer:28} {told:44} {best.median:8.1f}  {lost(rules):>7} {lost(model):>7} {behind:>7}", flush=True)
        again = choose(operation, ranks, machine, "measured", measured=memory.merged(remembered), sizes=sizes)
        wrong += again.predicted != best.median
    if options.output:
        memory.save(memory.merged(remembered), options.output)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

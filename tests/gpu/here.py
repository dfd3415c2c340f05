"""What this machine has for the tests on GPUs, looked for in a process of its own: `python -m tests.gpu.here cuda`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.gpu.apart import ROOT, environment

DEVICES = {"cuda": ("nvidiactl", "dxg"), "hip": ("kfd",)}  # files in /dev; where there is none, nothing is asked
LIMIT = 120  # seconds


@dataclass(frozen=True, slots=True)
class Here:
    """`lacks`: of each marker that this machine does not serve, why."""

    gpus: int = 0
    device: str = ""
    driver: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)


@cache
def here(backend: str) -> Here:
    """Nothing is loaded into this process, where other tests put stand-ins into the place of the drivers' libraries."""
    if not any((Path("/dev") / name).exists() for name in DEVICES[backend]):
        return none(backend)
    command = [sys.executable, "-m", "tests.gpu.here", backend]
    asked = subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, timeout=LIMIT, check=True)
    return Here(**json.loads(asked.stdout.splitlines()[-1]))


def none(backend: str) -> Here:
    what = "no NVIDIA GPU" if backend == "cuda" else "no AMD GPU"
    return Here(lacks={"gpu": f"{what}, or its driver or bindings are missing"})


def looked(backend: str) -> Here:
    """In the process."""
    from ficco_rt.driver.cuda.nccl import Nccl
    from ficco_rt.driver.registry import device_count, discover, driver_version, has_gemms
    from ficco_rt.errors import DeviceError

    gpus = device_count(backend)  # type: ignore[arg-type]
    if not gpus:
        return none(backend)
    lacks = {}
    if gpus < 2:
        lacks["gpus2"] = "one GPU is here"
    if find_spec("torch") is None:
        lacks["torch"] = "PyTorch is not installed"
    else:
        import torch

        if not torch.cuda.is_available():
            lacks["torch"] = "PyTorch finds no GPU"
    try:
        Nccl().version()
    except DeviceError as error:
        lacks["nccl"] = str(error).splitlines()[0]
    if not has_gemms(backend):  # type: ignore[arg-type]
        lacks["nvmath"] = "the vendor's library of GEMMs or its bindings are missing: pip install 'ficco-rt[vendor]'"
    name = discover(backend, 1).device.name  # type: ignore[arg-type]
    version = driver_version(backend)  # type: ignore[arg-type]
    if backend == "cuda" and (tool := shutil.which("nvidia-smi")):
        command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
        asked = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        version = f"{' '.join(asked.stdout.split()[:1])} ({version})"
    return Here(gpus, name, version, lacks)


if __name__ == "__main__":
    print(json.dumps(asdict(looked(sys.argv[1]))))

"""Linear layers of `torch.ops.ficco` on the CPU, and the examples that use them: processes with gloo, and ficco's host
driver."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import cases
from tests.torch.processes import launched, together
from tests.unit import pages

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")

ROOT = Path(__file__).resolve().parents[2]


def test_layers() -> None:
    together(2, "linear_cases.everything")


def test_layers_of_four_processes() -> None:
    together(4, "linear_cases.four")


EXAMPLES = (
    "serving/serve.py",
    "llama_tp/llama.py train --small --steps 5",
    "llama_tp/llama.py decode --small --steps 5 --batches 3",
)


@pytest.mark.parametrize("command", EXAMPLES if cases.ALL else EXAMPLES[:2])
def test_examples(command: str) -> None:
    script, *arguments = command.split()
    said = launched(ROOT / "examples" / script, *arguments)
    assert ("all rows right" if "serving" in script else "ficco ") in said


def test_programs_of_the_page(tmp_path: Path) -> None:
    page = pages.blocks((ROOT / "docs" / "torch.md").read_text(encoding="utf-8"))
    programs = {block.words[0]: block.text for block in page if block.language == "python"}
    assert {*programs} == {"mlp_cpu.py", "parallel_cpu.py"}
    for name, text in programs.items() if cases.ALL else [("mlp_cpu.py", programs["mlp_cpu.py"])]:
        (tmp_path / name).write_text(text, encoding="utf-8")
        _torchrun(tmp_path / name)


def _torchrun(*words: object) -> str:
    """Two processes; what they print."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *map(str, words)]
    here = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'dsl'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(start, env=here, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

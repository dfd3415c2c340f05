"""A part of the failure campaign, by its seed: each driver alone and in groups, and of the parts some cases. In a
process of its own, whose lives end as interpreters do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import cases
from tests.lives.life import KINDS, PARTS, drawn, named
from tests.quick import is_thinned

MORE = 30 if cases.ALL else 1
TAKEN = {
    "cuda": ("--alone", 26 * MORE, "--groups", 10 * MORE, "--part", "late", "--part", "ring", "--every", 90 // MORE),
    "hip": ("--alone", 8 * MORE, "--groups", 4 * MORE),
    "host": ("--alone", 14 * MORE, "--groups", 17 * MORE, "--part", "late", "--every", 60 // MORE),
}


@pytest.mark.parametrize("driver", sorted(TAKEN))
def test_lives_end_right_or_with_an_error(driver: str, request: pytest.FixtureRequest) -> None:
    words = [sys.executable, "-m", "tests.lives", "--driver", driver, "--seed", "5", *map(str, TAKEN[driver])]
    words += ["--few-checks"] if is_thinned(request.config.args, bool(request.config.option.keyword)) else []
    done = subprocess.run(
        words, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    told = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert sum(int(line.split("|")[4].strip() or 0) for line in told[2:]) > 5, done.stdout


def test_a_life_is_drawn_again_by_its_name() -> None:
    for group in (False, True):
        life = drawn("cuda", group, 3, 14)
        assert named(life.name) == life
    late = next(PARTS["late"]("cuda"))
    assert named(late.name) == late


def test_every_kind_is_drawn() -> None:
    alone, groups = ({drawn("cuda", group, 1, i).event.kind for i in range(400)} for group in (False, True))
    assert alone | groups == set(KINDS)
    assert {drawn("host", True, 1, i).event.kind for i in range(200)} >= {"late", "kill", "pause", "exit"}

"""`tests/gpu/test_mistakes` on the stand-in: the cases whose answer does not depend on a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import test_mistakes as mistakes
from tests.mock.test_command_line import Machine

CALM = tuple(case.name for case in mistakes.cases(Path(), 1) if case.interrupt_after is None)


@pytest.mark.parametrize("name", CALM)
def test_answer(name: str, tmp_path: Path) -> None:
    mistakes.written(tmp_path)
    (case,) = (case for case in mistakes.cases(tmp_path, 2) if case.name == name)
    settings = f"devices {0 if name == 'no GPU' else 2}; arch sm_80"
    mistakes.answers(case, Machine(tmp_path).environment | {"STANDIN": settings})

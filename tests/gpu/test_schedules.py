"""Every shipped schedule: a part of the rows each day, all of them with FICCO_ALL=1; `--long 20` repeats 20 times."""

from __future__ import annotations

from datetime import date

import pytest

from ficco_rt.files import shipped
from tests import cases
from tests.gpu import schedules
from tests.gpu.apart import apart

PARTS = {"small": 5, "real": 40}  # of how many parts one is run
LIMIT = 300  # seconds of a part
OPERATIONS = tuple(dict.fromkeys(entry.name.split("/")[0] for entry in shipped.entries()))


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--ranks", 0) or 4


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("sizes", ["small", pytest.param("real", marks=pytest.mark.torch)])
def test_right(sizes: str, operation: str, backend: str, ranks: int, long: int) -> None:
    part = (0, 1) if cases.ALL else (date.today().toordinal(), PARTS[sizes])
    limit = LIMIT * long * (PARTS[sizes] if cases.ALL else 1)
    apart(schedules.right, backend, sizes, ranks, long, f"{operation}/", part, limit=limit)

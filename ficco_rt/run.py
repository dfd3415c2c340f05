"""`python -m ficco_rt.run …` is `ficco-run …`, for launchers that start modules: `torchrun … -m ficco_rt.run …`."""

from __future__ import annotations

from .cli.main import ficco_run

if __name__ == "__main__":
    ficco_run()

"""Pictures of report pages in a real browser, to be looked at: light and dark, several runs, a work with its arrows.

    python tools/report_shots.py FOLDER            # runs are modelled
    python tools/report_shots.py FOLDER RUN.json…  # of these trace files, which runs on GPUs may have written

Needs Chromium (Debian: apt-get install chromium). Writes the pages into the folder, and a PNG of each. Exit code 3
without Chromium.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "dsl")]

from ficco_rt.cli.main import execute
from ficco_rt.cli.page.page_run import read_run
from ficco_rt.cli.page.write import page

SIZES = ("--set", "M=8192", "--set", "N=10240", "--set", "K=8192")
SCHEDULES = ("ag_gemm/serial", "ag_gemm/hetero_fused_1d", "ag_gemm/streamed")
WIDTH = 1400
# the seventh work of the page's first timeline is chosen by keys, and what waited for it
CHOOSE = """<script>
{ const canvas = document.querySelector("canvas");
  canvas.focus({ preventScroll: true });
  for (const key of [..."nnnnnnn", "]"]) canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })); }
</script></body>"""


def main(words: list[str]) -> int:
    """Write pages and pictures; the process's exit code."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not words or words[0].startswith("-"):
        print(__doc__)
        return 2
    if chromium is None:
        print("report_shots: there is no Chromium; on Debian: apt-get install chromium", file=sys.stderr)
        return 3
    folder, traces = Path(words[0]), words[1:]
    folder.mkdir(parents=True, exist_ok=True)
    runs = [read_run(path) for path in traces or modelled(folder)]
    pages = {"one": page(runs[-1:]), "several": page(runs), "chosen": page(runs[-1:]).replace("</body>", CHOOSE)}
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    for name, theme, height in (
        ("one", "light", 1500), ("one", "dark", 1500), ("several", "light", 2400), ("several", "dark", 2400),
        ("chosen", "light", 1300),
    ):  # fmt: skip
        picture = folder / f"{name}-{theme}.png"
        shoot(chromium, f"{(folder / f'{name}.html').resolve().as_uri()}#theme={theme}", picture, height)
        print(picture)
    return 0


def modelled(folder: Path) -> list[str]:
    """Trace files of runs on the virtual clock."""
    paths = []
    for schedule in SCHEDULES:
        path = str(folder / f"{schedule.replace('/', '_')}.json")
        with redirect_stdout(io.StringIO()):  # the report: the page has all of it
            code = execute("ficco-run", [schedule, "--gpus", "4", "--backend", "sim", *SIZES, "--trace", path])
        if code:
            raise SystemExit(code)
        paths.append(path)
    return paths


def shoot(chromium: str, address: str, picture: Path, height: int) -> None:
    """A PNG of the top of a page."""
    subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--window-size={WIDTH},{height}", f"--screenshot={picture}", address,
        ],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Report pages: what stands on them, that nothing of a run can be markup, and, where Chromium is installed, that the
script does what the page says. CI has no browser: there the page's structure and the script's names are held."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import reduce
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ficco_rt.cli.main import execute
from ficco_rt.cli.page.page_run import read_run
from ficco_rt.cli.schema import made as schema_of
from ficco_rt.report.drawing import _FAMILIES
from tools import report_shots

PAGE = Path(__file__).resolve().parents[2] / "ficco_rt" / "cli" / "page"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZES = ("--set", "M=2048", "--set", "N=1024", "--set", "K=1024")
# The words of which the schemas allow no others.
_CHOICES = {
    word
    for words in re.findall(r'"enum": \[([^\]]*)\]', json.dumps(schema_of("run")))
    for word in json.loads(f"[{words}]")
}
EMPTY = {"meta", "br", "link", "input", "hr", "img"}


class Page(HTMLParser):
    """A page as a parser sees it: its elements closed as they should be, its text by the id of the section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.open: list[str] = []
        self.section = ""
        self.texts: dict[str, list[str]] = {}
        self.ids: list[str] = []
        self.titles: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.data: Any = None
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.attributes += attrs
        if tag not in EMPTY:
            self.open.append(tag)
        if tag == "section":
            self.section = str(found["id"])
        if "id" in found:
            self.ids.append(str(found["id"]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag
        if tag == "section":
            self.section = ""

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and self.data is None:
            self.data = json.loads(data)
        if self.open and self.open[-1] in ("h1", "h2"):
            self.titles.append(data)
        self.texts.setdefault(self.section, []).append(data)

    def text(self, section: str) -> str:
        return " ".join(" ".join(self.texts[section]).split())


def run(folder: Path, schedule: str, name: str, *words: str) -> Page:
    command = [schedule, "--gpus", "2", "--backend", "sim", *SIZES, "--trace", str(folder / f"{name}.json")]
    assert execute("ficco-run", [*command, "--report", str(folder / f"{name}.html"), *words]) == 0
    return Page((folder / f"{name}.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with their pages and traces, and both on one page."""
    made = tmp_path_factory.mktemp("pages")
    run(made, "ag_gemm/serial", "serial")
    run(made, "ag_gemm/hetero_fused_1d", "fused", "--set", "chunks=2")
    files = [str(made / f"{name}.json") for name in ("serial", "fused")]
    assert execute("ficco", ["report", *files, "-o", str(made / "both.html")]) == 0
    return made


def read(folder: Path, name: str) -> Page:
    return Page((folder / name).read_text(encoding="utf-8"))


def test_a_page_says_what_ran_and_how_well(folder: Path) -> None:
    page = read(folder, "fused.html")
    assert page.titles == [
        "ag_gemm_hetero_fused_1d",
        "At a glance",
        "Where the time went",
        "Timeline",
        "Stages",
        "What ran, and why",
    ]
    glance = page.text("glance")
    assert re.search(r"of the ideal \d+ % ideal modelled: \S+ µs, \w+ alone", glance)
    serial = r"serial ÷ time \d\.\d\d× serial modelled, with no overlap: \S+ µs, computing and moving, one after the"
    assert re.search(serial, glance)
    assert "✓ Proof every output is what the file claims ✓ Check no race, no deadlock in the plan" in glance
    assert "– Numbers not run: the model gives times alone" in glance
    assert "waves" in page.text("went")
    assert "Rank 0 ends last" in page.text("went")
    stages = page.text("stages")
    assert re.search(r"gather schedules/ag_gemm/hetero_fused_1d\.ficco:\d+ copy 4 ", stages)
    assert "GB/s" in stages
    assert "TFLOP/s" in stages
    why = page.text("why")
    assert "parameters M = 2048, N = 1024, K = 1024, transb = 0, bias = 0, chunks = 2, T = bf16" in why
    assert "machine h200-switch, 2 ranks" in why
    assert "modelled for h200-switch, not measured" in page.text("")


def test_a_page_needs_nothing_else(folder: Path) -> None:
    for name in ("fused.html", "both.html"):
        page = read(folder, name)
        assert not {"src", "href"} & {attribute for attribute, _ in page.attributes}
        assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|@[A-Z]+@", page.source)
        assert len(page.ids) == len(set(page.ids))


def test_a_run_of_any_size_and_seed_has_a_page(tmp_path: Path) -> None:
    sizes = [word for name in "MNK" for word in ("--set", f"{name}={2**22}")]
    files = ["--trace", str(tmp_path / "t.json"), "--report", str(tmp_path / "t.html")]
    words = ["ag_gemm/serial", "--gpus", "2", "--backend", "sim", "--seed", str(2**63 - 1), *sizes, *files]
    assert execute("ficco-run", words) == 0
    assert "EFLOP" in (tmp_path / "t.html").read_text() or "PFLOP" in (tmp_path / "t.html").read_text()


def test_a_trace_tells_its_page_all_of_the_run(folder: Path) -> None:
    """The page of a run is the page of its trace file, but for the file's name."""
    assert execute("ficco", ["report", str(folder / "fused.json"), "-o", str(folder / "again.html")]) == 0
    assert (folder / "again.html").read_text() == (folder / "fused.html").read_text()


def test_runs_stand_side_by_side(folder: Path) -> None:
    page = read(folder, "both.html")
    assert page.titles[:3] == ["ag_gemm_serial · ag_gemm_hetero_fused_1d", "Side by side", "Timelines"]
    text = page.text("compare")
    assert "A · ag_gemm_serial B · ag_gemm_hetero_fused_1d" in text
    assert re.search(r"A's time ÷ time 1\.00× \d\.\d\d×", text)
    assert len(page.data["runs"]) == 2
    parts = r"ideal \S+ µs \S+ µs .*moving beyond the ideal .*only computing .*launch \S+ µs \S+ µs times are"
    assert re.search(parts, text)  # the serial run goes by moving, the other one by computing
    assert text.endswith("Serial is a run with no overlap: computing and moving, one after the other, both uncut.")
    differs = [line for line in page.source.split("<tr") if line.startswith(" class=differs")]
    assert len(differs) == 1
    assert "chunks" in differs[0]


def test_why_an_operation_got_its_schedule(folder: Path) -> None:
    page = run(folder, "ag_gemm", "chosen")
    why = page.text("why")
    assert "chosen for ag_gemm by rules: " in why
    assert "The candidates for ag_gemm, by rules: the first was chosen." in why


def test_a_run_without_a_trace_has_a_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["ag_gemm/serial", "--gpus", "2", "--backend", "host", "--set", "M=32", "--set", "N=32", "--set", "K=32"]
    assert execute("ficco-run", [*command, "--json"]) == 0
    (folder / "facts.json").write_text(capsys.readouterr().out)
    assert execute("ficco", ["report", str(folder / "facts.json"), "-o", str(folder / "facts.html")]) == 0
    page = read(folder, "facts.html")
    assert "✓ Numbers integers equal; random data off by" in page.text("glance")
    assert "holds no trace; ficco-run --trace FILE.json writes one." in page.text("timeline")
    assert page.data == {"runs": [None], "watched": False}


def test_a_measured_run_stands_beside_its_model(folder: Path) -> None:
    """Made of a modelled one: what a device's run says has the same form."""
    data = json.loads((folder / "fused.json").read_text())
    facts = data["otherData"]["run"]
    copied = json.loads(json.dumps({name: facts[name] for name in ("account", "stages")}))
    facts |= {"clock": "device", "backend": "cuda", "iters": 3, "modelled": {"time_us": 100.0, **copied}}
    data["otherData"]["clock"] = "device"
    for stage in facts["stages"]:
        stage["busy_us"] *= 2
    (folder / "measured.json").write_text(json.dumps(data))
    assert execute("ficco", ["report", str(folder / "measured.json"), "-o", str(folder / "measured.html")]) == 0
    page = read(folder, "measured.html")
    assert "time of the run" in page.text("model")
    assert "100 µs" in page.text("model")
    assert page.text("stages").count(" 2.00") == 3
    assert "measured on h200-switch; median of 3 runs" in page.text("glance")
    assert "the run with timestamps" in page.text("went")


def test_a_part_below_0_has_one_name_on_all_pages(folder: Path) -> None:
    """In the table of one run, beside another run, and beside the model."""
    data = json.loads((folder / "fused.json").read_text())
    facts = data["otherData"]["run"]
    modelled = {"time_us": 100.0, "account": json.loads(json.dumps(facts["account"])), "stages": facts["stages"]}
    for part, other in zip(facts["account"]["parts"], modelled["account"]["parts"], strict=True):
        if part["name"] == "slower":
            part["time_us"], other["time_us"] = -14.7, 5.5
    (folder / "below.json").write_text(json.dumps(data))
    (folder / "beside.json").write_text(
        json.dumps(data | {"otherData": data["otherData"] | {"run": facts | {"modelled": modelled}}})
    )
    for files in (["below"], ["below", "fused"], ["beside"]):
        page = str(folder / "page.html")
        assert execute("ficco", ["report", *(str(folder / f"{name}.json") for name in files), "-o", page]) == 0
        found = read(folder, "page.html")
        assert "computing below the ideal −14.7 µs" in " ".join(map(found.text, found.texts))
        assert not re.search(r"beyond the ideal:? −", found.source + " ".join(map(found.text, found.texts)))
    assert "computing beyond the ideal 5.50 µs" in found.text("model")


def test_facts_of_older_versions_have_a_page(folder: Path) -> None:
    """They have no account and no stages; those of the trace stand in for these."""
    data = json.loads((folder / "fused.json").read_text())
    for name in ("account", "stages", "modelled", "why", "warnings"):
        del data["otherData"]["run"][name]
    (folder / "old.json").write_text(json.dumps(data))
    (folder / "bare.json").write_text(json.dumps(data["otherData"]["run"]))
    files = [str(folder / f"{name}.json") for name in ("old", "bare", "serial")]
    assert execute("ficco", ["report", files[0], "-o", str(folder / "old.html")]) == 0
    assert execute("ficco", ["report", *files, "-o", str(folder / "olds.html")]) == 0
    page = read(folder, "old.html")
    assert page.titles[1:] == ["At a glance", "Timeline", "Stages", "What ran, and why"]
    assert page.text("stages") == read(folder, "fused.html").text("stages")
    assert "stages-0" in read(folder, "olds.html").texts
    assert "stages-1" not in read(folder, "olds.html").texts


EVIL = "</script><script>alert(1)</script><b onmouseover=x>&@DATA@\x1b]0;x"


def test_names_of_all_kinds_stay_text(folder: Path) -> None:
    """Wherever a file has text, it may be anybody's."""

    def evil(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: evil(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [evil(entry) for entry in value]
        return EVIL if isinstance(value, str) and value not in _CHOICES else value

    data = json.loads((folder / "fused.json").read_text())
    kept = {name: data["otherData"][name] for name in ("format", "clock")}
    facts = data["otherData"]["run"]
    words = evil(facts)
    words["account"] = facts["account"]
    words["params"] = {EVIL: EVIL}
    words["warnings"] = [{"path": EVIL, "line": 1, "message": EVIL}]
    words["choice"] = {"operation": EVIL, "by": "model", "candidates": [{"schedule": EVIL, "params": {EVIL: EVIL}}]}
    data["otherData"] = evil(data["otherData"]) | kept | {"run": words}
    for event in data["traceEvents"]:
        if event["ph"] == "X":
            event["name"] = event["args"]["stage"] = event["args"]["place"] = EVIL
    (folder / "evil.json").write_text(json.dumps(data))
    assert execute("ficco", ["report", str(folder / "evil.json"), "-o", str(folder / "evil.html")]) == 0
    page = read(folder, "evil.html")
    assert page.source.count("<script") == page.source.count("</script>") == 2
    assert "onmouseover" not in {attribute for attribute, _ in page.attributes}
    assert "\x1b" not in page.source
    assert page.text("why").count("</script><script>alert(1)</script><b onmouseover=x>&@DATA@\ufffd]0;x") > 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time_ms": None}, "time_ms: a number expected, found null"),
        ({"time_ms": True}, "time_ms: a number expected, found true"),
        ({"time_ms": float("nan")}, "time_ms: a number expected, found NaN"),
        ({"ranks": 10**20}, "ranks: a whole number expected, found 100000000000000000000"),
        ({"ranks": -1}, "ranks: -1 is less than 0"),
        ({"seed": True}, "seed: a whole number expected, found true"),
        ({"schedule": 5}, "schedule: text expected, found 5"),
        ({"params": []}, "params: an object expected, found []"),
        ({"why": "so"}, 'why: a list expected, found "so"'),
        ({"unproven": [["C"]]}, 'unproven[0]: text expected, found ["C"]'),
        (
            {"stages": [{}]},
            "stages[0]: missing busy_us, bytes, flops, kind, path_us, place, ranks, stage, start_us, stop_us, "
            "waited_us, works",
        ),
        ({"account": {}}, "account: missing parts, rank, side, time_us"),
        (
            {"account": {"rank": 0, "side": [], "time_us": 1, "parts": []}},
            "account.side: [] is none of 'computing', 'moving'",
        ),
        (
            {"account": {"rank": 0, "side": "moving", "time_us": 1, "parts": [{"name": {"a": 1}, "time_us": 1}]}},
            "account.parts[0].name: {'a': 1} is none of 'ideal', 'waves', 'slower', 'exposed', 'waiting', 'launch'",
        ),
        ({"modelled": 3}, "modelled: an object expected, found 3"),
        ({"choice": []}, "choice: an object expected, found []"),
    ],
)
def test_wrong_files_are_refused(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((folder / "serial.json").read_text())
    data["otherData"]["run"] |= change
    path = tmp_path / "t.json"
    path.write_text(json.dumps(data))
    assert execute("ficco", ["report", str(path), "-o", str(tmp_path / "t.html")]) == 2
    way_out = "let `ficco-run --trace FILE.json` write the run again"
    assert capsys.readouterr().err == f"ficco report: {path}: otherData.run.{message}; {way_out}\n"
    assert not (tmp_path / "t.html").exists()


def test_any_damage_to_a_file_is_an_error_of_the_user(folder: Path, tmp_path: Path) -> None:
    """Every value is replaced or left out in turn; places that are alike count once."""
    path, drawn = tmp_path / "t.json", Random(3)
    text = (folder / "fused.json").read_text()
    seen: set[tuple[str, ...]] = set()
    for keys in [keys for keys in _places(json.loads(text)) if keys]:
        alike = tuple("#" if isinstance(key, int) else key for key in keys)
        if alike in seen and drawn.random() > 0.003:
            continue
        seen.add(alike)
        for wrong in (None, True, -1, 1e400, 10**30, "", "x", [], [[]], {}, {"a": 1}, _LEFT_OUT):
            data = json.loads(text)
            *outer, last = keys
            inside = reduce(lambda value, key: value[key], outer, data)
            if wrong is _LEFT_OUT:
                del inside[last]
            else:
                inside[last] = wrong
            path.write_text(json.dumps(data))
            assert execute("ficco", ["report", str(path), "-o", str(tmp_path / "t.html")]) in (0, 2), (keys, wrong)


_LEFT_OUT = object()


def _places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Of every value in a decoded file."""
    yield ()
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from ((key, *keys) for keys in _places(entry))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "t.json:1:1: this is no JSON: Expecting value"),
        ("[]", "t.json: tells of no run; `ficco-run --trace FILE.json` writes one with its timeline"),
        ('{"error": {"message": "no GPU"}}', "t.json: tells of a run that failed: no GPU"),
    ],
)
def test_files_of_no_run(tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.json").write_text(text)
    assert execute("ficco", ["report", str(tmp_path / "t.json"), "-o", str(tmp_path / "t.html")]) == 2
    assert message in capsys.readouterr().err
    assert execute("ficco", ["report", str(tmp_path / "t.json"), "-o", str(tmp_path / "t.json")]) == 2
    assert "a report page's name ends in .html" in capsys.readouterr().err


# ---------------------------------------------------------------- the script and the style


def test_the_script_names_what_the_page_has(folder: Path) -> None:
    script = (PAGE / "timeline.js").read_text(encoding="utf-8")
    page = read(folder, "both.html")
    assert set(re.findall(r'getElementById\("(\w+)"\)', script)) <= set(page.ids)
    places = re.search(r"const \[([A-Z_, ]+)\] = Array\((\d+)\)", script)
    assert places is not None
    names = "LANE, ROW, STAGE, START, LENGTH, LABEL, STAGE_NAME, PLACE, BYTES, FLOPS, PEER, WAITED"
    assert places[1] == names  # the order of `record` in lanes.py
    assert len(page.data["runs"][0]["spans"][0]) == int(places[2]) == len(names.split(","))
    used = set(re.findall(r"run\.(\w+)", script)) - {"duration"}
    assert used == set(page.data["runs"][0]) - {"duration"}
    style = (PAGE / "report.css").read_text(encoding="utf-8")
    (colours,) = re.findall(r"for \(const name of \[([^\]]+)\]\) \{\n    probe", script)
    assert all(f"--{name}:" in style for name in re.findall(r"\w+", colours))


def test_arrows_of_the_page_are_those_of_the_trace(folder: Path) -> None:
    (found,) = read(folder, "fused.html").data["runs"]
    events = json.loads((folder / "fused.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    begins = [event["args"] for event in events if event["ph"] == "s"]
    asked = [[(" ".join(spans[n]["name"].split()), round(spans[n]["ts"], 4)) for n in end.values()] for end in begins]
    told = [[(found["texts"][found["spans"][n][5]], found["spans"][n][3]) for n in ends] for ends in found["arrows"]]
    assert len(told) == 4
    assert told == asked


_SEEN = {  # Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as it is seen
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.0520)),
    "deutan": ((0.3673, 0.8606, -0.2280), (0.2801, 0.6725, 0.0474), (-0.0118, 0.0429, 0.9689)),
    "tritan": ((1.2555, -0.0767, -0.1788), (-0.0784, 0.9308, 0.1476), (0.0047, 0.6914, 0.3039)),
}


def linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def lab(colour: str, seen: tuple[tuple[float, ...], ...]) -> tuple[float, float, float]:
    """CIELAB of a colour as somebody sees it."""
    light = linear(colour)
    r, g, b = (min(1, max(0, sum(w * c for w, c in zip(row, light, strict=True)))) for row in seen)
    x, y = 0.4124 * r + 0.3576 * g + 0.1805 * b, 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = 0.0193 * r + 0.1192 * g + 0.9505 * b
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x / 0.9505, y, z / 1.089))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("who", _SEEN)
def test_colours_can_be_told_apart(who: str) -> None:
    """The first two of each kind, by readers with and without colour-blindness; 12 is far above what can be seen."""
    for a, b in combinations([colour for family in _FAMILIES.values() for colour in family[:2]], 2):
        apart = sum((p - q) ** 2 for p, q in zip(lab(a, _SEEN[who]), lab(b, _SEEN[who]), strict=True)) ** 0.5
        assert apart > 12, (a, b)


def test_colours_hold_in_both_themes() -> None:
    """White words on each, and most on the lanes of the light and of the dark page."""
    for colour in (colour for family in _FAMILIES.values() for colour in family):
        assert 1.05 / (luminance(colour) + 0.05) > 3, colour
        assert (luminance("#e6eaf0") + 0.05) / (luminance(colour) + 0.05) > 2.5, colour


# ---------------------------------------------------------------- in a browser


def test_pictures_need_a_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report_shots, "SCHEDULES", ("ag_gemm/serial",))
    (path,) = report_shots.modelled(tmp_path)
    assert read_run(path).schedule == "ag_gemm_serial"
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(report_shots.shutil, "which", lambda _: None)
    assert report_shots.main([str(tmp_path / "shots")]) == 3
    assert "there is no Chromium; on Debian: apt-get install chromium" in capsys.readouterr().err
    assert not (tmp_path / "shots").exists()


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here to read JavaScript")
def test_the_script_is_javascript() -> None:
    subprocess.run(["node", "--check", str(PAGE / "timeline.js")], check=True, capture_output=True)


_DRIVE = """
<script>
const told = {}, canvas = document.querySelector("canvas"), legend = document.querySelector(".keys button");
const toggle = document.getElementById("theme"), shown = () => document.getElementById("card").innerText;
const key = (name, on = canvas) => on.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
const part = () => view.to - view.from < view.total;
told.width = canvas.width; told.height = canvas.height;
told.legend = [...document.querySelectorAll(".keys button")].map((b) => b.textContent);
told.page = theme.page;
key("t", document.body); key("t", document.body);
told.dark = theme.page; told.toggle = toggle.textContent;
canvas.focus();
key("n"); told.first = shown();
key("]"); told.after = shown();
key("["); told.before = shown();
key("ArrowDown"); told.below = shown();
told.parts = [part()];
for (const name of ["Enter", "0", "+"]) { key(name); told.parts.push(part()); }
key("Escape"); told.none = document.getElementById("card").style.display;
legend.click(); told.pressed = legend.getAttribute("aria-pressed");
key("0"); key("c"); told.path = document.querySelector(".keys button:last-of-type").getAttribute("aria-pressed");
const at = canvas.getBoundingClientRect();
canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: at.left + 400, clientY: at.top + 42 }));
told.hover = shown(); told.over = document.getElementById("card").style.display;
const dots = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
told.colours = new Set(Array.from({ length: 4000 }, (_, i) => dots.slice(i * 400, i * 400 + 3).join())).size;
const out = document.createElement("pre");
out.id = "told"; out.textContent = JSON.stringify(told);
document.body.append(out);
</script>
</body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; CI has none")
def test_in_a_browser(folder: Path) -> None:
    """Keys, pointer, themes and legend do what the page says. The page runs with a script more, in one start."""
    text = (folder / "fused.html").read_text(encoding="utf-8").replace("</body>", _DRIVE)
    (folder / "driven.html").write_text(text, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--window-size=1200,900"]
    done = subprocess.run(
        [*map(str, command), (folder / "driven.html").as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    match = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match is not None, done.stderr
    told = json.loads(match[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert told["width"] > 800
    assert told["height"] > 100
    assert told["colours"] > 4
    assert told["legend"] == ["gather", "own", "rest", "waiting", "→ all arrows", "critical path"]
    assert (told["page"], told["dark"], told["toggle"]) == ("rgb(255, 255, 255)", "rgb(18, 22, 28)", "theme: dark")
    assert "rank 0, dma" in told["first"]
    assert "needed by" in told["first"]
    assert "rank 1, compute" in told["after"]
    assert "needs" in told["after"]
    assert "rank 0, dma" in told["before"]
    assert "rank 0, compute" in told["below"]
    assert told["parts"] == [False, True, False, True]
    assert told["none"] == "none"
    assert (told["pressed"], told["path"]) == ("true", "true")
    assert "rank 0, dma" in told["hover"]
    assert told["over"] == "block"

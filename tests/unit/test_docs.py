"""The pages hold: links lead somewhere, the site's navigation has every page, commands run and print what is shown.

Outputs and pictures follow the model of time. `pytest tests/unit/test_docs.py --update-golden` writes them anew.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import click
import pytest

import ficco_rt
from ficco_rt.cli import app
from ficco_rt.cli.main import execute
from tests.unit import pages
from tests.unit.pages import DOCS, ROOT, Block

ALL = [*pages.PAGES, *pages.OTHERS]
TEXT = {path: path.read_text(encoding="utf-8") for path in ALL}
# Pages whose blocks other tests run: language and README wholly, machines and reproduce/ficco with tables of theirs.
ELSEWHERE = {"docs/language.md", "docs/machines.md", "docs/explore.md", "docs/reproduce/ficco.md", "README.md"}
SHELLS = [path for path in ALL if pages.name(path) not in ELSEWHERE and "```sh" in TEXT[path]]


# ---------------------------------------------------------------- links and navigation


@pytest.mark.parametrize("path", ALL, ids=pages.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in pages.links(TEXT[path]):
        file, _, anchor = target.partition("#")
        at = (path.parent / file).resolve() if file else path
        assert at.exists(), target
        if anchor:
            assert anchor in {pages.anchor(h) for h in pages.headings(at.read_text(encoding="utf-8"))}, target
        if DOCS in path.parents:
            assert DOCS in at.parents, f"{target}: the site has only what is below docs/"


@pytest.mark.parametrize("path", pages.PAGES, ids=pages.name)
def test_a_page_has_one_title_and_anchors_of_its_own(path: Path) -> None:
    assert re.match(r"# \S", TEXT[path])
    assert len(re.findall(r"^# ", pages.prose(TEXT[path]), re.MULTILINE)) == 1
    anchors = Counter(map(pages.anchor, pages.headings(TEXT[path])))
    assert [a for a, n in anchors.items() if n > 1] == []


@pytest.mark.parametrize("path", ALL, ids=pages.name)
def test_a_table_has_a_line_for_each_row(path: Path) -> None:
    """A table that was filled like a paragraph, or stands indented in a list, is printed as bars and words."""
    lines = pages.prose(TEXT[path]).splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        if re.search(r"\|[ :]*-{3}", re.sub(r"`[^`]*`", "", line)):
            assert re.fullmatch(r"\|(?: *:?-+:? *\|)+", line), line
            assert above.startswith("|"), line
            assert above.count("|") - above.count(r"\|") == line.count("|"), above


@pytest.mark.parametrize("path", ALL, ids=pages.name)
def test_lines_of_prose_are_short(path: Path) -> None:
    """Tables and blocks have a row in a line."""
    lines = pages.prose(TEXT[path]).splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


def test_the_navigation_has_every_page_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"(\S+\.md)$", nav, re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in pages.PAGES)
    assert "mkdocs build --quiet --strict" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_pages_that_code_names_are_there() -> None:
    """Paths of pages, and headings that stand behind such a path in quotation marks, in sources, tools, tests, data."""
    kinds = {".py", ".toml", ".json", ".ficco", ".cu", ".cuh", ".h", ".hip", ".lark", ".vim", ".txt", ".md"}
    folders = [ROOT / name for name in ("ficco_rt", "dsl", "schedules", "tools", "tests", "examples", "editors")]
    sources = [path for folder in folders for path in folder.rglob("*") if path.suffix in kinds]
    named = re.compile(r"""\b(docs/[\w/-]+\.md)(?:, (?:column [\w ]+ of|\\?["']([^"'\\\n]+)\\?["']))?""")
    found = 0
    for source in sources:
        for file, heading in named.findall(source.read_text(encoding="utf-8", errors="replace")):
            found += 1
            assert (ROOT / file).is_file(), f"{source}: {file}"
            if heading:
                assert heading in pages.headings((ROOT / file).read_text(encoding="utf-8")), f"{source}: {heading}"
    assert found > 30


def test_the_site_gets_the_language_of_a_block_alone() -> None:
    from tools.site_hooks import on_page_markdown

    for path in pages.PAGES:
        made = pages.blocks(on_page_markdown(TEXT[path]))
        assert [b.text for b in made] == [b.text for b in pages.blocks(TEXT[path])]
        assert not any(b.words for b in made)


# ---------------------------------------------------------------- sentences and examples

NOTES = {pages.name(p) for p in (DOCS / "notebook").glob("*.md")}


@pytest.mark.parametrize("path", [p for p in ALL if pages.name(p) not in NOTES], ids=pages.name)
def test_sentences_are_short(path: Path) -> None:
    """40 words are many for a reader of another language. The notebook is short notes, and is left as written."""
    sentences = list(pages.sentences(TEXT[path]))
    assert len(sentences) > 10
    assert [s for s in sentences if len(s.split()) > 40] == []


@pytest.mark.parametrize("path", [p for p in pages.PAGES if "```py" in TEXT[p]], ids=pages.name)
def test_python_examples_are_python_and_name_what_there_is(path: Path) -> None:
    """Those that need a GPU (`py`) too, which no test runs."""
    for block in pages.blocks(TEXT[path]):
        if block.language in ("py", "python"):
            compile(block.text, f"{pages.name(path)}:{block.line}", "exec")
            for name in re.findall(r"\bficco\.(\w+)", block.text):
                assert hasattr(ficco_rt, name), name


# ---------------------------------------------------------------- commands


def understood(words: list[str], written: set[str]) -> None:
    """A command line of ficco is taken, and a tool's file and options are there, or the page has `written` the program;
    nothing runs."""
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if words[:2] == ["mpirun", "-n"]:
        words = words[3:]
    elif words[0] == "torchrun" and "ficco_rt.run" in words:
        words = ["ficco-run", *words[words.index("ficco_rt.run") + 1 :]]
    elif words[0] == "torchrun":
        words = ["python", *words[next(i for i, word in enumerate(words) if word.endswith(".py")) :]]
    if words[0] in ("ficco", "ficco-run"):
        command: click.Command = app.run if words[0] == "ficco-run" else app.ficco
        rest = words[1:]
        while isinstance(command, click.Group):
            verb = command.get_command(click.Context(command), rest[0])
            assert verb is not None, words
            command, rest = verb, rest[1:]
        command.make_context(words[0], rest)
    elif words[0] == "pytest":
        source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("conftest.py"))
        for word in words[1:]:
            assert not word.startswith("tests/") or (ROOT / word).exists(), words
            assert not word.startswith("--") or f'"{word.partition("=")[0]}"' in source, words
    elif words[0] in ("python", "torchrun") and written.isdisjoint(words):
        module = re.search(r"(?:-m )?\b((?:tools|tests|examples)[./][\w./]+)", " ".join(words))
        assert module, words
        path = ROOT / module[1].removesuffix(".py").replace(".", "/")
        files = list(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
        source = "".join(file.read_text(encoding="utf-8") for file in files)
        for option in words:
            assert not option.startswith("--") or f'"{option.partition("=")[0]}"' in source, (words, option)


@pytest.mark.parametrize("path", [p for p in ALL if "```sh parsed" in TEXT[p]], ids=pages.name)
def test_commands_that_need_gpus_are_understood(path: Path) -> None:
    blocks = pages.blocks(TEXT[path])
    written = {block.words[0] for block in blocks if block.language == "python" and block.words}
    for block in blocks:
        if block.language == "sh" and "parsed" in block.words:
            for words in pages.commands(block.text):
                understood(words, written)


def plain(line: str) -> str:
    """A line of output with its numbers, times and bars left out: what stays when a price of the model changes."""
    line = re.sub(r"│.*│", "│", line)
    line = re.sub(r"\b[0-9a-f]{16}\b|[0-9]+(?:[.,][0-9]+)*(?:e-?[0-9]+)?( (?:µs|ms|s)\b)?", "0", line)
    return " ".join(line.split())


def shown(block: Block, output: str, where: str) -> str:
    """The block's text as it should be, given what the command printed."""
    lines = output.rstrip("\n").split("\n")
    if "part" not in block.words:
        return output.rstrip("\n") + "\n"
    made, at = [], 0
    for line in block.text.rstrip("\n").split("\n"):
        if line == "…":
            made.append(line)
            continue
        at = next((i for i in range(at, len(lines)) if plain(lines[i]) == plain(line)), -1)
        assert at >= 0, f"{where}: no such line in the output: {line}\n{output}"
        made.append(lines[at])
        at += 1
    return "\n".join(made) + "\n"


# of this machine, and of the day: not compared
VARIES = re.compile(r"^  host     .*$|\d+ s \(.*\)$", re.MULTILINE)


@pytest.mark.parametrize("path", SHELLS, ids=pages.name)
def test_commands_run_and_print_what_is_shown(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    update_golden: bool,
) -> None:
    text = TEXT[path]
    for folder in ("schedules", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FICCO_CACHE", str(tmp_path / "cache"))
    output, changes = "", []
    for block in pages.blocks(text):
        where = f"{pages.name(path)}:{block.line}"
        if block.language == "sh" and "parsed" not in block.words:
            output = ""
            for words in pages.commands(block.text):
                if words[0] in ("ficco", "ficco-run"):
                    fails = "fails" in block.words
                    code = execute(words[0], words[1:])
                    said = capsys.readouterr()
                    output += said.out + said.err if fails else said.out
                    assert code == (1 if fails else 0), f"{where}: {words}\n{said.err}"
                elif words[0] in ("cp", "sed", "cat"):
                    subprocess.run(words, check=True)
                else:  # what a user's shell does: environments, clones, installations
                    assert words[0] in ("pip", "git", "cd", "python3", ".", "export", "source"), f"{where}: {words}"
        elif block.language == "text" and output:
            made = shown(block, output, where)
            if VARIES.sub("", made) != VARIES.sub("", block.text):
                assert update_golden, f"{where} is not what is printed (pytest --update-golden writes it):\n{made}"
                changes.append((block, made))
            output = ""
        elif block.words and block.language in ("ficco", "python", "toml"):
            Path(block.words[0]).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, where, "exec"), {})
    for block, made in reversed(changes):
        text = text[: block.start] + made + text[block.end :]
    if changes:
        path.write_text(text, encoding="utf-8")
    drawn = re.findall(r"!\[[^]]*\]\(([^)]+\.svg)\)", text)
    for picture in drawn:
        ours, kept = Path(Path(picture).name), path.parent / picture
        if ours.exists():
            if update_golden:
                kept.write_bytes(ours.read_bytes())
            assert kept.read_bytes() == ours.read_bytes(), f"{picture} is not what its command draws (--update-golden)"


# ---------------------------------------------------------------- tools


def test_every_tool_is_on_its_page_once() -> None:
    tools = [path for path in (ROOT / "tools").iterdir() if path.name != "__pycache__"]
    rows = re.findall(r"^\| `([^`]+)` \|", (DOCS / "tools.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(path.name for path in tools)

"""The language server, driven over its protocol."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

from ficco_rt.lsp.syntax import Text, analyse, completions, rename
from tests import warm

URI = "file:///tmp/one.ficco"
TEXT = """\
schedule one  # 𝄞

param M = 64
param chunks = 2 where chunks >= 1

input   A[M / ranks, 16] : bf16
input   B[16, 8] : bf16
output  C[M, 8] : bf16
scratch G[M, 16] : bf16

computes C = all_gather(A, rows) * B

queue dma { engine = copy }
queue compute { engine = sm }

stage gather on dma {
  for c in 0..chunks, p in all { copy G.rows(rank of ranks, c of chunks) @ p <- A.rows(c of chunks) }
}
stage mm on compute {
  gemm C = G * B
}
"""
DOCUMENT = lsp.TextDocumentIdentifier(URI)
LIMIT = 120.0  # seconds of a script; it takes less than ten


class Editor(LanguageClient):
    """Keeps the diagnostics that come."""

    def __init__(self) -> None:
        super().__init__("editor", "1")
        self.told: list[lsp.PublishDiagnosticsParams] = []
        self.messages: list[str] = []
        self.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(lambda params: self.told.append(params))
        self.feature(lsp.WINDOW_SHOW_MESSAGE)(lambda params: self.messages.append(params.message))

    def kill(self) -> None:
        """End a server that nobody has told to exit: `stop` would wait for it for ever."""
        if self._server is not None and self._server.returncode is None:
            self._server.kill()

    def open(self, text: str) -> None:
        self.text_document_did_open(lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(URI, "ficco", 1, text)))

    def change(self, number: int, text: str) -> None:
        whole = lsp.TextDocumentContentChangeWholeDocument(text)
        self.text_document_did_change(
            lsp.DidChangeTextDocumentParams(lsp.VersionedTextDocumentIdentifier(number, URI), [whole])
        )

    async def until(self, wanted: Callable[[lsp.PublishDiagnosticsParams], bool], seconds: float = LIMIT) -> list[str]:
        """The messages of the first publication that is wanted."""
        for _ in range(int(seconds / 0.02)):
            for told in self.told:
                if wanted(told):
                    return [d.message for d in told.diagnostics]
            await asyncio.sleep(0.02)
        raise AssertionError(self.told)


def drive(script: Callable[[Editor], Awaitable[None]], limit: float = LIMIT, **options: object) -> None:
    async def talk(editor: Editor) -> None:
        await editor.initialize_async(lsp.InitializeParams(lsp.ClientCapabilities(), initialization_options=options))
        editor.initialized(lsp.InitializedParams())
        await script(editor)
        await editor.shutdown_async(None)
        editor.exit(None)

    async def run() -> None:
        editor = Editor()
        await editor.start_io(sys.executable, "-c", "from ficco_rt.cli.main import ficco; ficco()", "lsp")
        try:
            await asyncio.wait_for(talk(editor), limit)
        except BaseException:
            editor.kill()
            raise
        finally:
            await editor.stop()

    asyncio.run(asyncio.wait_for(run(), 2 * limit))


def messages(*methods: str) -> Iterator[bytes]:
    for number, method in enumerate(methods):
        called = {"jsonrpc": "2.0", "method": method, **({"id": number} if method == "shutdown" else {})}
        body = json.dumps(called).encode()
        yield b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize(("asked", "code"), [(("shutdown", "exit"), 0), (("exit",), 1), ((), 0)])
def test_the_exit_code_is_that_of_the_protocol(asked: tuple[str, ...], code: int) -> None:
    """Without `shutdown` before `exit` the end is an error; the end of the input is none."""
    assert ended(b"".join(messages(*asked)))[::2] == (code, "")


def test_an_editor_on_a_port_ends_the_server() -> None:
    assert ended_on_a_port(b"".join(messages("shutdown", "exit"))) == (0, "")


def _framed(*bodies: bytes) -> bytes:
    return b"".join(b"Content-Length: %d\r\n\r\n%s" % (len(body), body) for body in bodies)


def _answers(out: bytes) -> list[dict[str, object]]:
    found = []
    while out:
        head, _, rest = out.partition(b"\r\n\r\n")
        size = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        found.append(json.loads(rest[:size]))
        out = rest[size:]
    return found


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("textDocument/hover", {"textDocument": 5}),
        ("textDocument/hover", []),
        ("textDocument/completion", {"textDocument": {"uri": URI}, "position": {"line": "x", "character": 0}}),
        ("textDocument/rename", None),
    ],
)
def test_malformed_params_are_answered(method: str, params: object) -> None:
    """With the error that the protocol has for them, and the server goes on."""
    asked = {"jsonrpc": "2.0", "id": "seven", "method": method, "params": params}
    bodies = _framed(json.dumps(asked).encode()) + b"".join(messages("shutdown", "exit"))
    code, answers, told = ended(bodies)
    first, second = answers
    wrong = {"code": -32602, "message": f"the params are not those of {method}"}
    assert (first["id"], first["error"]) == ("seven", wrong)
    assert (second["id"], second["result"], code) == (0, None, 0)
    assert told == ""


@pytest.mark.parametrize("size", ["-5", "99999999999999999999", "1" * 5000, "x", ""])
@pytest.mark.parametrize("tcp", [False, True])
def test_a_size_that_is_none_ends_the_server(size: str, tcp: bool) -> None:
    sent = b"".join(messages("shutdown")) + b"Content-Length: %s\r\n\r\n{}" % size.encode()
    if tcp:
        code, told = ended_on_a_port(sent)
    else:
        code, answers, told = ended(sent)
        assert [answer["id"] for answer in answers] == [0]  # what came before is answered
    assert (code, told) == (
        1,
        f"ficco lsp: a message has Content-Length: {size[:40]}, not a size from 1 to 67108864 bytes; nothing behind it "
        "can be read: start the server again\n",
    )


@pytest.mark.parametrize("body", [b"[]", b"5", b"{", b"\xff", b'{"jsonrpc": "2.0"}', b'{"jsonrpc": 2, "id": 1}'])
def test_what_is_no_message_leaves_the_server_running(body: bytes) -> None:
    code, answers, _ = ended(_framed(body) + b"".join(messages("shutdown", "exit")))
    assert code == 0
    assert [answer["id"] for answer in answers if "id" in answer] == [0]


def server(*words: str, data: bytes = b"") -> warm.Process:
    program = "from ficco_rt.cli.main import ficco; ficco()"
    return warm.start(program, "lsp", *words, data=data, modules=("ficco_rt.lsp.server",))


def ended(sent: bytes) -> tuple[int | None, list[dict[str, object]], str]:
    """Of a server that is sent this on standard input: its exit code, answers, and what it says of errors."""
    process = server(data=sent)
    out, told = process.communicate(timeout=LIMIT)
    return process.returncode, _answers(out.encode()), told


def ended_on_a_port(sent: bytes) -> tuple[int | None, str]:
    """Of a server that is sent this there: its exit code, and what it says of errors."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = server("--tcp", str(port))
    try:
        with connected(port) as editor:
            editor.sendall(sent)
            _, told = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    return process.returncode, told


def connected(port: int) -> socket.socket:
    for _ in range(int(LIMIT / 0.05)):
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port))
        time.sleep(0.05)
    raise AssertionError(port)


def test_settings_that_cannot_be_taken_are_told() -> None:
    async def script(editor: Editor) -> None:
        editor.open(TEXT)
        await editor.until(lambda told: True)
        assert editor.messages == [
            'ficco: "rank" is no setting; there are ranks, set and machine',
            'ficco: ranks is "x", not a number from 1 to 1024; 4 ranks are taken',
            'ficco: set is "M=64", not a list such as ["M=8192"]; no size is set',
            "ficco: machine is 5, not a name or a file; the usual machine is taken",
        ]

    drive(script, rank=2, ranks="x", set="M=64", machine=5)


def place(text: str, what: str, after: int = 0) -> lsp.Position:
    """Where something stands, as an editor counts."""
    before = text[: text.index(what)]
    line = before.count("\n")
    return lsp.Position(line, len(before) - (before.rfind("\n") + 1) + after)


def test_an_editor_whose_script_fails_or_waits_in_vain_ends() -> None:
    async def fails(editor: Editor) -> None:
        raise AssertionError("no such diagnostic")

    async def waits(editor: Editor) -> None:
        await editor.until(lambda told: False)

    with pytest.raises(AssertionError, match="no such diagnostic"):
        drive(fails, limit=30)
    with pytest.raises(TimeoutError):
        drive(waits, limit=3)


def test_an_editor() -> None:
    async def script(editor: Editor) -> None:
        editor.open(TEXT)
        warned = await editor.until(lambda told: bool(told.diagnostics))
        assert len(warned) == 1
        assert warned[0].startswith("copies of ")
        at = {"text_document": DOCUMENT}
        hover = await editor.text_document_hover_async(lsp.HoverParams(position=place(TEXT, "chunks = 2"), **at))
        assert hover is not None
        assert isinstance(hover.contents, lsp.MarkupContent)
        assert hover.contents.value == "**param `chunks`** = 2"
        hover = await editor.text_document_hover_async(lsp.HoverParams(position=place(TEXT, "mm on", 1), **at))
        assert hover is not None
        assert "waits for gather, because of G (read after write)" in str(hover.contents)
        hover = await editor.text_document_hover_async(lsp.HoverParams(position=place(TEXT, "gemm C", 1), **at))
        assert hover is not None
        assert "rank 0: 1 × gemm\n- writes C@0 rows 0–63, columns 0–7: " in hover.contents.value  # type: ignore[union-attr]
        hover = await editor.text_document_hover_async(lsp.HoverParams(position=place(TEXT, "rows(", 1), **at))
        assert hover is not None
        assert "rows(i of n): part i of the n parts of the rows" in str(hover.contents)
        use = place(TEXT, "c of chunks) @", 0)
        found = await editor.text_document_definition_async(lsp.DefinitionParams(position=use, **at))
        assert isinstance(found, lsp.Location)
        assert found.range.start == place(TEXT, "c in 0..")
        uses = await editor.text_document_references_async(
            lsp.ReferenceParams(lsp.ReferenceContext(include_declaration=True), DOCUMENT, place(TEXT, "chunks = 2"))
        )
        assert uses is not None
        assert len(uses) == 5
        edit = await editor.text_document_rename_async(lsp.RenameParams(DOCUMENT, place(TEXT, "chunks = 2"), "pieces"))
        assert edit is not None
        assert edit.changes is not None
        assert len(edit.changes[URI]) == 5
        assert await editor.text_document_rename_async(lsp.RenameParams(DOCUMENT, use, "A")) is None
        assert editor.messages == ["ficco: loop variable 'A' hides the input of that name"]
        names = await editor.text_document_document_symbol_async(lsp.DocumentSymbolParams(DOCUMENT))
        assert [s.name for s in names or ()] == ["M", "chunks", "A", "B", "C", "G", "dma", "compute", "gather", "mm"]
        options = lsp.FormattingOptions(2, True)
        edits = await editor.text_document_formatting_async(lsp.DocumentFormattingParams(DOCUMENT, options))
        assert edits is not None
        assert "output  C[M, 8]          : bf16\n" in edits[0].new_text
        other = lsp.TextDocumentIdentifier("file:///nowhere/none.ficco")  # which no editor has opened
        formatting = lsp.DocumentFormattingParams(other, options)
        assert await editor.text_document_formatting_async(formatting) is None
        editor.change(2, TEXT.replace("c of chunks) }", "0 of chunks) }"))
        wrong = await editor.until(lambda told: told.version == 2 and bool(told.diagnostics))
        assert "C@0" in wrong[0]
        editor.change(3, TEXT.replace("gemm C =", "gemm C +"))
        wrong = await editor.until(lambda told: told.version == 3 and bool(told.diagnostics))
        assert wrong[0].startswith("expected ")
        assert await editor.text_document_definition_async(lsp.DefinitionParams(position=use, **at)) is not None
        editor.text_document_did_close(lsp.DidCloseTextDocumentParams(DOCUMENT))
        await editor.until(lambda told: told is editor.told[-1] and told.version is None and not told.diagnostics)

    drive(script, ranks=2)


def test_a_newer_text_ends_the_proof_of_the_older_one() -> None:
    """Which would take half a minute of a processor."""
    slow = TEXT.replace("M = 64", "M = 262144").replace("chunks = 2", "chunks = 65536")
    before = os.times()

    async def script(editor: Editor) -> None:
        editor.open(slow)
        await asyncio.sleep(1.0)
        editor.change(2, TEXT)
        await editor.until(lambda told: told.version == 2 and bool(told.diagnostics))

    drive(script, ranks=2)
    after = os.times()
    assert after.children_user - before.children_user < 15


def test_500_lines_are_read_while_one_types() -> None:
    body = "  for c in 0..chunks {\n    gemm C.rows(c of chunks) = G.rows(c of chunks) * B\n  }\n"
    long = TEXT + "".join(f"stage s{i} on compute {{\n{body}}}\n" for i in range(100))
    assert long.count("\n") > 500
    times = []
    before = None
    for _ in range(5):
        begun = time.process_time()
        before = analyse(long, "long.ficco", before)
        times.append(time.process_time() - begun)
    assert not before.mistakes  # type: ignore[union-attr]
    assert min(times) < 0.1 * SLACK


SLACK = 5  # other work may keep this machine busy


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("stage x on |", {"dma", "compute"}, {"M", "gemm", "gather"}),
        ("stage x on dma after |", {"gather", "mm"}, {"dma", "A"}),
        ("queue q { engine = |", {"copy", "sm", "nccl"}, {"M"}),
        ("copy A.|", {"rows", "cols", "T"}, {"M", "copy"}),
        ("  copy |", {"A", "G", "M", "gemm", "peers", "min"}, {"c", "p"}),
        ("# |", set(), {"A"}),
    ],
)
def test_completion(text: str, wanted: set[str], unwanted: set[str]) -> None:
    before = analyse(TEXT, "one.ficco")
    line = text.replace("|", "")
    analysis = analyse(TEXT + line, "one.ficco", before)
    number = len(analysis.text.lines)
    words = {word for word, _ in completions(analysis, number, text.index("|") + 1)}
    assert wanted <= words
    assert not unwanted & words


def test_names_in_a_loop_are_completed_there() -> None:
    analysis = analyse(TEXT, "one.ficco")
    at = place(TEXT, "copy G", 5)
    assert {"c", "p"} <= {word for word, _ in completions(analysis, at.line + 1, at.character + 1)}


@pytest.mark.parametrize(
    ("name", "why"), [("2x", "'2x' is no name"), ("B", "input 'B' is declared already"), ("rank", "'rank'")]
)
def test_what_cannot_be_renamed(name: str, why: str) -> None:
    analysis = analyse(TEXT, "one.ficco")
    at = place(TEXT, "A[M")
    found = analysis.at(at.line + 1, at.character + 1)
    assert found is not None
    answer = rename(analysis, found.symbol, name)
    assert isinstance(answer, str)
    assert why in answer


def test_places_count_in_utf_16() -> None:
    text = Text.of("a𝄞b\nc")
    assert text.units(1, 3) == (0, 3)
    assert text.column(0, 3) == (1, 3)
    assert text.units(9, 1) == (1, 1)
    assert text.column(0, 99) == (1, 4)


def test_without_pygls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from ficco_rt.cli.main import execute

    monkeypatch.delitem(sys.modules, "ficco_rt.lsp.server", raising=False)
    monkeypatch.setitem(sys.modules, "pygls.lsp.server", None)
    assert execute("ficco", ["lsp"]) == 2
    assert 'pip install "pygls>=2"' in capsys.readouterr().err

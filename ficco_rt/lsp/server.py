"""The language server: `syntax` answers editors' requests at once, `prover` answers when a proof is done."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Generator
from importlib.metadata import version
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlparse

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, lsp_method

from ficco_dsl import format_text
from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span
from ficco_dsl.symbols import Symbol

from ..report.request import Request, Source
from .prover import Answer, Prover
from .syntax import AFTER_DOT, WORDS, Analysis, Text, analyse, completions, holds, rename, word_at

RANKS = 4  # if the editor does not say
MOST_RANKS = 1024
LARGEST = 64 << 20  # bytes of a message
_KINDS = {
    "param": lsp.SymbolKind.Constant,
    "type": lsp.SymbolKind.TypeParameter,
    "queue": lsp.SymbolKind.Interface,
    "kernel": lsp.SymbolKind.Function,
    "stage": lsp.SymbolKind.Method,
}
_COMPLETED = {
    "param": lsp.CompletionItemKind.Constant,
    "queue": lsp.CompletionItemKind.Interface,
    "kernel": lsp.CompletionItemKind.Function,
    "stage": lsp.CompletionItemKind.Method,
}


class Documents:
    """The open documents, each with its analysis and the last answer of the prover."""

    def __init__(self, server: LanguageServer) -> None:
        self.server = server
        self.analyses: dict[str, Analysis] = {}
        self.versions: dict[str, int] = {}
        self.answers: dict[str, Answer] = {}
        self.ranks = RANKS
        self.settings: tuple[str, ...] = ()
        self.machine: str | None = None
        self.prover = Prover(self._proven)

    def configure(self, options: Any) -> list[str]:
        """`initializationOptions`: `ranks`, `set` (a list of NAME=VALUE), `machine`. What is none of these is not
        taken; the answer says what was given and what is taken."""
        wrong = []
        if options is not None and not isinstance(options, dict):
            wrong.append(f"the settings are {_shown(options)}, not an object; none of them is taken")
        given = options if isinstance(options, dict) else {}
        for name in sorted(given.keys() - {"ranks", "set", "machine"}):
            wrong.append(f"{_shown(name)} is no setting; there are ranks, set and machine")
        ranks, settings, machine = given.get("ranks", RANKS), given.get("set"), given.get("machine")
        if type(ranks) is int and 1 <= ranks <= MOST_RANKS:
            self.ranks = ranks
        else:
            wrong.append(f"ranks is {_shown(ranks)}, not a number from 1 to {MOST_RANKS}; {RANKS} ranks are taken")
        if isinstance(settings, list) and all(isinstance(one, str) for one in settings):
            self.settings = tuple(settings)
        elif settings is not None:
            wrong.append(f'set is {_shown(settings)}, not a list such as ["M=8192"]; no size is set')
        if isinstance(machine, str):
            self.machine = machine or None
        elif machine is not None:
            wrong.append(f"machine is {_shown(machine)}, not a name or a file; the usual machine is taken")
        return wrong

    def changed(self, uri: str) -> None:
        document = self.server.workspace.get_text_document(uri)
        number = document.version or 0
        analysis = analyse(document.source, path_of(uri), self.analyses.get(uri))
        self.analyses[uri], self.versions[uri] = analysis, number
        self._publish(uri, analysis.mistakes, ())
        if analysis.mistakes:
            self.prover.forget(uri)
            return
        path, text = path_of(uri), document.source
        source = Source(path, path, text.encode("utf-8", "replace"), False, {path: text})
        self.prover.submit(uri, number, Request(source, self.ranks, self.settings, self.machine))

    def closed(self, uri: str) -> None:
        self.prover.forget(uri)
        for known in (self.analyses, self.versions, self.answers):
            known.pop(uri, None)
        self._publish(uri, (), ())

    def _proven(self, uri: str, number: int, answer: Answer) -> None:
        """In the prover's thread."""
        if self.versions.get(uri) != number:
            return
        self.answers[uri] = answer
        self._publish(uri, answer.mistakes, answer.warnings)

    def _publish(self, uri: str, wrong: Any, warnings: Any) -> None:
        text = self.analyses[uri].text if uri in self.analyses else Text.of("")
        errors, hints = lsp.DiagnosticSeverity.Error, lsp.DiagnosticSeverity.Warning
        found = [_told(d, errors, text, uri) for d in wrong] + [_told(d, hints, text, uri) for d in warnings]
        self.server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found, self.versions.get(uri)))


def _shown(setting: object) -> str:
    """A setting as the editor wrote it, shortened."""
    text = json.dumps(setting, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


def path_of(uri: str) -> str:
    """The file's path; the whole of what is no file's address."""
    parts = urlparse(uri)
    return unquote(parts.path) if parts.scheme == "file" else uri


def range_of(span: Span, text: Text) -> lsp.Range:
    begin = text.units(span.line, span.column)
    end = text.units(span.end_line, span.end_column)
    return lsp.Range(lsp.Position(*begin), lsp.Position(*end))


def _told(diagnostic: Diagnostic, severity: lsp.DiagnosticSeverity, text: Text, uri: str) -> lsp.Diagnostic:
    related = [
        lsp.DiagnosticRelatedInformation(lsp.Location(uri, range_of(note.span, text)), note.text)
        for note in diagnostic.notes
        if note.span is not None
    ]
    message = diagnostic.message + (f"\nhelp: {diagnostic.help}" if diagnostic.help else "")
    place = range_of(diagnostic.span, text)
    return lsp.Diagnostic(place, message, severity=severity, source="ficco", related_information=related)


_ANSWERED = object()  # in place of a message that needs no handling any more


class _Protocol(LanguageServerProtocol):
    def structure_message(self, data: dict[str, Any]) -> Any:
        """A message of the protocol. One whose params are not what its method takes is answered here, where pygls would
        leave the editor without an answer."""
        try:
            return super().structure_message(data)
        except JsonRpcException:
            if not ("method" in data and isinstance(data.get("id"), int | str)):
                raise
            wrong = JsonRpcInvalidParams(f"the params are not those of {str(data['method'])[:60]}")
            self._send_response(data["id"], None, wrong.to_response_error())
            return _ANSWERED

    def handle_message(self, message: Any) -> None:
        if message is not _ANSWERED:
            super().handle_message(message)

    @lsp_method(lsp.EXIT)
    def lsp_exit(self, *_: Any) -> Generator[Any, Any, None]:
        """Ends the loop. The process is left to the command, where pygls would end it by SystemExit, which asyncio
        writes out as an error of the connection."""
        server = self._server
        assert isinstance(server, Server)
        server.code = 0 if server.told else 1
        if self.writer is not None:
            self.writer.close()
        server.shutdown()  # type: ignore[no-untyped-call]
        yield from ()


class Server(LanguageServer):
    """The server of one editor."""

    def __init__(self) -> None:
        kind = lsp.TextDocumentSyncKind.Full
        super().__init__("ficco", f"v{version('ficco-rt')}", text_document_sync_kind=kind, protocol_cls=_Protocol)
        self.told = False  # by `shutdown` that the end comes
        self.code = 0  # the exit code


def make() -> Server:
    """The server with all its request handlers."""
    server = Server()
    documents = Documents(server)
    _follow(server, documents)
    _answer(server, documents)
    return server


def _follow(server: Server, documents: Documents) -> None:
    """The editor's begin and end, and its documents as they change."""
    wrong: list[str] = []  # of the settings

    @server.feature(lsp.INITIALIZE)
    def initialize(params: lsp.InitializeParams) -> None:
        wrong[:] = documents.configure(params.initialization_options)

    @server.feature(lsp.INITIALIZED)
    def initialized(_: lsp.InitializedParams) -> None:
        for message in wrong:
            server.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Warning, f"ficco: {message}"))

    @server.feature(lsp.SHUTDOWN)
    def shutdown(*_: Any) -> None:
        server.told = True
        documents.prover.close()

    for feature in (lsp.TEXT_DOCUMENT_DID_OPEN, lsp.TEXT_DOCUMENT_DID_CHANGE):
        server.feature(feature)(lambda params: documents.changed(params.text_document.uri))
    server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)(lambda params: documents.closed(params.text_document.uri))


def _answer(server: Server, documents: Documents) -> None:
    """Questions about a place of a document, and its layout."""

    def here(params: Any) -> tuple[Analysis, int, int] | None:
        analysis = documents.analyses.get(params.text_document.uri)
        if analysis is None:
            return None
        return analysis, *analysis.text.column(params.position.line, params.position.character)

    def named(params: Any) -> tuple[Analysis, Symbol] | None:
        """The name at a place."""
        place = here(params)
        found = place and place[0].at(*place[1:])
        return (place[0], found.symbol) if place and found else None

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        place = here(params)
        told = _hover(place, documents.answers.get(params.text_document.uri, Answer())) if place else []
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, "\n\n".join(told))) if told else None

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def definition(params: lsp.DefinitionParams) -> lsp.Location | None:
        found = named(params)
        return found and lsp.Location(params.text_document.uri, range_of(found[1].span, found[0].text))

    @server.feature(lsp.TEXT_DOCUMENT_REFERENCES)
    def references(params: lsp.ReferenceParams) -> list[lsp.Location]:
        if (found := named(params)) is None:
            return []
        analysis, symbol = found
        wanted = [o for o in analysis.of(symbol) if params.context.include_declaration or not o.declares]
        return [lsp.Location(params.text_document.uri, range_of(o.span, analysis.text)) for o in wanted]

    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
    def highlight(params: lsp.DocumentHighlightParams) -> list[lsp.DocumentHighlight]:
        found = named(params)
        return [lsp.DocumentHighlight(range_of(o.span, found[0].text)) for o in found[0].of(found[1])] if found else []

    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def symbols(params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        analysis = documents.analyses.get(params.text_document.uri)
        if analysis is None:
            return []
        found = []
        for symbol in analysis.declared():
            place = range_of(symbol.span, analysis.text)
            kind = _KINDS.get(symbol.what, lsp.SymbolKind.Variable)
            found.append(lsp.DocumentSymbol(symbol.name, kind, place, place, detail=symbol.what))
        return found

    @server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=["."]))
    def complete(params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        place = here(params)
        return [
            lsp.CompletionItem(word, kind=_COMPLETED.get(what, lsp.CompletionItemKind.Keyword), detail=what)
            for word, what in (completions(*place) if place else ())
        ]

    @server.feature(lsp.TEXT_DOCUMENT_RENAME)
    def renamed(params: lsp.RenameParams) -> lsp.WorkspaceEdit | None:
        if (found := named(params)) is None:
            return None
        analysis, symbol = found
        spans = rename(analysis, symbol, params.new_name)
        if isinstance(spans, str):
            server.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Error, f"ficco: {spans}"))
            return None
        edits = [lsp.TextEdit(range_of(span, analysis.text), params.new_name) for span in spans]
        return lsp.WorkspaceEdit({params.text_document.uri: edits})

    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def formatted(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
        if params.text_document.uri not in documents.analyses:  # pygls would read the file
            return None
        source = server.workspace.get_text_document(params.text_document.uri).source
        try:
            text = format_text(source, path_of(params.text_document.uri))
        except ScheduleError:
            return None
        end = Text.of(source)
        last = end.units(len(end.lines) + 1, 1)
        whole = lsp.Range(lsp.Position(0, 0), lsp.Position(*last))
        return [lsp.TextEdit(whole, text)] if text != source else []


def _hover(place: tuple[Analysis, int, int], answer: Answer) -> list[str]:
    """What is known of a place: its name or word, and what its statement does."""
    analysis, line, column = place
    told = []
    found = analysis.at(line, column)
    word = word_at(analysis.text, line, column)
    if found is not None:
        symbol = found.symbol
        size = answer.names.get(symbol.name, "") if symbol.what != "stage" else ""
        told.append(f"**{symbol.what} `{symbol.name}`** {size}".rstrip())
        told += answer.stages.get(symbol.name, []) if symbol.what == "stage" else []
    elif meaning := (AFTER_DOT | WORDS).get(word):
        told.append(f"**`{word}`** {meaning}")
    for span, (first, *rest) in answer.statements:
        if holds(span, line, column) and (found is None or found.symbol.what != "stage"):
            told.append("\n".join([first, *(f"- {text}" for text in rest)]))
    return told


class _Input:
    """What an editor writes, as pygls reads it: headers, then a message. It ends where a header gives no size: nobody
    knows then where the next message begins."""

    def __init__(self, file: BinaryIO, server: Server) -> None:
        self._file, self._server = file, server
        self.read = file.read

    def readline(self) -> bytes:
        line = self._file.readline(LARGEST)
        name, colon, value = line.partition(b":")
        if not colon or name.strip().lower() != b"content-length":
            return line
        size = value.strip()
        if size.isdigit() and len(size) <= len(str(LARGEST)) and int(size) <= LARGEST:
            return b"Content-Length: %d\r\n" % int(size)
        self._server.code = 1
        sys.stderr.write(
            f"ficco lsp: a message has Content-Length: {size[:40].decode(errors='replace')}, not a size from 1 to "
            f"{LARGEST} bytes; nothing behind it can be read: start the server again\n"
        )
        return b""


def serve(tcp: int | None = None) -> int:
    """Answer on standard input and output, or to one editor on a port of this machine. The exit code: 1 if the editor
    says `exit` without `shutdown` before, or writes what is no message."""
    server = make()
    # the editor is told what is wrong with its message: a traceback of pygls says no more
    logging.getLogger("pygls.protocol.json_rpc").addFilter(lambda told: not str(told.msg).startswith("Unable to des"))
    if tcp is None:
        # NOTE pygls closes the file that it writes to; standard output is still flushed when the command ends
        with open(os.dup(sys.stdout.fileno()), "wb") as output:
            server.start_io(cast(BinaryIO, _Input(sys.stdin.buffer, server)), output)
        return server.code
    with socket.create_server(("127.0.0.1", tcp)) as port:
        editor, _ = port.accept()
    with editor, editor.makefile("rb") as read, editor.makefile("wb") as write:
        server.start_io(cast(BinaryIO, _Input(read, server)), write)
    return server.code

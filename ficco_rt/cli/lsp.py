"""`ficco lsp`: run the language server."""

from __future__ import annotations

from ..errors import UsageError


def lsp(tcp: int | None) -> int:
    """Serve until the editor ends it."""
    try:
        from ..lsp.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("pygls", "lsprotocol"):
            raise
        raise UsageError('ficco lsp needs the package pygls: pip install "pygls>=2"') from error
    try:
        return serve(tcp)
    except OSError as error:
        raise UsageError(f"port {tcp}: {error.strerror}") from error

"""Limits the body of every request to 1 MiB, portal included. Installed by `app`.

The error is raised where the application reads the body, before anything is parsed or written to disk, so that each
route answers in its own format (413). Starlette's own middleware answers in plain text and does not name the limit.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commonage.domain.errors import TooLarge

MAX_BODY_BYTES = 1024 * 1024


class BodyLimit:
    """Counts the bytes of a body. Paths in `unlimited` enforce their own limit."""

    def __init__(self, app: ASGIApp, unlimited: Collection[str] = ()) -> None:
        self._app = app
        self._unlimited = unlimited

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application with a `receive` that raises TooLarge above the limit."""
        if scope["type"] != "http" or scope["path"] in self._unlimited:
            await self._app(scope, receive, send)
            return
        announced = _announced(scope)
        size = 0

        async def bounded() -> Message:
            nonlocal size
            # Before the client is asked to send the body.
            if announced > MAX_BODY_BYTES:
                raise _too_large()
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                raise _too_large()
            return message

        await self._app(scope, bounded, send)


def _announced(scope: Scope) -> int:
    text = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(text) if text.isdigit() and len(text) < 20 else MAX_BODY_BYTES + 1


def _too_large() -> TooLarge:
    return TooLarge(
        "Body too large: at most 1 MiB is allowed. Upload files as a bundle (`commonage run --files`), "
        "and keep data in a volume."
    )

"""No request's body is larger than 1 MiB, whatever reads it: JSON, forms, and what nobody reads at all.

Put in front of the whole application, portal included, by `app`. Nothing is parsed or written to disk before: the
error is raised where the application asks for the body, so that each answers it in its own way (413). Starlette's own
middleware does the same, but answers in plain text, without the limit.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commonage.domain.errors import TooLarge

MAX_BODY_BYTES = 1024 * 1024


class BodyLimit:
    """Counts what comes. `unlimited` are the paths that keep a limit of their own."""

    def __init__(self, app: ASGIApp, unlimited: Collection[str] = ()) -> None:
        self._app = app
        self._unlimited = unlimited

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application; its `receive` raises TooLarge before more is read than may be."""
        if scope["type"] != "http" or scope["path"] in self._unlimited:
            await self._app(scope, receive, send)
            return
        announced = _announced(scope)
        size = 0

        async def bounded() -> Message:
            nonlocal size
            # Answered before the client is asked for the body.
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
        "Body too large: at most 1 MiB is allowed. Send files along as a bundle (`commonage run --files`), "
        "and keep data in a volume."
    )

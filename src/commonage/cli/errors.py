"""How a command fails: the message on stderr, and the exit code. Every command imports it, so it imports little."""

from __future__ import annotations

from typing import IO, Any

import click

from commonage.sdk.errors import ApiError, Unreachable, Untrusted

FAILED, MISUSED, UNREACHABLE = 1, 2, 3
_CLIENT_ERRORS = range(400, 500)


class Failure(click.ClickException):
    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        vars(self)["exit_code"] = exit_code  # click declares it for the class, and reads it from the instance

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"commonage: {self.format_message()}", file=file, err=file is None)


class ServerRefused(Failure):
    def __init__(self, error: ApiError) -> None:
        super().__init__(_text(error), _code(error))
        self.error = error


def _code(error: ApiError) -> int:
    if isinstance(error, Unreachable) or error.status == 503:
        return UNREACHABLE
    return MISUSED if error.status in _CLIENT_ERRORS else FAILED


def _text(error: ApiError) -> str:
    text = error.detail
    if len(error.errors) > 1:
        text += "".join(f"\n  {each.get('field', '')}: {each.get('detail', '')}" for each in error.errors)
    if isinstance(error, Unreachable) and not isinstance(error, Untrusted):
        if error.status:
            return (
                f"{text}\nTry again in a moment. If that does not help, run `commonage doctor` on the server's machine."
            )
        return f"{text}\nStart a server with `commonage up`, or name another address with --url."
    if error.status == 401:
        return f"{text}\nSave a token with `commonage login`, or give one with --token."
    return text

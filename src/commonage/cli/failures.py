"""How a verb fails: the sentence on stderr, and the exit code. Every verb imports it, so it imports next to nothing."""

from __future__ import annotations

from typing import IO, Any

import click

from commonage.sdk.errors import ApiError, Unreachable, Untrusted

FAILED, MISUSED, UNREACHABLE = 1, 2, 3
BECAUSE_OF_THE_ASK = range(400, 500)


class Failure(click.ClickException):
    """What was asked for did not happen."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        vars(self)["exit_code"] = exit_code  # click declares it for the class alone, and reads it of the instance

    def show(self, file: IO[Any] | None = None) -> None:
        """The sentence, for people and for scripts that read stderr."""
        click.echo(f"commonage: {self.format_message()}", file=file, err=file is None)


class Refused(Failure):
    """The server said no, or nothing."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(_sentence(error), _code(error))
        self.error = error


def _code(error: ApiError) -> int:
    if isinstance(error, Unreachable) or error.status == 503:
        return UNREACHABLE
    return MISUSED if error.status in BECAUSE_OF_THE_ASK else FAILED


def _sentence(error: ApiError) -> str:
    text = error.detail
    if len(error.errors) > 1:
        text += "".join(f"\n  {one.get('field', '')}: {one.get('detail', '')}" for one in error.errors)
    if isinstance(error, Unreachable) and not isinstance(error, Untrusted):
        if error.status:
            return f"{text}\nTry again in a moment; `commonage doctor` on its node says what is wrong if it stays so."
        return f"{text}\nStart one with `commonage up`, or name another address with --url."
    if error.status == 401:
        return f"{text}\nKeep a token with `commonage login`, or give one with --token."
    return text

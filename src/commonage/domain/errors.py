"""The tree of errors. Every failure that a user, client or engine may see is one of these.

    CommonageError              code            HTTP   retryable
    ├── InvalidInput            invalid-…        422    no    the request is invalid
    │   └── TooLarge            too-large        413    no
    ├── Unauthenticated         unauthenticated  401    no
    ├── Forbidden               forbidden        403    no
    ├── NotFound                …-not-found      404    no
    ├── Conflict                conflict         409    no    it conflicts with the resource's current state
    │   └── StaleVersion        stale-version    409    yes   a concurrent write came first
    ├── TooMany                 too-many-…       429    yes   one user, tenant or address has reached its limit
    ├── Unschedulable           unschedulable    422    no    no node of the installation could ever run it
    ├── Unavailable             unavailable      503    yes   a required component does not answer
    └── EngineFailure           engine-failure   503    see   an engine's native error, translated by that engine

A message says what was requested, what is available, and what to do next. `code` is stable and part of the API;
`status` is the HTTP status, for API and portal alike. No error has status 502 or 504: the proxy uses those, and
replaces their pages with its own.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from commonage.domain.reasons import Reason
from commonage.domain.reasons.attempts import StartFailed


class CommonageError(Exception):
    """`str(error)` is the sentence for the user; `messages.of_error` makes that of an error with a reason."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    status: ClassVar[int] = 500

    def __init__(self, what: str | Reason, *, code: str | None = None, retryable: bool | None = None) -> None:
        self.message = what if isinstance(what, str) else repr(what)
        self.reason = None if isinstance(what, str) else what
        super().__init__(self.message)
        self._code = code
        self._retryable = retryable

    @property
    def problem_code(self) -> str:
        """The stable code of this error: the class's, unless it was raised with a narrower one."""
        return self._code or type(self).code

    @property
    def is_retryable(self) -> bool:
        return type(self).retryable if self._retryable is None else self._retryable


def start_failure(error: CommonageError) -> Reason:
    """The reason why an attempt did not start, from the error that its engine raised."""
    return error.reason or StartFailed(error=error.message)


class InvalidInput(CommonageError):
    """`field` names the offending field, dotted."""

    code = "invalid-input"
    status = 422

    def __init__(self, what: str | Reason, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(what, code=code)
        self.field = field


class TooLarge(InvalidInput):
    code = "too-large"
    status = 413


class Unauthenticated(CommonageError):
    code = "unauthenticated"
    status = 401


class Forbidden(CommonageError):
    code = "forbidden"
    status = 403


class NotFound(CommonageError):
    code = "not-found"
    status = 404


class Conflict(CommonageError):
    code = "conflict"
    status = 409


class StaleVersion(Conflict):
    code = "stale-version"
    retryable = True


class TooMany(CommonageError):
    """The message names the limit. `retry_after_s` is set if waiting alone makes room."""

    code = "too-many-requests"
    status = 429
    retryable = True

    def __init__(self, what: str | Reason, *, code: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(what, code=code)
        self.retry_after_s = retry_after_s


class Unschedulable(CommonageError):
    code = "unschedulable"
    status = 422


class Unavailable(CommonageError):
    code = "unavailable"
    status = 503
    retryable = True


class EngineFailure(CommonageError):
    """An engine refused or failed; the message is its native error in Commonage's words.

    `native` is the engine's own text. It is for admins: logs and faults of nodes show it, by `str(error)`.
    """

    code = "engine-failure"
    status = 503

    def __init__(
        self, what: str | Reason, *, code: str | None = None, retryable: bool | None = None, native: str = ""
    ) -> None:
        super().__init__(what, code=code, retryable=retryable)
        self.native = native

    def __str__(self) -> str:
        return f"{self.message} ({self.native})" if self.native else self.message


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def file_errors(what: str, where: object) -> Iterator[None]:
    """Raise Unavailable for an OSError inside; retryable only if the disk was full.

    `what` is the thing to write, as the subject of the message; `where` the file.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise Unavailable(
                f"the disk of {where} is full: {what} cannot be kept there; free some space, then try again"
            ) from error
        why = error.strerror or str(error)
        raise Unavailable(
            f"{where} cannot be written ({why}): {what} cannot be kept there; give this user write access, then try "
            "again",
            retryable=False,
        ) from error

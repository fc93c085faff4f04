"""The errors that a call may raise. Imports nothing, so that the command line can catch them before it needs anything
else.

ApiError            the control plane refused; has the fields of its problem document
└── Unreachable     no answer, or not in time
    └── Untrusted   the server's certificate is not trusted here
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


class ApiError(Exception):
    """A refusal. `code` is stable, `detail` is a sentence for people, `field` names the invalid field, if one is
    known.

    `status` is the HTTP status (0 without an answer). `retryable`: the same call may succeed later, after
    `retry_after_s` if the server gives it. `errors` lists all invalid fields if there are several, each with
    `field`, `code` and `detail`.
    """

    def __init__(self, code: str, detail: str, *, status: int = 0, retryable: bool = False) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.retryable = retryable
        self.title = ""
        self.field: str | None = None
        self.retry_after_s: float | None = None
        self.errors: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, status: int, body: bytes, retry_after: str | None = None) -> ApiError:
        """Make an error from an unsuccessful answer: a problem document, or the answer of a proxy in between.

        `retry_after` is the header of that name; a date in it is ignored, as the control plane sends none.
        """
        try:
            problem = json.loads(body)
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or "code" not in problem:
            return cls._from_between(status)
        error = cls(
            str(problem["code"]),
            str(problem.get("detail") or problem.get("title") or problem["code"]),
            status=status,
            retryable=bool(problem.get("retryable")),
        )
        error.title = str(problem.get("title") or "")
        error.field = problem.get("field")
        error.errors = problem.get("errors") or ()
        error.retry_after_s = float(retry_after) if retry_after and retry_after.isdigit() else None
        return error

    @classmethod
    def _from_between(cls, status: int) -> ApiError:
        """An error from an answer that the control plane did not give."""
        if status in GATEWAY:
            return Unreachable(f"the control plane does not answer now (HTTP {status} from the proxy)", status=status)
        return cls(
            f"http-{status}",
            f"HTTP {status} from something that is not Commonage; is the address right?",
            status=status,
        )


class Unreachable(ApiError):
    """The server gave no answer, or not in time."""

    def __init__(self, detail: str, *, status: int = 0) -> None:
        super().__init__("unreachable", detail, status=status, retryable=True)


class Untrusted(Unreachable):
    """The server's certificate is not signed by an authority that this machine trusts."""


# A proxy answers with these while the server behind it is down; 503 is also the control plane's own "not now".
GATEWAY = frozenset({502, 503, 504})

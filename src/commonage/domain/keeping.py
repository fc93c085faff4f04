"""Translates failures to write a file (full disk, read-only folder) into errors with a sentence for the user.

For all modules that keep something in a file of their own. The store translates its database errors in the same way.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from commonage.domain.errors import Unavailable

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def keeping(what: str, where: object) -> Iterator[None]:
    """Raise Unavailable for an OSError inside. `what` is the subject of the sentence (the thing to keep); `where` the
    file.

    The error is retryable only if the disk was full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            words = f"the disk of {where} is full: {what} cannot be kept there; free some space, then ask again"
            raise Unavailable(words) from error
        why = error.strerror or str(error)
        words = (
            f"{where} cannot be written ({why}): {what} cannot be kept there; have this user write it, then ask again"
        )
        raise Unavailable(words, retryable=False) from error

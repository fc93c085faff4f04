"""What cannot be written down, in words: a disk that is full, a folder that is read-only.

For all that keeps something in a file of its own. What the database cannot keep is told by the store's door, alike.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from commonage.domain.errors import Unavailable

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def keeping(what: str, where: object) -> Iterator[None]:
    """Raise Unavailable for an OSError within. `what` is a sentence's subject: what is to be kept; `where` is the file.

    The same may work later if the disk was full, and only then.
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

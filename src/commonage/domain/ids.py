"""Identifiers: short, lower case, sortable by the time they were made.

A workload's id is 13 characters of Crockford's base 32: nine for milliseconds since 1970, four that make ids of one
millisecond differ and rise. An attempt's id is `<workload id>-<number from 1>`.
"""

from __future__ import annotations

from commonage.domain.errors import InvalidInput

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TAIL = 32**4
WORKLOAD_ID_LENGTH = 13


def _encode(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


class IdSequence:
    """Makes ids that only rise, even when the clock stands still or goes back. One for each process."""

    def __init__(self) -> None:
        self._last = -1

    def follow(self, last: str | None) -> None:
        """Make only ids after this one, which an earlier process made."""
        if last:
            self._last = max(self._last, _decode(last))

    def next(self, now: float, chance: int) -> str:
        """A new id at `now` (unix seconds); `chance` is any integer that differs between processes, to avoid
        collisions.
        """
        fresh = int(now * 1000) * _TAIL + chance % (_TAIL // 2)
        self._last = max(fresh, self._last + 1)
        return _encode(self._last, WORKLOAD_ID_LENGTH)


def _decode(identifier: str) -> int:
    number = 0
    for character in identifier:
        number = number * 32 + _ALPHABET.index(character)
    return number


def attempt_id(workload_id: str, number: int) -> str:
    """The id of a workload's `number`-th attempt, from 1."""
    return f"{workload_id}-{number}"


def workload_of(attempt: str) -> str:
    """The workload id inside an attempt id. Raises InvalidInput if the text is not an attempt id."""
    workload, dash, number = attempt.rpartition("-")
    if not dash or not (number.isascii() and number.isdigit()) or len(workload) != WORKLOAD_ID_LENGTH:
        raise InvalidInput(f"{attempt!r} is not the id of an attempt")
    return workload

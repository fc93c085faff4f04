import sqlite3

import pytest
from sqlalchemy.exc import DataError, IntegrityError, OperationalError, TimeoutError

from commonage.domain.errors import CommonageError, Conflict, InvalidInput, NotFound, Unavailable
from commonage.store.failures import translated


def caught(error: BaseException) -> CommonageError:
    with pytest.raises(CommonageError) as seen, translated("/data/commonage.db"):
        raise error
    return seen.value


def native(words: str) -> OperationalError:
    return OperationalError("INSERT INTO secrets VALUES (?)", ("hush",), sqlite3.OperationalError(words))


@pytest.mark.parametrize(
    ("words", "sentence", "retryable"),
    [
        ("database or disk is full", "the disk under the database /data/commonage.db is full", True),
        ("could not extend file: No space left on device", "the disk under the database", True),
        ("database is locked", "is locked by another program", True),
        ("attempt to write a readonly database", "cannot be written by this user", False),
        ("database disk image is malformed", "is damaged", False),
        ("disk I/O error", "the disk under the database /data/commonage.db fails", True),
        ("something new", "does not answer: something new", True),
    ],
)
def test_driver_errors_become_a_sentence(words: str, sentence: str, retryable: bool) -> None:
    error = caught(native(words))
    assert isinstance(error, Unavailable)
    assert sentence in error.message
    assert error.is_retryable is retryable


@pytest.mark.parametrize("name", ["SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_WRITE"])
def test_a_file_that_cannot_grow_is_on_a_full_disk(name: str) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    translated_error = caught(OperationalError("INSERT", (), error))
    assert isinstance(translated_error, Unavailable)
    assert "is full" in translated_error.message
    assert translated_error.is_retryable


def test_message_does_not_repeat_values() -> None:
    assert "hush" not in caught(native("something new")).message


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), OSError("gone"), TimeoutError("pool is empty")])
def test_errors_of_network_and_pool_are_unavailable(error: Exception) -> None:
    assert isinstance(caught(error), Unavailable)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("UNIQUE constraint failed: workloads.owner, workloads.key", "key-taken"),
        ('constraint "uq_workloads_owner_key"', "key-taken"),
        ("pk_events", "conflict"),
    ],
)
def test_violated_constraints_are_conflicts(words: str, code: str) -> None:
    error = caught(IntegrityError("INSERT", (), sqlite3.IntegrityError(words)))
    assert isinstance(error, Conflict)
    assert error.problem_code == code


def test_invalid_data_is_invalid_input() -> None:
    assert isinstance(caught(DataError("INSERT", (), sqlite3.DataError("too long"))), InvalidInput)


def test_our_own_errors_are_unchanged() -> None:
    error = NotFound("no such workload")
    assert caught(error) is error


@pytest.mark.parametrize("value", ["\ud800", 2**70])
def test_value_that_sqlite_cannot_take_is_invalid_input(value: object) -> None:
    with pytest.raises((UnicodeEncodeError, OverflowError)) as raw:
        sqlite3.connect(":memory:").execute("SELECT ?", (value,))
    assert isinstance(caught(raw.value), InvalidInput)


def test_error_of_the_drivers_own_cursor_is_translated() -> None:
    assert "is full" in caught(sqlite3.OperationalError("database or disk is full")).message

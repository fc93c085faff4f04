"""The answer to a request for a file."""

import pytest

from commonage.control.downloads import download_of

pytestmark = pytest.mark.anyio


class EmptyFile:
    """Its time of change is after the year 9999, which `touch -d` can set."""

    size_bytes = 0
    modified_at = 1e12
    version = "1"

    async def read(self, offset: int, size: int) -> bytes:
        return b""

    async def close(self) -> None:
        pass


async def test_sends_file_that_was_changed_after_the_year_9999() -> None:
    sent = await download_of(EmptyFile(), "late.txt", None, None)
    assert sent.headers["Last-Modified"] == "Fri, 31 Dec 9999 00:00:00 GMT"

"""Bundles on a disk: where they are kept, and what a crash or a disk error leaves."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from commonage.domain.errors import InvalidInput, NotFound, TooLarge, Unavailable
from commonage.ports.bundles import KeptBundle
from commonage.store.bundle_files import BundleFiles

pytestmark = pytest.mark.anyio
CONTENT = b"\x1f\x8b" + bytes(1000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
KEPT = KeptBundle("lab", "ann", DIGEST, len(CONTENT), 1000.0)


async def chunks(*given: bytes) -> AsyncIterator[bytes]:
    for chunk in given:
        yield chunk


async def test_kept_bundle_is_listed_after_a_restart(tmp_path: Path) -> None:
    files = BundleFiles(tmp_path)
    received = await files.receive(chunks(CONTENT[:1], CONTENT[1:]))
    assert (received.digest, received.size) == (DIGEST, len(CONTENT))
    await files.keep(received, KEPT)
    await files.discard(received)
    assert files.path(KEPT).read_bytes() == CONTENT
    assert await BundleFiles(tmp_path).all() == [KEPT]


async def test_interrupted_upload_is_removed_at_start(tmp_path: Path) -> None:
    files = BundleFiles(tmp_path)
    await files.receive(chunks(CONTENT))
    assert len(list(tmp_path.iterdir())) == 1
    assert await files.all() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "error"), [([CONTENT, bytes(1 << 20)], TooLarge), ([b"plain"], InvalidInput), ([], InvalidInput)]
)
async def test_refused_upload_leaves_no_file(tmp_path: Path, content: list[bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        await BundleFiles(tmp_path, max_mib=1).receive(chunks(*content))
    assert list(tmp_path.iterdir()) == []


async def test_broken_upload_leaves_no_file(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield CONTENT
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await BundleFiles(tmp_path).receive(broken())
    assert list(tmp_path.iterdir()) == []


async def test_linked_bundle_stays_when_the_original_is_removed(tmp_path: Path) -> None:
    files, other = BundleFiles(tmp_path), replace(KEPT, owner="bob", used_at=2000.0)
    await files.keep(await files.receive(chunks(CONTENT)), KEPT)
    await files.link(KEPT, other)
    await files.link(KEPT, other)
    await files.remove(KEPT)
    await files.remove(KEPT)
    assert await files.all() == [other]
    await files.remove(other)
    assert list(tmp_path.iterdir()) == []


async def test_use_of_a_missing_bundle_is_refused(tmp_path: Path) -> None:
    files = BundleFiles(tmp_path)
    for call in (files.note_use(KEPT), files.link(KEPT, replace(KEPT, owner="bob"))):
        with pytest.raises(NotFound):
            await call


async def test_bundles_of_older_releases_have_no_owner(tmp_path: Path) -> None:
    place = tmp_path / f"{DIGEST}.tar.gz"
    place.write_bytes(CONTENT)
    os.utime(place, (7.0, 7.0))
    (old,) = await BundleFiles(tmp_path).all()
    assert old == KeptBundle("", "", DIGEST, len(CONTENT), 7.0)
    assert BundleFiles(tmp_path).path(old) == place
    await BundleFiles(tmp_path).remove(old)
    assert tmp_path.is_dir()


async def test_disk_error_is_unavailable(tmp_path: Path) -> None:
    files = BundleFiles(tmp_path)
    received = await files.receive(chunks(CONTENT))
    (tmp_path / "lab").write_text("in the way")
    with pytest.raises(Unavailable, match="the bundle cannot be kept"):
        await files.keep(received, KEPT)

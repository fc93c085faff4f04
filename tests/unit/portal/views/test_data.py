"""The page Data: files of a home and of volumes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.portal import Portal
from tests.unit.portal.conftest import Person

from commonage.control.settings import ControlSettings
from commonage.domain.volumes import Volume, VolumeKind
from commonage.files.safe_path import SafePath
from commonage.storage.user_files import FolderFiles
from commonage.wire.hub import PORTAL_PATH

pytestmark = pytest.mark.anyio
KEY = "0" * 32
AWKWARD = "a <b>&'\" ä.txt"


@pytest.fixture
async def ann(tmp_path: Path) -> AsyncIterator[Person]:
    (tmp_path / "sets").mkdir()
    volumes = (Volume("sets", "Data sets", source=f"{tmp_path}/sets"), Volume("tmp", kind=VolumeKind.SCRATCH))
    portal = Portal(settings=ControlSettings(volumes=volumes), files=FolderFiles(SafePath(tmp_path / "homes")))
    async with portal.running():
        person = Person(portal)
        await person.sign_in("ann")
        yield person


async def send(person: Person, path: str, content: bytes, token: str | None = None, **query: str) -> int:
    headers = {
        "X-CSRF-Token": await person.csrf() if token is None else token,
        "Upload-Offset": "0",
        "Upload-Length": str(len(content)),
        "HX-Request": "true",
    }
    answer = await person.client.patch(
        f"{PORTAL_PATH}data/content", params={"path": path, "key": KEY, **query}, content=content, headers=headers
    )
    return answer.status_code


async def test_files_are_uploaded_shown_and_downloaded(ann: Person, tmp_path: Path) -> None:
    assert "No files." in (await ann.get("data")).text
    assert await send(ann, AWKWARD, b"0123456789") == 200
    page = (await ann.get("data")).text
    assert "a &lt;b&gt;&amp;&#39;&#34; ä.txt" in page and "<b>" not in page
    assert "10 B" in page
    loaded = await ann.client.get(f"{PORTAL_PATH}data/content", params={"path": AWKWARD})
    assert (loaded.status_code, loaded.content) == (200, b"0123456789")
    assert loaded.headers["content-disposition"].startswith("attachment;")
    assert loaded.headers["content-security-policy"].startswith("sandbox")
    part = await ann.client.get(f"{PORTAL_PATH}data/content", params={"path": AWKWARD}, headers={"Range": "bytes=8-"})
    assert (part.status_code, part.content) == (206, b"89")


async def test_only_pages_of_the_portal_may_upload(ann: Person, tmp_path: Path) -> None:
    assert await send(ann, "a", b"x", token="another") == 403
    answer = await ann.client.get(
        f"{PORTAL_PATH}data/content", params={"path": "a"}, headers={"sec-fetch-dest": "empty"}
    )
    assert answer.status_code == 403
    assert not (tmp_path / "homes" / "ann" / "a").exists()


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "application/x-www-form-urlencoded"])
async def test_an_upload_without_a_token_is_refused_before_its_body_is_read(ann: Person, kind: str) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        for chunk in (b"--x\r\n", b'Content-Disposition: form-data; name="a"; filename="a"\r\n\r\n', b"y" * 10):
            read += 1
            yield chunk

    answer = await ann.client.patch(
        f"{PORTAL_PATH}data/content",
        params={"path": "a", "key": KEY},
        content=body(),
        headers={"Content-Type": kind, "Upload-Offset": "0", "Upload-Length": "9", "HX-Request": "true"},
    )
    assert (answer.status_code, read) == (403, 0)


async def test_folders_and_names_are_changed_by_forms(ann: Person, tmp_path: Path) -> None:
    home = tmp_path / "homes" / "ann"
    made = await ann.post("data/folder", {"path": "", "name": "new"})
    assert (made.status_code, made.headers["location"]) == (303, f"{PORTAL_PATH}data")
    assert await send(ann, "new/a", b"x") == 200
    renamed = await ann.post("data/move", {"path": "new/a", "name": "b"})
    assert renamed.headers["location"] == f"{PORTAL_PATH}data?path=new"
    assert (home / "new" / "b").exists()
    assert (await ann.post("data/move", {"path": "new/b", "name": "../b"})).status_code == 422
    assert (await ann.post("data/remove", {"path": "new"})).status_code == 303
    assert list(home.iterdir()) == []


async def test_read_only_volumes_have_no_tools(ann: Person) -> None:
    page = (await ann.get("data?volume=sets")).text
    assert "read-only" in page and "Upload files" not in page
    assert await send(ann, "a", b"x", volume="sets") == 403
    assert "deleted when its attempt ends" in (await ann.get("data?volume=tmp")).text
    assert (await ann.get("data?volume=other")).status_code == 404
    assert (await ann.get("data?path=../x")).status_code in (200, 422)

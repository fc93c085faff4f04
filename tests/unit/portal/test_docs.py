"""The documentation is served to everybody, under the portal's policy, and nothing else of the package is."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tests.fakes.portal import Portal

from commonage.domain.errors import NotFound
from commonage.portal.static_files import Docs
from commonage.portal.templating import linked
from commonage.wire.hub import DOCS_PATH, docs_page

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stranger(portal: Portal) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(portal.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://portal.test") as client:
        yield client


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """The files of a docs site with one page and one style, next to a file that is not part of it."""
    site = tmp_path / "site"
    (site / "_static").mkdir(parents=True)
    (site / "index.html").write_text("<h1>Docs</h1>")
    (site / "_static" / "style.css").write_text("p {}")
    (site / ".stamp").write_text("digest")
    (tmp_path / "secret").write_text("secret")
    docs = Docs(site)

    async def serve(request: Request) -> Response:
        try:
            return await docs.serve(request)
        except NotFound as error:
            return PlainTextResponse(error.message, status_code=error.status)

    transport = httpx2.ASGITransport(Starlette(routes=[Route("/docs", serve), Route("/docs/{path:path}", serve)]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://portal.test") as client:
        yield client


async def test_needs_no_sign_in_and_keeps_the_policy(stranger: httpx2.AsyncClient) -> None:
    answer = await stranger.get(DOCS_PATH)
    assert answer.status_code == 200
    assert "Commonage" in answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    style = re.search(r'href="(_static/[^"]+\.css[^"]*)"', answer.text)
    assert style
    assert (await stranger.get(DOCS_PATH + style[1])).headers["content-type"].startswith("text/css")


async def test_a_page_that_is_not_there_is_a_page_with_a_way_out(stranger: httpx2.AsyncClient) -> None:
    answer = await stranger.get(f"{DOCS_PATH}operate/absent.html")
    assert answer.status_code == 404
    assert f'<a href="{DOCS_PATH}">' in answer.text


async def test_without_its_slash_it_is_sent_on(stranger: httpx2.AsyncClient) -> None:
    answer = await stranger.get(DOCS_PATH.rstrip("/"))
    assert answer.status_code == 307
    assert answer.headers["location"] == DOCS_PATH


@pytest.mark.parametrize("path", ["%2e%2e/secret", "..%2fsecret", "_static/%2e%2e/%2e%2e/secret", ".stamp", "_static"])
async def test_serves_nothing_but_the_site(reader: httpx2.AsyncClient, path: str) -> None:
    answer = await reader.get(f"/docs/{path}")
    assert answer.status_code == 404


async def test_browsers_keep_what_has_a_digest_and_ask_again_for_the_rest(reader: httpx2.AsyncClient) -> None:
    assert "immutable" in (await reader.get("/docs/_static/style.css?v=1a2b")).headers["cache-control"]
    page = await reader.get("/docs/index.html")
    assert page.headers["cache-control"] == "no-cache"
    again = await reader.get("/docs/index.html", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304


def test_messages_link_to_the_pages_that_they_name() -> None:
    page = docs_page("operate/swarm#shared-folder")
    assert linked(f"<b> has no folder ({page}).") == (f'&lt;b&gt; has no folder (<a href="{page}">{page}</a>).')

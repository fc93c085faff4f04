"""The documentation in a real browser, under the policy that the server sends: pages, search, dark, a phone's width."""

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.acceptance.browser import DESK, PHONE, Problems, chromium, load, retry

from commonage.portal.site import HEADERS
from commonage.portal.static_files import Docs
from commonage.wire.hub import DOCS_PATH

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of the site alone, with the portal's headers."""
    docs = Docs()

    async def serve(request: Request) -> Response:
        response = await docs.serve(request)
        response.headers.update({name: text for name, text in HEADERS.items() if name not in response.headers})
        return response

    app = Starlette(routes=[Route(f"{DOCS_PATH}{{path:path}}", serve)])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}{DOCS_PATH}"
    server.should_exit = True
    thread.join()


@contextlib.contextmanager
def reader(browser: Browser, size: tuple[int, int], *, dark: bool = False) -> Iterator[tuple[Page, Problems]]:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    page, problems = context.new_page(), Problems()
    problems.listen(page)
    try:
        yield page, problems
    finally:
        context.close()
    assert problems.found == []


PAGES = ["index", "use/run-a-job", "operate/sign-in", "concepts/states", "reference/cli", "reference/settings"]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("size", "dark"), [(DESK, False), (DESK, True), (PHONE, False)], ids=["desk", "dark", "phone"])
def test_pages_keep_the_policy_and_fit(
    browser: Browser, url: str, name: str, size: tuple[int, int], dark: bool
) -> None:
    with reader(browser, size, dark=dark) as (page, _):
        load(page, f"{url}{name}.html", wait_until="networkidle")
        expect(page.locator("h1").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert light != dark


def test_search_finds_a_page(browser: Browser, url: str) -> None:
    with reader(browser, DESK) as (page, _):

        def search() -> None:
            page.goto(f"{url}search.html?q=quota")
            results = page.locator("#search-results li a")
            expect(results.first).to_be_visible()
            with page.expect_navigation():
                results.first.click()

        retry(search)
        expect(page.locator("h1").first).to_be_visible()


def test_a_reader_may_choose_dark(browser: Browser, url: str) -> None:
    with reader(browser, DESK) as (page, _):
        load(page, f"{url}index.html")
        page.locator(".theme-switch-button").first.click()
        page.get_by_role("button", name="Dark", exact=True).first.click()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        retry(page.reload)
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")

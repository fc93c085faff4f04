"""A real browser for acceptance tests: Debian's Chromium, driven by Playwright, signing in as people do.

A page that breaks our own rules (an error in a script, something the content policy refuses, a request that fails) is
told by `problems`; a test of a page ends with it being empty.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import psutil
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from tests.conftest import chromium_path

from commonage.wire.hub import PORTAL_PATH

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)  # its own five seconds are short where all cores are busy
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
PHONE = (360, 740)
DESK = (1280, 900)
Result = TypeVar("Result")


@dataclass
class Problems:
    """Errors of a page, in order. `allowed` are parts of texts that a test expects."""

    found: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ()

    def listen(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._add(f"script: {error}"))
        page.on("response", self._response)

    def _console(self, message: ConsoleMessage) -> None:
        # Refusals of a server are in the response, with its address.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self._add(f"console: {message.text}")

    def _response(self, response: Response) -> None:
        if response.status >= 400 and urlsplit(response.url).path.startswith(PORTAL_PATH):
            self._add(f"{response.status} {response.url}")

    def _add(self, text: str) -> None:
        if not any(part in text for part in (*self.allowed, NETWORK_CHANGED)):
            self.found.append(text)


@contextlib.contextmanager
def chromium(*arguments: str) -> Iterator[Browser]:
    """A browser, with more arguments of its own; a test that uses it is marked `needs("chromium")`."""
    before = set(psutil.Process().children())
    with contextlib.ExitStack() as at_exit, sync_playwright() as playwright:
        driver = next(one for one in psutil.Process().children() if one not in before)
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=[*ARGUMENTS, *arguments])
        try:
            yield browser
        finally:
            # On a busy machine Chromium, or the driver that ends it, may never end.
            for processes, after_s in ((driver.children(recursive=True), 30.0), ([driver], 45.0)):
                timer = threading.Timer(after_s, _kill, [processes])
                timer.daemon = True
                timer.start()
                at_exit.callback(timer.cancel)
            with contextlib.suppress(PlaywrightError):  # it was killed
                browser.close()


def _kill(processes: Sequence[psutil.Process]) -> None:
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


@contextlib.contextmanager
def person(
    browser: Browser, url: str, user: str, password: str, *, size: tuple[int, int] = DESK, dark: bool = False
) -> Iterator[tuple[Page, Problems]]:
    """A user with a separate browser, signed in at `url` (the installation's address), on the overview."""
    context = browser.new_context(
        base_url=url,
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    try:
        page, problems = new_page(context)
        sign_in(page, user, password)
        yield page, problems
    finally:
        for each in context.pages:  # Chromium may never close a page that still loads JupyterLab
            with contextlib.suppress(PlaywrightError):
                each.goto("about:blank")
        context.close()


def new_page(context: BrowserContext) -> tuple[Page, Problems]:
    page, problems = context.new_page(), Problems()
    problems.listen(page)
    return page, problems


class Patience:
    """Counts the tries that are left: Chromium drops connections when a network interface appears or disappears.

    Some requests then never end.
    """

    def __init__(self) -> None:
        self._changes, self._hangs = 10, 1

    def forgive(self, error: Exception) -> None:
        """Return if it is worth another try, else raise the error."""
        if NETWORK_CHANGED in str(error) and self._changes:
            self._changes -= 1
        elif isinstance(error, PlaywrightTimeoutError | AssertionError) and self._hangs:
            self._hangs -= 1
        else:
            raise error
        print(f"tried again: {error}")  # shown if the test fails


def retry(act: Callable[[], Result]) -> Result:
    """Do something that leads to a page and waits for it; try again with Patience."""
    patience = Patience()
    while True:
        try:
            return act()
        except (PlaywrightError, AssertionError) as error:
            patience.forgive(error)


def load(page: Page, address: str, wait_until: Literal["load", "networkidle"] = "load") -> Response | None:
    return retry(lambda: page.goto(address, wait_until=wait_until))


def await_page(page: Page, address: str, arrives: Callable[[], object]) -> None:
    """Until `arrives()` is done on a page that is opened already; if it fails, the address is loaded, once."""
    try:
        arrives()
    except (PlaywrightError, AssertionError) as error:
        print(f"{address} is loaded again: {error}")  # shown if the test fails
        load(page, address)
        arrives()


def await_refreshed(page: Page, address: str, arrives: Callable[[], object], within_s: float) -> None:
    """Until `arrives()`, which waits briefly, is done on a page that loads itself again, if the network lets it."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            arrives()
            return
        except (PlaywrightError, AssertionError):
            if time.monotonic() > deadline:
                raise
            if page.url.startswith("chrome-error:"):
                load(page, address)


def sign_in(page: Page, user: str, password: str) -> None:
    """From the front door through the hub's form to the portal's overview.

    Chromium drops connections in the making whenever a network interface of the machine comes or goes, as tests of
    Docker make them meanwhile. If that ends the way back from the hub, the person goes to the portal again.
    """
    failures: list[str | None] = []
    page.on("requestfailed", lambda request: failures.append(request.failure))
    load(page, "/")
    page.locator("#username_input").fill(user)
    page.locator("#password_input").fill(password)
    page.locator("#login_submit").click()
    try:
        page.wait_for_url(f"**{PORTAL_PATH}")
    except PlaywrightTimeoutError:
        if NETWORK_CHANGED not in failures:
            raise
        load(page, PORTAL_PATH)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def sign_out(page: Page) -> None:
    page.locator(".menu summary").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/hub/**")


def go(page: Page, path: str) -> None:
    """A page of the portal by its path below the portal's, live where it is."""
    failures: list[tuple[str, str | None]] = []

    def note(request: Request) -> None:
        failures.append((request.url, request.failure))

    page.on("requestfailed", note)
    try:
        load(page, f"{PORTAL_PATH}{path}")
        if page.locator(".live").count():
            await_live(page)
    except (PlaywrightTimeoutError, AssertionError):
        # A change of the network can also leave a request of the page without an end; see sign_in.
        print(f"{path} is loaded again; failed requests: {failures}")  # shown if the test fails
        load(page, f"{PORTAL_PATH}{path}")
        if page.locator(".live").count():
            await_live(page)
    finally:
        page.remove_listener("requestfailed", note)


def await_live(page: Page) -> None:
    """Until the page's stream stands, or has told all there is."""
    expect(page.locator(".live")).to_contain_text("live")
    page.locator(".live.is-on, .live.is-done").wait_for(state="attached")  # a phone's list has no room to show it


def launch(page: Page, kind: str, **fields: str) -> str:
    """Fill the launch form and submit it. Returns the workload's id, from the page that follows. `kind`: session or
    job.
    """
    go(page, "launch")
    page.locator(f"#kind-{kind}").check()
    for name, value in fields.items():
        field_ = page.locator(f"#{name}")
        if name == "environment":
            field_.select_option(value)
        else:
            field_.fill(value)
    page.locator("#go").click()
    page.wait_for_url("**/workloads/*", timeout=2 * PATIENCE_MS)
    return urlsplit(page.url).path.rpartition("/")[2]


def await_state(page: Page, label: str, within_s: float = 60) -> None:
    """Until the workload's page, by itself, shows this state: `Running`, `Succeeded` …"""
    expect(page.locator("#head .head-state")).to_contain_text(label, timeout=within_s * 1000)


def overflow(page: Page) -> list[str]:
    """Elements beyond the right edge, which make the page scroll sideways."""
    script = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
        [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)
        .slice(0, 8).map(e => `${e.tagName} ${e.className}`)"""
    return list(page.evaluate(script))

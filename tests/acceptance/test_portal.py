"""The portal as people use it: in Chromium, through the real proxy, from the front door to a finished job."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.acceptance.browser import (
    PHONE,
    Problems,
    await_live,
    await_page,
    await_state,
    chromium,
    go,
    launch,
    load,
    overflow,
    person,
    retry,
    sign_in,
    sign_out,
)
from tests.acceptance.served import ADMIN_PASSWORD, USERS_PASSWORD, Served, served

from commonage.server.processes.unavailable import answer_to
from commonage.wire.workloads import SubmitIn

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(900)]
PAGES = ("", "launch", "launch?kind=job", "workloads", "data", "nodes", "usage")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("portal"), "--gpus", "simulated:1x24GiB") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def alice(browser: Browser, installation: Served) -> Iterator[tuple[Page, Problems]]:
    with person(browser, installation.url, "alice", USERS_PASSWORD) as signed_in:
        yield signed_in


@pytest.fixture
def bob(browser: Browser, installation: Served) -> Iterator[tuple[Page, Problems]]:
    with person(browser, installation.url, "bob", USERS_PASSWORD) as signed_in:
        yield signed_in


@pytest.fixture
def admin(browser: Browser, installation: Served) -> Iterator[tuple[Page, Problems]]:
    with person(browser, installation.url, "admin", ADMIN_PASSWORD) as signed_in:
        yield signed_in


def _stop(page: Page) -> None:
    page.locator("#head").get_by_role("button", name="Stop").click()
    page.locator("#ask-yes").click()


def test_a_session_and_a_job_that_waits_for_it(alice: tuple[Page, Problems], bob: tuple[Page, Problems]) -> None:
    hers, her_problems = alice
    launch(hers, "session", gpus="16GiB", cpus="0.5", memory="1GiB")
    await_state(hers, "Running", within_s=400)
    expect(hers.locator("#head")).to_contain_text("Simulated")
    expect(hers.locator("#facts")).to_contain_text("cooperative")

    his, his_problems = bob
    go(his, "launch")
    his.locator("#kind-job").check()
    his.locator("#command").fill("for i in 1 2 3; do echo step $i; done")
    his.locator("#gpus").fill("12GiB")
    verdict = his.locator("#verdict")
    expect(verdict).to_contain_text("Waits in the queue")
    for told in ("12 GiB", "8 GiB", "alice"):
        expect(verdict).to_contain_text(told)
    his.locator("#go").click()
    await_state(his, "Queued")
    why = his.locator("#why")
    for told in ("12 GiB", "8 GiB", "alice", "Starts now with"):
        expect(why).to_contain_text(told)
    job = his.url
    go(his, "")
    expect(his.locator("#waiting")).to_contain_text("12 GiB")

    def come_back() -> None:
        if his.url != job:
            his.go_back()
        await_live(his)

    await_page(his, job, come_back)

    link = hers.get_by_role("link", name="Open session")
    address = link.get_attribute("href") or ""
    with hers.context.expect_page() as opened:
        link.click()
    lab, title = opened.value, re.compile("JupyterLab")
    await_page(lab, address, lambda: expect(lab).to_have_title(title, timeout=60_000))
    lab.close()

    _stop(hers)
    await_state(hers, "Stopped")
    await_state(his, "Succeeded")  # by itself: the page was not touched
    expect(his.locator("#log")).to_contain_text("step 3")
    expect(his.locator("#usage")).to_contain_text("GiB·h")
    go(his, "usage")
    expect(his.locator("table")).to_contain_text("for i in 1 2 3")
    assert her_problems.found == []
    assert his_problems.found == []


def test_a_wrong_form_loses_nothing(alice: tuple[Page, Problems]) -> None:
    page, problems = alice
    problems.allowed = ("422",)
    go(page, "launch")
    page.locator("#kind-job").check()
    page.locator("#command").fill("echo 'kept'")
    page.locator("#time").fill("-5m")
    expect(page.locator("#error-time")).to_contain_text("-5m")
    expect(page.locator("#time")).to_have_attribute("aria-invalid", "true")
    page.locator("#go").click()
    expect(page.locator("#error-time")).to_contain_text("-5m")
    expect(page.locator("#command")).to_have_value("echo 'kept'")
    page.locator("#gpus").fill("999GiB")
    page.locator("#time").fill("5m")
    expect(page.locator("#verdict")).to_contain_text("Cannot start")
    page.get_by_role("button", name="4 GiB of VRAM").first.click()
    expect(page.locator("#verdict")).to_contain_text("Starts now")
    assert problems.found == []


def test_a_log_of_a_hundred_thousand_lines_stays_light(alice: tuple[Page, Problems]) -> None:
    page, problems = alice
    launch(page, "job", command="seq 1 60000; sleep 3; seq 60001 100000")
    await_state(page, "Succeeded")
    expect(page.locator("#log")).to_contain_text("100000")
    assert page.locator("#log *").count() < 1000
    log = "document.getElementById('log')"
    at_end = f"() => {log}.scrollHeight - {log}.scrollTop - {log}.clientHeight < 40"
    page.wait_for_function(at_end)
    page.locator("#log").hover()
    page.mouse.wheel(0, -600)
    expect(page.locator("#log-follow")).not_to_be_checked()
    page.locator("#log-follow").check()
    page.wait_for_function(at_end)
    with page.expect_response("**/log") as plain:
        page.get_by_role("link", name="Plain text").click()
    assert plain.value.text().splitlines() == [str(number) for number in range(1, 100_001)]
    assert problems.found == []


def test_charts_draw_what_is_measured(alice: tuple[Page, Problems]) -> None:
    page, problems = alice
    launch(page, "job", command="sleep 600", gpus="4GiB", name="measured")
    await_state(page, "Running")
    for metric in ("memory_mib", "gpu_memory_mib"):
        chart = page.locator(f".chart[data-metric={metric}]")
        expect(chart.locator("canvas")).to_be_visible(timeout=60_000)
        expect(chart.locator("output")).to_contain_text("of")
    _stop(page)
    await_state(page, "Stopped")
    page.get_by_role("link", name="Run again").click()
    expect(page.locator("#name")).to_have_value("measured")
    expect(page.locator("#gpus")).to_have_value("4GiB")
    assert problems.found == []


def test_a_thousand_workloads_in_the_list(installation: Served, bob: tuple[Page, Problems]) -> None:
    sdk = installation.client("bob")
    holder = sdk.submit(SubmitIn(command=["sleep", "600"], gpus="24GiB", name="holder")).workload
    many = sdk.submit(SubmitIn(command=["true"], gpus="24GiB", name="many", array=1000))
    page, problems = bob
    go(page, "workloads?state=waiting")
    expect(page.locator("#tabs [aria-current]")).to_contain_text("1,000")
    rows = page.locator("#rows tr")
    expect(rows).to_have_count(50)
    first = rows.first.text_content()
    with page.expect_navigation():
        page.get_by_role("link", name="Older").click()
    await_live(page)
    expect(rows).to_have_count(50)
    assert rows.first.text_content() != first
    with page.expect_navigation():
        page.get_by_role("link", name="Newest").click()
    await_live(page)
    page.locator("#text").fill(many.ids[3])
    expect(rows).to_have_count(1)
    expect(page.locator("#text")).to_be_focused()
    # Its state changes on the open page.
    rows.first.get_by_role("button", name="Stop").click()
    page.locator("#ask-yes").click()
    expect(page.locator("#found")).to_contain_text("No workloads match")
    for one in [*many.ids[:3], *many.ids[4:], holder.id]:
        sdk.stop(one)
    assert problems.found == []


def test_an_admin_drains_a_node_and_sees_everybodys_work(installation: Served, admin: tuple[Page, Problems]) -> None:
    for user in ("alice", "bob"):
        installation.client(user).submit(SubmitIn(command=["true"], name=f"of {user}"))
    page, problems = admin
    go(page, "nodes")
    page.get_by_role("button", name="Drain").click()
    page.locator("#ask-yes").click()
    expect(page.locator("#nodes")).to_contain_text("Draining")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#nodes")).not_to_contain_text("Draining")
    go(page, "workloads?owner=*")
    expect(page.locator("#rows")).to_contain_text("of alice")
    expect(page.locator("#rows")).to_contain_text("of bob")
    assert problems.found == []


@pytest.mark.parametrize("dark", [False, True])
def test_every_page_fits_a_phone(browser: Browser, installation: Served, dark: bool) -> None:
    name = "a name that is much longer than any phone is wide, " * 2 + "and-one-word-without-any-place-to-break"
    installation.client("alice").submit(SubmitIn(command=["echo", name], name=name[:128]))
    with person(browser, installation.url, "alice", USERS_PASSWORD, size=PHONE, dark=dark) as (page, problems):
        for path in PAGES:
            go(page, path)
            assert overflow(page) == [], path
        go(page, "workloads")
        page.locator("#rows a.strong").first.click()
        await_live(page)
        assert overflow(page) == []
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(float, re.findall(r"[\d.]+", background)[:3])) < 384) is dark
        assert problems.found == []


def test_by_keyboard_and_in_the_chosen_colours(alice: tuple[Page, Problems]) -> None:
    page, problems = alice
    go(page, "workloads")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#text")).to_be_focused()
    page.locator(".menu summary").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Sign out")).not_to_be_visible()
    page.locator("#theme").click()
    page.locator("#theme").click()
    retry(page.reload)
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert problems.found == []


def test_an_upload_goes_on_after_a_broken_connection(
    installation: Served, alice: tuple[Page, Problems], tmp_path: Path
) -> None:
    page, problems = alice
    content = bytes(range(256)) * 40_000  # more than one piece
    (tmp_path / "weights.bin").write_bytes(content)
    broken: list[str] = []

    def carry(route: Route) -> None:
        if route.request.method == "PATCH" and len(broken) < 1:
            broken.append(route.request.url)
            route.abort("connectionreset")
        else:
            route.continue_()

    problems.allowed += ("ERR_CONNECTION_RESET",)
    page.route("**/data/content?*", carry)
    go(page, "data")
    page.get_by_label("Name of the new folder").fill("models")
    page.get_by_role("button", name="Create").click()
    page.get_by_role("link", name="models").click()
    page.wait_for_url("**path=models")
    page.wait_for_load_state()
    page.locator("#upload-files").set_input_files(tmp_path / "weights.bin")
    link = page.get_by_role("link", name="weights.bin")
    expect(link).to_be_visible()  # the page loads again when all is there
    assert broken
    stored = installation.data / "workspaces" / "alice" / "models" / "weights.bin"
    assert stored.read_bytes() == content
    with page.expect_download() as download:
        link.click()
    assert download.value.path().read_bytes() == content
    page.locator("#upload-files").set_input_files(tmp_path / "weights.bin")
    problems.allowed += ("409 ",)
    expect(page.locator("#uploads")).to_contain_text("exists already")
    page.get_by_role("button", name="Delete weights.bin").click()
    page.locator("#ask-yes").click()
    expect(page.get_by_text("No files.")).to_be_visible()
    assert not stored.exists()
    assert problems.found == []


def test_what_leads_nowhere_leads_back(alice: tuple[Page, Problems]) -> None:
    page, problems = alice
    problems.allowed = ("404",)
    load(page, "/services/commonage/nowhere")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    page.locator("main").get_by_role("link", name="Overview").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert problems.found == []


def test_a_proxy_that_does_not_know_the_server_yet_takes_no_page_away(alice: tuple[Page, Problems]) -> None:
    page, problems = alice
    problems.allowed = ("404",)
    go(page, "")
    page.evaluate("document.body.classList.add('the-same-page')")
    gone = "document.dispatchEvent(new CustomEvent('htmx:sse:error', {detail: {status: 404}}))"
    page.route("**/api/v1/health", lambda route: route.fulfill(status=404, body="404 page not found"))
    with page.expect_response("**/api/v1/health"):
        page.evaluate(gone)
    expect(page.locator(".live")).to_have_text("reconnecting")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.locator("body.the-same-page")).to_be_visible()
    page.unroute_all()
    page.evaluate(gone)
    expect(page.locator("body.the-same-page")).to_have_count(0)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert problems.found == []


def test_a_request_while_the_server_restarts_leaves_the_page_as_it_is(alice: tuple[Page, Problems]) -> None:
    page, problems = alice
    problems.allowed = ("503",)
    go(page, "workloads")
    _, _, body = answer_to(b"GET / HTTP/1.1\r\nAccept: text/html\r\n\r\n").decode().partition("\r\n\r\n")
    page.route("**/workloads?text=*", lambda route: route.fulfill(status=503, content_type="text/html", body=body))
    page.get_by_label("Name or id").fill("train")
    expect(page.locator("#notices")).to_contain_text("starting or restarting")
    expect(page.locator("#list")).to_be_visible()
    expect(page).to_have_title(re.compile("Workloads"))
    assert problems.found == []


def test_an_open_page_outlives_a_restart_of_the_server(installation: Served, alice: tuple[Page, Problems]) -> None:
    page, problems = alice
    problems.allowed = ("sse", "502", "503", "504", "404")
    go(page, "")
    installation.stop(signal.SIGTERM)
    expect(page.locator(".live")).to_contain_text("reconnecting")
    installation.start()
    expect(page.locator(".live")).to_have_text("live", timeout=90_000)
    go(page, "workloads")  # still signed in
    expect(page.get_by_role("heading", name="My workloads")).to_be_visible()
    sign_out(page)
    sign_in(page, "alice", USERS_PASSWORD)
    assert problems.found == []

"""The apps of a session in a real browser, through the whole proxy chain: each is opened, and does one thing.

JupyterLab's terminal, TensorBoard and the desktop are the real programs. Visdom, code-server, RStudio and VirtualGL are
stand-ins (tests/acceptance/stand_ins): their packages are large, get files from the internet, or are not in Debian.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.acceptance.browser import chromium, go, load, person
from tests.acceptance.kernel import by_number
from tests.acceptance.served import USERS_PASSWORD, Served, served
from tests.fakes.waiting import wait_until

import commonage.catalogue
from commonage.server.processes.ports import free_port
from commonage.wire.hub import PORTAL_PATH

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs("chromium", "vnc")]
STAND_INS = Path(__file__).with_name("stand_ins")
REQUIREMENTS = Path(commonage.catalogue.__file__).with_name("notebook.txt")
ENVIRONMENT = "kind: Environment\nname: apps\npython: {python}\nkinds: [session, job]\n"
TRAIN = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter("first")
for step in range(5):
    value = Summary.Value(tag="the-loss", simple_value=1 / (1 + step))
    writer.add_event(Event(step=step, summary=Summary(value=[value])))
writer.close()
"""
POST_WINDOW = """
import os, urllib.request
url = f"http://127.0.0.1:{os.environ['VISDOM_PORT']}{os.environ['VISDOM_BASE_URL']}/events"
urllib.request.urlopen(url, data=b"a window of mine", timeout=20)
"""
ASK_AS_ANOTHER = """
import os, socket
if not os.getuid():
    os.setuid(65534)
link = socket.socket()
link.settimeout(20)
link.connect(("127.0.0.1", int(os.environ["VISDOM_PORT"])))
link.sendall(b"GET /user/alice/visdom/ HTTP/1.0\\r\\n\\r\\n")
print(link.recv(100)[:12])
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of sessions with the built-in one's packages and the stand-ins."""
    folder = tmp_path_factory.mktemp("environment") / "apps"
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    found = folder / "bin" / "python"
    (folder / "left-out").write_text('rfc3987-syntax ; python_version < "3"\n')
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", str(found), "--override", str(folder / "left-out"),
         "--requirements", str(REQUIREMENTS)],
        check=True,
    )  # fmt: skip
    for program in STAND_INS.iterdir():
        if program.is_file():
            shutil.copy(program, folder / "bin")
    [packages] = folder.glob("lib/python3*/site-packages")
    shutil.copytree(STAND_INS / "packages", packages, dirs_exist_ok=True)
    return found


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("apps")
    with served(folder, "--gpus", "simulated:1x24GiB") as running:
        (folder / "apps.commonage.yml").write_text(ENVIRONMENT.format(python=python))
        applied = running.cli("apply", "--yes", "apps.commonage.yml", token=running.token("admin", "--admin"))
        assert applied.returncode == 0, applied.stdout + applied.stderr
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def test_every_app_opens_from_the_portal_and_works(installation: Served, browser: Browser) -> None:
    alice = installation.client("alice")
    folder = installation.folder / "training"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    options = ("--env", "apps", "--mem", "512MiB", "--cpus", "0.2", "--json", "--detach")
    ran = installation.cli("run", *options, "--", "python", "train.py", token=installation.token("alice"), cwd=folder)
    assert ran.returncode == 0, ran.stderr
    asked = {"environment": "apps", "cpus": "0.2", "memory": "1GiB"}
    assert installation.hub("POST", "/users/alice/server", json=asked).status_code in (201, 202)
    wait_until(lambda: installation.hub("GET", "/users/alice").json()["servers"].get("", {}).get("ready"),
               "the session", within_s=400)  # fmt: skip
    [session] = alice.workloads(kind="session", state=["running"])
    [job] = alice.workloads(kind="job")
    home = installation.data / "workspaces" / "alice"

    with person(browser, installation.url, "alice", USERS_PASSWORD) as (page, problems):
        links = open_with(page, session.id)
        assert list(links) == ["Terminal", "TensorBoard", "Visdom", "VS Code", "RStudio", "Desktop"]
        tab = page.context.new_page()

        load(tab, links["Visdom"])
        expect(tab).to_have_title("visdom")
        (home / "window.py").write_text(POST_WINDOW)
        (home / "other.py").write_text(ASK_AS_ANOTHER)
        load(tab, links["Terminal"])
        tab.locator(".xterm-screen").click()
        commands = "python window.py && echo $((6 * 7)) > said.txt; python other.py > other.txt 2>&1; echo > done.txt"
        tab.keyboard.type(f"{commands}\n")
        wait_until((home / "done.txt").exists, "the commands in the terminal", within_s=120)
        assert (home / "said.txt").read_text() == "42\n"
        if os.getuid() == 0:
            refused = (home / "other.txt").read_text()
            assert "b''" in refused or "ConnectionResetError" in refused, "another user of the machine is refused"
        load(tab, links["Visdom"])
        expect(tab.locator(".window").first).to_have_text("a window of mine")

        load(tab, f"{links['VS Code']}?file=said.txt")
        expect(tab.locator("pre")).to_have_text("42")
        load(tab, links["RStudio"])
        expect(tab.locator("pre")).to_have_text("/user/alice/rstudio/")

        load(tab, links["Desktop"])
        expect(tab.locator("#status")).to_contain_text("Connected", timeout=90_000)
        expect(tab.locator("canvas").first).to_be_visible()
        wait_until((home / "vglrun.txt").exists, "VirtualGL", within_s=60)
        assert "-d egl +wm" in (home / "vglrun.txt").read_text()

        wait_until(lambda: alice.workload(job.id).state == "succeeded", "the job")
        links = open_with(page, job.id)
        assert parse_qs(urlsplit(links["TensorBoard"]).query) == {"runFilter": [f"jobs/{job.id}"]}
        load(tab, links["TensorBoard"])
        expect(tab.get_by_text("the-loss").first).to_be_visible(timeout=90_000)
        load(tab, links["JupyterLab"])
        expect(tab.get_by_text("train.py").first).to_be_visible(timeout=90_000)
        assert problems.found == []


SERVER = """
import http.server, os, pathlib, sys

class Page(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        healthy = not pathlib.Path("ill").exists()
        self.send_response(200 if healthy or self.path != "/health" else 503)
        self.end_headers()
        self.wfile.write("|".join([self.path, *(self.headers.get(name, "-") for name in
            ("X-Commonage-User", "Cookie", "Authorization"))]).encode())

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
"""


def test_a_service_is_reached_by_its_owner_only_and_shows_its_health(installation: Served, browser: Browser) -> None:
    folder = installation.folder / "serving"
    folder.mkdir()
    (folder / "serve.py").write_text(SERVER)
    token, port = installation.token("alice"), str(free_port())
    options = ("--service", "--port", port, "--health", "/health", "--health-interval", "1s", "--cpus", "0.1")
    started = installation.cli("run", "--detach", *options, "--", "python", "serve.py", port, token=token, cwd=folder)
    assert started.returncode == 0, started.stderr
    alice, service = installation.client("alice"), started.stdout.strip()
    wait_until(lambda: alice.workload(service).health == "ready", "the service")
    address = alice.workload(service).url or ""
    assert address.startswith(f"http://service--{service}.localhost:"), address

    with person(browser, installation.url, "alice", USERS_PASSWORD) as (page, problems):
        load(page, f"{address}one/page?x=1&y=2")
        expect(page.locator("body")).to_have_text("/one/page?x=1&y=2|alice|-|-")
        assert page.url == f"{address}one/page?x=1&y=2", "the ticket is not kept in the address"
        go(page, f"workloads/{service}")
        expect(page.locator("#health")).to_contain_text("ready")
        (installation.data / "workspaces" / "alice" / "jobs" / service / "ill").touch()
        expect(page.locator("#health")).to_contain_text("not answering")
        expect(page.locator("#events")).to_contain_text("The service does not answer at /health: status 503.")
        assert problems.found == []
    with person(browser, installation.url, "mallory", USERS_PASSWORD) as (page, _):
        answer = load(page, address)
        assert answer is not None and answer.status == 404

    plain, host = by_number(address)
    for headers, status in [
        ({}, 401),
        ({"Authorization": "token none-of-the-hub"}, 401),
        ({"Authorization": f"token {token}"}, 200),
        ({"Authorization": f"token {token}", "Origin": "http://mallory.localhost"}, 403),
        ({"Authorization": f"token {installation.token('mallory')}"}, 404),
        ({"X-Commonage-User": "alice", "X-Forwarded-Host": "localhost"}, 401),
    ]:
        found = httpx2.get(plain, headers={**host, **headers}, timeout=60)
        assert found.status_code == status, (headers, found.text)
        if status == 200:
            assert found.text == "/|alice|-|-", "the token is not passed on"
    alice.stop(service)
    wait_until(lambda: alice.workload(service).state == "stopped", "the stop")
    wait_until(lambda: httpx2.get(plain, headers=host, timeout=60).status_code == 302, "the way to its page")


def test_apps_are_closed_to_those_who_may_not_open_the_session(installation: Served, browser: Browser) -> None:
    session = next(one for one in installation.client("alice").workloads(kind="session", state=["running"]))
    address = f"{session.url}tensorboard/"
    with person(browser, installation.url, "mallory", USERS_PASSWORD) as (page, _):
        answer = load(page, address)
        if page.get_by_role("button", name="Authorize").count():
            with page.expect_navigation() as moved:
                page.get_by_role("button", name="Authorize").click()
            answer = moved.value
        assert answer is not None and answer.status == 403
    plain, host = by_number(address)
    assert httpx2.get(plain, headers=host, timeout=60).status_code in (302, 403)


def open_with(page: Page, workload_id: str) -> dict[str, str]:
    load(page, f"{PORTAL_PATH}workloads/{workload_id}")  # an ended one's stream is complete, not live
    shown = page.locator(".open-with a")
    expect(shown.first).to_be_visible()
    return {one.inner_text(): one.get_attribute("href") or "" for one in shown.all()}

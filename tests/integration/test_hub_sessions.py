"""The spawner in a real hub: submits, shows why it waits, survives restarts, fails with a reason, and leaves nothing
behind.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.fakes.waiting import until
from tests.integration.hub_installation import Installation, reason

from commonage.domain.errors import Conflict, InvalidInput
from commonage.domain.principals import Scope

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    async with Installation(tmp_path_factory.mktemp("hub") / "data") as installation:
        yield installation


@pytest.fixture
async def user(here: Installation, request: pytest.FixtureRequest) -> str:
    """A user of the test's own."""
    name = f"u{abs(hash(request.node.name)) % 10**8}"
    await here.identity.ensure_user(name)
    here.control.refusal = None
    return name


async def ready(here: Installation, user: str, name: str = "") -> bool:
    return bool((await here.server(user, name)).get("ready"))


async def gone(here: Installation, user: str, name: str = "") -> bool:
    server = await here.server(user, name)
    return not server or (server["stopped"] and not server["pending"])


async def submitted(here: Installation, user: str, name: str = "", **options: Any) -> str:
    """Let the hub start a session. Returns the id of its workload, which waits."""
    number = len(here.control.sessions) + 1
    await here.identity.start_session(user, name, options)
    return await here.control.submitted(number)


async def started(here: Installation, user: str, name: str = "", **options: Any) -> str:
    """Start a session and let it run; its workload's id."""
    id = await submitted(here, user, name, **options)
    await here.control.run(id)
    await until(lambda: ready(here, user, name))
    return id


async def progress(here: Installation, user: str, enough: str) -> list[dict[str, Any]]:
    """The events of the progress page up to one that says `enough`."""
    events = []
    async with here.as_service(60) as client, client.stream("GET", f"users/{user}/server/progress") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                events.append(json.loads(line.removeprefix("data:")))
                if enough in json.dumps(events[-1]):
                    break
    return events


async def restart_hub(here: Installation) -> None:
    before = here.child("hub").pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    await until(lambda: here.child("hub").ready and here.child("hub").pid != before)


async def test_submits_the_session_with_its_options_and_secrets(here: Installation, user: str) -> None:
    id = await started(here, user, "big-one", environment="notebook", gpus="6GiB", cpus=2, memory="4GiB", time="8h")
    body = here.control.bodies[id]
    assert {
        name: body[name]
        for name in ("kind", "owner", "name", "environment", "gpus", "cpus", "memory_mib", "time_limit_s")
    } == {
        "kind": "session",
        "owner": user,
        "name": "big-one",
        "environment": "notebook",
        "gpus": "6GiB",
        "cpus": "2",
        "memory_mib": 4096,
        "time_limit_s": 28_800,
    }
    assert "command" not in body
    assert body["variables"]["JUPYTERHUB_SERVICE_URL"] == f"http://127.0.0.1:{{port}}/user/{user}/big-one/"
    assert set(body["secrets"]) == {"JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN", "COMMONAGE_TOKEN"}
    assert body["secrets"]["COMMONAGE_TOKEN"] not in json.dumps(body["variables"])
    inside = await here.identity.whois(body["secrets"]["COMMONAGE_TOKEN"])
    assert inside is not None
    assert (inside.name, inside.scopes) == (user, {Scope.READ, Scope.SUBMIT})


async def test_what_the_control_plane_adds_counts_only_from_itself(here: Installation, user: str) -> None:
    extras = {"key": "mine-1", "tenant": "physics", "priority": 5, "variables": {"A": "1", "JUPYTERHUB_USER": "root"}}
    body = here.control.bodies[await started(here, user, **extras)]
    assert (body["key"], body["tenant"], body["priority"]) == ("mine-1", "physics", 5)
    assert "groups" not in body
    assert (body["variables"]["A"], body["variables"]["JUPYTERHUB_USER"]) == ("1", user)
    await here.identity.stop_session(user, "")
    await until(lambda: gone(here, user))
    async with here.browser() as browser:
        await here.sign_in(browser, user, here.secrets.users_password)
        token = (await browser.get("/hub/home")).text.partition('xsrf_token: "')[2].partition('"')[0]
        number = len(here.control.sessions) + 1
        for options in (extras, None):  # by the user's own request, and by starting again as it was
            headers = {"X-XSRFToken": token or browser.cookies["_xsrf"], "Referer": f"{here.url}/hub/home"}
            await browser.post(f"/hub/api/users/{user}/server", json=options, headers=headers)
            body = here.control.bodies[await here.control.submitted(number)]
            assert body["key"].startswith("hub-")
            assert "priority" not in body
            assert (body["tenant"], body["groups"]) == ("physics", [])  # for the control plane to refuse
            assert "A" not in body["variables"]
            await here.identity.stop_session(user, "")
            await until(lambda: gone(here, user))
            number += 1


async def test_reached_through_the_proxy_and_gone_after_stop(here: Installation, user: str) -> None:
    id = await submitted(here, user)
    assert not await here.identity.is_open(user, "")
    await here.control.run(id)
    await until(lambda: here.identity.is_open(user, ""))
    token = here.control.bodies[id]["secrets"]["COMMONAGE_TOKEN"]
    async with here.browser() as browser:
        assert (await browser.get(f"/user/{user}/api")).json() == {"session": id}
        await here.identity.stop_session(user, "")
        await until(lambda: gone(here, user))
        assert here.control.sessions[id]["state"] == "stopped"
        assert "session" not in (await browser.get(f"/user/{user}/api")).text
    assert await here.identity.whois(token) is None
    await here.identity.stop_session(user, "")


async def test_a_page_of_a_session_that_does_not_answer_reloads_until_the_session_is_given_up(
    here: Installation, user: str
) -> None:
    id = await started(here, user)
    here.control.lose_power(id)
    async with here.browser() as browser:
        page = await browser.get(f"/user/{user}/lab", headers={"Accept": "text/html"})
        assert page.status_code == 503
        assert "This session does not answer" in page.text
        assert '<meta http-equiv="refresh" content="5">' in page.text
        answer = await browser.get(f"/user/{user}/api", headers={"Accept": "application/json"})
        assert (answer.status_code, answer.text) == (502, "Bad Gateway"), "programs get what an app in it answers"
        here.control.end(id, "lost", "its node worker2 is down")

        async def hub_answers() -> bool:
            page = await browser.get(f"/user/{user}/lab", headers={"Accept": "text/html"})
            return page.url.path == "/hub/login"

        await until(hub_answers)


async def test_a_request_takes_no_connection_that_was_idle(here: Installation, user: str) -> None:
    """It may lead to a node without power; then nothing answers, and nothing says so."""
    idle = asyncio.Event()

    async def keep_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                if b"/kept " in head:
                    await reader.read()  # until the proxy closes it
                    idle.set()
        writer.close()

    id = await submitted(here, user)
    async with await asyncio.start_server(keep_open, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        here.control.sessions[id] |= {"state": "running", "internal_url": url, "site": "local", "node": "here"}
        await until(lambda: ready(here, user))
        async with here.browser() as browser:
            assert (await browser.get(f"/user/{user}/kept")).text == "ok"
            await asyncio.wait_for(idle.wait(), 60)  # less than traefik's own 90 seconds
        await here.identity.stop_session(user, "")
        await until(lambda: gone(here, user))


async def test_a_running_session_is_not_started_twice(here: Installation, user: str) -> None:
    await started(here, user)
    with pytest.raises(Conflict, match="already running"):
        await here.identity.start_session(user, "", {})


async def test_the_progress_page_says_why_it_waits(here: Installation, user: str) -> None:
    id = await submitted(here, user)
    events = await progress(here, user, "queue.")
    waiting = "Position 3 of 4 in the queue. 8 GiB on gpu-1 when bob's session ends."
    assert events[-1]["message"] == waiting
    here.control.sessions[id] |= {
        "state": "starting",
        "reason": reason("Preparing the environment: 12 of 40 packages."),
    }
    assert (await progress(here, user, "12 of 40"))[-1]["progress"] == 40
    await here.control.run(id)
    assert (await progress(here, user, "ready"))[-1]["url"] == f"/user/{user}/"


async def test_refused_in_the_words_of_the_control_plane(here: Installation, user: str) -> None:
    here.control.refusal = {
        "type": "about:blank",
        "title": "Unschedulable",
        "status": 422,
        "detail": "40 GiB of VRAM are more than any GPU here has; the largest has 24 GiB",
        "code": "unschedulable",
    }
    with pytest.raises(InvalidInput, match="more than any GPU here has; the largest has 24 GiB"):
        await here.identity.start_session(user, "", {"gpus": "40GiB"})
    await until(lambda: gone(here, user))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gpu": "6GiB"}, "no option gpu; there are environment, cpus, memory, gpus, time"),
        ({"gpus": {"a": 1}}, "gpus must be text or a number"),
        ({"environment": "x" * 300}, "environment: String should have at most 128 characters"),
    ],
)
async def test_refuses_invalid_options(here: Installation, user: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        await here.identity.start_session(user, "", options)


async def test_a_failed_session_shows_the_reason_and_its_last_lines(here: Installation, user: str) -> None:
    here.control.end(await submitted(here, user), "failed", "ended with code 1 after 2 s")
    events = await progress(here, user, "failed")
    assert events[-1]["failed"]
    assert "ended with code 1 after 2 s\nno module named jupyter" in events[-1]["message"]


async def test_a_waiting_session_can_be_given_up(here: Installation, user: str) -> None:
    id = await submitted(here, user)
    await here.identity.stop_session(user, "")
    await until(lambda: here.control.sessions[id]["state"] == "stopped")
    await until(lambda: gone(here, user))


async def test_the_hub_notices_a_session_that_was_stopped_elsewhere(here: Installation, user: str) -> None:
    id = await started(here, user)
    here.control.end(id, "stopped", "stopped by alice")
    await until(lambda: gone(here, user))


async def test_one_whose_node_was_lost_is_started_again_though_the_hub_has_not_noticed_yet(
    here: Installation, user: str
) -> None:
    """As the control plane does at once, where the user wished it: same address, new token, and a page that says so."""
    lost = await started(here, user, requeue=True)
    assert here.control.bodies[lost]["requeue"] is True
    number = len(here.control.sessions) + 1
    here.control.end(lost, "lost", "its node worker2 is down")
    await here.identity.start_session(user, "", {"requeue": "true", "key": f"again-1-{lost}"})
    again = await here.control.submitted(number)
    events = await progress(here, user, "queue")
    assert "started again" in json.dumps(events)
    await here.control.run(again)
    await until(lambda: ready(here, user))
    tokens = [here.control.bodies[one]["secrets"]["JUPYTERHUB_API_TOKEN"] for one in (lost, again)]
    assert await here.identity.whois(tokens[0]) is None, "the lost one's token is revoked"
    assert await here.identity.whois(tokens[1]) is not None


async def test_a_restarted_hub_finds_running_waiting_and_failed_sessions(here: Installation, user: str) -> None:
    waits, fails = f"{user}w", f"{user}f"
    running = await started(here, user)
    token = here.control.bodies[running]["secrets"]["COMMONAGE_TOKEN"]
    for name in (waits, fails):
        await here.identity.ensure_user(name)
    waiting, failing = await submitted(here, waits), await submitted(here, fails)
    number = len(here.control.sessions)
    await restart_hub(here)
    here.control.end(failing, "failed", "no such environment")
    assert here.control.sessions[waiting]["state"] == "queued"
    await here.control.run(waiting)
    await until(lambda: ready(here, user))
    await until(lambda: ready(here, waits))
    await until(lambda: gone(here, fails))
    assert len(here.control.sessions) == number, "none is submitted again"
    async with here.browser() as browser:
        assert (await browser.get(f"/user/{user}/api")).json() == {"session": running}
        await until(lambda: served(browser, f"/user/{waits}/api", waiting))
    here.identity.forget(token)
    assert await here.identity.whois(token)
    await here.identity.stop_session(user, "")
    await until(lambda: gone(here, user))
    here.identity.forget(token)
    assert await here.identity.whois(token) is None


async def served(browser: httpx2.AsyncClient, path: str, id: str) -> bool:
    answer = await browser.get(path)
    return answer.status_code == 200 and id in answer.text


async def test_an_unreachable_control_plane_kills_nothing(here: Installation, user: str) -> None:
    id = await started(here, user)
    kept = here.control.sessions.pop(id)
    here.control.app.router.routes.insert(0, down := _down())
    here.control.sessions[id] = kept
    await asyncio.sleep(6)  # more than the hub's poll interval
    here.control.app.router.routes.remove(down)
    assert await ready(here, user)


def _down() -> Any:
    from starlette.responses import Response
    from starlette.routing import Route

    return Route("/services/commonage/api/{path:path}", lambda _: Response(status_code=503), methods=["GET", "POST"])


async def test_the_form_says_what_is_free_now(here: Installation, user: str) -> None:
    async with here.browser() as browser:
        await here.sign_in(browser, user, here.secrets.users_password)
        page = (await browser.get(f"/hub/spawn/{user}")).text
    assert f"Notebook for {user}" in page
    assert "free now" in page
    assert "GPU (simulated)" in page
    assert "Up to 2, 1.5 free now" in page
    assert "4 GiB free now" in page


async def test_an_address_with_options_starts_a_session(here: Installation, user: str) -> None:
    async with here.browser() as browser:
        await here.sign_in(browser, user, here.secrets.users_password)
        number = len(here.control.sessions) + 1
        await browser.get(f"/hub/spawn/{user}", params={"opt-gpus": "6GiB"})
    assert here.control.bodies[await here.control.submitted(number)]["gpus"] == "6GiB"

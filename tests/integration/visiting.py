"""Acts as a person and their programs on a deployed host, from within its network. Run by `Host.visit`; it prints its
answer as JSON."""

import json
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import closing

import httpx2
from tests.integration.sign_in import sign_in
from tests.integration.visiting_browser import URL, signed_in_by

from commonage.sdk import Client
from commonage.wire.workloads import SubmitIn

_WITHIN_S = 60


def signed_in(user: str, password: str) -> str | None:
    """Sign in as a browser does, once the server is ready. Returns the user whom the portal greets.

    The control plane restarts hub and proxy when their configuration changes, which may be after all of the containers
    are healthy.
    """
    give_up = time.monotonic() + _WITHIN_S
    while True:
        try:
            return sign_in(URL, user, password, ssl.create_default_context())
        except (AssertionError, httpx2.HTTPError):
            if time.monotonic() > give_up:
                raise
            time.sleep(0.2)


def _ask(*command: str) -> SubmitIn:
    """A small job; `@NAME` before its command selects its node."""
    first, *rest = command
    on = {"node": first[1:]} if first.startswith("@") else {}
    return SubmitIn(command=rest if on else list(command), memory_mib=64, cpus=0.1, on=on)


def job(token: str, *command: str) -> dict[str, object]:
    """Run a job to its end: its id, its state, where it ran and what it said."""
    with closing(Client(URL, token)) as client:
        found = client.wait(client.submit(_ask(*command)).workload.id, timeout_s=_WITHIN_S)
        said = [line.text for line in client.logs(found.id)]
        nodes = [one.node for one in client.attempts(found.id)]
        return {"id": found.id, "state": found.state, "reason": found.reason.message, "said": said, "nodes": nodes}


def started(token: str, *command: str) -> str:
    """Start a job and wait until it runs; its id."""
    with closing(Client(URL, token)) as client:
        return _until_it_runs(client, client.submit(_ask(*command)).workload.id)


def _until_it_runs(client: Client, workload: str) -> str:
    give_up = time.monotonic() + _WITHIN_S
    while (found := client.workload(workload)).state != "running":
        assert time.monotonic() < give_up and found.state in ("queued", "starting"), found
        time.sleep(0.2)
    return workload


def measured(token: str, workload: str, at_least: str) -> float:
    """The measured memory in MiB, once it is `at_least` this much, which takes some time."""
    give_up, found = time.monotonic() + _WITHIN_S, [0.0]
    with closing(Client(URL, token)) as client:
        while time.monotonic() < give_up:
            series = client.workload_metrics(workload).series
            found += [
                value for one in series if "memory" in one.metric for point in one.points if (value := point.most)
            ]
            if max(found) >= float(at_least):
                return max(found)
            time.sleep(0.5)
    raise AssertionError(f"{workload} was measured to use {max(found)} MiB at most, not {at_least}")


def ended(token: str, workload: str) -> dict[str, object]:
    with closing(Client(URL, token)) as client:
        found = client.wait(workload, timeout_s=_WITHIN_S)
        said = [line.text for line in client.logs(workload)]
        return {"state": found.state, "attempts": len(client.attempts(workload)), "said": said}


def attempts(token: str, workload: str) -> list[tuple[str, str, str]]:
    """Its tries: the id of each, where it was, and what became of it."""
    with closing(Client(URL, token)) as client:
        return [(one.id, one.node, one.state) for one in client.attempts(workload)]


def all_stopped(token: str) -> int:
    """Stop all that is the user's, and wait for it; how many there were."""
    with closing(Client(URL, token)) as client:
        live = [one.id for one in client.workloads(state=["queued", "starting", "running"])]
        for one in live:
            client.stop(one)
        for one in live:
            client.wait(one, timeout_s=_WITHIN_S)
        return len(live)


def nodes(token: str) -> dict[str, dict[str, object]]:
    with closing(Client(URL, token)) as client:
        return {
            one.name: {
                "state": one.state,
                "reason": " ".join(each.message for each in one.reasons),
                "notes": [note.message for note in one.notes],
                "devices": len(one.devices),
            }
            for one in client.nodes()
        }


def drained(token: str, node: str, drained: str) -> str:
    """Have a node take no more work, or (`no`) take some again; how it stands then."""
    with closing(Client(URL, token)) as client:
        found = client.drain("local", node) if drained == "yes" else client.resume("local", node)
        return found.state


def session(token: str, user: str) -> str:
    """Have the user's session started, if it is not, and look into it through HTTPS; what it says."""
    headers = {"Authorization": f"token {token}"}
    with httpx2.Client(base_url=URL, headers=headers, timeout=30, follow_redirects=True) as browser:
        started = browser.post(f"/hub/api/users/{user}/server")
        give_up = time.monotonic() + _WITHIN_S
        own_name = {"Host": f"{user}.localhost"}
        # Until the session has its route, the hub answers at its name, and sends browsers to and fro.
        while not (page := browser.get(f"/user/{user}/api", headers=own_name, follow_redirects=False)).is_success:
            assert time.monotonic() < give_up, (
                f"{page.status_code} {page.headers.get('Location')} {page.text[:500]} after {started.status_code} "
                f"{started.text[:500]}; {browser.get(f'/hub/api/users/{user}').text[:1500]}"
            )
            time.sleep(0.2)
        return page.text


def session_ended(token: str, user: str) -> bool:
    """Have the user's session stopped, as the hub's own page does; true once the hub knows of none."""
    headers = {"Authorization": f"token {token}"}
    with httpx2.Client(base_url=URL, headers=headers, timeout=30) as browser:
        browser.delete(f"/hub/api/users/{user}/server").raise_for_status()
        give_up = time.monotonic() + _WITHIN_S
        while browser.get(f"/hub/api/users/{user}").json()["server"] is not None:
            assert time.monotonic() < give_up
            time.sleep(0.2)
        return True


ACTS = (
    signed_in,
    job,
    started,
    measured,
    ended,
    attempts,
    all_stopped,
    nodes,
    drained,
    session,
    session_ended,
    signed_in_by,
)

if __name__ == "__main__":
    what, *words = sys.argv[1:]
    acts: dict[str, Callable[..., object]] = {act.__name__: act for act in ACTS}
    print(json.dumps(acts[what](*words)))

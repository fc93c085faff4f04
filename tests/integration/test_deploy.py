"""deploy/ for real: images built from this checkout, compose file and stack on a Docker daemon of the tests' own.

The tests follow each other on one host: it is installed once, used, restarted, and handed over to the Swarm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.acceptance.served import until
from tests.contract.dockerd import IMAGE, _Connection
from tests.integration.deployed import ADMIN_PASSWORD, DEPLOY, USERS_PASSWORD, Host, host

pytestmark = [pytest.mark.needs("docker", "deploy"), pytest.mark.timeout(600)]

PARTS = ("docker-filter", "postgres", "control", "hub", "proxy", "registry", "caddy")
HEALTHY = dict.fromkeys(PARTS, "healthy")
COMPOSED, STACKED = "com.docker.compose.service", "com.docker.swarm.service.name"


@pytest.fixture(scope="module")
def site() -> Iterator[Host]:
    """A host on which the compose file was started as docs/howto/deploy.md says."""
    with host() as made:
        made.run(str(DEPLOY / "prepare"), str(made.data))
        made.compose("up", "--detach")
        _until_healthy(made, COMPOSED, HEALTHY)
        yield made


def _until_healthy(site: Host, label: str, wanted: dict[str, str]) -> None:
    found: dict[str, str] = {}

    def are_healthy() -> bool:
        found.clear()
        found.update(site.states(label))
        return found == wanted

    try:
        until(are_healthy, within_s=300, every_s=0.5)
    except AssertionError:
        late = [
            one["Id"] for one in site.daemon.containers(label=[label]) if found.get(one["Labels"][label]) != "healthy"
        ]
        said = [site.run("sh", "-c", f"docker logs --tail 30 {one} 2>&1") for one in late]
        raise AssertionError(f"{found}\n" + "\n".join(said)) from None


@pytest.fixture(scope="module")
def token(site: Host) -> str:
    """Alice's."""
    [control] = site.daemon.containers(label=[f"{COMPOSED}=control"])
    return site.run("docker", "exec", control["Id"], "commonage", "token", "--user", "alice").strip()


def _hub_token(site: Host) -> str:
    return (site.data / "secrets" / "hub_service_token").read_text().strip()


def test_people_sign_in_through_https(site: Host) -> None:
    assert site.visit("signed_in", "alice", USERS_PASSWORD) == "alice"
    assert site.visit("signed_in", "admin", ADMIN_PASSWORD) == "admin"


def test_only_the_filter_holds_the_docker_socket(site: Host) -> None:
    sees = {
        one["Labels"][COMPOSED]: [mount.get("Source", "") for mount in one["Mounts"]]
        for one in site.daemon.containers(label=[COMPOSED])
    }
    folder = str(site.daemon.folder)
    assert [name for name, mounts in sees.items() if folder in mounts] == ["docker-filter"]
    ours = sorted(name for name, mounts in sees.items() if any("hub-docker-filter" in one for one in mounts))
    assert ours == ["control", "docker-filter"]


def test_jobs_and_sessions_are_containers_of_the_host(site: Host, token: str) -> None:
    done = site.visit("job", token, "sh", "-c", "echo $COMMONAGE_USER; id -u; ls -d /run/docker* 2>/dev/null || true")
    assert (done["state"], done["said"]) == ("succeeded", ["alice", "0"]), done
    assert "a session of alice in " in site.visit("session", _hub_token(site), "alice")
    # Seen from a container, too: its processes and its control group are the machine's.
    large = site.visit("started", token, "python3", "-c", "import time; x = b'x' * 20_000_000; time.sleep(600)")
    assert site.visit("measured", token, large) >= 19


def test_a_restart_of_everything_loses_nothing(site: Host, token: str) -> None:
    job = site.visit("started", token, "sh", "-c", "while [ ! -e stop-now ]; do sleep 0.2; done; echo went on")
    before = site.visit("session", _hub_token(site), "alice")
    site.compose("down")
    assert site.states(COMPOSED) == {}
    site.compose("up", "--detach")
    _until_healthy(site, COMPOSED, HEALTHY)
    until(lambda: site.visit("signed_in", "alice", USERS_PASSWORD), within_s=60)
    # The very same session and job, not others of the same name.
    assert site.visit("session", _hub_token(site), "alice") == before
    (site.data / "workspaces" / "alice" / "stop-now").touch()
    assert site.visit("ended", token, job) == {"state": "succeeded", "attempts": 1, "said": ["went on"]}


def test_a_new_control_plane_leaves_hub_and_proxy_alone(site: Host, token: str) -> None:
    def started() -> dict[str, str]:
        return {one["Labels"][COMPOSED]: one["Id"] for one in site.daemon.containers(label=[COMPOSED])}

    before, began = started(), _processes(site)
    site.compose("up", "--detach", "--force-recreate", "--no-deps", "control")
    _until_healthy(site, COMPOSED, HEALTHY)
    after = started()
    assert {name for name in PARTS if after[name] != before[name]} == {"control"}
    assert _processes(site) == began
    until(lambda: site.visit("job", token, "id")["state"] == "succeeded", within_s=60)


def _processes(site: Host) -> dict[str, list[str]]:
    """The processes in the containers of hub and proxy."""
    return {
        part: sorted(
            line.split()[1] for line in site.run("docker", "top", f"site_{part}_1", "-eo", "user,pid").splitlines()[1:]
        )
        for part in ("hub", "proxy")
    }


# --- the filter before the Docker socket ---------------------------------------------------------------------------

MOUNTS = "/containers/create?name=commonage-forbidden"


def _config(**changes: Any) -> dict[str, Any]:
    return {"Image": IMAGE, "Cmd": ["true"], "HostConfig": {"NetworkMode": "commonage-none", **changes}}


def _bind(source: str) -> dict[str, Any]:
    return _config(Mounts=[{"Type": "bind", "Source": source, "Target": "/there"}])


CALLS = [
    ("GET", "/containers/{id}/archive?path=/etc/shadow"),
    ("GET", "/containers/{id}/logs?stdout=1"),
    ("POST", "/containers/{id}/exec"),
    ("POST", "/containers/{id}/attach?stream=1"),
    ("POST", "/containers/{id}/update"),
    ("POST", "/containers/prune"),
    ("GET", "/containers/../info"),
    ("GET", "/images/json"),
    ("POST", "/images/load"),
    ("POST", "/images/create?fromSrc=-&repo=commonage"),
    ("DELETE", "/images/commonage-test:1"),
    ("POST", "/build"),
    ("GET", "/secrets"),
    ("GET", "/plugins"),
    ("POST", "/plugins/pull?remote=x"),
    ("POST", "/networks/{id}/connect"),
    ("DELETE", "/volumes/hub-postgres-data"),
    ("POST", "/swarm/leave?force=1"),
    ("GET", "/swarm"),
    ("POST", "/services/create"),
    ("POST", "/session"),
]
BODIES: list[tuple[str, str, dict[str, Any] | str]] = [
    ("privileged", MOUNTS, _config(Privileged=True)),
    ("privileged in another case", MOUNTS, _config(pRiViLeGeD=True)),
    ("privileged behind an escape", MOUNTS, json.dumps(_config(Privileged=True)).replace("Priv", "\\u0050riv")),
    ("the machine's network", MOUNTS, _config(NetworkMode="host")),
    ("another's network", MOUNTS, _config(NetworkMode="container:site_control_1")),
    ("the machine's processes", MOUNTS, _config(PidMode="host")),
    ("the machine's users", MOUNTS, _config(UsernsMode="host")),
    ("a capability", MOUNTS, _config(CapAdd=["CHOWN", "SYS_ADMIN"])),
    ("no seccomp", MOUNTS, _config(SecurityOpt=["no-new-privileges", "seccomp=unconfined"])),
    ("a device", MOUNTS, _config(Devices=[{"PathOnHost": "/dev/sda", "PathInContainer": "/dev/sda"}])),
    ("binds", MOUNTS, _config(Binds=["/:/host"])),
    ("the root", MOUNTS, _bind("/")),
    ("the socket", MOUNTS, _bind("/var/run/docker.sock")),
    ("the secrets", MOUNTS, _bind("{data}/secrets")),
    ("a way around", MOUNTS, _bind("{data}/workspaces/../secrets")),
    ("the database", MOUNTS, _config(Mounts=[{"Type": "volume", "Source": "hub-postgres-data", "Target": "/there"}])),
    (
        "a volume that is a folder",
        "/volumes/create",
        {"Name": "commonage-x", "DriverOpts": {"type": "none", "o": "bind", "device": "/"}},
    ),
    ("the machine's own network", "/networks/create", {"Name": "commonage-x", "Driver": "macvlan"}),
]


@pytest.fixture(scope="module")
def ask(site: Host) -> Callable[..., tuple[int, str]]:
    """One request through the filter, as the control plane could make it: its status and what is said."""
    socket = site.daemon.folder / "data/volumes/hub-docker-filter/_data/docker.sock"

    def asked(method: str, path: str, body: object = None) -> tuple[int, str]:
        with closing(_Connection(str(socket))) as connection:
            content = body if isinstance(body, str) else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    return asked


@pytest.mark.parametrize(("method", "path"), CALLS, ids=[f"{method} {path}" for method, path in CALLS])
def test_the_filter_refuses_a_call(site: Host, ask: Callable[..., tuple[int, str]], method: str, path: str) -> None:
    [control] = site.daemon.containers(label=[f"{COMPOSED}=control"])
    for version in ("", "/v1.41"):
        status, said = ask(method, version + path.replace("{id}", control["Id"]))
        assert (status, "filter before the Docker socket" in said) == (403, True), said


@pytest.mark.parametrize(("path", "body"), [case[1:] for case in BODIES], ids=[case[0] for case in BODIES])
def test_the_filter_refuses_a_way_out(site: Host, ask: Callable[..., tuple[int, str]], path: str, body: object) -> None:
    text = (body if isinstance(body, str) else json.dumps(body)).replace("{data}", str(site.data))
    status, said = ask("POST", path, text)
    assert (status, said.startswith('{"message":')) == (403, True), said
    assert not site.daemon.containers(name=["commonage-forbidden"])


def test_the_filter_passes_on_what_it_should(site: Host, ask: Callable[..., tuple[int, str]]) -> None:
    assert ask("GET", "/_ping")[0] == 200
    inside = str(site.data / "workspaces" / "alice")
    config = _config(NetworkMode="commonage-none", CapAdd=["CHOWN", "KILL"], Privileged=False)
    config["HostConfig"]["Mounts"] = [{"Type": "bind", "Source": inside, "Target": "/home/alice"}]
    # A user's own words may be anything.
    config["Env"] = ['SAYS="Privileged": true, "Binds": ["/:/host"], "Source": "/"', "\\u0041", "ä"]
    status, said = ask("POST", "/containers/create?name=commonage-allowed", config)
    assert status == 201, said
    assert ask("DELETE", f"/containers/{json.loads(said)['Id']}?force=1")[0] == 204


# --- the stack, last: it takes over what the compose file had ---------------------------------------------------------


def test_the_stack_comes_up_healthy_on_a_swarm(site: Host, token: str) -> None:
    before = site.visit("session", _hub_token(site), "alice")
    site.compose("down")
    [node] = site.daemon.ask("GET", "/nodes")
    site.run("docker", "node", "update", "--label-add", "commonage.hub=true", node["ID"])
    stack = str(DEPLOY / "swarm" / "stack.yaml")
    site.run(
        "env", "COMMONAGE_ENGINE=docker", "docker", "stack", "deploy", "--resolve-image", "never", "-c", stack, "site"
    )
    try:
        _until_healthy(site, STACKED, {f"site_{part}": "healthy" for part in PARTS})
        # The data is where it was, so are session and jobs.
        until(lambda: site.visit("signed_in", "alice", USERS_PASSWORD), within_s=60)
        assert site.visit("session", _hub_token(site), "alice") == before
        assert site.visit("job", token, "id")["state"] == "succeeded"
    finally:
        site.run("docker", "stack", "rm", "site")
        until(lambda: not site.states(STACKED), within_s=60)

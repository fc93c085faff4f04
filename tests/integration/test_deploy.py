"""deploy/ for real: images built from this checkout, compose file and stack on a Docker daemon of the tests' own.

The tests follow each other on one host: it is installed once, used, restarted, and handed over to the Swarm, which
another machine is in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from tests.contract.docker_filter.cases import SHARED, bound, but, container, service
from tests.contract.docker_filter.filtering import ask_through
from tests.contract.harness.dockerd import IMAGE
from tests.contract.harness.processes import processes_of
from tests.contract.harness.swarm import Node
from tests.fakes.sign_in_guide import CONTACT, configuration
from tests.fakes.waiting import wait_until
from tests.integration.deployed import ADMIN_PASSWORD, DEPLOY, USERS_PASSWORD, Host, host
from tests.integration.visiting_browser import OPTIONS

pytestmark = [pytest.mark.needs("docker", "deploy"), pytest.mark.timeout(900), pytest.mark.made_ahead("deploy images")]

PARTS = ("docker-filter", "postgres", "control", "hub", "proxy", "registry", "caddy")
HEALTHY = dict.fromkeys(PARTS, "healthy")
COMPOSED, STACKED = "com.docker.compose.service", "com.docker.swarm.service.name"


@pytest.fixture(scope="module")
def site() -> Iterator[Host]:
    """A host on which the compose file was started as docs/operate/deploy.md says."""
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
        wait_until(are_healthy, within_s=300, every_s=0.5)
    except AssertionError:
        late = [
            one["Id"] for one in site.daemon.containers(label=[label]) if found.get(one["Labels"][label]) != "healthy"
        ]
        said = [site.run("sh", "-c", f"docker logs --tail 30 {one} 2>&1") for one in late]
        raise AssertionError(f"{found}\n" + "\n".join(said)) from None


@pytest.fixture(scope="module")
def token(site: Host) -> str:
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
    # Seen from a container, too: its processes and its control group are the node's.
    large = site.visit("started", token, "python3", "-c", "import time; x = b'x' * 20_000_000; time.sleep(600)")
    assert site.visit("measured", token, large, "19") >= 19


def test_a_restart_of_everything_loses_nothing(site: Host, token: str) -> None:
    job = site.visit("started", token, "sh", "-c", "while [ ! -e stop-now ]; do sleep 0.2; done; echo went on")
    before = site.visit("session", _hub_token(site), "alice")
    site.compose("down")
    assert site.states(COMPOSED) == {}
    site.compose("up", "--detach")
    _until_healthy(site, COMPOSED, HEALTHY)
    assert site.visit("signed_in", "alice", USERS_PASSWORD) == "alice"
    # The same session and job, not new ones of the same name.
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
    wait_until(lambda: site.visit("job", token, "id")["state"] == "succeeded")


def _processes(site: Host) -> dict[str, set[str]]:
    """The processes of hub and proxy: the first of their containers and all that descend from it.

    A check of a container's health is none of them, and may run at any moment.
    """
    return {part: _descendants(site, f"site_{part}_1") for part in ("hub", "proxy")}


def _descendants(site: Host, container: str) -> set[str]:
    found = {site.run("docker", "inspect", "--format", "{{.State.Pid}}", container).strip()}
    lines = site.run("docker", "top", container, "-eo", "pid,ppid").splitlines()[1:]
    parents = dict(line.split() for line in lines)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


# --- other ways to sign in ------------------------------------------------------------------------------------------

SIGNED_IN = {
    "github": ("mona", ["our-lab:students"], "not a member of the GitHub organization our-lab"),
    "generic-oauth": ("ada", ["gpu-users", "optics"], "not a member of the group gpu-users"),
    "ldap": ("ada", ["gpu-users"], "not a member of the group gpu-users"),
    "lti": ("lti-2", ["ml101"], 'the course "Cooking" (id 43)'),
    "pam": ("ada", ["ada", "gpu-users"], "not a member of the group gpu-users"),
}


@pytest.fixture(scope="class")
def settings_file(site: Host) -> Iterator[Path]:
    """The settings file of the installation, which exists only within the block."""
    path = site.data / "commonage.toml"
    yield path
    path.unlink()
    site.compose("up", "--detach")
    site.compose("restart", "control")
    _until_healthy(site, COMPOSED, HEALTHY)
    assert site.visit("signed_in", "alice", USERS_PASSWORD) == "alice"


@pytest.mark.needs("chromium")
class TestOtherAuthenticators:
    @pytest.mark.parametrize("authenticator", SIGNED_IN)
    def test_people_sign_in(self, site: Host, settings_file: Path, authenticator: str) -> None:
        sign_in = site.data / "secrets" / "sign-in.py"
        sign_in.write_text(configuration(authenticator, **OPTIONS[authenticator]))
        sign_in.chmod(0o600)
        settings = {"authenticator_class": authenticator, "hub_config": str(sign_in), "contact": CONTACT}
        settings_file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
        if authenticator == "pam":
            _make_accounts(site.accounts)
            site.compose("up", "--detach", "hub", more=("pam.yaml",))
        site.compose("restart", "control")
        found = site.visit("signed_in_by", authenticator, str(site.provider_certificate), _hub_token(site))
        user, groups, refusal = SIGNED_IN[authenticator]
        assert (found["user"], found["groups"]) == (user, groups)
        assert refusal in found["refusal"] and CONTACT in found["refusal"]


def _make_accounts(folder: Path) -> None:
    """The files of a machine with two accounts; ada is in the group gpu-users."""
    folder.mkdir()
    people = {"ada": 1001, "bob": 1002}
    users = [f"{name}:x:{number}:{number}::/home/{name}:/bin/bash" for name, number in people.items()]
    groups = [f"{name}:x:{number}:" for name, number in people.items()]
    hashed = [
        f"{name}:{bcrypt.hashpw(f'secret of {name}'.encode(), bcrypt.gensalt(4)).decode()}:20000:0:99999:7:::"
        for name in people
    ]
    lines = {
        "passwd": ["root:x:0:0:root:/root:/bin/bash", *users],
        "group": ["root:x:0:", *groups, "gpu-users:x:2001:ada", "gpu-admins:x:2002:"],
        "shadow": ["root:*:20000:0:99999:7:::", *hashed],
    }
    for name, text in lines.items():
        (folder / name).write_text("\n".join(text) + "\n")
    (folder / "shadow").chmod(0o640)


# --- the filter before the Docker socket ---------------------------------------------------------------------------

# What it makes of calls of all kinds is tried in tests/contract/docker_filter/test_filter.py; here, that it
# stands before the daemon, with the folders of this installation.
NAME = "commonage-0a1b2c3d4e5f6-1"
MADE = f"/v1.41/containers/create?name={NAME}"
CALLS = [
    ("GET", "/containers/{id}/archive?path=/etc/shadow"),
    ("GET", "/containers/{id}/json"),
    ("POST", "/containers/{id}/kill?signal=KILL"),
    ("POST", "/containers/{id}/exec"),
    ("GET", "/containers/../info"),
    ("POST", "/images/load"),
    ("DELETE", "/volumes/hub-postgres-data"),
    ("GET", "/swarm"),
    ("POST", "/services/create"),
]


def _config(source: str = "{data}/workspaces/alice", **changes: Any) -> dict[str, Any]:
    """The description that the engine would send for a container with this folder."""
    made = container()
    host = made["HostConfig"] | {"Mounts": [bound(source)], "DeviceRequests": [], "NetworkMode": "commonage-none"}
    return made | {"Image": IMAGE, "NetworkingConfig": {"EndpointsConfig": {}}, "HostConfig": host | changes}


BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("privileged", MADE, _config(Privileged=True)),
    ("the root", MADE, _config("/")),
    ("the socket", MADE, _config("/var/run/docker.sock")),
    ("the secrets", MADE, _config("{data}/secrets")),
    ("a way around", MADE, _config("{data}/workspaces/../secrets")),
    ("what is in a home, which may be a link", MADE, _config("{data}/workspaces/alice/link")),
    ("another's name", MADE.replace(NAME, "site_control_1"), _config()),
    (
        "a folder as a volume",
        "/v1.41/volumes/create",
        {"Name": "commonage-x", "DriverOpts": {"o": "bind", "device": "/"}},
    ),
]


@pytest.fixture(scope="module")
def ask(site: Host) -> Callable[..., tuple[int, str]]:
    """One request through the filter, as the control plane could make it: its status and what is said."""
    socket = site.daemon.folder / "data/volumes/hub-docker-filter/_data/docker.sock"
    return partial(ask_through, socket)


@pytest.mark.parametrize(("method", "path"), CALLS, ids=[f"{method} {path}" for method, path in CALLS])
def test_the_filter_refuses_a_call(site: Host, ask: Callable[..., tuple[int, str]], method: str, path: str) -> None:
    [control] = site.daemon.containers(label=[f"{COMPOSED}=control"])
    for version in ("", "/v1.40", "/v1.41"):
        status, said = ask(method, version + path.replace("{id}", control["Id"]))
        assert (status, "filter before the Docker socket" in said) == (403, True), said


@pytest.mark.parametrize(("path", "body"), [case[1:] for case in BODIES], ids=[case[0] for case in BODIES])
def test_the_filter_refuses_a_way_out(site: Host, ask: Callable[..., tuple[int, str]], path: str, body: object) -> None:
    text = (body if isinstance(body, str) else json.dumps(body)).replace("{data}", str(site.data))
    status, said = ask("POST", path, text)
    assert (status, said.startswith('{"message":')) == (403, True), said
    assert not site.daemon.containers(name=[NAME])


def test_the_filter_passes_on_what_it_should(site: Host, ask: Callable[..., tuple[int, str]]) -> None:
    assert ask("GET", "/v1.41/_ping")[0] == 200
    # From the daemon: nothing listens there.
    assert "connection refused" in ask("POST", "/v1.41/images/create?fromImage=localhost%3A1%2Flab%2Fx&tag=1")[1]
    text = json.dumps(_config()).replace("{data}", str(site.data))
    status, said = ask("POST", MADE, text)
    assert status == 201, said
    assert ask("DELETE", f"/v1.41/containers/{json.loads(said)['Id']}?force=1")[0] == 204


# --- the stack, last: it takes over what the compose file had ---------------------------------------------------------


def _stack_is_up(site: Host) -> None:
    """All services as they were deployed last, and healthy."""

    def are_settled() -> bool:
        updates = [one.get("UpdateStatus", {}).get("State") for one in site.daemon.ask("GET", "/services")]
        assert "paused" not in updates, updates
        return "updating" not in updates

    wait_until(are_settled, within_s=120, every_s=0.5)
    _until_healthy(site, STACKED, {f"site_{part}": "healthy" for part in PARTS})
    assert site.visit("signed_in", "alice", USERS_PASSWORD) == "alice"


def test_the_stack_takes_over_what_the_compose_file_had(site: Host, token: str) -> None:
    before = site.visit("session", _hub_token(site), "alice")
    site.compose("down")
    [manager] = [one for one in site.daemon.ask("GET", "/nodes") if "ManagerStatus" in one]
    site.run("docker", "node", "update", "--label-add", "commonage.hub=true", manager["ID"])
    site.stack("stack.yaml", COMMONAGE_ENGINE="docker")
    _stack_is_up(site)
    # The data is where it was, so are session and jobs.
    assert site.visit("session", _hub_token(site), "alice") == before
    assert site.visit("job", token, "id")["state"] == "succeeded"
    assert site.visit("session_ended", _hub_token(site), "alice")
    site.visit("all_stopped", token)
    wait_until(lambda: not site.daemon.containers(label=["commonage.attempt"]), within_s=60)


@pytest.fixture(scope="module")
def admin(site: Host) -> Iterator[str]:
    """The same stack as the control plane of a Swarm of two nodes, which see one folder: a token of its admin.

    The manager has its agent, in a container.
    """
    site.stack("stack.yaml", "shared.yaml", COMMONAGE_SITE_ADDRESS=site.node.address)
    _stack_is_up(site)
    admin = _in_control(site, "commonage", "token", "--user", "admin", "--admin").strip()
    _agent_on(site, admin, site.node)
    yield admin
    site.run("docker", "stack", "rm", "site")
    wait_until(lambda: not site.states(STACKED), within_s=120)


def _in_control(site: Host, *command: str) -> str:
    """Output of the command in the container of the control plane."""
    [control] = site.daemon.containers(label=[f"{STACKED}=site_control"], status=["running"])
    return site.run("docker", "exec", control["Id"], *command)


def _attempts_on(node: Node) -> list[str]:
    return [one["Labels"]["commonage.attempt"] for one in node.daemon.containers(label=["commonage.attempt"])]


def test_a_worker_that_joined_the_swarm_by_hand_takes_no_work(site: Host, admin: str) -> None:
    worker = wait_until(lambda: site.visit("nodes", admin).get("worker1"), every_s=0.5)
    assert worker["state"] == "faulty" and "No certificate of this site is bound" in worker["reason"], worker


@pytest.fixture(scope="module")
def agent(site: Host, admin: str) -> dict[str, Any]:
    """Docker's description of the agent's container on the worker, once the agent is linked."""
    _agent_on(site, admin, site.worker)
    [found] = site.worker.daemon.containers(label=[f"{COMPOSED}=agent"])
    return dict(site.worker.daemon.ask("GET", f"/containers/{found['Id']}/json"))


def _agent_on(site: Host, admin: str, node: Node) -> None:
    """Have the node's agent in a container, and wait until the control plane hears it."""
    made = _in_control(site, "commonage", "node", "token", "--data-dir", str(site.data))
    site.agent_on(node, made)
    try:
        wait_until(lambda: _agent_is_heard(site, admin, node.name), every_s=0.5)
    except AssertionError:
        [found] = node.daemon.containers(label=[f"{COMPOSED}=agent"])
        log = site.run("docker", "-H", node.daemon.url, "logs", found["Id"])
        raise AssertionError(f"{site.visit('nodes', admin)}\n{log}") from None


def _agent_is_heard(site: Host, admin: str, name: str = "worker1") -> bool:
    node = site.visit("nodes", admin)[name]
    return bool((node["state"], node["reason"], node["devices"]) == ("ready", "", 1))


def test_jobs_are_services_on_both_nodes(site: Host, admin: str, token: str, agent: dict[str, Any]) -> None:
    assert agent
    assert sorted(site.visit("nodes", admin)) == ["manager", "worker1"]
    for node in ("manager", "worker1"):
        done = site.visit("job", token, f"@{node}", "sh", "-c", "echo $COMMONAGE_USER >>seen; cat seen")
        assert (done["state"], done["nodes"]) == ("succeeded", [node]), done
    # By the folder that both see; what is there is there for the next.
    assert done["said"] == ["alice", "alice"]
    assert (site.shared / "workspaces" / "alice" / "seen").exists()


def test_a_session_is_a_service_on_another_node_than_the_hub(site: Host, admin: str, agent: dict[str, Any]) -> None:
    assert agent
    assert site.visit("drained", admin, "manager", "yes") == "draining"
    try:
        assert "a session of alice in " in site.visit("session", _hub_token(site), "alice")
    finally:
        site.visit("drained", admin, "manager", "no")
    assert "jy-alice" in {one["Spec"]["Name"] for one in site.swarm.services()}
    [session] = site.worker.daemon.containers(label=["commonage.kind=session"])
    assert session["State"] == "running"
    assert site.visit("session_ended", _hub_token(site), "alice")
    wait_until(lambda: "jy-alice" not in {one["Spec"]["Name"] for one in site.swarm.services()}, within_s=60)
    wait_until(lambda: not _attempts_on(site.worker), within_s=60)


MOUNTS = "TaskTemplate.ContainerSpec.Mounts"
SERVICES: list[tuple[str, str, object]] = [
    ("the node's network", "TaskTemplate.Networks", [{"Target": "host"}]),
    ("the node's network by its id", "TaskTemplate.Networks", [{"Target": "{host}"}]),
    ("the secrets", f"{MOUNTS}.0", bound("{data}/secrets")),
    ("what is in a home, which may be a link", f"{MOUNTS}.0", bound("{shared}/workspaces/a/b")),
    ("a capability", "TaskTemplate.ContainerSpec.CapabilityAdd", ["CAP_CHOWN", "CAP_SYS_ADMIN"]),
]


@pytest.mark.parametrize(("place", "value"), [case[1:] for case in SERVICES], ids=[case[0] for case in SERVICES])
def test_the_filter_refuses_a_service_that_leads_out(
    site: Host, admin: str, ask: Callable[..., tuple[int, str]], place: str, value: object
) -> None:
    assert admin
    host_id = next(one["Id"] for one in site.daemon.ask("GET", "/networks") if one["Name"] == "host")
    text = (
        json.dumps(but(but(service(), MOUNTS, []), place, value))
        .replace("{data}", str(site.data))
        .replace("{host}", host_id)
    )
    text = text.replace("{shared}", str(site.shared)).replace(SHARED, str(site.shared))
    status, said = ask("POST", "/v1.41/services/create", text)
    assert (status, said.startswith('{"message":')) == (403, True), said
    assert service()["Name"] not in {one["Spec"]["Name"] for one in site.swarm.services()}


def test_the_filter_keeps_what_makes_managers(site: Host, admin: str, ask: Callable[..., tuple[int, str]]) -> None:
    assert admin
    status, said = ask("GET", "/v1.41/swarm")
    swarm = site.daemon.ask("GET", "/swarm")
    tokens, spec = swarm["JoinTokens"], swarm["Spec"]
    assert (status, json.loads(said)["JoinTokens"]) == (200, {"Worker": tokens["Worker"], "Manager": ""})
    assert tokens["Manager"] not in said
    update = f"/v1.41/swarm/update?version={swarm['Version']['Index']}"
    for path in (update, f"{update}&rotateManagerToken=true", f"{update}&rotateWorkerToken=true&rotateManagerToken=1"):
        assert ask("POST", path, spec)[0] == 403
    signs = {**spec, "CAConfig": {**spec["CAConfig"], "SigningCACert": "x", "SigningCAKey": "x"}}
    assert ask("POST", f"{update}&rotateWorkerToken=true", signs)[0] == 403
    assert ask("POST", f"{update}&rotateWorkerToken=true", spec) == (200, "")
    renewed = site.daemon.ask("GET", "/swarm")["JoinTokens"]
    assert (renewed["Worker"] != tokens["Worker"], renewed["Manager"] == tokens["Manager"]) == (True, True)
    for method, path in (("POST", "/nodes/x/update?version=1"), ("GET", "/swarm/unlockkey"), ("POST", "/swarm/join")):
        assert ask(method, f"/v1.41{path}")[0] == 403


# --- an agent in a container, on the other node --------------------------------------------------------------------


def test_an_agent_in_a_container_joins_with_a_token_that_nobody_sees(site: Host, agent: dict[str, Any]) -> None:
    [token] = re.findall(r"cmj1\.\S+", (site.worker.daemon.folder / "agent-token").read_text())
    assert token not in json.dumps(agent)
    [secret] = [one for one in agent["Mounts"] if one["Destination"] == "/run/secrets/token"]
    assert secret["RW"] is False
    added = ["DAC_READ_SEARCH", "KILL", "NET_ADMIN", "NET_RAW", "SYS_ADMIN"]
    assert sorted(agent["HostConfig"]["CapAdd"]) == added
    firewall = site.run(*site.worker.inside(), "iptables", "-S")
    assert "-N COMMONAGE-FORWARD" in firewall


def test_it_measures_weighs_and_ends_what_a_dead_daemon_left(
    site: Host, admin: str, token: str, agent: dict[str, Any]
) -> None:
    assert agent
    large = "import time; x = b'x' * 20_000_000; time.sleep(600)"
    site.visit("drained", admin, "manager", "yes")
    job = site.visit("started", token, "python3", "-c", large)
    site.visit("drained", admin, "manager", "no")
    [(first, node, _)] = site.visit("attempts", token, job)
    assert (node, bool(processes_of(first))) == ("worker1", True)
    assert site.visit("measured", token, job, "19") >= 19
    [container] = site.worker.daemon.containers(label=["commonage.attempt"])
    about = site.worker.daemon.ask("GET", f"/containers/{container['Id']}/json")
    assert about["HostConfig"]["CpuShares"] == 102
    site.worker.daemon.kill()
    try:
        wait_until(lambda: not processes_of(first), every_s=0.2)
        wait_until(lambda: site.visit("attempts", token, job)[-1][1:] == ["manager", "running"], every_s=0.5)
    finally:
        site.worker.daemon.start()
    assert len(site.visit("attempts", token, job)) == 2
    # Docker starts it again with the daemon, and it keeps its identity.
    wait_until(lambda: _agent_is_heard(site, admin), every_s=0.5)
    site.visit("all_stopped", token)

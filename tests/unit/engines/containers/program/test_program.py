"""Orders as programs in a container: whose variables win, what of this machine is known inside."""

import pytest

from commonage.domain.environments import Environment
from commonage.domain.errors import EngineFailure
from commonage.domain.nodes import Allocation, Share
from commonage.domain.statuses import StartRequest
from commonage.domain.workloads import Kind
from commonage.engines.containers.program import (
    CONTAINER_SESSION,
    ContainerNetwork,
    Program,
    program_of,
    shared_variables,
)

INSIDE = ContainerNetwork("10.213.0.1", frozenset({8081}))


def request(**changes: object) -> StartRequest:
    fields: dict[str, object] = {
        "attempt_id": "w-1",
        "workload_id": "w",
        "kind": Kind.JOB,
        "name": "",
        "owner": "Ada L",
        "tenant": "lab",
        "environment": Environment("e", "E", image="i", variables=(("FROM", "environment"),)),
        "command": ("run",),
        "allocation": Allocation("w-1", "here", 1500, 64, (), 0.0),
        **changes,
    }
    return StartRequest(**fields)  # type: ignore[arg-type]  # fields of an order


def program(**changes: object) -> Program:
    return program_of(request(**changes), INSIDE, {}, {"NVIDIA_GPU_MEMORY_LIMIT": "64"})


def test_later_ones_win_and_our_ids_are_ours() -> None:
    made = program(
        variables=(("FROM", "owner"), ("COMMONAGE_TENANT", "mine")),
        secrets=(("COMMONAGE_USER", "root"), ("NVIDIA_GPU_MEMORY_LIMIT", "9"), ("KEY", "x"), ("a.b", "y")),
    )
    assert made.variables["FROM"] == "owner"
    assert made.variables["COMMONAGE_TENANT"] == "lab"
    assert made.variables["COMMONAGE_USER"] == "Ada L"
    assert made.variables["NVIDIA_GPU_MEMORY_LIMIT"] == "64"
    assert made.variables["a.b"] == "y", "no shell takes it, so it cannot come by file"
    assert dict(made.secrets) == {"KEY": "x"}
    assert "KEY" not in made.variables


def share(uuid: str, *, simulated: bool = False) -> Share:
    return Share(uuid, 0, "A100", 1024, 250, False, 40960, simulated=simulated)


def with_shares(*shares: Share) -> dict[str, object]:
    return {"allocation": Allocation("w-1", "here", 1500, 64, shares, 0.0)}


@pytest.mark.parametrize(
    ("shares", "seen"),
    [
        ((), "void"),
        ((share("GPU-SIM-1", simulated=True),), "void"),
        ((share("GPU-b"), share("GPU-a"), share("GPU-b")), "GPU-b,GPU-a"),
        ((share("GPU-SIM-1", simulated=True), share("GPU-b")), "GPU-b"),
    ],
)
def test_visible_gpus_come_from_shares_only(shares: tuple[Share, ...], seen: str) -> None:
    widened = (("NVIDIA_VISIBLE_DEVICES", "all"),)
    environment = Environment("e", "E", image="i", variables=widened)
    made = program(variables=widened, environment=environment, **with_shares(*shares))
    assert made.variables["NVIDIA_VISIBLE_DEVICES"] == seen
    hidden = program(secrets=widened, **with_shares(*shares))
    assert hidden.variables["NVIDIA_VISIBLE_DEVICES"] == seen, "a secret is set within: the image would count"
    assert not hidden.secrets


def test_environment_may_request_more_than_gpus() -> None:
    asked = (("NVIDIA_MOFED", "enabled"), ("NVIDIA_GDS", "enabled"))
    environment = Environment("e", "E", image="i", variables=(("NVIDIA_MOFED", "enabled"),))
    made = program(variables=asked, environment=environment)
    assert made.variables["NVIDIA_MOFED"] == "enabled"
    assert "NVIDIA_GDS" not in made.variables
    assert "NVIDIA_GDS" in made.env, "a name alone, which takes away what the image sets"
    assert "NVIDIA_MOFED" not in made.env
    assert not program(secrets=asked).secrets


def test_a_secret_covers_a_variable_of_its_name() -> None:
    made = program(variables=(("KEY", "plain"),), secrets=(("KEY", "x"),))
    assert "KEY" not in made.variables
    assert made.secrets["KEY"] == "x"


def test_the_loopback_of_this_node_has_another_name_inside() -> None:
    urls = (("HUB", "http://127.0.0.1:8081/hub http://localhost:8081"), ("OTHER", "http://127.0.0.1:9/"))
    made = program(variables=urls)
    assert made.variables["HUB"] == "http://10.213.0.1:8081/hub http://10.213.0.1:8081"
    assert made.variables["OTHER"] == "http://127.0.0.1:9/"


def test_service_listens_on_all_interfaces() -> None:
    made = program(wants_port=True, variables=(("URL", "http://127.0.0.1:{port}/x"),), command=("serve", "{port}"))
    assert made.variables["URL"] == "http://0.0.0.0:8888/x"
    assert made.variables["COMMONAGE_PORT"] == "8888"
    assert made.command == ("serve", "8888")
    assert program(variables=(("X", "{port}"),)).variables["X"] == "{port}"


def test_a_job_with_files_works_among_them() -> None:
    home = program().home
    assert home.startswith("/home/ada-l~")
    assert program().cwd == home
    assert program(bundle_path="/b.tar.gz").cwd == f"{home}/jobs/w"


def test_a_session_needs_no_command_and_a_job_does() -> None:
    assert program(kind=Kind.SESSION, command=()).command == CONTAINER_SESSION
    with pytest.raises(EngineFailure, match="nothing to run"):
        program(command=())


def test_of_the_servers_variables_only_those_that_hold_inside_are_shared() -> None:
    installation_filter = {
        "TZ": "UTC",
        "HTTPS_PROXY": "http://proxy:3128",
        "http_proxy": "http://127.0.0.1:3128",
        "ALL_PROXY": "localhost:1",
        "SSL_CERT_FILE": "/etc/installation_filter.pem",
        "COMMONAGE_DATABASE_URL": "secret",
    }
    assert shared_variables(installation_filter) == {"TZ": "UTC", "HTTPS_PROXY": "http://proxy:3128"}

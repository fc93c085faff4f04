"""The environments that an installation offers, and the GPU settings that reach its nodes."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from commonage.agent.config import AgentConfig
from commonage.server.bootstrap import sharing_of
from commonage.server.configure import gpus_here, kubernetes_settings
from commonage.server.joining import join_config
from commonage.server.platform import LocalSupport, builtin_of, declared_platform
from commonage.server.settings.settings import Settings
from commonage.server.site_agent import agents_here


def without_image(settings: Settings) -> list[str]:
    support = LocalSupport(settings)
    return [one.name for one in declared_platform(settings).environments if not support.offers(one)]


def settings(**values: object) -> Settings:
    return Settings.model_validate(values)


def test_where_workloads_run_in_containers_what_has_no_image_is_not_on_offer() -> None:
    lists = [{"name": "lists", "requirements": ["numpy"]}, {"name": "torch", "image": "lab/torch:1"}]
    bare = settings(engine="docker", environments=lists)
    assert without_image(bare) == ["base", "notebook", "lists"]
    given = settings(engine="swarm", docker_image="lab/notebook:1", environments=lists)
    assert without_image(given) == ["lists"]
    assert without_image(settings(environments=lists)) == []


def test_nothing_is_said_of_what_is_in_an_image_that_others_made() -> None:
    own = {one.name: one for one in builtin_of(settings())}
    assert "NumPy" in own["notebook"].description
    given = {one.name: one for one in builtin_of(settings(engine="docker", docker_image="lab/notebook:1"))}
    assert (given["notebook"].image, given["notebook"].description) == ("lab/notebook:1", "")


LIBRARY = "/opt/hami/libvgpu.so"


@pytest.mark.parametrize(("engine", "inside"), [("process", False), ("docker", True), ("swarm", True)])
def test_the_interposer_is_that_of_the_settings(engine: str, inside: bool) -> None:
    sharing = sharing_of(settings(engine=engine, gpu_preload=LIBRARY), Path("/data"))
    assert (sharing.preload, sharing.in_containers) == (Path(LIBRARY), inside)
    assert sharing_of(settings(engine=engine), Path("/data")).preload is None


@pytest.mark.parametrize(
    ("engine", "gpus"),
    [("process", "simulated"), ("docker", "simulated"), ("swarm", "none"), ("kubernetes", "none")],
)
def test_gpus_of_this_machine_are_used_only_where_it_is_the_node(engine: str, gpus: str) -> None:
    assert gpus_here(settings(engine=engine, gpus="simulated")) == gpus


@pytest.mark.parametrize("place", ["", "commonage-site/commonage-agent"])
def test_an_appliance_waits_for_no_agents_in_pods(place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert agents_here(settings(engine="kubernetes", kubernetes_agents=place), tmp_path, 8081) is None
    assert ("kubernetes_agents is ignored" in caplog.text) is bool(place)
    assert agents_here(settings(engine="swarm"), tmp_path, 8081) is not None


def test_nodes_that_join_use_the_same_interposer() -> None:
    def agent(**values: object) -> AgentConfig:
        sent = join_config(settings(**values), "10.0.0.1", Path("/srv/site")).agent
        return AgentConfig("gpu-1", ("hub:1",), "", "", "", "", **sent)

    assert agent(gpu_preload=LIBRARY).preload == LIBRARY
    assert agent().preload == ""


def test_an_interposer_needs_an_absolute_path() -> None:
    with pytest.raises(ValidationError, match="is not an absolute path"):
        settings(gpu_preload="libvgpu.so")


def test_namespaces_are_kept_as_the_settings_say() -> None:
    kept = kubernetes_settings(settings(kubernetes_namespaces="kept", kubernetes_open_networks="10.2.3.4"))

    assert (kept.namespaces, kept.policies.security_level) == ("kept", "restricted")
    assert kept.policies.open_networks == ("10.2.3.4/32",)
    assert kubernetes_settings(settings()).namespaces == "single"


@pytest.mark.parametrize("mode", ["tenant", "kept"])
def test_a_prefix_leaves_room_for_the_names_of_tenants(mode: str) -> None:
    settings(kubernetes_namespace="a" * 30, kubernetes_namespaces=mode)
    with pytest.raises(ValidationError, match="kubernetes_namespace has 31 characters"):
        settings(kubernetes_namespace="a" * 31, kubernetes_namespaces=mode)

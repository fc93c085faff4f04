"""How a daemon gives GPUs to containers: from its info, and from its CDI specifications."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from commonage.engines.containers.daemon.connection import failure_of
from commonage.engines.containers.daemon.info import cdi_names, gpu_method_of, lacks_uuids, refusal_of, registry_of
from commonage.engines.docker.daemon import examined

UUID = "GPU-4a2b334a-49bd-6fd9-fd9d-cf9d6bdfed11"
AS_YAML = f"""\
---
cdiVersion: 0.5.0
containerEdits:
  hooks:
  - args:
    - nvidia-ctk
    hookName: createContainer
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: {UUID}
- name: all
kind: nvidia.com/gpu
"""


def with_specification(folder: Path, text: str, name: str = "nvidia.yaml") -> Mapping[str, Any]:
    (folder / name).write_text(text)
    return {"CDISpecDirs": [str(folder), "/nowhere"]}


def test_names_are_read_from_yaml_and_from_json(tmp_path: Path) -> None:
    assert cdi_names(with_specification(tmp_path, AS_YAML)) == {"0", UUID, "all"}
    (tmp_path / "nvidia.yaml").unlink()
    spec = {"kind": "nvidia.com/gpu", "devices": [{"name": UUID, "containerEdits": {}}, {"name": "1:0"}]}
    for indent in (None, 2):
        info = with_specification(tmp_path, json.dumps(spec, indent=indent), "nvidia.json")
        assert cdi_names(info) == {UUID, "1:0"}


def test_reported_cdi_devices_win_over_files(tmp_path: Path) -> None:
    info = with_specification(tmp_path, AS_YAML)
    found = [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}, {"Source": "cdi", "ID": "amd.com/gpu=1"}]
    assert cdi_names({**info, "DiscoveredDevices": found}) == {"0"}
    assert cdi_names({**info, "DiscoveredDevices": []}) == frozenset()


def test_a_daemon_that_reads_specifications_and_has_none_of_gpus_is_asked_by_request(tmp_path: Path) -> None:
    assert gpu_method_of({}) == "request"
    assert gpu_method_of({"CDISpecDirs": [str(tmp_path)]}) == "request"
    assert gpu_method_of(with_specification(tmp_path, AS_YAML.replace("nvidia.com", "other.org"))) == "request"
    info = with_specification(tmp_path, AS_YAML)
    assert gpu_method_of(info) == "cdi"
    assert gpu_method_of({**info, "Runtimes": {"nvidia": {}, "runc": {}}}) == "request"


def test_the_doctor_says_by_which_way_and_what_it_lacks(tmp_path: Path) -> None:
    assert "GPUs: none" in examined({}).said
    assert "GPUs: nvidia" in examined({}, has_hook=True).said
    info = with_specification(tmp_path, AS_YAML)
    assert "GPUs: CDI" in examined(info, has_hook=True).said
    assert not lacks_uuids(info)
    by_index = with_specification(tmp_path, AS_YAML.replace(UUID, '"1"'))
    assert "--device-name-strategy=uuid" in examined(by_index).advice


_BEFORE = (
    "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "
    "error during container init: error running hook #0: error running hook: exit status 1, stdout: , stderr: "
    "Auto-detected mode as 'legacy'\nnvidia-container-cli: "
)


@pytest.mark.parametrize(
    ("said", "words", "passes"),
    [
        (
            "requirement error: unsatisfied condition: cuda>=13.1, please update your driver",
            "a newer NVIDIA driver",
            False,
        ),
        (f"device error: {UUID}: unknown device", "not there any more", True),
        ("initialization error: nvml error: driver/library version mismatch", "does not work", True),
    ],
)
def test_toolkit_message_is_extracted(said: str, words: str, passes: bool) -> None:
    failure = failure_of(500, _BEFORE + said + ": unknown")
    assert words in failure.message
    assert said in failure.native
    assert failure.is_retryable is passes


HEAD = 'Head "https://hub:5000/v2/lab/torch/manifests/2": '
IMAGE = "hub:5000/lab/torch:2"


@pytest.mark.parametrize(
    "said",
    [
        "pull access denied for hub:5000/lab/torch, repository does not exist or may require 'docker login': denied: "
        "requested access to the resource is denied",
        "denied",
        "denied: requested access to the resource is denied",
        HEAD + "denied: not yours",
        "received unexpected HTTP status: 403 Forbidden",
    ],
)
def test_denied_image_is_recognized(said: str) -> None:
    why = refusal_of(IMAGE, said, "gpu-1")
    assert why.startswith("the registry hub:5000 does not let gpu-1 have the image hub:5000/lab/torch:2, or has none")
    assert "the tenant in it may use it" in why


@pytest.mark.parametrize(
    "said",
    [
        "unauthorized",
        "unauthorized: authentication required",
        HEAD + "unauthorized: this token is not of this site",
        HEAD + "no basic auth credentials",
        "received unexpected HTTP status: 401 Unauthorized",
    ],
)
def test_an_account_that_is_not_accepted_is_known(said: str) -> None:
    why = refusal_of(IMAGE, said, "gpu-1")
    assert "does not accept the account of gpu-1, and does not give it the image hub:5000/lab/torch:2" in why
    assert "commonage node join" in why and "docker login hub:5000" in why


def test_the_control_planes_own_node_joins_nothing() -> None:
    why = refusal_of(IMAGE, "unauthorized")
    assert "the account of this machine" in why
    assert "commonage node join" not in why


@pytest.mark.parametrize(
    "said",
    [
        "manifest for hub:5000/lab/torch:2 not found: manifest unknown: manifest unknown",
        'Get "https://hub:5000/v2/lab/unauthorized/manifests/denied": dial tcp: connection refused',
        "received unexpected HTTP status: 503 Service Unavailable",
        "open /var/lib/docker/tmp/GetImageBlob: permission denied",
        "write /var/lib/docker/tmp/x: no space left on device",
        "toomanyrequests: You have reached your pull rate limit",
        "",
    ],
)
def test_temporary_registry_error_is_no_refusal(said: str) -> None:
    assert refusal_of(IMAGE, said, "gpu-1") == ""


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("hub:5000/lab/torch:2", "hub:5000"),
        ("ghcr.io/lab/torch@sha256:ab", "ghcr.io"),
        ("localhost/torch", "localhost"),
        ("lab/torch:2", "docker.io"),
        ("torch:2", "docker.io"),
    ],
)
def test_registry_is_taken_from_image_name(image: str, registry: str) -> None:
    assert registry_of(image) == registry

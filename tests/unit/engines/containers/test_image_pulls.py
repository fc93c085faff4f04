"""What registries refuse, as daemons word it, and what only sounds like it."""

from __future__ import annotations

import pytest

from commonage.engines.containers.daemon.info import refusal_of, registry_of

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

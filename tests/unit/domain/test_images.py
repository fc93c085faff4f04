"""Names, references and environments of images."""

from dataclasses import replace

import pytest

from commonage.domain.errors import InvalidInput
from commonage.domain.images import (
    PUBLIC,
    Image,
    Kernel,
    check,
    environments_of,
    parse_image_name,
    repository_of,
    scope_of,
)
from commonage.domain.workloads import Kind

DIGEST = "sha256:" + "a1" * 32
EVERYTHING = (Kind.SESSION, Kind.JOB, Kind.SERVICE)
TORCH = Kernel("torch", "PyTorch", "/opt/kernels/torch")
OLD = Kernel("py310", "Python 3.10", "/opt/kernels/py310")


def image(**fields: object) -> Image:
    plain = Image("lab/torch", "lab", f"registry.lab:5000/lab/torch@{DIGEST}", "ada", 5.0, kinds=EVERYTHING)
    return replace(plain, **fields)  # type: ignore[arg-type]  # fields of Image


@pytest.mark.parametrize(
    ("text", "parts", "shown"),
    [
        ("lab/torch", ("lab", "torch", "latest"), "lab/torch"),
        ("lab/torch:latest", ("lab", "torch", "latest"), "lab/torch"),
        ("public/cuda__x.y-z:2.4_A", ("public", "cuda__x.y-z", "2.4_A"), "public/cuda__x.y-z:2.4_A"),
    ],
)
def test_names_are_read_and_written_in_one_way(text: str, parts: tuple[str, str, str], shown: str) -> None:
    name = parse_image_name(text)
    assert (name.scope, name.name, name.tag) == parts
    assert str(name) == shown
    assert parse_image_name(name.tagged) == name


@pytest.mark.parametrize(
    "text", ["torch", "Lab/torch", "lab/to rch", "lab//torch", "../lab/x", "lab/x/y", "lab/x:", "lab/" + "x" * 99, ""]
)
def test_what_no_registry_would_take_is_refused_with_how_it_is_written(text: str) -> None:
    with pytest.raises(InvalidInput, match="TENANT/NAME") as caught:
        parse_image_name(text)
    assert caught.value.problem_code == "invalid-image"


def test_each_tenant_has_a_scope_of_its_own_that_a_registry_takes() -> None:
    tenants = ["lab", "Lab", "LAB", "course 1", "course/1", "public", "@", "x" * 120, "x" * 121]
    scopes = [scope_of(None), *(scope_of(tenant) for tenant in tenants)]
    assert scopes[:2] == [PUBLIC, "lab"]
    assert len(set(scopes)) == len(scopes)
    assert all(parse_image_name(f"{scope}/x").scope == scope for scope in scopes)


def test_a_reference_is_pinned_by_a_digest() -> None:
    assert repository_of(f"registry.lab:5000/lab/torch@{DIGEST}") == "registry.lab:5000/lab/torch"
    assert repository_of(DIGEST) is None
    for loose in ("registry.lab:5000/lab/torch:2.4", "lab/torch", "", f"@{DIGEST}", f"a/b@{DIGEST}0", "a/b@sha256:12"):
        with pytest.raises(InvalidInput, match="@sha256"):
            repository_of(loose)


def test_an_image_with_one_kernel_is_one_environment_with_its_programs_jobs_ahead() -> None:
    found = environments_of(image(kernels=(TORCH,), server_prefix="/opt/server/", path="/usr/bin:/bin"))
    (only,) = found
    assert (only.name, only.kinds, only.tenant, only.image) == ("lab/torch", EVERYTHING, "lab", image().reference)
    assert dict(only.variables) == {
        "PATH": "/opt/kernels/torch/bin:/opt/server/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": "/opt/kernels/torch",
    }


def test_two_kernels_are_two_environments_for_jobs_and_one_for_sessions() -> None:
    whole = image(kernels=(TORCH, OLD), server_prefix="/opt/server", path="/bin", title="Torch", needs_gpu=True)
    session, first, second = environments_of(whole)
    assert (session.name, session.kinds) == ("lab/torch", (Kind.SESSION,))
    assert dict(session.variables) == {"PATH": "/opt/server/bin:/bin"}
    assert [(one.name, one.title) for one in (first, second)] == [
        ("lab/torch/torch", "Torch: PyTorch"),
        ("lab/torch/py310", "Torch: Python 3.10"),
    ]
    assert dict(second.variables) == {"PATH": "/opt/kernels/py310/bin:/bin", "VIRTUAL_ENV": "/opt/kernels/py310"}
    assert all(one.needs_gpu and one.kinds == (Kind.JOB, Kind.SERVICE) for one in (first, second))


def test_an_image_without_kernels_keeps_its_own_path_and_its_own_variables_win() -> None:
    (only,) = environments_of(image(variables=(("X", "1"),)))
    assert only.variables == (("X", "1"),)
    (only,) = environments_of(image(kernels=(TORCH,), variables=(("PATH", "/own"),)))
    assert dict(only.variables)["PATH"] == "/own"


def test_one_for_sessions_alone_offers_no_environment_to_jobs() -> None:
    found = environments_of(image(kernels=(TORCH, OLD), kinds=(Kind.SESSION,)))
    assert [one.name for one in found] == ["lab/torch"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kernels": (TORCH, TORCH)}, "same name"),
        ({"kernels": (Kernel("a b", "x"),)}, "name of a kernel"),
        ({"kernels": (Kernel("a", "x", "relative"),)}, "not a folder"),
        ({"server_prefix": "/opt/../etc"}, "not a folder"),
        ({"server_prefix": "/opt:/tmp"}, "not a folder"),
        ({"kinds": ()}, "at least one"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check(image(**fields))


def test_a_plain_image_is_fine() -> None:
    check(image(kernels=(TORCH, OLD), server_prefix="/opt/server"))
    assert image().digest == DIGEST

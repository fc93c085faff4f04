"""Images: names, references, environments, and permissions in the registry."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.catalogue import builtin_environments
from commonage.domain.errors import InvalidInput
from commonage.domain.images import (
    PUBLIC,
    Access,
    Image,
    Kernel,
    Package,
    Rights,
    check,
    environments_of,
    granted,
    left_out,
    parse_access,
    parse_image_name,
    repository_of,
    rights_in,
    scope_of,
)
from commonage.domain.workloads import Kind

ROOT = Path(__file__).parents[3]
DIGEST = "sha256:" + "a1" * 32
EVERYTHING = (Kind.SESSION, Kind.JOB, Kind.SERVICE)
TORCH = Kernel("torch", "PyTorch", "/opt/kernels/torch")
APPS = ("tensorboard", "desktop")
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
def test_image_names_parse_and_format(text: str, parts: tuple[str, str, str], shown: str) -> None:
    name = parse_image_name(text)
    assert (name.scope, name.name, name.tag) == parts
    assert str(name) == shown
    assert parse_image_name(name.tagged) == name


@pytest.mark.parametrize(
    "text", ["torch", "Lab/torch", "lab/to rch", "lab//torch", "../lab/x", "lab/x/y", "lab/x:", "lab/" + "x" * 99, ""]
)
def test_refuses_names_that_no_registry_takes(text: str) -> None:
    with pytest.raises(InvalidInput, match="TENANT/NAME") as caught:
        parse_image_name(text)
    assert caught.value.problem_code == "invalid-image"


def test_each_tenant_has_its_own_scope() -> None:
    tenants = ["lab", "Lab", "LAB", "course 1", "course/1", "public", "@", "x" * 120, "x" * 121]
    scopes = [scope_of(None), *(scope_of(tenant) for tenant in tenants)]
    assert scopes[:2] == [PUBLIC, "lab"]
    assert len(set(scopes)) == len(scopes)
    assert all(parse_image_name(f"{scope}/x").scope == scope for scope in scopes)


def test_reference_is_pinned_by_a_digest() -> None:
    assert repository_of(f"registry.lab:5000/lab/torch@{DIGEST}") == "registry.lab:5000/lab/torch"
    assert repository_of(DIGEST) is None
    for loose in ("registry.lab:5000/lab/torch:2.4", "lab/torch", "", f"@{DIGEST}", f"a/b@{DIGEST}0", "a/b@sha256:12"):
        with pytest.raises(InvalidInput, match="@sha256"):
            repository_of(loose)


def test_image_with_one_kernel_is_one_environment() -> None:
    (only,) = environments_of(image(kernels=(TORCH,), server_prefix="/opt/server/", path="/usr/bin:/bin"))
    assert (only.name, only.kinds, only.tenant, only.image) == ("lab/torch", EVERYTHING, "lab", image().reference)
    assert dict(only.variables) == {
        "PATH": "/opt/kernels/torch/bin:/opt/server/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": "/opt/kernels/torch",
    }


def test_two_kernels_make_two_environments_for_jobs_and_one_for_sessions() -> None:
    whole = image(kernels=(TORCH, OLD), server_prefix="/opt/server", path="/bin", title="Torch", needs_gpu=True)
    session, first, second = environments_of(whole)
    assert (session.name, session.kinds) == ("lab/torch", (Kind.SESSION,))
    assert dict(session.variables) == {"PATH": "/opt/server/bin:/bin"}
    assert [(environment.name, environment.title) for environment in (first, second)] == [
        ("lab/torch/torch", "Torch: PyTorch"),
        ("lab/torch/py310", "Torch: Python 3.10"),
    ]
    assert dict(second.variables) == {"PATH": "/opt/kernels/py310/bin:/bin", "VIRTUAL_ENV": "/opt/kernels/py310"}
    assert all(
        environment.needs_gpu and environment.kinds == (Kind.JOB, Kind.SERVICE) for environment in (first, second)
    )


def test_variables_of_the_image_win_over_computed_ones() -> None:
    (only,) = environments_of(image(variables=(("X", "1"),)))
    assert only.variables == (("X", "1"),)
    (only,) = environments_of(image(kernels=(TORCH,), variables=(("PATH", "/own"),)))
    assert dict(only.variables)["PATH"] == "/own"


def test_image_for_sessions_offers_no_environment_to_jobs() -> None:
    (only,) = environments_of(image(kernels=(TORCH, OLD), kinds=(Kind.SESSION,)))
    assert only.name == "lab/torch"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kernels": (TORCH, TORCH)}, "same name"),
        ({"kernels": (Kernel("a b", "x"),)}, "name of a kernel"),
        ({"kernels": (Kernel("a", "x", "relative"),)}, "not a folder"),
        ({"server_prefix": "/opt/../etc"}, "not a folder"),
        ({"server_prefix": "/opt:/tmp"}, "not a folder"),
        ({"kinds": ()}, "at least one"),
        ({"kernels": tuple(Kernel(f"k{one}", "x") for one in range(33))}, "it has 33 kernels; at most 32"),
        ({"kernels": (Kernel("a", "x" * 129),)}, "the title of a kernel has 129 characters; at most 128"),
        ({"kernels": (Kernel("a", "bell\x07"),)}, "the title of a kernel has control characters"),
        ({"kernels": (Kernel("a", "x", packages=(Package("numpy", "1"),) * 2001),)}, "2001 packages; at most 2000"),
        ({"kernels": (Kernel("a", "x", packages=(Package("x" * 129, "1"),)),)}, "name of a package has 129"),
        ({"kernels": (Kernel("a", "x", packages=(Package("x", "1" * 65),)),)}, "version of a package has 65"),
        ({"path": "x" * 4097}, "the search path has 4097 characters; at most 4096"),
        ({"apps": ("desktop",) * 33}, "it has 33 apps; at most 32"),
        ({"size_bytes": 10**30}, "from 0 to 1 PiB"),
        ({"apps": ("tensorboard", "solitaire")}, "name of an app; apps: tensorboard, desktop"),
    ],
)
def test_refuses_contradictory_images(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check(image(**fields), APPS)


def test_accepts_a_consistent_image() -> None:
    check(image(kernels=(TORCH, OLD), server_prefix="/opt/server", apps=APPS), APPS)
    assert image().digest == DIGEST


# --- permissions in the registry --------------------------------------------------------------------------------------

MEMBER = rights_in(["lab", "commons"], ["lab", "commons"])


@pytest.mark.parametrize(
    ("scope", "rights", "gets"),
    [
        ("repository:lab/torch:pull,push", MEMBER, ["lab/torch:pull,push"]),
        ("repository:lab/torch:pull,push,delete", MEMBER, ["lab/torch:pull,push"]),
        ("repository:other/torch:pull,push", MEMBER, []),
        ("repository:labs/torch:pull", MEMBER, []),
        ("repository:lab:pull", MEMBER, []),
        ("repository:public/base:pull,push", MEMBER, ["public/base:pull"]),
        ("repository(plugin):lab/torch:pull", MEMBER, ["lab/torch:pull"]),
        ("registry:catalog:*", MEMBER, []),
        ("registry:catalog:*", Rights(everything=True), ["catalog:*"]),
        ("repository:any/thing:pull,push,delete", Rights(everything=True), ["any/thing:pull,push,delete"]),
        ("repository:any/thing:pull,push", Rights(pulls_all=True), ["any/thing:pull"]),
        ("repository:lab/torch:pull,push", rights_in(["lab"], []), ["lab/torch:pull"]),
        ("repository:lab/torch:pull", rights_in(None, []), []),
    ],
)
def test_grants_the_allowed_actions(scope: str, rights: Rights, gets: list[str]) -> None:
    accesses = granted(parse_access([scope]), rights)
    assert [f"{access.name}:{','.join(access.actions)}" for access in accesses] == gets


def test_grants_several_scopes_at_once() -> None:
    requested = parse_access(["repository:lab/a:pull repository:other/b:pull", "repository:public/c:pull"])
    assert [access.name for access in granted(requested, MEMBER)] == ["lab/a", "public/c"]


@pytest.mark.parametrize("scope", ["lab/torch", "repository:lab/torch", "repository:lab/torch:PULL", "x" * 5000])
def test_refuses_text_that_is_no_scope(scope: str) -> None:
    with pytest.raises(InvalidInput, match="repository:TENANT/NAME:pull,push"):
        parse_access([scope])
    with pytest.raises(InvalidInput, match="at most 64"):
        parse_access(["repository:a/b:pull"] * 65)


@given(
    st.lists(st.sampled_from(["lab", "other", "public", "commons"]), max_size=3),
    st.sampled_from(["lab", "other", "public", "commons", "labs"]),
)
def test_only_members_push(scopes: list[str], scope: str) -> None:
    requested = [Access("repository", f"{scope}/x", ("push",))]
    assert bool(granted(requested, rights_in(scopes, scopes))) == (scope in scopes and scope != "public")


# --- Python environments ----------------------------------------------------------------------------------------------


def test_leaves_out_the_same_slow_package_as_our_own_pins() -> None:
    ours = (ROOT / "requirements" / "left-out.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    assert left_out(["jupyterlab", "numpy==2"]) == "".join(line for line in ours if not line.startswith("#"))
    for environment in builtin_environments():
        assert left_out(environment.requirements), f"{environment.name} names it"


@pytest.mark.parametrize("name", ["rfc3987-syntax", "rfc3987_syntax==1.1.0", "RFC3987.Syntax>=1"])
def test_keeps_the_slow_package_if_it_is_listed(name: str) -> None:
    assert left_out(["jupyterlab", name]) == ""
    assert left_out(["jupyterlab", "rfc3987", "rfc3987-syntaxes"]) != ""

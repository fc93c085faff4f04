from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import Forbidden, InvalidInput
from commonage.domain.volumes import (
    Extent,
    Volume,
    VolumeKind,
    VolumeRequest,
    Writers,
    allowed,
    check_volume,
    folder_name,
    mounts_of,
    parse_volume,
    see_that_folders_are_apart,
    variable_of,
)

DATASETS = Volume("datasets", source="/srv/datasets")
RESULTS = Volume("results", source="/srv/{tenant}/{user}", writable=True)
EXAM = Volume("exam", source="/srv/exam", tenants=("course",))
ALL = (DATASETS, RESULTS, EXAM)


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("datasets", VolumeRequest("datasets")),
        (" datasets:ro", VolumeRequest("datasets", False)),
        ("results:rw", VolumeRequest("results", True)),
        ("results:rw@/data//sets/", VolumeRequest("results", True, "/data/sets")),
        ("results@/data", VolumeRequest("results", None, "/data")),
    ],
)
def test_parses_volume_requests(text: str, request_: VolumeRequest) -> None:
    assert parse_volume(text) == request_
    assert parse_volume(request_.text) == request_


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no name"),
        ("Data Sets", "has no name"),
        ("datasets:w", "neither ro nor rw"),
        (
            "datasets@data",
            "volume 'datasets' cannot be mounted at 'data', which is not an absolute path; write it like "
            "datasets@/data",
        ),
        ("datasets@/data/../etc", "not an absolute path"),
        ("datasets@/", "is in use"),
        ("datasets@/home/ada", "volume 'datasets' cannot be mounted at '/home/ada': /home is in use"),
        ("datasets@/usr/bin", "/usr is in use"),
        ("datasets@/run/commonage/control", "/run is in use"),
        ("datasets@//etc", "/etc is in use"),
        ("datasets@/a,b", "not an absolute path"),
    ],
)
def test_refuses_invalid_volume_requests(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        parse_volume(text)
    assert (caught.value.field, caught.value.problem_code) == ("volumes", "invalid-volume")


@given(st.text())
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        request = parse_volume(text)
    except InvalidInput as error:
        assert error.field == "volumes"
    else:
        assert parse_volume(request.text) == request


def requested(*texts: str) -> list[VolumeRequest]:
    return [parse_volume(text) for text in texts]


def test_volumes_are_read_only_by_default_except_scratch() -> None:
    assert [request.text for request in allowed(requested("datasets", "results"), ALL, "lab", manages=False)] == [
        "datasets:ro",
        "results:ro",
    ]
    assert [request.text for request in allowed(requested("results:rw"), ALL, "lab", manages=False)] == ["results:rw"]
    scratch = Volume("scratch", kind=VolumeKind.SCRATCH, writable=True)
    assert [request.text for request in allowed(requested("scratch"), (scratch,), "lab", manages=False)] == [
        "scratch:rw"
    ]


@pytest.mark.parametrize(
    ("texts", "error", "why"),
    [
        (["datsets"], InvalidInput, "no volume 'datsets' for members of lab; there are: datasets, results"),
        (["exam"], InvalidInput, "there is no volume 'exam' for members of lab; there are: datasets, results"),
        (["datasets:rw"], Forbidden, "read-only; ask for datasets:ro"),
        (["datasets", "datasets:ro"], InvalidInput, "requested twice"),
        (["datasets@/data", "results@/data/results"], InvalidInput, "keep them apart"),
        (["datasets"] * 33, InvalidInput, "33 volumes"),
    ],
)
def test_refuses_volumes_that_are_not_allowed(texts: list[str], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        allowed(requested(*texts), ALL, "lab", manages=False)


def test_mount_is_fully_resolved() -> None:
    [mount] = mounts_of(requested("results:rw"), ALL, "Ada Lovelace", "lab")
    assert mount.source == f"/srv/lab/{folder_name('Ada Lovelace')}"
    assert (mount.target, mount.writable, mount.made) == ("/volumes/results", True, True)
    [mount] = mounts_of(requested("exam@/exam"), ALL, "ada", "course")
    assert (mount.source, mount.target, mount.writable, mount.made) == ("/srv/exam", "/exam", False, False)


def test_requested_volume_displaces_an_automatic_one() -> None:
    always = Volume("system", source="/srv/system", always=True, target="/data/system")
    assert [mount.name for mount in mounts_of([], (always, *ALL), "ada", "lab")] == ["system"]
    assert [mount.name for mount in mounts_of(requested("datasets@/data"), (always, *ALL), "ada", "lab")] == [
        "datasets"
    ]
    theirs = Volume("theirs", source="/srv/x", always=True, tenants=("other",))
    assert mounts_of([], (theirs,), "ada", "lab") == ()


names = st.text(min_size=1, max_size=20)


@given(names, names, names, names, st.sampled_from(Extent))
def test_docker_volumes_are_shared_to_their_extent(a: str, x: str, b: str, y: str, per: Extent) -> None:
    volume = Volume("results", kind=VolumeKind.DOCKER, writable=True, per=per)
    [one], [other] = (mounts_of(requested("results"), (volume,), owner, tenant) for owner, tenant in ((a, x), (b, y)))
    shared = {Extent.ALL: True, Extent.TENANT: x == y, Extent.USER: (a, x) == (b, y)}[per]
    assert (one.source == other.source) is shared
    assert set(one.source) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        (Volume("x"), "needs a source"),
        (Volume("Big Data", source="/srv"), "needs a name"),
        (Volume("x", source="srv"), "not an absolute path"),
        (Volume("x", source="/srv/../etc"), "not an absolute path"),
        (Volume("x", source="/srv/of-{user}"), "stands alone"),
        (Volume("x", source="/srv/{group}"), "stands alone"),
        (Volume("x", source="/var/run"), "leads to the Docker daemon"),
        (Volume("x", source="/var/lib/docker/volumes"), "leads to the Docker daemon"),
        (Volume("x", source="/run/containerd"), "leads to the Docker daemon"),
        (Volume("x", source="/"), "leads to the Docker daemon"),
        (Volume("x", source="/srv", size_mib=5), "cannot be limited here"),
        (Volume("x", source="/srv", per=Extent.USER), "for Docker volumes"),
        (Volume("x", kind=VolumeKind.DOCKER, source="/srv"), "has no source"),
        (Volume("x", kind=VolumeKind.SCRATCH, memory=True), "with a size"),
        (Volume("x", source="/srv", target="/etc/x"), "/etc is in use"),
    ],
)
def test_refuses_invalid_volumes(volume: Volume, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        check_volume(volume)


@pytest.mark.parametrize(
    ("path", "writable", "why"),
    [
        ("/srv/lab/data", False, r"is in /srv/lab \(shared\)"),
        ("/srv//lab/./data/{user}", False, r"is in /srv/lab \(shared\)"),
        ("/srv/{tenant}/data", True, r"is in /srv/lab \(shared\)"),  # of the tenant `lab`
        ("/srv/{tenant}", False, r"may be /srv/lab \(shared\)"),
        ("/home/ada", False, r"may be /home/\{user\} \(homes\)"),  # if a user has this name
        ("/home/ada/data", False, r"is in /home/\{user\} \(homes\)"),
        ("/home/{user}/data", False, r"is in /home/\{user\} \(homes\)"),
        ("/data", False, "has a part in /data/commonage"),
        ("/data/commonage", False, "has a part in /data/commonage"),
        ("/data/{tenant}", False, "has a part in /data/commonage"),
        ("/data/commonage/workspaces/ada", False, "has a part in /data/commonage"),
        ("/srv/lab", True, ""),
        ("/srv/labs/data", False, ""),
        ("/home", False, ""),  # what holds others' folders may be shown
        ("/srv/read/only", True, ""),
        ("/data/commonage/volumes/x", True, ""),
    ],
)
def test_refuses_folders_within_writable_folders(path: str, writable: bool, why: str) -> None:
    others = [("shared", "/srv/lab", True), ("homes", "/home/{user}", True), ("read", "/srv/read", False)]
    places = [*others, ("new", path, writable)]
    if why:
        with pytest.raises(InvalidInput, match=why):
            see_that_folders_are_apart(places, ["/data/commonage"])
    else:
        see_that_folders_are_apart(places, ["/data/commonage"])


def test_variable_of_a_volume() -> None:
    assert variable_of("data-sets.v2") == "COMMONAGE_VOLUME_DATA_SETS_V2"


def test_only_managers_write_to_a_volume_of_managers() -> None:
    sets = Volume("sets", source="/srv/sets", writable=True, writers=Writers.MANAGERS, always=True)
    [granted] = allowed(requested("sets:rw"), (sets,), "lab", manages=True)
    assert granted.writable
    with pytest.raises(Forbidden):
        allowed(requested("sets:rw"), (sets,), "lab", manages=False)
    [read] = allowed(requested("sets"), (sets,), "lab", manages=False)
    assert not read.writable
    assert [one.writable for one in mounts_of((granted,), (sets,), "ann", "lab")] == [True]
    assert [one.writable for one in mounts_of((), (sets,), "ann", "lab")] == [False]
    with pytest.raises(InvalidInput):
        check_volume(replace(sets, writable=False))

"""Attacks on the filter before the Docker socket: requests of the engines get through, and all others are refused.

The daemon behind it only records the requests that got through.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.docker_filter.cases import (
    ANOTHERS,
    BAD,
    CREATE,
    DATA,
    MEANT,
    OURS,
    PLAIN,
    SHAPES,
    SHARED,
    Json,
    but,
    container,
)
from tests.contract.docker_filter.filtering import (
    NAMED,
    Listener,
    daemon_with_objects,
    filter_of_a_site,
    request,
    say,
    send,
    why_no_filter,
)

pytestmark = pytest.mark.needs("haproxy")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    with daemon_with_objects(tmp_path_factory.mktemp("daemon") / "docker.sock") as made:
        yield made


@pytest.fixture(scope="module")
def guard(daemon: Listener, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with filter_of_a_site(daemon, tmp_path_factory.mktemp("filter")) as made:
        yield made


@pytest.mark.parametrize(("head", "body"), [one[1:] for one in MEANT], ids=[one[0] for one in MEANT])
def test_what_the_engines_send_gets_through_as_it_is(daemon: Listener, guard: Path, head: str, body: Json) -> None:
    for text in (json.dumps(body), json.dumps(body, sort_keys=True), json.dumps(body, ensure_ascii=False, indent=1)):
        content = text.encode("utf-8", "surrogatepass")
        assert say(guard, request(head, content)).startswith(b"HTTP/1.1 200 "), head
        method, path, heard = daemon.received[-1]
        # What was named is named by its id: the filter looked at that very object.
        assert (f"{method} {path}", heard) == (head.replace(f"/{NAMED}/", f"/{OURS}/"), content)


@pytest.mark.parametrize(("head", "body"), [one[1:] for one in BAD], ids=[one[0] for one in BAD])
def test_a_description_that_is_any_different_is_refused(daemon: Listener, guard: Path, head: str, body: Json) -> None:
    assert send(daemon, guard, request(head, json.dumps(body).encode())) == (403, [])


@pytest.mark.parametrize("content", [one[1] for one in SHAPES], ids=[one[0] for one in SHAPES])
def test_what_can_be_read_in_two_ways_is_refused(daemon: Listener, guard: Path, content: bytes) -> None:
    assert content != PLAIN.encode()
    assert send(daemon, guard, request(CREATE, content)) == (403, [])


# --- requests -------------------------------------------------------------------------------------------------------

GOOD = json.dumps(container()).encode()
SECOND = b"GET /v1.41/secrets HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n"
EVIL = request(
    "POST /v1.41/containers/create?name=x", json.dumps(but(container(), "HostConfig.Privileged", True)).encode()
)


def _chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def _raw(head: str, *lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join([head, "Host: docker", *lines, "", ""]).encode() + body


LENGTH = f"Content-Length: {len(GOOD)}"
CREATE_LINE = f"{CREATE} HTTP/1.1"
RAW: list[tuple[str, bytes]] = [
    ("in chunks", _raw(CREATE_LINE, "Transfer-Encoding: chunked", body=_chunked(GOOD))),
    ("in chunks and with a length", _raw(CREATE_LINE, LENGTH, "Transfer-Encoding: chunked", body=_chunked(GOOD))),
    ("in chunks in another way", _raw(CREATE_LINE, LENGTH, "Transfer-Encoding: xchunked", body=GOOD)),
    ("in chunks with a space", _raw(CREATE_LINE, LENGTH, "Transfer-Encoding : chunked", body=_chunked(GOOD))),
    ("in chunks with a tab", _raw(CREATE_LINE, LENGTH, "Transfer-Encoding:\tchunked", body=_chunked(GOOD))),
    (
        "in chunks in a folded line",
        _raw(CREATE_LINE, LENGTH, "X: y\r\n Transfer-Encoding: chunked", body=_chunked(GOOD)),
    ),
    ("two lengths", _raw(CREATE_LINE, LENGTH, "Content-Length: 5", body=GOOD)),
    ("two lengths in one", _raw(CREATE_LINE, f"{LENGTH}, 5", body=GOOD)),
    ("a length with a sign", _raw(CREATE_LINE, LENGTH.replace(": ", ": +"), body=GOOD)),
    ("a length by letters", _raw(CREATE_LINE, f"Content-Length: {len(GOOD):#x}", body=GOOD)),
    ("a length below nothing", _raw(CREATE_LINE, "Content-Length: -1", body=GOOD)),
    ("no length", _raw(CREATE_LINE, body=GOOD)),
    ("compressed", _raw(CREATE_LINE, LENGTH, "Content-Encoding: gzip", body=GOOD)),
    ("a stream", _raw(CREATE_LINE, LENGTH, "Connection: Upgrade", "Upgrade: tcp", body=GOOD)),
    ("a star", _raw("OPTIONS * HTTP/1.1")),
    ("a small method", _raw("get /v1.41/info HTTP/1.1")),
    ("a length for what has none", _raw("GET /v1.41/info HTTP/1.1", "Content-Length: 2", body=b"{}")),
    ("a command at its start", request(f"POST /v1.41/exec/{'0' * 64}/start", b'{"Detach": false, "Tty": true}')),
]


@pytest.mark.parametrize("what", [one[1] for one in RAW], ids=[one[0] for one in RAW])
def test_a_request_that_can_be_read_in_two_ways_is_refused(daemon: Listener, guard: Path, what: bytes) -> None:
    status, heard = send(daemon, guard, what)
    assert (400 <= status < 500 or status == 0, heard) == (True, [])


def test_what_follows_a_request_is_judged_as_any(daemon: Listener, guard: Path) -> None:
    kept = _raw(CREATE_LINE, LENGTH, body=GOOD)
    for more in (SECOND, EVIL, _raw("POST /v1.41/swarm/leave HTTP/1.1", "Content-Length: 0", "Connection: close")):
        status, heard = send(daemon, guard, kept + more)
        assert (status, heard) == (200, [CREATE])
    # No bytes of a refused request are read as the next one.
    hidden = _raw("GET /v1.41/secrets HTTP/1.1", f"Content-Length: {len(EVIL)}", body=EVIL)
    assert send(daemon, guard, hidden) == (403, [])


def test_what_cannot_be_read_whole_is_refused(daemon: Listener, guard: Path) -> None:
    """Head and body share the room in which they are read; a head that takes it up would hide the end of a body."""
    long = json.dumps(but(container(), "Labels.x", "y" * 900_000))
    evil = (long[:-1] + ', "hostconfig": {"Privileged": true}}').encode()
    assert len(evil) < 1_000_000
    lines = [f"X-{number}: {'z' * 8000}" for number in range(40)]
    for body in (evil, long.encode()):
        status, heard = send(daemon, guard, request(CREATE, body, *lines))
        assert (400 <= status < 500, heard) == (True, [])
    assert send(daemon, guard, request(CREATE, long.encode())) == (200, [CREATE])
    assert send(daemon, guard, request(CREATE, evil)) == (403, [])
    assert send(daemon, guard, request(CREATE, b'{"Image": "' + b"x" * 1_100_000 + b'"}'))[1] == []
    # A body that stays out is waited for, and no more.
    unfinished = _raw(CREATE_LINE, f"Content-Length: {len(GOOD) + 1}", body=GOOD)
    assert send(daemon, guard, unfinished, within_s=10)[1] == []


# Objects of others are neither shown nor ended.
OF_OTHERS = r"""
GET /v1.41/containers/{other}/json
POST /v1.41/containers/{other}/start
POST /v1.41/containers/{other}/kill
DELETE /v1.41/containers/{other}?force=1
DELETE /v1.41/services/{other}
DELETE /v1.41/networks/{other}
GET /v1.41/services/{other}
GET /v1.41/containers/json
GET /v1.41/containers/json?all=1
GET /v1.41/containers/json?filters={"label":["x"]}
GET /v1.41/services
GET /v1.41/tasks
GET /v1.41/services?filters={"label":["commonage.installation=0a"]}&filters={}
GET /v1.41/services?filters={}&filters={"label":["commonage.installation=0a"]}
GET /v1.41/containers/json?filters={"label":["commonage.installation=0a"],"label":["x"]}
POST /v1.41/containers/{ours}/start?checkpoint=x&checkpoint-dir=/tmp
POST /v1.41/containers/{ours}/update
POST /v1.41/containers/{ours}/attach?stream=1
POST /v1.41/containers/{ours}/exec
POST /v1.41/containers/commonage-control-1/exec
POST /v1.41/containers/commonage-0a1b2c3d4e5f6-1%2f..%2f{other}/exec
DELETE /v1.41/volumes/hub-docker-filter
DELETE /v1.41/volumes/commonage-x/../hub-x
POST /v1.41/images/create?fromSrc=-&repo=x
POST /v1.41/secrets/create
POST /v1.41/configs/create
"""


@pytest.mark.parametrize("call", OF_OTHERS.split("\n")[1:-1])
def test_refuses_a_call_on_what_is_not_ours(daemon: Listener, guard: Path, call: str) -> None:
    head = (
        call.replace("{other}", ANOTHERS)
        .replace("{ours}", OURS)
        .replace('"', "%22")
        .replace("{", "%7B")
        .replace("}", "%7D")
    )
    status, heard = send(daemon, guard, request(head))
    assert status in (400, 403)
    assert heard == []


@pytest.mark.parametrize(
    ("mounts", "why"),
    [
        ("/srv/x:/", "may lead to the daemon"),
        ("/var/run/docker.sock", "may lead to the daemon"),
        ("/var/lib/*", "may lead to the daemon"),
        ("/*/x", "may lead to the daemon"),
        ("/srv/../etc", "may lead to the daemon"),
        ("/srv/x y", "may lead to the daemon"),
        ("srv/x", "is no folder"),
        ("/srv/x*", "does not stand alone"),
        ("/srv/*x", "does not stand alone"),
        (f"{DATA}/secrets", f"has a part in {DATA}"),
        (DATA, f"has a part in {DATA}"),
        ("/srv", f"has a part in {SHARED}"),
        ("/srv/*", f"has a part in {SHARED}"),
        ("/srv/*/swarm", f"has a part in {SHARED}"),
        (f"{SHARED}/*/x", f"has a part in {SHARED}"),
    ],
)
def test_folders_that_lead_out_cannot_be_named(tmp_path: Path, mounts: str, why: str) -> None:
    told = {"COMMONAGE_DATA_DIR": DATA, "COMMONAGE_SHARED_DIR": SHARED, "COMMONAGE_MOUNTS": mounts}
    assert why in why_no_filter(tmp_path, **told)

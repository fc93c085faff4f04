"""The filter before the Docker socket, attacked by code in the control plane: the filter is the deployed HAProxy.

Behind it is a daemon that only listens, so that what it hears is what got through; at the end a real daemon.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, quote_plus

import pytest
from tests.contract.docker_filter.cases import (
    ANOTHERS,
    COMMAND,
    CONFIG_CREATE,
    CREATE,
    INSTALLATION,
    NETWORK,
    NETWORKS,
    OURS,
    SECRET_CREATE,
    SERVICE,
    SPEC,
    STORED,
    Json,
    but,
    container,
    service,
    service_with_files,
)
from tests.contract.docker_filter.filtering import (
    ANOTHERS_EXEC,
    EXEC,
    NAMED,
    Listener,
    ask_through,
    daemon_with_objects,
    filter_before,
    filter_of_a_site,
    request,
    say,
    send,
)
from tests.contract.harness.dockerd import IMAGE, Dockerd
from tests.contract.harness.swarm import Swarm, swarm_of

from commonage.engines.containers.daemon.connection import DaemonRefused
from commonage.engines.containers.daemon.descriptions import installation_filter
from commonage.engines.containers.docker_api import API_VERSIONS, STREAMS
from commonage.engines.docker.client import Client as DockerClient
from commonage.engines.swarm.client import Client as SwarmClient
from commonage.engines.swarm.nodes.membership import SwarmManager

pytestmark = pytest.mark.needs("haproxy")
API = Path(__file__).parents[1] / "data" / "docker_api.txt"
LABEL = quote('{"label": ["commonage.installation=0a"]}')
ESCAPED = {
    name: quote(text)
    for name, text in {
        "others": '{"label": ["app=x"]}',
        "beside": '{"label": ["commonage.installation=0a", "app"]}',
        "more": '{"label": ["commonage.installation=0a"], "id": ["b"]}',
        "twice": '{"label": ["commonage.installation=0a"], "label": []}',
        "older": '{"label": {"commonage.installation=0a": true}}',
    }.items()
}
LISTS = f"GET /v1.41/containers/json?all=1&filters={LABEL}"
REFUSED = (400, 403)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    with daemon_with_objects(tmp_path_factory.mktemp("daemon") / "docker.sock") as made:
        yield made


@pytest.fixture(scope="module")
def guards(daemon: Listener, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Path]]:
    """The sockets of two filters before the daemon, by engine."""
    folders = {engine: tmp_path_factory.mktemp(engine) for engine in ("docker", "swarm")}
    with (
        filter_of_a_site(daemon, folders["docker"], "docker") as docker,
        filter_of_a_site(daemon, folders["swarm"], "swarm") as swarm,
    ):
        yield {"docker": docker, "swarm": swarm}


@pytest.fixture(scope="module")
def guard(guards: Mapping[str, Path]) -> Path:
    return guards["swarm"]


# --- the query: what the filter and the daemon could read in two ways -------------------------------------------------

QUERIES = {
    "an escaped =": f"all=1&filters%3D{LABEL}",
    "an escaped = in small letters": f"all=1&filters%3d{LABEL}",
    "an escaped letter in a key": f"all=1&filter%73={LABEL}",
    "an escaped key of its own": f"all=1&filters={LABEL}&%73ize=1",
    "a + in a key": f"all=1&+filters={LABEL}",
    "a key in capitals": f"all=1&FILTERS={LABEL}",
    "an escaped &": f"all=1%26filters={LABEL}",
    "an escaped & in a value": f"all=1&filters={LABEL}%26size%3D1",
    "a ; between": f"all=1;filters={LABEL}",
    "a ; behind": f"all=1&filters={LABEL};size=1",
    "an escaped ;": f"all=1%3Bfilters={LABEL}",
    "a key twice": f"all=1&filters={LABEL}&filters={LABEL}",
    "an empty value first": f"all=1&filters=&filters={LABEL}",
    "an unknown key": f"all=1&filters={LABEL}&size=1",
    "an unknown key without a value": f"all=1&filters={LABEL}&size",
    "a needed key without a value": f"all&filters={LABEL}",
    "no needed key": "all=1",
    "no key": f"all=1&filters={LABEL}&=1",
    "nothing between": f"all=1&&filters={LABEL}",
    "an & behind": f"all=1&filters={LABEL}&",
    "an & before": f"&all=1&filters={LABEL}",
    "nothing at all": "",
    "a second ?": f"all=1&filters={LABEL}?size=1",
    "a ? first": f"?all=1&filters={LABEL}",
    "a #": f"all=1&filters={LABEL}#&size=1",
    "half an escape": f"all=1&filters={LABEL}%",
    "an escape that is none": f"all=1&filters={LABEL}%zz",
    "an escape of an escape": f"all=1&filters={LABEL.replace('%', '%25')}",
    "a zero byte": f"all=1&filters={LABEL}%00",
    "an end of a line": f"all=1&filters={LABEL}%0a",
    "a byte that is no UTF-8": f"all=1&filters={LABEL}%ff",
    "a raw byte that is no UTF-8": f"all=1&filters={LABEL}\udcff",
    "a long form of a letter": f"all=1&filters={LABEL.replace('a', '%c1%a1')}",
    "a label of others": f"all=1&filters={ESCAPED['others']}",
    "a label beside": f"all=1&filters={ESCAPED['beside']}",
    "another filter beside": f"all=1&filters={ESCAPED['more']}",
    "the same filter twice": f"all=1&filters={ESCAPED['twice']}",
    "an older form of filters": f"all=1&filters={ESCAPED['older']}",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_refuses_a_query_that_can_be_read_in_two_ways(daemon: Listener, guard: Path, query: str) -> None:
    head = f"GET /v1.41/containers/json?{query}"
    status, heard = send(daemon, guard, _bytes(head))
    assert (status in REFUSED, heard) == (True, [])


def test_passes_on_a_query_however_its_value_is_escaped(daemon: Listener, guard: Path) -> None:
    filters = '{"label": ["commonage.installation=0a"]}'
    everything = "".join(f"%{ord(letter):02x}" for letter in filters)
    for value in (quote(filters), quote_plus(filters), quote(filters, safe=":,"), everything):
        head = f"GET /v1.41/containers/json?filters={value}&all=1"
        assert send(daemon, guard, request(head)) == (200, [head])


def _bytes(head: str) -> bytes:
    return f"{head} HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n".encode("utf-8", "surrogateescape")


# --- the path and its version -----------------------------------------------------------------------------------------

PLACES = (
    "//v1.41/info",
    "/./v1.41/info",
    "/v1.41//info",
    "/v1.41/./info",
    "/v1.41/x/../info",
    "/v1.41/info/",
    "/v1.41/info/.",
    "/v1.41/info/..",
    "/v1.41/%69nfo",
    "/v1.41%2finfo",
    "/v1.41/%2e%2e/v1.24/info",
    f"/v1.41/containers/{OURS}%2f..%2f{ANOTHERS}/json",
    f"/v1.41/containers/{OURS}/../{ANOTHERS}/json",
    f"/v1.41/containers/{OURS}\\..\\{ANOTHERS}/json",
    "/v1.41/../secrets",
    "/v1.41//secrets",
    "/v1.41/info/../secrets",
    "/v1.41/%2e%2e/secrets",
    "/v1.41/info%00",
    "/v1.41/info;x=y",
    "/v1.41/info.",
    "/v1.41/containers%2fjson",
    "/v1.41/containers/../info",
    "/v1.41/containers/x/../../info",
    "/v1.41/containers/x%2f..%2f..%2fsecrets/json",
    "/v1.41/containers//json",
    "/v1.41/containers/.hidden/json",
    "/v1.41/images/../../secrets/json",
    "/v1.41/images/x/../../../secrets/json",
    "/v1.41/images/get/json/..",
    "/v1.41/images/x/../../info/json",
    "/v1.41/images/x/./y/json",
    "/v1.41/images/x%2f..%2f../json",
    "/v1.41/images/json",
    "/v1.41/info#x",
    "/v1.41/info?",
    "/v1.41/INFO",
    "http://docker/v1.41/info",
    "HTTP://docker/v1.41/info",
    "http:///v1.41/info",
    "unix:///v1.41/info",
    "docker/v1.41/info",
    "docker:80",
    "*",
)


@pytest.mark.parametrize("place", PLACES)
def test_refuses_a_path_that_can_be_read_in_two_ways(daemon: Listener, guard: Path, place: str) -> None:
    status, heard = send(daemon, guard, _bytes(f"GET {place}"))
    assert (status in REFUSED, heard) == (True, [])


OTHER_VERSIONS = (
    "",
    *(f"/v1.{minor}" for minor in (0, 12, 24, 30, 39, 40, 42, 43, 44, 49, 51, 52, 99, 410)),
    *("/v1", "/v2.41", "/v0.41", "/v1.041", "/v01.41", "/v1.41.0", "/V1.41", "/v1.4", "/1.41", "/v1..41"),
    *("/v1.41/v1.24", "/v1.24/v1.41"),
)


@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_refuses_every_other_version_of_the_api(daemon: Listener, guard: Path, version: str) -> None:
    """Before 1.41 a daemon drops a service's capabilities and limits; without a version it takes its newest."""
    asks = {SERVICE: service(), CREATE: container(), CONFIG_CREATE: STORED, "GET /v1.41/info": None, LISTS: None}
    for head, body in asks.items():
        content = b"" if body is None else json.dumps(body).encode()
        changed = head.replace("/v1.41", version)
        assert send(daemon, guard, request(changed, content)) == (403, []), changed


def test_passes_on_the_versions_that_the_engines_speak(daemon: Listener, guard: Path) -> None:
    for version in API_VERSIONS:
        for head, body in ((SERVICE, service()), (CREATE, container()), (SECRET_CREATE, STORED)):
            changed = f"POST /v{version}/{head.split('/', 2)[2]}"
            assert send(daemon, guard, request(changed, json.dumps(body).encode())) == (200, [changed])


# --- every call of the API, by every method ---------------------------------------------------------------------------


class Call(NamedTuple):
    """A call that the filter passes on: a query that it takes, and what it describes."""

    query: str = ""
    body: Json | None = None


OVERLAY = quote('{"driver": ["overlay"]}')
EVENTS = quote('{"type": ["container"], "event": ["start", "die"], "label": ["commonage.installation=0a"]}')
OF_DOCKER = {
    "GET /_ping": Call(),
    "HEAD /_ping": Call(),
    "GET /version": Call(),
    "GET /info": Call(),
    "GET /events": Call(f"filters={EVENTS}&since=1"),
    "GET /containers/json": Call(f"all=1&filters={LABEL}"),
    "POST /containers/create": Call(f"name={NAMED}", container()),
    "GET /containers/{id}/json": Call(),
    "POST /containers/{id}/start": Call(),
    "POST /containers/{id}/kill": Call("signal=KILL"),
    "DELETE /containers/{id}": Call("force=1&v=1"),
    "POST /containers/{id}/exec": Call("", COMMAND),
    "POST /exec/{id}/resize": Call("h=1&w=1"),
    "GET /exec/{id}/json": Call(),
    "GET /images/{name}/json": Call(),
    "POST /images/create": Call("fromImage=localhost%3A5000%2Flab%2Fx&tag=1"),
    "GET /networks": Call(f"filters={LABEL}"),
    "POST /networks/create": Call("", NETWORKS[0]),
    "GET /networks/{id}": Call(),
    "DELETE /networks/{id}": Call(),
    "POST /volumes/create": Call("", {"Name": "commonage-probe-0a1b2c3d", "DriverOpts": {"size": "1048576"}}),
    "DELETE /volumes/{name}": Call("force=0"),
}
OF_SWARM = {
    **OF_DOCKER,
    "GET /swarm": Call(),
    "POST /swarm/update": Call("version=12&rotateWorkerToken=true", SPEC),
    "GET /networks": Call(f"filters={OVERLAY}"),
    "GET /nodes": Call(),
    "DELETE /nodes/{id}": Call("force=true"),
    "GET /tasks": Call(f"filters={LABEL}"),
    **{f"GET /{kind}": Call(f"filters={LABEL}") for kind in ("services", "configs", "secrets")},
    **{
        f"{method} /{kind}/{{id}}": Call()
        for kind in ("services", "configs", "secrets")
        for method in ("GET", "DELETE")
    },
    "POST /services/create": Call("", service()),
    "POST /configs/create": Call("", STORED),
    "POST /secrets/create": Call("", STORED),
}
ALLOWED = {"docker": OF_DOCKER, "swarm": OF_SWARM}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "LINK", "PROPFIND")


def _api() -> dict[str, set[str]]:
    """Each path of Docker's API, and all keys of queries that a daemon reads there."""
    found: dict[str, set[str]] = {}
    for line in API.read_text().splitlines():
        if not line.startswith("#"):
            _, path, *keys = line.split()
            found.setdefault(path, set()).update(keys)
    return found


def _filled(path: str) -> str:
    """The path with the names of objects that the filter would let through with the right method."""
    if path.endswith("/exec"):
        return path.replace("{id}", NAMED)
    names = {"/exec/": EXEC, "/volumes/": "commonage-probe-0a1b2c3d", "/images/": "lab/x:1"}
    name = next((one for start, one in names.items() if path.startswith(start)), OURS)
    return path.replace("{id}", name).replace("{name}", name)


@pytest.mark.parametrize("version", API_VERSIONS)
@pytest.mark.parametrize("engine", ALLOWED)
def test_refuses_every_call_that_is_not_listed(
    daemon: Listener, guards: Mapping[str, Path], engine: str, version: str
) -> None:
    """All paths of the API by all methods, for each engine: what is not in the list of this file gets nowhere."""
    paths = {*_api(), "/", "/containers", "/services/{id}/tasks", "/exec", "/swarm/", "/plugin"}
    assert {one.split()[1] for one in ALLOWED[engine]} <= paths
    got_through, count = [], 0
    for path in sorted(paths):
        for method in METHODS:
            if f"{method} {path}" in ALLOWED[engine]:
                continue
            count += 1
            status, heard = send(daemon, guards[engine], request(f"{method} /v{version}{_filled(path)}"))
            if status not in REFUSED or heard:
                got_through.append((method, path, status))
    assert got_through == []
    assert count > 900


@pytest.mark.parametrize("engine", ALLOWED)
def test_refuses_every_key_of_a_query_that_is_not_listed(
    daemon: Listener, guards: Mapping[str, Path], engine: str
) -> None:
    """Each listed call gets through, and none of them does with any further key that a daemon reads anywhere."""
    keys = sorted(set().union(*_api().values()) | {"x", "Filters", "name"})
    got_through = []
    for allowed, call in ALLOWED[engine].items():
        method, path = allowed.split()
        head = f"{method} /v1.41{_filled(path)}"
        content = b"" if call.body is None else json.dumps(call.body).encode()
        plain = f"{head}?{call.query}" if call.query else head
        heard_as = plain.replace(f"/{NAMED}/", f"/{OURS}/")  # what was named is named by its id
        status, heard = send(daemon, guards[engine], request(plain, content))
        assert status == 200, plain
        assert heard[-1:] == [heard_as] or allowed == "GET /swarm", "which the filter asks for itself"
        known = {pair.partition("=")[0] for pair in call.query.split("&")}
        for key in keys:
            if key in known:
                continue
            status, heard = send(
                daemon, guards[engine], request(f"{head}?{call.query}&{key}=1".replace("?&", "?"), content)
            )
            if status not in REFUSED or heard:
                got_through.append((allowed, key))
    assert got_through == []


# --- objects of others ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ANOTHERS, "json", "create", "prune", "nobodys"])
@pytest.mark.parametrize("allowed", [one for one in OF_SWARM if "{id}" in one and "/nodes/" not in one])
def test_refuses_every_call_on_an_object_of_others(daemon: Listener, guard: Path, allowed: str, name: str) -> None:
    """`DELETE /containers/json` is a call on a container of the name json, not on the list of containers."""
    method, path = allowed.split()
    call = OF_SWARM[allowed]
    name = ANOTHERS_EXEC if name == ANOTHERS and path.startswith("/exec/") else name
    content = b"" if call.body is None else json.dumps(call.body).encode()
    head = f"{method} /v1.41{path.replace('{id}', name)}" + (f"?{call.query}" if call.query else "")
    status, heard = send(daemon, guard, request(head, content))
    assert (400 <= status < 500, heard) == (True, [])


def test_names_the_object_by_the_id_that_was_looked_at(daemon: Listener, guard: Path) -> None:
    """If another object gets the name meanwhile, that object is not removed."""
    daemon.says["/containers/x/json"] = daemon.says[f"/containers/{OURS}/json"]
    assert send(daemon, guard, request("DELETE /v1.41/containers/x?force=1")) == (
        200,
        [f"DELETE /v1.41/containers/{OURS}?force=1"],
    )
    for found in ('{"Id": "../secrets", "Config": {"Labels": {"commonage.installation": "0a"}}}', "[]", "{", "null"):
        daemon.says["/containers/x/json"] = found
        status, heard = send(daemon, guard, request("DELETE /v1.41/containers/x?force=1"))
        assert (status in (403, 503), heard) == (True, [])


def test_refuses_what_it_fails_to_judge(daemon: Listener, guard: Path) -> None:
    """An error in the filter's own script, here for a config without a name, lets nothing pass."""
    nameless = "f" * 64
    daemon.says[f"/configs/{nameless}"] = json.dumps({"ID": nameless, "Spec": {"Labels": STORED["Labels"]}})
    spec = but(service_with_files(), "TaskTemplate.ContainerSpec.Configs.0.ConfigID", nameless)
    assert send(daemon, guard, request(SERVICE, json.dumps(spec).encode())) == (503, [])


def test_refuses_the_stream_of_a_command_of_others(daemon: Listener, guard: Path) -> None:
    streams = guard.with_suffix(STREAMS)
    body = '{"Detach": false, "Tty": true}'

    def heard(line: str, content: str = body, length: int = 30) -> list[str]:
        before = len(daemon.received)
        about = f"Host: docker\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        say(streams, f"{line}\r\n{about}{content}".encode())
        return daemon.received_since(before)

    start_line = f"POST /v1.41/exec/{EXEC}/start"
    assert heard(f"{start_line} HTTP/1.0") == [start_line]
    for line in (
        f"POST /v1.41/exec/{ANOTHERS_EXEC}/start HTTP/1.0",
        f"POST /exec/{EXEC}/start HTTP/1.0",
        f"POST /v1.40/exec/{EXEC}/start HTTP/1.0",
        f"{start_line} HTTP/1.1",
        f"{start_line}?x=1 HTTP/1.0",
        f"{start_line} HTTP/1.0\r\nX: y",
        f"GET /v1.41/containers/{ANOTHERS}/json HTTP/1.0",
    ):
        assert heard(line) == [], line
    for length in (10, 31, 99):
        assert heard(f"{start_line} HTTP/1.0", length=length) == []


# --- requests in each other -------------------------------------------------------------------------------------------

INNER = f"GET /v1.41/containers/{ANOTHERS}/json HTTP/1.1\r\nHost: docker\r\n\r\n"


def _raw(line: str, *headers: str, body: str = "") -> bytes:
    return "\r\n".join([line, *headers, "", body]).encode("utf-8", "surrogateescape")


def _http2(path: str) -> bytes:
    """A GET of this path by HTTP/2, as one who knows that the other side speaks it begins."""
    pairs = ((":method", "GET"), (":scheme", "http"), (":authority", "docker"), (":path", path))
    block = b"".join(b"\0" + b"".join(bytes([len(word)]) + word.encode() for word in pair) for pair in pairs)
    frames = b"\0\0\0\4\0\0\0\0\0" + len(block).to_bytes(3, "big") + b"\1\5\0\0\0\1" + block
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frames


GOOD, HOST = "GET /v1.41/info HTTP/1.1", "Host: docker"
TWISTED = {
    "HTTP/1.0": _raw("GET /v1.41/info HTTP/1.0", HOST),
    "HTTP/1.0 that goes on": _raw("GET /v1.41/info HTTP/1.0", HOST, "Connection: keep-alive"),
    "HTTP/0.9": b"GET /v1.41/info\r\n",
    "HTTP/2": _http2("/v1.41/info"),
    "HTTP/1.2": _raw("GET /v1.41/info HTTP/1.2", HOST),
    "an upgrade to HTTP/2": _raw(
        GOOD, HOST, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ"
    ),
    "an upgrade to a stream": _raw(GOOD, HOST, "Connection: Upgrade", "Upgrade: tcp"),
    "an upgrade among others": _raw(GOOD, HOST, "Connection: keep-alive, uPgRaDe"),
    "an upgrade that is not said twice": _raw(GOOD, HOST, "Upgrade: websocket"),
    "chunks behind a call": _raw(GOOD, HOST, "Transfer-Encoding: chunked", body=f"0\r\n\r\n{INNER}"),
    "chunks and a length": _raw(GOOD, HOST, f"Content-Length: {len(INNER)}", "Transfer-Encoding: chunked", body=INNER),
    "chunks in capitals": _raw(GOOD, HOST, "TRANSFER-ENCODING: CHUNKED", body=f"0\r\n\r\n{INNER}"),
    "chunks twice": _raw(GOOD, HOST, "Transfer-Encoding: identity", "Transfer-Encoding: chunked", body=INNER),
    "chunks among others": _raw(GOOD, HOST, "Transfer-Encoding: gzip, chunked", body=f"0\r\n\r\n{INNER}"),
    "chunks behind a strange byte": _raw(GOOD, HOST, "Transfer-Encoding: \x0bchunked", body=f"0\r\n\r\n{INNER}"),
    "a request in a body": _raw(GOOD, HOST, f"Content-Length: {len(INNER)}", body=INNER),
    "two lengths": _raw(GOOD, HOST, "Content-Length: 0", f"Content-Length: {len(INNER)}", body=INNER),
    "a length with a space": _raw(GOOD, HOST, f"Content-Length : {len(INNER)}", body=INNER),
    "a length too large": _raw(GOOD, HOST, "Content-Length: 18446744073709551617", body=INNER),
    "a line in a header": _raw(GOOD, HOST, "X: y\rTransfer-Encoding: chunked", body=f"0\r\n\r\n{INNER}"),
    "two hosts": _raw(GOOD, HOST, "Host: elsewhere"),
    "a word too many": _raw("GET /v1.41/info x HTTP/1.1", HOST),
    "a connection to elsewhere": _raw("CONNECT docker:80 HTTP/1.1", HOST),
}


@pytest.mark.parametrize("what", TWISTED.values(), ids=TWISTED)
def test_refuses_a_request_that_hides_another(daemon: Listener, guard: Path, what: bytes) -> None:
    status, heard = send(daemon, guard, what)
    assert (heard, 200 <= status < 400) == ([], False)


UNTIDY = {
    "chunks in a folded line": _raw(GOOD, HOST, "X: y", " Transfer-Encoding: chunked", body=f"0\r\n\r\n{INNER}"),
    "a bare end of line": _raw("GET /v1.41/info HTTP/1.1\nX: y", "Content-Length: 5", HOST, body="hello"),
    "spaces in the line": _raw("GET  /v1.41/info  HTTP/1.1", HOST),
    "a tab in the line": _raw("GET\t/v1.41/info\tHTTP/1.1", HOST),
    "a tab behind": _raw("GET /v1.41/info\t HTTP/1.1", HOST),
}


@pytest.mark.parametrize("what", UNTIDY.values(), ids=UNTIDY)
def test_passes_on_what_it_has_read_and_not_what_was_sent(daemon: Listener, guard: Path, what: bytes) -> None:
    """The proxy reads these as one request, and writes that one itself."""
    _, heard = send(daemon, guard, what)
    assert heard in ([], ["GET /v1.41/info"])
    assert not heard or daemon.headers[-1] == {"host": "docker", "content-type": "application/json"}


def test_judges_each_request_of_a_connection(daemon: Listener, guard: Path) -> None:
    good = _raw(GOOD, HOST)
    status, heard = send(daemon, guard, good + good + INNER.encode() + good)
    assert (status, set(heard)) == (200, {"GET /v1.41/info"})


def test_passes_on_no_header_but_those_it_knows(daemon: Listener, guard: Path) -> None:
    """The body of a form would count as further keys of the query, and a registry account is only for pulls."""
    strange = (
        "X-Registry-Auth: e30=",
        "X-Registry-Config: e30=",
        "X-HTTP-Method-Override: PUT",
        "Expect: 100-continue",
        "Via: x",
    )
    content = json.dumps(container()).encode()
    head = "\r\n".join([f"{CREATE} HTTP/1.1", "Host: elsewhere", f"Content-Length: {len(content)}", *strange])
    form = "Content-Type: application/x-www-form-urlencoded\r\nConnection: close"
    assert say(guard, f"{head}\r\n{form}\r\n\r\n".encode() + content).endswith(b"{}")
    known = {"host": "docker", "content-type": "application/json", "content-length": str(len(content))}
    assert daemon.headers[-1] == known
    pull = "POST /v1.41/images/create?fromImage=lab/x&tag=1"
    assert send(daemon, guard, request(pull, b"", *strange)) == (200, [pull])
    assert daemon.headers[-1]["x-registry-auth"] == "e30="
    assert "x-registry-config" not in daemon.headers[-1]


# --- a real daemon ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swarm() -> Iterator[Swarm]:
    with swarm_of(0) as made:
        made.manager.daemon.ask("POST", "/networks/create", NETWORKS[2])
        yield made


@pytest.fixture(scope="module")
def real(swarm: Swarm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a filter before the manager's daemon."""
    folder = tmp_path_factory.mktemp("real")
    with filter_before(swarm.manager.daemon.socket, folder, COMMONAGE_ENGINE="swarm") as made:
        yield made


@pytest.mark.needs("docker")
def test_a_real_daemon_is_not_reached_by_what_it_reads_otherwise(swarm: Swarm, real: Path) -> None:
    """Each of these was passed on once; asked directly, the daemon does what the filter was to prevent."""
    direct = swarm.manager.daemon
    hidden = f"/networks?filters%3D{LABEL}"
    assert {"host", "none"} <= {one["Name"] for one in direct.ask("GET", f"/v1.41{hidden}")}
    assert ask_through(real, "GET", f"/v1.41{hidden}")[0] == 403

    direct.ask("POST", "/v1.41/containers/create?name=json", {"Image": IMAGE, "Cmd": ["sleep", "1"]})
    assert ask_through(real, "DELETE", "/v1.41/containers/json?force=1")[0] == 403
    assert [one["Names"] for one in direct.containers(name=["json"])] == [["/json"]]

    spec = _without_mounts(service())
    spec = but(but(spec, "TaskTemplate.ContainerSpec.Configs", []), "TaskTemplate.ContainerSpec.Secrets", [])
    direct.ask("POST", "/v1.40/services/create", spec)
    [made] = swarm.services()
    kept = made["Spec"]["TaskTemplate"]
    assert "CapabilityDrop" not in kept["ContainerSpec"]
    assert "Pids" not in kept["Resources"]["Limits"]
    direct.ask("DELETE", f"/services/{made['ID']}")
    assert ask_through(real, "POST", "/v1.40/services/create", spec)[0] == 403
    assert swarm.services() == []


def _without_mounts(made: Json, node: str = "x") -> Json:
    """The service for a network that is there, with nothing mounted."""
    made = but(but(made, "TaskTemplate.ContainerSpec.Mounts", []), "TaskTemplate.ContainerSpec.Image", IMAGE)
    made = but(made, "TaskTemplate.Placement.Constraints", [f"node.id=={node}"])
    return but(made, "TaskTemplate.Resources.Reservations", {"MemoryBytes": 8 * 2**20})


@pytest.mark.needs("docker")
def test_a_service_is_given_configs_and_secrets_of_ours_alone(swarm: Swarm, real: Path) -> None:
    direct = swarm.manager.daemon

    def ask(method: str, path: str, body: object = None) -> tuple[int, str]:
        return ask_through(real, method, f"/v1.41{path}", body)

    ids = {}
    of_ours = quote(json.dumps({"label": [f"commonage.installation={INSTALLATION}"]}))
    for kind in ("configs", "secrets"):
        theirs = direct.ask("POST", f"/{kind}/create", {"Name": "commonage-theirs", "Data": "eA=="})["ID"]
        status, said = ask("POST", f"/{kind}/create", {**STORED, "Name": f"commonage-{kind}"})
        assert status == 201, said
        ids[kind] = json.loads(said)["ID"]
        listed = ask("GET", f"/{kind}?filters={of_ours}")
        assert [one["ID"] for one in json.loads(listed[1])] == [ids[kind]]
        assert ask("GET", f"/{kind}")[0] == 403
        for method in ("GET", "DELETE"):
            assert ask(method, f"/{kind}/{theirs}")[0] == ask(method, f"/{kind}/commonage-theirs")[0] == 403
        assert ask("POST", f"/{kind}/{ids[kind]}/update?version=1", STORED)[0] == 403
        spec = _with_files(kind, theirs, "commonage-theirs", swarm)
        assert ask("POST", "/services/create", spec)[0] == 403

    node = swarm.nodes()["manager"]["ID"]
    spec = _without_mounts(service_with_files(), node)
    for number in range(len(service_with_files()["TaskTemplate"]["ContainerSpec"]["Configs"])):
        spec = but(spec, f"TaskTemplate.ContainerSpec.Configs.{number}.ConfigID", ids["configs"])
    spec = but(spec, "TaskTemplate.ContainerSpec.Secrets.0.SecretID", ids["secrets"])
    spec = but(
        spec,
        "TaskTemplate.ContainerSpec.Command",
        ["/bin/sh", "-c", "cat /run/commonage/entry /run/secrets/passwords.json"],
    )
    spec = but(spec, "TaskTemplate.ContainerSpec.Dir", "/")
    status, said = ask("POST", "/services/create", spec)
    assert status == 201, said
    assert _ended(direct, json.loads(said)["ID"]) == 0
    assert ask("DELETE", f"/services/{spec['Name']}")[0] == 200
    for _ in range(600):  # the next test looks for what is left here
        if not direct.ask("GET", f"/containers/json?all=1&filters={of_ours}"):
            break
        time.sleep(0.1)
    for kind, made in ids.items():
        # Until its last task is gone the Swarm keeps what a service was given; whose it is has been judged by then.
        assert ask("DELETE", f"/{kind}/{made}")[0] in (204, 400)


def _with_files(kind: str, object_id: str, name: str, swarm: Swarm) -> Json:
    word = kind.removesuffix("s").capitalize()
    made = _without_mounts(service_with_files(), swarm.nodes()["manager"]["ID"])
    made = but(made, f"TaskTemplate.ContainerSpec.{word}s.0.{word}ID", object_id)
    made = but(made, f"TaskTemplate.ContainerSpec.{word}s.0.{word}Name", name)
    other = "Secrets" if word == "Config" else "Configs"
    return but(made, f"TaskTemplate.ContainerSpec.{other}", [])


def _ended(daemon: Dockerd, service_id: str) -> int:
    """The exit code of the service's one task."""
    tasks = f"/tasks?filters={quote(json.dumps({'service': [service_id]}))}"
    for _ in range(600):
        status = next((task["Status"] for task in daemon.ask("GET", tasks)), {"State": "new"})
        if status["State"] in ("complete", "failed", "rejected"):
            assert "ContainerStatus" in status, status
            return int(status["ContainerStatus"]["ExitCode"])
        time.sleep(0.1)
    raise AssertionError(status)


@pytest.mark.needs("docker")
@pytest.mark.anyio
async def test_the_calls_of_the_engines_reach_a_real_daemon(swarm: Swarm, real: Path) -> None:
    """The engines need nothing that is refused above: their own clients pass the same filter."""
    url, label = f"unix://{real}", installation_filter(INSTALLATION)
    client, docker = SwarmClient(url), DockerClient(url)
    assert [one["Name"] for one in await client.networks(label)] == [NETWORK]
    assert NETWORK in {one["Name"] for one in await client.overlays()}
    assert (await client.network(NETWORK) or {})["Name"] == NETWORK
    assert list(await client.services(label)) == []
    # The Swarm remembers tasks of services that are gone for a while.
    direct = swarm.manager.daemon.ask("GET", f"/tasks?filters={quote(json.dumps({'label': [label]}))}")
    assert {one["ID"] for one in await client.tasks(label)} == {one["ID"] for one in direct}
    assert len(await client.nodes()) == 1
    assert await client.heartbeat_s() == 2.0
    assert not await client.has_service("nobodys")
    assert await client.image(IMAGE) is not None
    assert await docker.containers(label) == {}
    await docker.remove("nobodys")
    assert not await docker.limits_volume_size()
    with pytest.raises(DaemonRefused, match=r"no such image|cannot be reached|registry"):
        [_ async for _ in client.pull("localhost:1/lab/x:1")]
    async with aclosing(docker.events(label)) as events:
        assert await anext(events) == {}
    manager = SwarmManager(url)
    before = await manager.admission()
    await manager.renew_token()
    assert (await manager.admission()).token != before.token
    await client.close()
    await docker.close()

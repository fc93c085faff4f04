"""`commonage node join`, `rm` and `token`: parsing of arguments, without a server."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from commonage.cli import connection
from commonage.cli.app import app
from commonage.cli.nodes.join import commands, rm
from commonage.cli.nodes.ssh import split_host
from commonage.wire.nodes import JoinTokenOut


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gpu-1", ("", "gpu-1", 0)),
        ("root@gpu-1", ("root", "gpu-1", 0)),
        ("admin@10.0.0.7:2222", ("admin", "10.0.0.7", 2222)),
        ("root@[fd00::7]:22", ("root", "fd00::7", 22)),
        ("[fd00::7]", ("", "fd00::7", 0)),
        ("fd00::7", ("", "fd00::7", 0)),
    ],
)
def test_host_is_parsed(text: str, parts: tuple[str, str, int]) -> None:
    assert split_host(text) == parts


@pytest.mark.parametrize("text", ["", "root@", "gpu-1:ssh", "nas:/commonage", "-oProxyCommand=x"])
def test_invalid_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not \\[USER@\\]HOST"):
        split_host(text)


def token(expires_at: float = 0.0) -> JoinTokenOut:
    url = "http://hub/join"
    return JoinTokenOut(token="cmj1.a.b", expires_at=expires_at, url=url, script_sha256="ab", command=f"curl {url}")


def test_token_is_not_part_of_the_command() -> None:
    made = token()
    lines = commands(made)
    assert [line for line in lines if "curl" in line] == [made.command]
    assert [line for line in lines if "cmj1" in line] == [made.token]


@pytest.mark.parametrize(
    ("typed", "asked"), [("gpu-7", ("east", "gpu-7")), ("east/gpu-7", ("east", "gpu-7")), ("gone", ("local", "gone"))]
)
def test_node_is_removed_by_name_even_if_unlisted(
    monkeypatch: pytest.MonkeyPatch, typed: str, asked: tuple[str, str]
) -> None:
    removed: list[tuple[str, str]] = []

    def remove(site: str, name: str, *, force: bool) -> list[str]:
        removed.append((site, name))
        return [f"{name} is removed", "its certificate is revoked"]

    @contextmanager
    def connect(_server: object) -> Iterator[object]:
        yield SimpleNamespace(nodes=lambda: [SimpleNamespace(site="east", name="gpu-7")], remove_node=remove)

    monkeypatch.setattr(connection, "connect", connect)
    ran = CliRunner().invoke(rm, [typed, "--url", "http://localhost:1", "--token", "x"])
    assert (ran.exit_code, removed) == (0, [asked])
    assert ran.stdout == f"{asked[1]} is removed\nits certificate is revoked\n"


def test_expiry_on_another_day_has_a_date() -> None:
    made = token(time.time() + 3 * 86400)
    assert re.fullmatch(r"Run this on the machine that joins, before \d{4}-\d\d-\d\d \d\d:\d\d:", commands(made)[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [("8d", "1 minute to 7 days"), ("30s", "1 minute to 7 days"), ("x", "like 90s, 30m"), ("30", "has no unit")],
)
def test_invalid_token_lifetime_is_refused(text: str, message: str) -> None:
    words = ["token", "--for", text, "--url", "http://127.0.0.1:9", "--token", "t"]
    result = CliRunner().invoke(app, ["node", *words], prog_name="commonage")
    assert (result.exit_code, message in result.output) == (2, True), result.output

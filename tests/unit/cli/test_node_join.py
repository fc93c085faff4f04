"""What `commonage node join` and `token` make of what is typed, without a server."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from commonage.cli import node_join
from commonage.cli.app import app
from commonage.cli.node_join import commands
from commonage.cli.over_ssh import split_host
from commonage.wire.joining import JoinTokenOut


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
def test_a_host_is_read_as_ssh_reads_it(text: str, parts: tuple[str, str, int]) -> None:
    assert split_host(text) == parts


@pytest.mark.parametrize("text", ["", "root@", "gpu-1:ssh", "nas:/commonage", "-oProxyCommand=x"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not \\[USER@\\]HOST"):
        split_host(text)


def token(expires_at: float = 0.0) -> JoinTokenOut:
    url = "http://hub/join"
    return JoinTokenOut(token="cmj1.a.b", expires_at=expires_at, url=url, script_sha256="ab", command=f"curl {url}")


def test_the_command_for_a_node_is_one_line_and_the_token_another() -> None:
    made = token()
    lines = commands(made)
    assert [line for line in lines if "curl" in line] == [made.command]
    assert [line for line in lines if "cmj1" in line] == [made.token]


@pytest.mark.parametrize(
    ("typed", "asked"), [("gpu-7", ("east", "gpu-7")), ("east/gpu-7", ("east", "gpu-7")), ("gone", ("local", "gone"))]
)
def test_a_node_is_removed_by_its_name_also_one_that_is_in_no_list_any_more(
    monkeypatch: pytest.MonkeyPatch, typed: str, asked: tuple[str, str]
) -> None:
    removed: list[tuple[str, str]] = []

    def remove(site: str, name: str, *, force: bool) -> list[str]:
        removed.append((site, name))
        return [f"{name} is removed", "its certificate is revoked"]

    @contextmanager
    def connect(_server: object) -> Iterator[object]:
        yield SimpleNamespace(nodes=lambda: [SimpleNamespace(site="east", name="gpu-7")], remove_node=remove)

    monkeypatch.setattr(node_join, "connect", connect)
    ran = CliRunner().invoke(node_join.rm, [typed, "--url", "http://localhost:1", "--token", "x"])
    assert (ran.exit_code, removed) == (0, [asked])
    assert ran.stdout == f"{asked[1]} is removed\nits certificate is revoked\n"


def test_a_token_that_outlives_the_day_is_told_with_its_date() -> None:
    made = token(time.time() + 3 * 86400)
    assert re.fullmatch(r"On the node that is to join, until \d{4}-\d\d-\d\d \d\d:\d\d:", commands(made)[0])


@pytest.mark.parametrize(
    ("text", "said"),
    [("8d", "1 minute to 7 days"), ("30s", "1 minute to 7 days"), ("x", "like 90s, 30m"), ("30", "has no unit")],
)
def test_how_long_a_token_may_be_good_is_said(text: str, said: str) -> None:
    words = ["token", "--for", text, "--url", "http://127.0.0.1:9", "--token", "t"]
    result = CliRunner().invoke(app, ["node", *words], prog_name="commonage")
    assert (result.exit_code, said in result.output) == (2, True), result.output

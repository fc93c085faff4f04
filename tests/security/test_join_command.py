"""A node joins. One of its users reads the process list; an attacker on the network changes the script."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.integration.joining_world import World, opened

from commonage.cli.nodes.join import commands
from commonage.wire.nodes import JoinTokenOut

pytestmark = [pytest.mark.anyio, pytest.mark.needs("root")]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with opened(tmp_path) as made:
        yield made


@contextlib.contextmanager
def web(script: str) -> Iterator[str]:
    """The address of an attacker who answers instead of the join listener."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(script.encode())

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/services/commonage/join"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Node:
    """One that is to join, with the programs that the command needs; nothing on it is changed."""

    folder: Path
    commands_seen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        sudo = self.folder / "bin" / "sudo"
        sudo.parent.mkdir()
        sudo.write_text('#!/bin/sh\nexec "$@"\n')
        sudo.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(self.folder)}

    def type(self, command: str, token: str) -> subprocess.CompletedProcess[str]:
        """Type the command with `--plan`; the token goes to whatever asks for it, unless the command has it."""
        line = f"{command} --plan" if token in command else f"{command} --token-file - --plan"
        return subprocess.run(
            ["sh", "-c", line], input=token, env=self.environment, capture_output=True, text=True, check=False
        )

    def look(self) -> None:
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit():
                    self.commands_seen.append(
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "node").mkdir()
    return Node(tmp_path / "node")


async def made_by(world: World, url: str) -> JoinTokenOut:
    """The API's answer to an admin."""
    world.join_service._site = replace(world.join_service._site, script_url=url, listeners=(world.at,))
    made = await world.join_service.token(600)
    return JoinTokenOut(**asdict(made), script_sha256=(await world.join_service.kit()).script_sha256)


def typed(made: JoinTokenOut) -> str:
    """The command as `commonage node token` prints it, without the token where it stands apart."""
    return next(line for line in commands(made) if "curl" in line)


async def test_no_user_of_the_node_sees_the_token(world: World, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    really = world.tokens.check

    def check(token: str, now: float) -> None:
        node.look()  # the node asks, so its script runs
        really(token, now)

    monkeypatch.setattr(world.tokens, "check", check)
    with web((await world.join_service.kit()).script) as url:
        made = await made_by(world, url)
        ran = await asyncio.to_thread(node.type, typed(made), made.token)
    assert "would join Lab" in ran.stdout, ran.stdout + ran.stderr
    assert any("client.py" in line for line in node.commands_seen)
    assert not [line for line in node.commands_seen if made.token in line]


async def test_a_script_changed_on_the_way_does_not_run(world: World, node: Node, tmp_path: Path) -> None:
    mark = tmp_path / "pwned"
    with web(f"touch {mark}\n") as url:
        made = await made_by(world, url)
        ran = await asyncio.to_thread(node.type, typed(made), made.token)
    assert ran.returncode != 0
    assert not mark.exists()


@pytest.mark.parametrize("how", ["argument", "variable", "pipe"])
async def test_the_script_takes_no_token_that_others_see(world: World, node: Node, how: str) -> None:
    script = node.folder / "join.sh"
    script.write_text((await world.join_service.kit()).script)
    token = (await world.join_service.token(600)).token
    argv = {
        "argument": ["sh", str(script), token, "--plan"],
        "variable": ["env", f"COMMONAGE_JOIN_TOKEN={token}", "sh", str(script), "--plan"],
        "pipe": ["sh", "-s", "--", token, "--plan"],  # curl … | sh -s -- TOKEN
    }[how]
    ran = await asyncio.to_thread(
        subprocess.run, argv, input=script.read_text(), env=node.environment, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "--token-file" in ran.stderr
    assert token not in ran.stderr


async def test_a_token_that_is_typed_is_not_shown(world: World, node: Node) -> None:
    script = node.folder / "join.sh"
    script.write_text((await world.join_service.kit()).script)
    token = world.tokens.make([world.at], world.join_service._clock.now())

    def at_a_terminal() -> str:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            ["sh", str(script), "--plan"], stdin=theirs, stdout=theirs, stderr=theirs, env=node.environment
        )
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the terminal is gone when its last program is
            while piece := os.read(ours, 4096):
                said += piece
                if said.endswith(b"(not shown): "):
                    os.write(ours, token.encode() + b"\n")
        process.wait()
        os.close(ours)
        return said.decode()

    said = await asyncio.to_thread(at_a_terminal)
    assert "would join Lab" in said
    assert token not in said

"""Creates the join script, and the cloud-init data that runs it at a node's first boot. Called by `service`."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from importlib.resources import files


def join_script(site: str, authority: str) -> str:
    """The script, with the site's authority (PEM) in it.

    It is the same each time, so that its digest can be checked.
    """
    folder = files("commonage.join")
    shown = " ".join("".join(letter for letter in site if letter.isprintable()).split())
    return (
        (folder / "join.sh")
        .read_text(encoding="utf-8")
        .replace("@SITE@", shown)
        .replace("@AUTHORITY@", authority.strip())
        .replace("@CLIENT@", (folder / "client.py").read_text(encoding="utf-8").strip())
    )


def digest_of(script: str) -> str:
    """SHA-256 in hex, as `sha256sum` prints it."""
    return hashlib.sha256(script.encode()).hexdigest()


def join_command(url: str, digest: str, *, is_verified: bool = True) -> str:
    """The command for the node that joins. It runs the script only if its digest matches.

    It uses a new folder, so that no other user can change the script after the check. Options may follow.
    `is_verified`: the node can verify the server; otherwise only the digest protects the script.
    """
    check = f'echo "{digest}  join.sh" | sha256sum -c'
    options = "-fsSo" if is_verified else "-fsSko"
    return f'cd "$(mktemp -d)" && curl {options} join.sh {shlex.quote(url)} && {check} && sudo sh join.sh'


def cloud_init(script: str, token: str, options: Sequence[str] = (), host_name: str = "") -> str:
    """User data for a cloud instance: it contains the script itself, so that nothing is fetched unchecked.

    With `host_name` the node gets this name, whatever the cloud calls it. Anyone who can read the user data can join
    nodes while the token is valid.
    """
    command = shlex.join(["sh", _SCRIPT, "--token-file", _TOKEN, *options])
    lines = [
        "#cloud-config",
        "# Written by `commonage node template`. The token in it lets nodes join until it expires.",
        *([f"hostname: {_quoted(host_name)}", "preserve_hostname: false"] if host_name else []),
        "write_files:",
        *_file(_SCRIPT, script, "0700"),
        *_file(_TOKEN, token + "\n", "0600"),
        "runcmd:",
        f"  - {_quoted(f'{command} 2>&1 | tee /var/log/commonage-join.log; rm -f {_TOKEN}')}",
        "",
    ]
    return "\n".join(lines)


_SCRIPT, _TOKEN = "/run/commonage/join.sh", "/run/commonage/token"


def _file(path: str, content: str, mode: str) -> list[str]:
    body = [f"      {line}".rstrip() for line in content.splitlines()]
    return [f"  - path: {path}", f'    permissions: "{mode}"', "    content: |", *body]


def _quoted(text: str) -> str:
    """A YAML scalar between single quotes."""
    return "'" + text.replace("'", "''") + "'"

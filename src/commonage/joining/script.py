"""Makes the script with which a machine begins, and the cloud-init data that runs it at a machine's first start."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from importlib.resources import files


def join_script(site: str, authority: str) -> str:
    """The script, with the site's authority (PEM) in it. The same each time: whoever knows its digest can check it."""
    folder = files("commonage.joining")
    shown = " ".join("".join(letter for letter in site if letter.isprintable()).split())
    return (
        (folder / "join.sh")
        .read_text(encoding="utf-8")
        .replace("@SITE@", shown)
        .replace("@AUTHORITY@", authority.strip())
        .replace("@FETCH@", (folder / "fetch.py").read_text(encoding="utf-8").strip())
    )


def digest_of(script: str) -> str:
    """SHA-256 in hex, as `sha256sum` says it."""
    return hashlib.sha256(script.encode()).hexdigest()


def join_command(url: str, digest: str) -> str:
    """The command for the machine that joins. It runs the script only if that is the one with this digest.

    In a folder of its own, where nobody else can change the script after the look at it. Options may follow.
    """
    check = f'echo "{digest}  join.sh" | sha256sum -c'
    return f'cd "$(mktemp -d)" && curl -fsSo join.sh {shlex.quote(url)} && {check} && sudo sh join.sh'


def cloud_init(script: str, token: str, options: Sequence[str] = (), host_name: str = "") -> str:
    """User data for a cloud's machine: it carries the script itself, so that nothing is fetched unchecked.

    With `host_name` the machine is called so, whatever the cloud calls it.
    Whoever sees the user data may join machines as long as the token is good.
    """
    command = shlex.join(["sh", _SCRIPT, "--token-file", _TOKEN, *options])
    lines = [
        "#cloud-config",
        "# Made by `commonage node template`. The token in it lets machines join until it expires.",
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
    """As a YAML scalar between single quotes."""
    return "'" + text.replace("'", "''") + "'"

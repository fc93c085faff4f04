"""The program of a warm container: loads a session's libraries, waits, and becomes the session of one user.

The environment's own Python runs this by -c, so it uses the standard library only. Its arguments: the path of
`jupyterhub-singleuser`, and the texts of preloading.py and serving.py. It connects to the control plane's socket, which
says that it is ready, and gets one request. From then on it does what entry.sh does for a container that starts cold.
It ends when the control plane closes the socket. A container is used once, so nothing is forked and nothing is shared.
"""

import sys

if __name__ == "__main__":
    sys.path[0] = sys.argv[1].rpartition("/")[0]  # as for any program; with -c it would be the working folder

import contextlib
import json
import os
import site
import socket
from typing import Any

LINK = "/run/commonage/warm/link"
CONTROL = "/run/commonage/control"
LOG = "/run/commonage/log"
JUPYTER = "/run/commonage/jupyter"
_STOPPED = 143


def main() -> None:
    program, *texts = sys.argv[1:]
    preloading, serving = (_module(text) for text in texts)
    end = serving["Exit"]()
    before = dict(os.environ)
    read = preloading["import_libraries"]()
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(LINK)
        ask = _ask(link)
        variables = _variables_of(ask)
        refused = _difference(preloading, before, variables, read)
        if refused:
            link.sendall(json.dumps({"refused": refused}).encode() + b"\n")
            os._exit(1)
        _claim(ask["cwd"])
        with contextlib.suppress(OSError):  # the control plane may be gone, and finds it running later
            link.sendall(b"{}\n")
    preloading["become"](variables, ask["cwd"], program, ask["arguments"])
    serving["run"](end)


def _module(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "commonage"}
    exec(compile(text, "<commonage>", "exec"), names)  # noqa: S102 - our own text
    return names


def _ask(link: socket.socket) -> dict[str, Any]:
    with link.makefile("rb") as lines:
        line = lines.readline()
    if not line.endswith(b"\n"):
        os._exit(0)
    ask: dict[str, Any] = json.loads(line)
    return ask


def _variables_of(ask: dict[str, Any]) -> dict[str, str]:
    variables: dict[str, str] = {**os.environ, **ask["variables"]}
    paths = variables.get("JUPYTER_CONFIG_PATH")
    return {**variables, "JUPYTER_CONFIG_PATH": f"{paths}:{JUPYTER}" if paths else JUPYTER}


def _difference(preloading: dict[str, Any], before: dict[str, str], variables: dict[str, str], read: set[str]) -> str:
    """Why a server with these variables would not equal a fresh one; empty if it would."""
    if "*" in read:
        return "a library reads all variables"
    unseen = {name for name in (*before, *variables) if name.startswith(preloading["UNSEEN"])}
    for name in sorted(unseen - preloading["WITHOUT_EFFECT"] | read | {"PATH"}):
        if before.get(name) != variables.get(name):
            return f"{name} is another one than its libraries were loaded with"
    base = variables.get("PYTHONUSERBASE") or os.path.join(variables.get("HOME", "/"), ".local")
    if site.ENABLE_USER_SITE and os.path.isdir(os.path.join(base, "lib")):
        return "its user may have installed packages in the home"
    return ""


def _claim(cwd: str) -> None:
    """Claim the attempt as entry.sh does. Ends the process if a stop came first."""
    os.chdir(cwd)
    log = os.open(LOG, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    try:
        claim = os.open(f"{CONTROL}/claim", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        os._exit(_STOPPED)
    os.write(claim, b"ran\n")
    os.close(claim)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{CONTROL}/secrets")  # they came with the request


if __name__ == "__main__":
    main()

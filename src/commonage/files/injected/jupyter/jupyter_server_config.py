"""Loads Commonage's part of a session's Jupyter server, and offers the apps of apps.json that its environment has.

Read by Jupyter at the start of a session, so it uses the standard library only. It names the apps found in the file
`commonage-apps` of the session's temporary folder; the control plane reads it for the portal. It makes our modules
importable, adds our extensions of JupyterLab, and has IPython kernels load the cell magic.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import shlex
import shutil
import socket
import sys
import tempfile
import warnings
from contextlib import suppress
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_SOCKET_PATH_MAX = 60  # the kernel allows 107 characters, and jupyter-server-proxy appends to the folder
# JupyterLab's own name for the file of the workspace `terminal`: one terminal, and nothing else.
_WORKSPACE = "terminal-4e68.jupyterlab-workspace"
_TERMINAL = {
    "data": {
        "layout-restorer:data": {
            "main": {
                "dock": {"type": "tab-area", "currentIndex": 0, "widgets": ["terminal:1"]},
                "current": "terminal:1",
            },
            "left": {"collapsed": True},
        },
        "terminal:1": {"data": {"name": "1"}},
    },
    "metadata": {"id": "terminal"},
}


def offer_apps(config: Any, folder: str) -> list[str]:
    """Configure jupyter-server-proxy; return the names of the apps found. `folder`: for their temporary files."""
    has_proxy = importlib.util.find_spec("jupyter_server_proxy") is not None
    with open(os.path.join(_HERE, "apps.json"), encoding="utf-8") as file:
        apps = json.load(file)
    servers, found = {}, []
    for app in apps:
        program = _program(app)
        if program is None or ("programs" in app and not has_proxy):
            if "module" in app:  # its extension would do nothing but take time
                config.ServerApp.jpserver_extensions.update({app["module"]: False})
                warnings.filterwarnings("ignore", message=f"entry_point {app['name']} ")
            continue
        found.append(app["name"])
        if "command" in app:
            servers[app["name"]] = _server(app, program, folder)
    config.ServerProxy.servers = servers
    return found


def _short_folder(folder: str) -> str:
    """The session's folder for temporary files, or another where Unix sockets would not fit into its name."""
    if len(folder) <= _SOCKET_PATH_MAX:
        return folder
    short = tempfile.mkdtemp(prefix="apps-", dir="/tmp")
    atexit.register(shutil.rmtree, short, ignore_errors=True)
    tempfile.tempdir = short  # where jupyter-server-proxy makes its folders
    return short


def _program(app: dict[str, Any]) -> str | None:
    """The path of its program; empty if it needs none, None if it is not there."""
    if "module" in app and importlib.util.find_spec(app["module"]) is None:
        return None
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *app.get("folders", ())])
    programs = [shutil.which(name, path=path) for name in app.get("programs", ())]
    return None if None in programs else next(iter(programs), "")


def _server(app: dict[str, Any], program: str, folder: str) -> dict[str, Any]:
    python = os.path.join(os.path.dirname(program), "python")
    values = {
        "program": program,
        "python": python if os.access(python, os.X_OK) else sys.executable,
        "here": _HERE,
        "folder": folder,
        "home": os.path.expanduser("~"),
        "user": os.environ.get("USER", ""),
    }
    # Braces in a value are not for jupyter-server-proxy, which fills in the rest.
    safe = {name: value.replace("{", "{{").replace("}", "}}") for name, value in values.items()}
    server: dict[str, Any] = {
        "command": [word.format(**safe) for word in app["command"]],
        "timeout": app["timeout"],
        "launcher_entry": {"title": app["title"], "path_info": app["path"]},
    }
    if "port_variable" in app:
        server |= {"port": _free_port(), "absolute_url": True}
        os.environ[app["port_variable"]] = str(server["port"])
        os.environ[app["url_variable"]] = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "/") + app["path"].rstrip("/")
    else:
        server["unix_socket"] = True
    return server


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _write_workspace() -> None:
    folder = os.environ.get("JUPYTERLAB_WORKSPACES_DIR") or os.path.join(
        os.environ.get("JUPYTER_CONFIG_DIR") or os.path.expanduser("~/.jupyter"), "lab", "workspaces"
    )
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, _WORKSPACE), "x", encoding="utf-8") as file:
        json.dump(_TERMINAL, file)


def _write_desktop(folder: str) -> None:
    """The start of a desktop must be a program, and files put into a container are none."""
    path = os.path.join(folder, "commonage-desktop")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\nexec sh {shlex.quote(os.path.join(_HERE, 'desktop.sh'))}\n")
    os.chmod(path, 0o700)
    os.environ.setdefault("JUPYTER_REMOTE_DESKTOP_PROXY_XSTARTUP", path)


def _write_found(found: list[str], path: str) -> None:
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write("".join(f"{name}\n" for name in found))
    os.replace(f"{path}.new", path)


if os.environ.get("COMMONAGE_WORKLOAD_ID"):
    sys.path.append(_HERE)
    os.environ.setdefault("PYTHONSTARTUP", os.path.join(_HERE, "startup.py"))
    c = get_config()  # type: ignore[name-defined] # noqa: F821 - Jupyter provides it
    c.ServerApp.jpserver_extensions.update({"commonage_session": True, "commonage_server": True})
    c.ServerApp.extra_template_paths.append(os.path.join(_HERE, "templates"))
    c.LabServerApp.extra_labextensions_path.append(os.path.join(_HERE, "labextensions"))

# Other programs of Jupyter in the session read this file, too.
if os.path.basename(sys.argv[0]) == "jupyterhub-singleuser":
    place = tempfile.gettempdir()
    short_place = _short_folder(place)
    names = offer_apps(get_config(), short_place)  # type: ignore[name-defined] # noqa: F821 - Jupyter provides it
    with suppress(OSError):  # the session is of use without
        _write_workspace()
    with suppress(OSError):
        if "desktop" in names:
            _write_desktop(short_place)
        _write_found(names, os.path.join(place, "commonage-apps"))

"""Starts an app whose own program cannot be kept to one user: start_app.py tensorboard SOCKET | visdom PORT URL.

Run by jupyter-server-proxy (apps.json) with the Python that the app is installed in, so it uses the standard library
only, and the app.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any


def tensorboard(socket: str) -> None:
    """TensorBoard on a Unix socket, which its own program cannot announce."""
    program, manager, main = (_module(f"tensorboard.{name}") for name in ("program", "manager", "main"))
    # Both want a number for the port.
    program.WerkzeugServer.get_url = lambda _server: "the path tensorboard/ of this session"
    manager.write_info_file = lambda _info: None
    sys.argv = ["tensorboard", f"--logdir={_folder_of_logs()}", f"--host=unix://{socket}", "--reload_interval=5"]
    main.run_main()


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _folder_of_logs() -> str:
    """A folder of links to where frameworks and jobs write: a whole home, with its volumes, takes too long to read."""
    if chosen := os.environ.get("TENSORBOARD_LOGDIR"):
        return chosen
    folder = os.path.join(tempfile.gettempdir(), "tensorboard-folders")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for name in ("jobs", "runs", "logs", "lightning_logs", "tb_logs"):
        link = os.path.join(folder, name)
        if not os.path.islink(link):  # its target may come later
            os.symlink(os.path.join(os.path.expanduser("~"), name), link)
    return folder


def visdom(port: str, base_url: str) -> None:
    """Visdom on the loopback, because its client knows no Unix sockets; it answers this user's processes only."""
    app, httpserver, ioloop = (_module(name) for name in ("visdom.server.app", "tornado.httpserver", "tornado.ioloop"))
    defaults = _module("visdom.server.defaults")
    scripts = os.path.join(os.path.dirname(_module("visdom").__file__), "static", "js", "react-react.min.js")
    if not os.path.exists(scripts):
        sys.exit(
            "Visdom lacks the scripts of its pages. Get them when the environment is built: "
            "python -c 'from visdom.server.build import download_scripts; download_scripts()'"
        )

    def handle_stream(server: Any, stream: Any, address: Any) -> Any:
        if _is_own(address[1], int(port)):
            return httpserver.HTTPServer.handle_stream(server, stream, address)
        return stream.close()

    def make_static_url(_class: Any, settings: Any, path: str, include_version: bool = True) -> Any:
        # Its page asks for `../user/style.css`, of which newer versions of Tornado compute no version.
        return static.make_static_url(settings, path, include_version and not path.startswith(".."))

    static = _module("tornado.web").StaticFileHandler
    server_class = type("OwnConnections", (httpserver.HTTPServer,), {"handle_stream": handle_stream})
    os.makedirs(defaults.DEFAULT_ENV_PATH, exist_ok=True)
    application = app.Application(port=int(port), base_url=base_url.rstrip("/"), env_path=defaults.DEFAULT_ENV_PATH)
    own_static = {"make_static_url": classmethod(make_static_url)}
    application.settings["static_handler_class"] = type("Static", (static,), own_static)
    server_class(application, max_buffer_size=1024**3).listen(int(port), address="127.0.0.1")
    ioloop.IOLoop.current().start()


def _is_own(client: int, server: int) -> bool:
    """Whether the other end of the connection from port `client` to `server` belongs to this process's user."""
    return any(
        (_port(words[1]), _port(words[2]), int(words[7])) == (client, server, os.getuid()) for words in _connections()
    )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _connections() -> Iterator[list[str]]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if os.path.exists(table):
            with open(table, encoding="ascii") as file:
                next(file)
                yield from (line.split() for line in file)


if __name__ == "__main__":
    if sys.argv[1] == "tensorboard":
        tensorboard(sys.argv[2])
    else:
        visdom(*sys.argv[2:])

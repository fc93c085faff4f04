"""Loads the libraries of a Jupyter server before its user is known, and becomes that user's server later.

The environment's own Python runs this, in the warm parent of the process engine (zygote.py) and in the warm containers
of the Docker engine (template.py). So it uses the standard library only. Nothing is imported here that would keep data
of one user: Jupyter's own modules read HOME and similar variables at import, libraries do not. Variables that were read
anyway are recorded; only a session that has the same values may start this way.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

UNSEEN = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OPENSSL_", "LANG", "LC_")
"""Read where we cannot see it: by the interpreter, the linker and libraries, mostly before any program begins."""
WITHOUT_EFFECT = {"PYTHON_CPU_COUNT"}
"""On the server itself; kernels and terminals are started as fresh processes."""

# Modules that `jupyterhub-singleuser` loads until its first page, except Jupyter's own, and those of the hub, which
# serving.py leaves out. Missing ones are skipped.
LIBRARIES = (
    "aiodns", "aiohttp", "anyio.to_thread", "argon2", "async_lru", "babel", "bleach.css_sanitizer", "bs4",
    "cryptography.fernet", "dateutil.parser", "defusedxml.ElementTree", "difflib", "httpx", "jinja2", "json5",
    "jsonschema", "jupyter_core.application", "jupyter_events", "mistune", "nbformat.sign", "notebook_shim.traits",
    "overrides", "packaging.specifiers", "pandocfilters", "prometheus_client", "pygments.formatters.html",
    "pygments.lexers.html", "pygments.lexers.python", "pygments.styles.default", "requests", "sqlite3", "tarfile",
    "terminado", "tomllib", "tornado.httpserver", "tornado.simple_httpclient", "tornado.websocket",
    "traitlets.config", "unittest.mock", "webbrowser", "websocket", "xmlrpc.client", "zmq.asyncio",
    "zmq.eventloop.zmqstream",
)  # fmt: skip
# Their copies of the variables are corrected after the fork (sysconfig), or used by CGI only (wsgiref).
_HARMLESS = ("sysconfig.py", "handlers.py")
_BETWEEN = ("os.py", "posixpath.py", "genericpath.py", "pathlib.py", "_collections_abc.py")


def import_libraries() -> set[str]:
    """Import the available modules; return the names of the variables that were read meanwhile ("*": all of them)."""
    read: set[str] = set()
    environ: Any = type(os.environ)
    get_one, get_all = environ.__getitem__, environ.__iter__

    def watched_one(self: Any, name: Any) -> Any:
        if not _is_harmless():
            read.add(os.fsdecode(name))
        return get_one(self, name)

    def watched_all(self: Any) -> Any:
        if not _is_harmless():
            read.add("*")
        return get_all(self)

    environ.__getitem__, environ.__iter__ = watched_one, watched_all
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    environ.__getitem__, environ.__iter__ = get_one, get_all
    return read


def _is_harmless() -> bool:
    """True if this module of the standard library reads the variables without lasting effect."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _file_of(frame) in _BETWEEN:
        frame = frame.f_back
    return _file_of(frame) in _HARMLESS and "-packages" not in frame.f_code.co_filename


def _file_of(frame: FrameType) -> str:
    name = os.path.basename(frame.f_code.co_filename).rstrip(">")
    return name.rpartition(" ")[2] + ".py" if name.startswith("<frozen") else name


def become(variables: Mapping[str, str], cwd: str, program: str, arguments: Sequence[str]) -> None:
    """Make this process equal one that was started in this folder with these arguments and variables."""
    os.environ.clear()
    os.environ.update(variables)
    os.environ["PWD"] = cwd  # the shell of a cold start sets it
    tempfile.tempdir = None
    time.tzset()
    sysconfig.get_config_vars()["userbase"] = os.path.join(os.path.expanduser("~"), ".local")
    sys.argv = [program, *arguments]
    sys.orig_argv = [sys.executable, *sys.argv]
    rename(*sys.orig_argv)


def rename(*words: str) -> None:
    """Let `ps` show this instead of the parent's command line, as far as space allows (which its padding provides)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:
            start, end = (int(field) for field in stat.read().rpartition(")")[2].split()[45:47])
        line = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(line.ljust(end - start, b"\0"))
        with open("/proc/self/comm", "wb", buffering=0) as name:
            name.write(os.path.basename(os.fsencode(words[1 if words[0] == sys.executable else 0]))[:15])

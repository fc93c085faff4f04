"""Creates a Python environment with uv: the calls, its settings on this node, and the meaning of its output.

Called by `environments`, which decides when and where. No state is kept here.
"""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from uv import find_uv_bin

from commonage.domain.errors import EngineFailure
from commonage.domain.images import Environment, left_out
from commonage.files.kernels import (
    ADDED,
    BUILD_CONSTRAINTS,
    KERNEL_PACKAGES,
    START,
    kernel_spec,
    packages_script,
    server_settings,
    start_script,
)

Step = Callable[[str, float | None], None]
"""Callback with uv's current step, and its progress (0..1)."""
_PASSED_ON = re.compile(r"UV_.*|SSL_CERT_FILE|SSL_CERT_DIR|(https?|all|no)_proxy|HOME|NETRC|LANG|LC_ALL", re.IGNORECASE)
# pip's settings that have an equivalent in uv.
_LIKE_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
_ASIDE = re.compile(r"warning: |Using Python |Using CPython|Creating virtual|Activate with| [+-] ")
_BETWEEN_S = 2.0
_LAST_LINES = 6
_FRAMES = " \u00d7\u2570\u2500\u25b6\u2502\u251c\u00b7"  # uv draws these around its error messages


def uv_environment(environ: Mapping[str, str], pip_settings: Mapping[str, str]) -> dict[str, str]:
    """Variables for uv: its own, certificates, proxies, and pip's settings where uv has none.

    `pip_settings` are those of pip's files; its variables (PIP_INDEX_URL) take precedence over them, uv's over both.
    """
    told = {"PATH": environ.get("PATH", os.defpath), "UV_SYSTEM_CERTS": "true", "UV_NO_PROGRESS": "1"}
    told |= {name: value for name, value in environ.items() if _PASSED_ON.fullmatch(name)}
    for name, counterpart in _LIKE_PIP.items():
        value = environ.get("PIP_" + name.replace("-", "_").upper()) or pip_settings.get(name)
        if name == "find-links" and value:
            # pip ignores a missing folder of wheels, uv fails. And uv separates several by commas.
            value = ",".join(place for place in value.split() if "://" in place or Path(place).is_dir())
        if value and counterpart not in told:
            told[counterpart] = " ".join(value.split())
            if name == "extra-index-url":
                # pip's semantics: all indices are searched, not only the first that knows the package.
                told.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    # The environment must use this node's Python; only packages are downloaded.
    return told | {"UV_PYTHON_DOWNLOADS": "never"}


def read_pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The `global` section of pip's files, the user's before the system's.

    Unreadable files count as empty.
    """
    home = Path(environ.get("HOME") or "/")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    named = environ.get("PIP_CONFIG_FILE", "")
    files = [Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf"]
    parser = configparser.ConfigParser(interpolation=None)
    for file in [*files, *([Path(named)] if named else [])]:
        try:
            parser.read(file, encoding="utf-8")
        except (OSError, configparser.Error, UnicodeDecodeError):
            continue
    return dict(parser["global"]) if parser.has_section("global") else {}


class Progress:
    """Turns uv's lines into progress.

    uv names only large packages while it downloads, so those are counted. Every reported line is stored as an event, so
    lines in quick succession are dropped.
    """

    def __init__(self, told: Step, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._told = told
        self._monotonic = monotonic
        self._next_at = 0.0
        self._coming: list[str] = []
        self._come = 0

    def line(self, text: str) -> None:
        match text.split():
            case ["Resolved", number, *_]:
                self._told(f"downloading {number} packages", 0.1)
            case ["Downloading", name, *_]:
                self._coming.append(name)
                self._tell_coming()
            case ["Downloaded", name, *_]:
                self._come += 1
                self._coming = [other for other in self._coming if other != name]
                self._tell_coming()
            case ["Prepared", number, *_]:
                self._told(f"installing {number} packages", 0.5)
            case ["Installed", number, *_]:
                self._told(f"compiling {number} packages, so that they start fast", 0.6)
            case _:
                return

    def _tell_coming(self) -> None:
        now = self._monotonic()
        if self._coming and now >= self._next_at:
            self._next_at = now + _BETWEEN_S
            of = self._come + len(self._coming)
            words = f"downloading {self._coming[-1]}, {self._come} of {of} large packages are here"
            self._told(words, 0.1 + 0.4 * self._come / of)


async def make_environment(
    folder: Path, environment: Environment, variables: Mapping[str, str], held: int, told: Step
) -> None:
    """Make `folder` a virtual environment with its requirements, and one in it for each of its kernels.

    `held` is a file descriptor that uv keeps open, so that a lock on it lasts as long as uv does, even without us.
    Raises EngineFailure with uv's last message.
    """
    told("making a Python environment", 0.0)
    install = partial(_install, variables=variables, held=held, told=told)
    await install(folder, environment.requirements)
    for kernel in environment.kernels:
        place = kernel_folder(folder, kernel.name)
        told(f"making the kernel {kernel.name}", None)
        await install(place, (*kernel.requirements, *KERNEL_PACKAGES), wheels_only=kernel.wheels_only)
    if environment.kernels:
        await asyncio.to_thread(_put_kernels, folder, [one.name for one in environment.kernels])


def kernel_folder(folder: Path, kernel: str) -> Path:
    """The virtual environment of a kernel in that of its environment."""
    return folder / "kernels" / kernel


def _put_kernels(folder: Path, kernels: Sequence[str]) -> None:
    """The server's own Python is no kernel: users install their packages into theirs."""
    specs = folder / "share/jupyter/kernels"
    shutil.rmtree(specs, ignore_errors=True)
    for kernel in kernels:
        place = kernel_folder(folder, kernel)
        _write(place / START, start_script(kernel, str(place)), 0o755)
        _write(place / ADDED, packages_script())
        _write(specs / kernel / "kernel.json", kernel_spec(kernel, str(place)))
    _write(folder / "etc/jupyter/jupyter_server_config.json", server_settings(kernels))


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


async def _install(
    folder: Path,
    requirements: Sequence[str],
    *,
    variables: Mapping[str, str],
    held: int,
    told: Step,
    wheels_only: bool = False,
) -> None:
    base = ("venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder))
    await _run_uv(base, variables, held, lambda _: None)
    if not requirements:
        return
    listed, overrides, building = (folder / name for name in ("requirements.txt", "left-out.txt", "building.txt"))
    building.write_text(BUILD_CONSTRAINTS, encoding="utf-8")
    listed.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    overrides.write_text(left_out(requirements), encoding="utf-8")
    told("looking up packages", 0.05)
    python = str(folder / "bin" / "python")
    asked = ("--build-constraints", str(building), "--override", str(overrides), "--requirements", str(listed))
    # Compiling starts the environment's Python, which may run code of its packages: not for those of a tenant.
    how = ("--only-binary", ":all:") if wheels_only else ("--compile-bytecode",)
    await _run_uv(("pip", "install", "--python", python, *how, *asked), variables, held, Progress(told).line)


async def _run_uv(
    arguments: Sequence[str], variables: Mapping[str, str], held: int, line: Callable[[str], None]
) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            find_uv_bin(),
            *arguments,
            env=dict(variables),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(held,),
        )
    except OSError as error:
        raise EngineFailure(f"uv cannot be started: {error}", retryable=True) from error
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        async for text in _lines(process.stderr):
            last.append(text)
            line(text)
        code = await process.wait()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if code != 0:
        raise EngineFailure(_last_words(last) or f"uv ended with exit code {code}", retryable=True)


async def _lines(stream: asyncio.StreamReader | None) -> AsyncIterator[str]:
    if stream is None:  # cannot happen: the pipe was requested
        return
    rest = b""
    while chunk := await stream.read(8192):
        *whole, rest = (rest + chunk).split(b"\n")
        for text in whole:
            yield text.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def _last_words(lines: Iterable[str]) -> str:
    """uv's error message without its frames and hints, in one line."""
    words = (line.strip(_FRAMES).strip() for line in lines if not _ASIDE.match(line))
    return "; ".join(word for word in words if word)

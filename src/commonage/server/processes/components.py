"""The control plane's children as external components: in containers of their own, run by `commonage component NAME`.

The control plane writes the description of each to DATA_DIR/components/NAME.json (0600). The component's process waits
for that file, restarts when its content changes, and stops when it is removed. So hub and proxy live through a
restart of the control plane, and neither sees the Docker socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from commonage.server import ServerError
from commonage.server.data_dir import write_private
from commonage.server.processes.children import Child, ChildFailed, Supervisor, inherited_environment
from commonage.server.settings.settings import Settings

_FOLDER = "components"
_PORTS = ("port", "control_port", "hub_port", "proxy_api_port")
_URLS = ("control_url", "hub_url", "proxy_api_url")
_LOOK_EVERY_S = 0.5
_EXTERNAL_WITHIN_S = 60.0  # they are started and stopped by others, at their own time
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}", re.ASCII)


class ComponentError(ServerError):
    """A component cannot be run; the message says why and what to do."""


def check_places(settings: Settings) -> None:
    """Require fixed ports, because components elsewhere cannot be asked for a free one, and addresses if they are in
    pods of their own. Raises ComponentError.
    """
    children = settings.children
    if free := [name for name in _PORTS if not getattr(settings, name)]:
        raise ComponentError(f"children = {children} needs fixed ports. Set {', '.join(free)}, which is 0 now.")
    if children == "remote" and (missing := [name for name in _URLS if not getattr(settings, name)]):
        raise ComponentError(
            f"children = remote needs the addresses of the components. Set {', '.join(missing)}, which is not set now."
        )


def write_components(children: Sequence[Child], data_dir: Path) -> None:
    (data_dir.absolute() / _FOLDER).mkdir(mode=0o700, exist_ok=True)
    for child in children:
        text = json.dumps(_description(child, data_dir.absolute()), indent=2, sort_keys=True)
        path = _file(child.name, data_dir)
        if _read(path) != text:
            write_private(path, text)


def _file(name: str, data_dir: Path) -> Path:
    return data_dir.absolute() / _FOLDER / f"{name}.json"


def _description(child: Child, data_dir: Path) -> Mapping[str, object]:
    own = {name: value for name, value in child.env.items() if os.environ.get(name) != value}
    files = [*(Path(word) for word in child.argv if word.startswith(f"{data_dir}/")), *child.reads]
    content = hashlib.sha256(b"\0".join(path.read_bytes() for path in files if path.is_file())).hexdigest()
    return {
        "argv": list(child.argv),
        "cwd": str(child.cwd),
        "log": str(child.log_path.absolute()),
        "grace_s": child.grace_s,
        "variables": own,  # variables that differ from the control plane's own environment
        "content": content,  # of the files that it reads at its start: a change restarts the component
    }


class ExternalComponent:
    """One external child, started and stopped as a Supervisor would: by writing and removing its description."""

    def __init__(self, child: Child, data_dir: Path) -> None:
        self._child = child
        self._data_dir = data_dir

    async def start(self) -> None:
        """Write the description and wait until the child is ready. Raises ChildFailed."""
        await asyncio.to_thread(write_components, [self._child], self._data_dir)
        if not await self._wait(True, self._child.ready_s + _EXTERNAL_WITHIN_S):
            name = self._child.name
            raise ChildFailed(
                f"{name} does not answer. Check that `commonage component {name}` runs, and see {self._child.log_path}."
            )

    async def stop(self) -> None:
        _file(self._child.name, self._data_dir).unlink(missing_ok=True)
        await self._wait(False, self._child.grace_s + _EXTERNAL_WITHIN_S)

    async def _wait(self, wanted: bool, within_s: float) -> bool:
        """Wait until `ready` has the wanted answer; False after a timeout."""
        ready = self._child.ready
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while ready is not None and await ready() is not wanted:  # noqa: ASYNC110 - asks a process
                    await asyncio.sleep(_LOOK_EVERY_S)
                return True
        return False


async def run_component(name: str, data_dir: Path, stopping: asyncio.Event) -> None:
    """Run the component until it is stopped, as its newest description says. Raises ComponentError, ChildFailed."""
    if not _NAME.fullmatch(name):
        raise ComponentError(f"Unknown component {name[:40]!r}. The components are hub, proxy and registry.")
    path = _file(name, data_dir)
    while not stopping.is_set():
        description = _read(path)
        if description is None:
            await _pause(stopping)
            continue
        async with Supervisor([_child(name, description, path)]):
            while not stopping.is_set() and _read(path) == description:
                await _pause(stopping)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ComponentError(f"Cannot read {path}: {error.strerror}.") from error


def _child(name: str, description: str, path: Path) -> Child:
    try:
        fields = json.loads(description)
        return Child(
            name=name,
            argv=[str(word) for word in fields["argv"]],
            env={**inherited_environment(), **fields["variables"]},
            log_path=Path(fields["log"]),
            cwd=Path(fields["cwd"]),
            grace_s=float(fields["grace_s"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ComponentError(
            f"Invalid description of a component: {path}. Restart the control plane, which writes it."
        ) from error


async def _pause(stopping: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), _LOOK_EVERY_S)

"""Sends the packed files of a job into a container, where its `tar` or its Python unpacks them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Final

from commonage.domain.errors import EngineFailure
from commonage.engines.kubernetes.channels.connection import Container
from commonage.engines.kubernetes.channels.execs import PodExecs
from commonage.ports.execs import ExecStream

_MAX_COMPLAINT = 2000
_PYTHON = 'import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz").extractall(".", filter="data")'
_UNPACK: Final = f"""
set -e
target=$1 parent=${{1%/*}} name=${{1##*/}}
[ ! -d "$target" ] || exit 0
mkdir -p "$parent"
rm -rf "$parent/.$name."*
fresh=$parent/.$name.$2
mkdir "$fresh"
cd "$fresh"
if command -v tar >/dev/null 2>&1; then
  tar -xzof -
else
  python=$(command -v python3 || command -v python) || {{ echo 'the image has neither tar nor Python' >&2; exit 127; }}
  "$python" -c '{_PYTHON}'
fi
[ -d "$target" ] || mv "$fresh" "$target"
"""
"""The folder appears whole, or not at all. It stays as it is if it is there."""


async def send_files(execs: PodExecs, container: Container, packed: AsyncIterator[bytes], folder: str) -> None:
    """Unpack a tar.gz as this folder of the container, once. May be repeated. Raises NotRunning, EngineFailure."""
    command = ("/bin/sh", "-c", _UNPACK, "unpack", folder, secrets.token_hex(6))
    stream = await execs.begin(container, container.pod, command, None)
    reading = asyncio.create_task(_complaint(stream))
    try:
        async for part in packed:
            if reading.done():
                break
            await stream.write(part)
        await stream.close_stdin()
        complaint = await reading
        if (code := await stream.exit_code()) != 0:
            text = complaint.decode(errors="replace").strip() or f"exit code {code}"
            raise EngineFailure(f"the files sent along cannot be unpacked: {text}", retryable=code > _SIGNALS)
    finally:
        reading.cancel()
        await stream.close()


_SIGNALS = 128
"""A greater exit code is the end by a signal, from outside."""


async def _complaint(stream: ExecStream) -> bytes:
    said = b""
    while (one := await stream.read()) is not None:
        said = (said + one[1])[:_MAX_COMPLAINT]
    return said

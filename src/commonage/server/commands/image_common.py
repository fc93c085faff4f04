"""Shared by `commonage image build` and `push`: access to the registry, and the progress on the terminal."""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from commonage.cli.connection import Server, connect
from commonage.cli.errors import Failure as ClientFailure
from commonage.domain.images import ImageName
from commonage.images.buildah import ImageError
from commonage.images.recipe import RecipeError
from commonage.sdk.errors import ApiError
from commonage.server.commands.common import Failure, reported

_NAME_ERRORS = ("invalid-image", "unknown-tenant", "not-a-member", "not-admin", "not-yours")

isolation_option = click.option(
    "--isolation", type=click.Choice(["chroot", "rootless", "oci"]), default="chroot", show_default=True,
    help="How buildah isolates the build from this machine.",
)  # fmt: skip
_WIDTH = 30
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Access:
    """`address` is `HOST:PORT`; empty without a registry. `options` are for buildah. `certificate` is the CA in PEM."""

    address: str = ""
    options: tuple[str, ...] = ()
    certificate: str = ""


@contextmanager
def registry_access(server: Server, name: ImageName, *, needed: bool = True) -> Iterator[Access]:
    """Access to the registry during the block. If it is not `needed`, empty without a server or registry.

    Raises ApiError if the user may not push an image of this name, before anything is built.
    """
    try:
        with connect(server, reconnect_timeout_s=0) as client:
            client.check_image_name(str(name))
            found, user = client.registry(), client.info().user
    except (ApiError, ClientFailure) as error:
        if needed or (isinstance(error, ApiError) and error.code in _NAME_ERRORS):
            raise
        yield Access()
        return
    with tempfile.TemporaryDirectory(prefix="commonage-registry-") as made:
        folder = Path(made)
        (folder / "certs").mkdir()
        (folder / "certs" / "ca.crt").write_text(found.certificate, encoding="ascii")
        known = base64.b64encode(f"{user}:{server.token}".encode()).decode()
        # In a private folder, because all users of the machine can read command lines.
        auth = folder / "auth.json"
        auth.write_text(json.dumps({"auths": {found.address: {"auth": known}}}), encoding="ascii")
        options = ("--authfile", str(auth), "--cert-dir", str(folder / "certs"))
        yield Access(found.address, options, found.certificate)


class Steps:
    """Reports steps on stderr. `verbose` prints every line of output."""

    def __init__(self, verbose: bool, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._verbose = verbose
        self._monotonic = monotonic
        self._live = sys.stderr.isatty() and not verbose
        self._title = ""
        self._began = 0.0

    def begin(self, title: str) -> None:
        self.done()
        self._title, self._began = title, self._monotonic()
        if self._live or self._verbose:
            self._show(f"  {title} …")

    def detail(self, text: str) -> None:
        if self._verbose:
            click.echo(f"    {text}", err=True)
        elif self._live and text.strip():
            self._show(f"  {self._title:<{_WIDTH}} {text.strip()}"[:_SHOWN])

    def done(self) -> None:
        if self._title:
            self._clear()
            click.echo(f"  {self._title:<{_WIDTH}} done after {self._monotonic() - self._began:.1f} s", err=True)
        self._title = ""

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Run the block as one step."""
        self.begin(title)
        yield
        self.done()

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Turn an error of the block into Failure, and clear the step that failed before it is printed."""
        try:
            with reported():
                yield
        except (ImageError, RecipeError) as error:
            self._clear()
            raise Failure(str(error)) from None

    def _show(self, text: str) -> None:
        if self._live:
            self._clear()
            click.echo(text, nl=False, err=True)
        else:
            click.echo(text, err=True)

    def _clear(self) -> None:
        if self._live:
            click.echo("\r\x1b[2K", nl=False, err=True)

"""How the verbs of images reach the site's registry: its address, its authority, the token of whoever asks."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commonage.cli.connection import connect
from commonage.cli.credentials import Server
from commonage.cli.failures import Failure
from commonage.domain.images import ImageName
from commonage.sdk.errors import ApiError

_OF_THE_NAME = ("invalid-image", "unknown-tenant", "not-a-member", "not-admin", "not-yours")


@dataclass(frozen=True, slots=True)
class Access:
    """`address` is `HOST:PORT`, empty where no registry is known. `options` let buildah in there.

    `certificate` (PEM) is that of its authority.
    """

    address: str = ""
    options: tuple[str, ...] = ()
    certificate: str = ""


@contextmanager
def registry_access(server: Server, name: ImageName, *, needed: bool = True) -> Iterator[Access]:
    """The way into the registry, while the block lasts. Not `needed`: none, where no server or no registry is.

    Raises ApiError if no image may be pushed under that name: before one is built, or brought there.
    """
    try:
        with connect(server, reconnect_timeout_s=0) as client:
            client.check_image_name(str(name))
            found, who = client.registry(), client.info().user
    except (ApiError, Failure) as error:
        if needed or (isinstance(error, ApiError) and error.code in _OF_THE_NAME):
            raise
        yield Access()
        return
    with tempfile.TemporaryDirectory(prefix="commonage-registry-") as made:
        folder = Path(made)
        (folder / "certs").mkdir()
        (folder / "certs" / "ca.crt").write_text(found.certificate, encoding="ascii")
        known = base64.b64encode(f"{who}:{server.token}".encode()).decode()
        # A file, and 0600 by its folder: arguments can be read by everybody on the node.
        auth = folder / "auth.json"
        auth.write_text(json.dumps({"auths": {found.address: {"auth": known}}}), encoding="ascii")
        options = ("--authfile", str(auth), "--cert-dir", str(folder / "certs"))
        yield Access(found.address, options, found.certificate)

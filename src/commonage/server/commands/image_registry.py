"""Access of the image commands to the registry: its address, its certificate, and the credentials of the user."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commonage.cli.connection import Server, connect
from commonage.cli.errors import Failure
from commonage.domain.images import ImageName
from commonage.sdk.errors import ApiError

_NAME_ERRORS = ("invalid-image", "unknown-tenant", "not-a-member", "not-admin", "not-yours")


@dataclass(frozen=True, slots=True)
class Access:
    """`address` is `HOST:PORT`; empty without a registry. `options` are for buildah. `certificate` is the CA in PEM."""

    address: str = ""
    options: tuple[str, ...] = ()
    certificate: str = ""


@contextmanager
def registry_access(server: Server, name: ImageName, *, needed: bool = True) -> Iterator[Access]:
    """Access to the registry during the block. If it is not `needed`, empty without a server or registry.

    Raises ApiError if the user may not push an image of this name, so that nothing is built in vain.
    """
    try:
        with connect(server, reconnect_timeout_s=0) as client:
            client.check_image_name(str(name))
            found, user = client.registry(), client.info().user
    except (ApiError, Failure) as error:
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

"""Client of the join service. It trusts only the certificate authority that the token names.

Runs on the node that joins: at the end of `join.sh`, which contains this file and lets it fetch the rest, and imported
by `commonage.agent.join`. So it is one file that uses the standard library alone.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import ssl
import sys
import tarfile
import time
from collections.abc import Sequence
from typing import Any

NAME = "join.commonage.internal"
"""The name in the join server's certificate, whatever address a node dials."""
TIMEOUT_S = 20.0
POD_PATH = "/pod"
"""Path at which node agents of a Kubernetes cluster join. Their bearer token is the token of their Pod."""
AUTHORITY_PATH, SITE_PATH = "/authority", "/site"
"""Paths for machines that join as sites: the certificate of the authority (without a token), and the site's own."""
SITE_PURPOSE = "site"
"""The purpose of a token with which a machine joins as a site of its own, not as a node."""
_MAX_BYTES = 64 * 1024 * 1024
_NOT_YET_VALID, _EXPIRED = 9, 10  # OpenSSL's numbers for certificate errors


class JoinRefused(Exception):
    """The join service refused, or no trusted server answers; the message is for the operator of the node."""


def read_token(token: str, purpose: str = "join") -> dict[str, Any]:
    """The content of a token: `purpose`, `until` (unix seconds), `at` (HOST:PORT each), `authority` (SHA-256, hex).

    Only the control plane can tell whether it is genuine and still valid: this node's clock may be wrong. Raises
    JoinRefused.
    """
    parts = token.strip().split(".")
    try:
        if len(parts) != 3 or parts[0] != "cmj1":
            raise ValueError(token)
        read = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        places = read["at"]
        if read["purpose"] != purpose or not places or not all(isinstance(one, str) for one in places):
            raise ValueError(token)
        if len(str(read["authority"])) != 64:
            raise ValueError(token)
    except (ValueError, KeyError, TypeError):
        command = "site token NAME" if purpose == SITE_PURPOSE else "node token"
        raise JoinRefused(
            f"this is not a join token: create one with `commonage {command}` on the control plane, and copy all of it"
        ) from None
    return dict(read)


class _Connection(http.client.HTTPConnection):
    """HTTPS to a server with a certificate for NAME, whatever its address."""

    def __init__(self, host: str, port: int, trust: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self._trust = trust

    def connect(self) -> None:
        super().connect()
        self.sock = self._trust.wrap_socket(self.sock, server_hostname=NAME)


class TrustedClient:
    """The control plane's join server at one of `places` (HOST:PORT). `authority` is the PEM that verifies it.

    `token` is the bearer token to send. Raises JoinRefused for an authority that is not PEM.
    """

    def __init__(self, token: str, authority: str, places: Sequence[str]) -> None:
        self.token, self._places = token.strip(), [str(one) for one in places]
        try:
            self._trust = ssl.create_default_context(cadata=authority.strip() + "\n")
        except (ssl.SSLError, ValueError):
            raise JoinRefused("the certificate of the site's authority cannot be read: fetch it again") from None
        self._trust.minimum_version = ssl.TLSVersion.TLSv1_2

    def get(self, path: str) -> bytes:
        """The content at this path. Raises JoinRefused."""
        return self._request("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a JSON object and return the JSON object of the answer. Raises JoinRefused."""
        return dict(json.loads(self._request("POST", path, json.dumps(body).encode())))

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        last = ""
        for place in self._places:
            try:
                return self._request_at(place, method, path, body)
            except ssl.SSLCertVerificationError as error:
                raise JoinRefused(f"{_certificate_error(place, error)}; nothing was sent") from None
            except (OSError, http.client.HTTPException) as error:
                last = f"{place} cannot be reached: {error}"
        raise JoinRefused(f"{last}. Check that no firewall blocks the connection to the control plane")

    def _request_at(self, place: str, method: str, path: str, body: bytes | None) -> bytes:
        host, _, port = place.rpartition(":")
        connection = _Connection(host.strip("[]"), int(port), self._trust)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read(_MAX_BYTES)
        finally:
            connection.close()
        if response.status != 200:
            raise JoinRefused(_error_text(response.status, content))
        return content


class JoinClient(TrustedClient):
    """A client with a join token, which has the digest of `authority`, the certificate that came with the script.

    `places` are HOST:PORT to try in place of those in the token.
    """

    def __init__(self, token: str, authority: str, *, purpose: str = "join", places: Sequence[str] = ()) -> None:
        content = read_token(token, purpose)
        try:
            digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority.strip())).hexdigest()
        except ValueError:
            raise JoinRefused(
                "the certificate of the site's authority cannot be read: download the script again"
            ) from None
        if digest != content["authority"]:
            raise JoinRefused(
                "the script and the token are of different sites, or the script was changed in transit: the token "
                f"names the authority {content['authority'][:16]}…, the script carries {digest[:16]}…"
            )
        super().__init__(token, authority, places or content["at"])


def _certificate_error(place: str, error: ssl.SSLCertVerificationError) -> str:
    reason = error.verify_message
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
        here = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        return (
            f"this machine's clock says {here}, and the certificate of {place} is not valid at that time ({reason}): "
            "set the clock with `timedatectl set-ntp true` or by hand"
        )
    return f"the server at {place} has no certificate of the site's authority ({reason})"


def _error_text(status: int, content: bytes) -> str:
    try:
        return str(json.loads(content)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the control plane answered {status}: {content[:200].decode(errors='replace')}"


def unpack(bundle: str, folder: str) -> None:
    """Unpack the agent's archive. Raises JoinRefused for an archive with unexpected content."""
    try:
        with tarfile.open(bundle, "r:gz") as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(folder, filter="data")
                return
            for member in archive.getmembers():
                if not (member.isfile() or member.isdir()) or member.name.startswith("/") or ".." in member.name:
                    raise JoinRefused(f"the bundle {bundle} contains {member.name!r}, which is not allowed")
            archive.extractall(folder)  # noqa: S202 (each member was checked above)
    except (OSError, tarfile.TarError) as error:
        raise JoinRefused(f"the bundle {bundle} cannot be unpacked: {error}") from None


def main() -> int:
    """Fetch the bundle, unless it was supplied, and unpack it. The paths come from environment variables."""
    environment = os.environ
    try:
        join_client = JoinClient(environment["COMMONAGE_JOIN_TOKEN"], environment["COMMONAGE_JOIN_AUTHORITY"])
        bundle = environment.get("COMMONAGE_JOIN_BUNDLE", "")
        if not bundle:
            bundle = environment["COMMONAGE_JOIN_WORK"] + "/bundle.tar.gz"
            with open(bundle, "wb") as file:
                file.write(join_client.get("/bundle"))
        unpack(bundle, environment["COMMONAGE_JOIN_WORK"])
    except JoinRefused as error:
        print(f"join: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

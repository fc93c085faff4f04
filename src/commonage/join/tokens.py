"""Join tokens: signed, for this one purpose, valid for a limited time.

Used by `service`. No I/O except the secret's file.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonage.domain.errors import CommonageError, Forbidden, InvalidInput, file_errors
from commonage.join.client import SITE_PURPOSE

MAX_LIFETIME_S = 7 * 86400
DEFAULT_LIFETIME_S = 3600
_VERSION, _JOIN = "cmj1", "join"
_WHAT = "the secret of the join tokens"


@dataclass(frozen=True, slots=True)
class Revocation:
    """A prepared invalidation of all tokens: written next to the secret, not yet in force.

    Its commit needs no more disk space.
    """

    new_file: Path
    file: Path

    def commit(self) -> None:
        with file_errors(_WHAT, self.file):
            self.new_file.replace(self.file)

    def cancel(self) -> None:
        """Cancel the invalidation; does nothing once it was carried out."""
        self.new_file.unlink(missing_ok=True)


class Tokens:
    """Creates and checks tokens, with a secret in a file (0600) that is created at first use.

    Methods that write the file raise Unavailable and change nothing if that fails: the disk may be full. `authority` is
    the fingerprint of the site's own certificate, by which a node verifies the server.
    """

    def __init__(self, secret: Path, authority: str) -> None:
        self._file, self._authority = secret, authority

    def make(self, at: Sequence[str], now: float, for_s: int = DEFAULT_LIFETIME_S) -> str:
        """A token for nodes that reach the control plane at one of `at` (HOST:PORT). Raises InvalidInput."""
        return self._make({"purpose": _JOIN}, at, now, for_s)

    def make_for_site(self, site: str, at: Sequence[str], now: float, for_s: int) -> str:
        """As `make`, for one machine that joins as this site. No two are equal. Raises InvalidInput."""
        return self._make({"purpose": SITE_PURPOSE, "site": site, "id": secrets.token_hex(8)}, at, now, for_s)

    def _make(self, content: Mapping[str, str], at: Sequence[str], now: float, for_s: int) -> str:
        if not 60 <= for_s <= MAX_LIFETIME_S:
            raise InvalidInput(f"a join token can be valid for 1 minute to 7 days, not {for_s} seconds", field="for_s")
        complete = {**content, "until": int(now) + for_s, "at": list(at), "authority": self._authority}
        body = _text(json.dumps(complete, separators=(",", ":")).encode())
        return f"{_VERSION}.{body}.{_text(self._signature(body))}"

    def check(self, token: str, now: float) -> None:
        """Raises Forbidden, which says why the token is not valid for a node."""
        content = self._verified(token)
        if content.get("purpose") != _JOIN:
            raise Forbidden("this token is not for joining nodes")
        if content["until"] < now:
            raise Forbidden("this join token has expired: create a new one with `commonage node token`")

    def check_for_site(self, token: str, now: float) -> str:
        """The name of the site. Raises Forbidden, which says why the token is not valid for a site."""
        content = self._verified(token)
        if content.get("purpose") != SITE_PURPOSE:
            raise Forbidden("this token is not for joining as a site: create one with `commonage site token NAME`")
        if content["until"] < now:
            raise Forbidden(f"this token has expired: create a new one with `commonage site token {content['site']}`")
        return str(content["site"])

    def _verified(self, token: str) -> dict[str, Any]:
        version, _, rest = token.partition(".")
        body, _, signature = rest.partition(".")
        if version != _VERSION or not hmac.compare_digest(_text(self._signature(body)).encode(), signature.encode()):
            raise Forbidden("this join token is of another site, or was revoked: ask for a new one")
        return dict(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))

    def revoke_all(self) -> None:
        """Invalidate all tokens made until now."""
        revocation = self.prepare_revocation()
        try:
            revocation.commit()
        finally:
            revocation.cancel()

    def prepare_revocation(self) -> Revocation:
        """Prepare to invalidate all tokens, for a caller that must do this together with another change, or neither."""
        with file_errors(_WHAT, self._file):
            return Revocation(self._write_new(secrets.token_hex(32)), self._file)

    def _signature(self, body: str) -> bytes:
        return hmac.digest(self._secret().encode(), f"{_VERSION}.{body}".encode(), hashlib.sha256)

    def _secret(self) -> str:
        try:
            if self._file.stat().st_mode & 0o077:
                raise CommonageError(f"{self._file} can be read by others; run: chmod 600 {self._file}")
            return self._file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            self.revoke_all()
            return self._file.read_text(encoding="utf-8").strip()

    def _write_new(self, value: str) -> Path:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp makes it 0600.
        handle, fresh = tempfile.mkstemp(dir=self._file.parent, prefix=f".{self._file.name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(value + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            Path(fresh).unlink()
            raise
        return Path(fresh)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

"""Tokens with which machines may join: signed, for this one purpose, good for a while. No I/O but the secret's file."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from commonage.domain.errors import CommonageError, Forbidden, InvalidInput
from commonage.domain.keeping import keeping

LONGEST_S = 7 * 86400
USUAL_S = 3600
_VERSION = "cmj1"
_WHAT = "the secret of the join tokens"


@dataclass(frozen=True, slots=True)
class Forgetting:
    """That no token is good any more, written beside and not in force: what comes next needs no room on the disk."""

    fresh: Path
    file: Path

    def carry_out(self) -> None:
        """From now on no token that was made until now is good."""
        with keeping(_WHAT, self.file):
            self.fresh.replace(self.file)

    def drop(self) -> None:
        """Leave it at what was; nothing once it was carried out."""
        self.fresh.unlink(missing_ok=True)


class Tokens:
    """Makes tokens and checks them, with a secret in a file (0600) that is made at the first use.

    All that writes it raises Unavailable, and changes nothing, if it cannot: the disk may be full. `authority` is the
    fingerprint of the site's own certificate, by which a machine knows whom it talks to.
    """

    def __init__(self, secret: Path, authority: str) -> None:
        self._file, self._authority = secret, authority

    def make(self, at: Sequence[str], now: float, for_s: int = USUAL_S) -> str:
        """A token for machines that reach the control plane at one of `at` (HOST:PORT). Raises InvalidInput."""
        if not 60 <= for_s <= LONGEST_S:
            raise InvalidInput(f"a join token is good for 1 minute to 7 days, not {for_s} seconds", field="for_s")
        said = {"purpose": "join", "until": int(now) + for_s, "at": list(at), "authority": self._authority}
        body = _text(json.dumps(said, separators=(",", ":")).encode())
        return f"{_VERSION}.{body}.{_text(self._signature(body))}"

    def check(self, token: str, now: float) -> None:
        """Raises Forbidden, with what is wrong with it."""
        version, _, rest = token.partition(".")
        body, _, signature = rest.partition(".")
        if version != _VERSION or not hmac.compare_digest(_text(self._signature(body)).encode(), signature.encode()):
            raise Forbidden("this join token is not of this site, or all tokens were revoked since; ask for a new one")
        said = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        if said.get("purpose") != "join":
            raise Forbidden("this token is not for joining machines")
        if said["until"] < now:
            raise Forbidden("this join token has expired; `commonage node token` gives a new one")

    def forget(self) -> None:
        """From now on no token that was made until now is good."""
        forgetting = self.begin_to_forget()
        try:
            forgetting.carry_out()
        finally:
            forgetting.drop()

    def begin_to_forget(self) -> Forgetting:
        """Make all ready to forget them, for who has to do something else with it, or neither."""
        with keeping(_WHAT, self._file):
            return Forgetting(self._beside(secrets.token_hex(32)), self._file)

    def _signature(self, body: str) -> bytes:
        return hmac.digest(self._secret().encode(), f"{_VERSION}.{body}".encode(), hashlib.sha256)

    def _secret(self) -> str:
        try:
            if self._file.stat().st_mode & 0o077:
                raise CommonageError(f"{self._file} can be read by others; run: chmod 600 {self._file}")
            return self._file.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            self.forget()
            return self._file.read_text(encoding="utf-8").strip()

    def _beside(self, value: str) -> Path:
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

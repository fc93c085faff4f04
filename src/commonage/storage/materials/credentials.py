"""The credentials of materials: a deploy key that the platform makes, a token, and the secret of the webhook.

Each material has a folder of its own (0700) with files of 0600, below the folder of the installation's secrets.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from commonage.files.git import GitAccess
from commonage.ports.materials import MaterialAccess


@dataclass(frozen=True, slots=True)
class Credentials:
    """All methods raise OSError."""

    root: Path

    def access(self, name: str) -> MaterialAccess:
        key = self._deploy_key(name)
        public = key.with_suffix(".pub").read_text(encoding="ascii").strip()
        secret = self._folder(name) / "webhook"
        if not secret.exists():
            _write(secret, secrets.token_hex(32))
        return MaterialAccess(public, (self._folder(name) / "token").exists(), secret.read_text(encoding="ascii"))

    def git_access(self, name: str) -> GitAccess:
        folder, user, token = self._folder(name), "", ""
        if (folder / "token").exists():
            user, token = json.loads((folder / "token").read_text(encoding="utf-8"))
        return GitAccess(self._deploy_key(name), folder / "known_hosts", user, token)

    def set_token(self, name: str, user: str, token: str) -> None:
        place = self._folder(name) / "token"
        if token:
            _write(place, json.dumps([user, token]))
        else:
            place.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        if (self.root / name).exists():
            shutil.rmtree(self.root / name)

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _deploy_key(self, name: str) -> Path:
        place = self._folder(name) / "deploy_key"
        if not place.exists():
            key = Ed25519PrivateKey.generate()
            public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
            # The public key first: the private one shows that both are there.
            _write(place.with_suffix(".pub"), f"{public} commonage-material-{name}\n")
            _write(place, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode())
        return place


def _write(place: Path, text: str) -> None:
    """Write a private file atomically."""
    new = place.with_name(f".{place.name}.{secrets.token_hex(6)}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(place)

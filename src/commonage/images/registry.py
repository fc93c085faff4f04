"""The site's image registry: the images in its folder, which of them may be removed, and the tokens of its clients.

The layout is docker-registry's own (`docker/registry/v2`). It is only read here, in threads: the registry itself
deletes. A file next to the storage records when the catalogue last needed each image. So a replaced or removed image
stays as long as a new one: starting attempts may still pull it, and its digest may be registered again.

Tokens are signed here and verified by the registry by the certificate in its settings. Their form is that of the
registries' token protocol; the key identifier is derived from the key as docker-registry does it.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from commonage.domain.images import Access

log = logging.getLogger(__name__)

_Place = tuple[str, str]  # repository and digest
# docker-registry accepts no larger manifest.
_MANIFEST_MAX = 4 * 1024 * 1024
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
ISSUER = "commonage"
LASTS_S, SITE_LASTS_S, BUILD_LASTS_S = 300, 3600, 48 * 3600
"""How long a token is valid; a site elsewhere cannot get the next one while it pulls a large image."""
_CLOCKS_MAY_DIFFER_S = 60


@dataclass(frozen=True, slots=True)
class Stored:
    """A manifest in a repository. `at`: when it was pushed last, unix seconds."""

    repository: str
    digest: str
    at: float

    def __str__(self) -> str:
        return f"{self.repository}@{self.digest}"


def stored(storage: Path) -> list[Stored]:
    found = []
    for folder in sorted(_root(storage, "repositories").glob("**/_manifests/revisions/sha256")):
        repository = folder.parents[2].relative_to(_root(storage, "repositories")).as_posix()
        for link in sorted(folder.glob("*/link")):
            found.append(Stored(repository, f"sha256:{link.parent.name}", link.stat().st_mtime))
    return found


def tagged(storage: Path, repository: str, tag: str) -> str | None:
    """The digest that a tag names; None if the tag does not exist."""
    link = _root(storage, "repositories") / repository / "_manifests/tags" / tag / "current/link"
    try:
        digest = link.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return digest if _DIGEST.fullmatch(digest) else None


def needed(storage: Path, address: str, keep: Collection[str]) -> set[str]:
    """The stored manifests of the images named in `keep`, including the parts of an index, as `REPOSITORY@sha256:…`."""
    return {f"{repository}@{digest}" for repository, digest in _with_parts(storage, _named(storage, address, keep))}


def unneeded(
    storage: Path, keep: Collection[str], before: float, last_needed: Mapping[str, float] | None = None
) -> list[Stored]:
    """Manifests that are not in `keep` (see `needed`), and were last pushed and last needed before a time.

    Manifests listed by an index that stays are excluded. `last_needed`: when (unix seconds) each was last needed.
    """
    everything, noted = stored(storage), last_needed or {}
    # A new image may be about to be registered, and so may an index with old parts.
    young = [one for one in everything if max(one.at, noted.get(str(one), 0.0)) >= before]
    stays = _with_parts(storage, ((one.repository, one.digest) for one in young))
    kept = {*keep, *(f"{repository}@{digest}" for repository, digest in stays)}
    return [one for one in everything if str(one) not in kept]


def last_needed(file: Path) -> dict[str, float]:
    """The last recorded time (unix seconds) at which each image (`REPOSITORY@sha256:…`) was needed."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): float(at) for name, at in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("registry: cannot read when images were needed, so only push times count: %s", error)
        return {}


def note_needed(
    file: Path, before: Mapping[str, float], now: Mapping[str, float], stored_names: Collection[str]
) -> None:
    """Store the times of `before` and `now` for the images that are still stored, atomically.

    A write error is only logged: images must be deleted even if the disk is full.
    """
    kept = {name: at for name, at in {**before, **now}.items() if name in stored_names}
    new = file.with_suffix(".new")
    try:
        with new.open("w", encoding="utf-8") as opened:
            json.dump(kept, opened, indent=0, sort_keys=True)
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(file)
    except OSError as error:
        log.warning("registry: cannot record the needed images: %s", error)
        new.unlink(missing_ok=True)


def size_bytes(storage: Path) -> int:
    return sum(file.stat().st_size for file in _root(storage, "blobs").glob("sha256/*/*/data"))


def _named(storage: Path, address: str, names: Iterable[str]) -> Iterator[_Place]:
    for name in names:
        if not name.startswith(f"{address}/"):
            continue
        rest, _, pinned = name.removeprefix(f"{address}/").partition("@")
        repository, _, tag = rest.partition(":")
        digest = pinned or tagged(storage, repository, tag or "latest")
        if digest:
            yield repository, digest


def _with_parts(storage: Path, places: Iterable[_Place]) -> Iterator[_Place]:
    """These, and the manifests listed by each index among them."""
    for repository, digest in places:
        yield repository, digest
        yield from ((repository, part) for part in _parts(storage, digest))


def _parts(storage: Path, digest: str) -> list[str]:
    """The entries of an index. The user who pushes chooses the content, and a digest may name a layer of any size."""
    algorithm, _, code = digest.partition(":")
    try:
        with (_root(storage, "blobs") / algorithm / code[:2] / code / "data").open("rb") as blob:
            content = blob.read(_MANIFEST_MAX + 1)
        if len(content) > _MANIFEST_MAX:
            return []
        return [str(part["digest"]) for part in json.loads(content).get("manifests", ())]
    except (OSError, ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return []


def _root(storage: Path, what: str) -> Path:
    return storage / "docker/registry/v2" / what


class Signer:
    """A key for one run of the registry. It is only in memory, so it cannot leak from a file."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._key_id = key_id(self._key.public_key())

    def certificate(self, now: float) -> str:
        """The certificate by which the registry verifies tokens, PEM. It only carries the key: it is self-signed."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Commonage registry tokens")])
        moment = dt.datetime.fromtimestamp(int(now), tz=dt.UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(moment - dt.timedelta(days=1))
            .not_valid_after(moment + dt.timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return built.public_bytes(serialization.Encoding.PEM).decode()

    def sign(self, subject: str, audience: str, access: Sequence[Access], now: float, lasts_s: int = LASTS_S) -> str:
        """A token for the registry called `audience`."""
        claims: dict[str, Any] = {
            "iss": ISSUER,
            "sub": subject,
            "aud": audience,
            "iat": int(now),
            "nbf": int(now) - _CLOCKS_MAY_DIFFER_S,
            "exp": int(now) + lasts_s,
            "jti": secrets.token_hex(16),
            "access": [{"type": one.kind, "name": one.name, "actions": list(one.actions)} for one in access],
        }
        return jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": self._key_id})


def key_id(key: ec.EllipticCurvePublicKey) -> str:
    """240 bits of the key's SHA-256 in base 32, in twelve groups of four."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    letters = base64.b32encode(hashlib.sha256(der).digest()[:30]).decode()
    return ":".join(letters[start : start + 4] for start in range(0, len(letters), 4))

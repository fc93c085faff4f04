"""The sites that may connect: one small file (0600) in the folder of the certificate authority.

A site is known by the public key in its certificate, so that revoking it needs no list of serial numbers. Every call
reads the file again and writes it behind a lock. The methods block: call them in threads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from commonage.domain.codec import Unreadable, from_json, to_json
from commonage.domain.errors import Forbidden, NotFound, Unavailable
from commonage.files.atomic import write_file
from commonage.link.issued_certificates import locked

_WHAT = "the list of sites"
_REMEMBERED_KEYS = 2  # the last one, until its successor was used


@dataclass(frozen=True, slots=True)
class SiteEntry:
    """One site. `keys` are digests of its public keys, the newest last; none before it joined and after a revocation.

    `token` is the digest of the newest join token, valid until `token_until` (unix seconds); `token_key` is the key
    that it let in.
    """

    name: str
    token: str = ""
    token_until: float = 0.0
    token_key: str = ""
    keys: tuple[str, ...] = ()
    joined_at: float | None = None
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Content:
    sites: tuple[SiteEntry, ...] = ()


class SiteRegistry:
    """`now` gives unix seconds. Every method raises Unavailable if the file cannot be read or written."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self._path, self._now = path, now

    def sites(self) -> tuple[SiteEntry, ...]:
        return tuple(self._read().values())

    def admits(self, name: str, key: str) -> bool:
        """Whether this key identifies the site now."""
        entry = self._read().get(name)
        return entry is not None and key in entry.keys

    def invite(self, name: str, token: str, until: float) -> None:
        """Let a machine join as this site with the token, once. A site that has joined stays until then."""
        with locked(self._path, _WHAT):
            sites = self._read()
            before = sites.get(name, SiteEntry(name))
            self._write({**sites, name: replace(before, token=_digest(token), token_until=until, token_key="")})

    def join(self, name: str, token: str, key: str) -> None:
        """Use the token for this key, which replaces all earlier ones of the site. Raises Forbidden.

        The same key may use it again, because an answer may be lost on its way.
        """
        with locked(self._path, _WHAT):
            sites = self._read()
            entry = sites.get(name)
            if entry is None or entry.token != _digest(token):
                raise Forbidden(f"this token of the site {name} was revoked or replaced: request a new one")
            if entry.token_until < self._now():
                raise Forbidden(f"this token has expired: create a new one with `commonage site token {name}`")
            if entry.token_key not in ("", key):
                raise Forbidden(
                    f"this token was used already: create a new one with `commonage site token {name}`. If you did "
                    f"not use it, revoke the site with `commonage site revoke {name}`"
                )
            joined = replace(entry, token_key=key, keys=(key,), joined_at=self._now(), revoked_at=None)
            self._write({**sites, name: joined})

    def renew(self, name: str, before: str, key: str) -> None:
        """Let the site change from one key to another; both hold until the new one is used. Raises Forbidden."""
        with locked(self._path, _WHAT):
            sites = self._read()
            if name not in sites or before not in sites[name].keys:
                raise Forbidden(f"the certificate of the site {name} does not hold any more: have it join again")
            keys = tuple(dict.fromkeys((before, key)))[-_REMEMBERED_KEYS:]
            self._write({**sites, name: replace(sites[name], keys=keys)})

    def used(self, name: str, key: str) -> None:
        """The site connected with this key: earlier ones do not hold any more."""
        with locked(self._path, _WHAT):
            sites = self._read()
            if name in sites and len(sites[name].keys) > 1 and sites[name].keys[-1] == key:
                self._write({**sites, name: replace(sites[name], keys=(key,))})

    def revoke(self, name: str) -> None:
        """Revoke the keys and the token of the site. It stays listed. Raises NotFound."""
        with locked(self._path, _WHAT):
            sites = self._read()
            revoked = replace(_known(sites, name), token="", token_key="", keys=(), revoked_at=self._now())
            self._write({**sites, name: revoked})

    def remove(self, name: str) -> None:
        """As `revoke`, and forget the site. Raises NotFound."""
        with locked(self._path, _WHAT):
            sites = self._read()
            _known(sites, name)
            del sites[name]
            self._write(sites)

    def _read(self) -> dict[str, SiteEntry]:
        try:
            content = from_json(_Content, json.loads(self._path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, Unreadable) as error:
            raise Unavailable(
                f"{_WHAT} cannot be read from {self._path} ({error}): restore it from a backup"
            ) from error
        return {one.name: one for one in content.sites}

    def _write(self, sites: dict[str, SiteEntry]) -> None:
        content = _Content(tuple(sites[name] for name in sorted(sites)))
        write_file(self._path, json.dumps(to_json(content), indent=1), 0o600)


def _known(sites: dict[str, SiteEntry], name: str) -> SiteEntry:
    if name not in sites:
        raise NotFound(f"no site {name!r}. Sites: {', '.join(sites) or 'none'}", code="site-not-found")
    return sites[name]


def _digest(token: str) -> str:
    return hashlib.sha256(token.strip().encode()).hexdigest()

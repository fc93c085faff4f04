"""Joins this machine as a site of a control plane elsewhere. Called by `commonage site join`.

The key is made here and stays here. A join that was interrupted can be repeated with the same token.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from commonage.domain.errors import CommonageError, Forbidden, InvalidInput
from commonage.join.client import (
    AUTHORITY_PATH,
    SITE_PATH,
    SITE_PURPOSE,
    TIMEOUT_S,
    JoinClient,
    JoinRefused,
    read_token,
)
from commonage.link.sites.credentials import NotJoined, SiteCredentials, SiteIdentity, signing_request

DEFAULT_PORT = 8445
_MAX_BYTES = 64 * 1024


def join(credentials: SiteCredentials, token: str, address: str = "") -> SiteIdentity:
    """The identity of this site, kept in its folder; at once if it joined with this token before. Blocks.

    `address` is HOST or HOST:PORT of the join listener, in place of those in the token. Raises Forbidden, OSError.
    """
    digest = hashlib.sha256(token.strip().encode()).hexdigest()
    try:
        known = credentials.identity()
    except NotJoined:
        known = None
    if known is not None and known.token == digest:
        return known
    try:
        return _join(credentials, token, digest, address)
    except JoinRefused as refused:
        raise Forbidden(str(refused)) from None


def _join(credentials: SiteCredentials, token: str, digest: str, address: str) -> SiteIdentity:
    content = read_token(token, SITE_PURPOSE)
    places = [_place(address)] if address else [str(one) for one in content["at"]]
    authority = _authority(places, str(content["authority"]))
    client = JoinClient(token, authority, purpose=SITE_PURPOSE, places=places)
    key = credentials.pending_key()
    site = str(content["site"])
    answer = client.post(SITE_PATH, {"csr": signing_request(key, site)})
    identity = SiteIdentity(
        site=site,
        addresses=tuple(f"{place.rpartition(':')[0]}:{int(answer['port'])}" for place in places),
        authority=authority,
        certificate=str(answer["certificate"]),
        key=key,
        until=float(answer["until"]),
        token=digest,
    )
    identity.context()  # key and certificate belong together
    credentials.keep(identity)
    return identity


def _place(address: str) -> str:
    """`HOST:PORT`, from HOST, HOST:PORT or a URL. Raises InvalidInput."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    except ValueError:
        host, port = "", 0
    if not host:
        raise InvalidInput(f"{address!r} is not an address: write it like commonage.example.org:{DEFAULT_PORT}")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _authority(places: Sequence[str], fingerprint: str) -> str:
    """The certificate of the authority with this fingerprint (PEM), from the first place that answers.

    Its server is not verified: the fingerprint, which came with the token, verifies the certificate. No secret is sent.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    failure = ""
    for place in places:
        host, _, port = place.rpartition(":")
        connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S, context=context)
        try:
            connection.request("GET", AUTHORITY_PATH)
            response = connection.getresponse()
            pem = response.read(_MAX_BYTES).decode("ascii", errors="replace")
        except (OSError, http.client.HTTPException) as error:
            failure = f"{place} cannot be reached: {error}"
            continue
        finally:
            connection.close()
        try:
            found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.strip())).hexdigest()
        except ValueError:
            found = ""
        if found == fingerprint:
            return pem
        failure = (
            f"{place} is not the control plane that made this token: it has "
            f"{'the authority ' + found[:16] + '…' if found else 'no authority'}, the token names {fingerprint[:16]}…; "
            "nothing was sent"
        )
    raise CannotJoin(f"{failure}. Check the address, and that no firewall is between")


class CannotJoin(CommonageError):
    """The control plane cannot be reached, or is another one."""

    code = "cannot-join"

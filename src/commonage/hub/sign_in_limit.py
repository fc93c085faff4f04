"""Limits failed sign-ins to the hub, and the size of its requests. Installed by `jupyterhub_config.py`.

Only failures count, so a class that signs in at the same time from behind one router is not slowed. They are
counted for each address with each user name, and for each address with all names, at both places that accept a
password: the sign-in form, and the hub's API, which makes tokens for a password.

The address is the one in X-Forwarded-For only if the request came through the proxy. Others may reach the hub's port,
too, such as any Pod of a cluster without NetworkPolicies. Processes of this machine can still forge it at the proxy,
which trusts the loopback, where an HTTPS edge connects from.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyterhub import log
from jupyterhub.auth import Authenticator
from tornado import web
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest

from commonage.hub.proxy import PROXY_KEY_HEADER

MAX_BODY_BYTES = 1024 * 1024
_ADDRESS_FACTOR = 5  # for all names together: a whole lab may share one address
_MINUTE_S = 60.0
_MAX_KEYS = 10_000
_LONGEST_NAME = 64
_IPV6_PREFIX = 64  # the usual prefix of one customer


class SignInLimit:
    """Token buckets: `per_minute` failures at once and per minute for an address and a name."""

    def __init__(self, per_minute: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # the tokens left, and when

    def take(self, address: str, name: str) -> float:
        """Count a failure in advance. If the limit is reached, returns the seconds to wait and counts nothing."""
        bounds = self._bounds(address, name)
        wait_s = max((1 - self._left(key, bound)) * _MINUTE_S / bound for key, bound in bounds.items())
        if wait_s > 0:
            return wait_s
        self._change(bounds, -1)
        return 0.0

    def give_back(self, address: str, name: str) -> None:
        """Undo `take`, because the sign-in succeeded."""
        self._change(self._bounds(address, name), 1)

    def _bounds(self, address: str, name: str) -> dict[str, int]:
        return {address: _ADDRESS_FACTOR * self._per_minute, f"{address} {name}": self._per_minute}

    def _left(self, key: str, bound: int) -> float:
        left, at = self._buckets.get(key, (float(bound), 0.0))
        return min(float(bound), left + (self._monotonic() - at) * bound / _MINUTE_S)

    def _change(self, bounds: Mapping[str, int], by: int) -> None:
        for key, bound in bounds.items():
            self._buckets[key] = (min(float(bound), self._left(key, bound) + by), self._monotonic())
            self._buckets.move_to_end(key)
        while len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)


def install(per_minute: int, proxy_key: str, proxies: Sequence[str] = ()) -> None:
    """`proxy_key`: see PROXY_KEY_HEADER. `proxies`: addresses and networks of what stands before the proxy."""
    limit, trusted = SignInLimit(per_minute), [ipaddress.ip_network(one) for one in proxies]
    authenticate, initialize = Authenticator.get_authenticated_user, HTTPServer.initialize

    async def limited(self: Authenticator, handler: Any, data: Any) -> Any:
        if not data:  # a user who returns from another site's sign-in has given no password here
            return await authenticate(self, handler, data)
        request = handler.request
        is_of_proxy = hmac.compare_digest(request.headers.get(PROXY_KEY_HEADER, "").encode(), proxy_key.encode())
        forwarded_for = request.headers.get_list("X-Forwarded-For") if is_of_proxy else []
        address = client_address(forwarded_for, _peer(request), trusted)
        name = str(data.get("username", "") if isinstance(data, Mapping) else "").strip().lower()[:_LONGEST_NAME]
        wait_s = limit.take(address, name)
        if wait_s:
            raise _too_many(address, per_minute, wait_s)
        user = await authenticate(self, handler, data)
        if user:
            limit.give_back(address, name)
        return user

    def bounded(self: HTTPServer, *arguments: Any, **named: Any) -> None:
        # JupyterHub's requests are small. tornado would keep 100 MiB of each in memory, from any client.
        initialize(self, *arguments, **{"max_body_size": MAX_BODY_BYTES, **named})

    scrub = log._scrub_headers

    def scrubbed(headers: Mapping[str, str]) -> dict[str, str]:
        # JupyterHub logs the headers of a request that fails, and hides only those that it knows to be secret.
        return {name: text for name, text in scrub(headers).items() if name.lower() != PROXY_KEY_HEADER.lower()}

    log._scrub_headers = scrubbed
    Authenticator.get_authenticated_user = limited
    HTTPServer.initialize = bounded  # type: ignore[method-assign]  # JupyterHub has no setting for it


def _peer(request: HTTPServerRequest) -> str:
    """The other end of the connection. JupyterHub has tornado replace `remote_ip` by X-Forwarded-For of anybody."""
    return str(request.connection.context.address[0])  # type: ignore[union-attr]  # tornado's own type is wider


def client_address(
    forwarded_for: list[str],
    peer: str,
    proxies: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = (),
) -> str:
    """The client's address: the last address in the proxies' list that is neither this machine's own nor a proxy's.

    Each proxy appends the address of its client, so entries that a client forges come before that.
    """
    listed = [one.strip() for one in ",".join(forwarded_for).split(",") if one.strip()]
    for text in (*reversed(listed), peer):
        try:
            client = ipaddress.ip_address(text)
        except ValueError:
            continue
        if not client.is_loopback and not any(client in one for one in proxies):
            is_long = client.version == 6
            return str(ipaddress.ip_network((client, _IPV6_PREFIX), strict=False)) if is_long else str(client)
    return "this machine"


class _Refused(web.HTTPError):
    headers: Mapping[str, str]  # the hub's handlers send these


def _too_many(address: str, per_minute: int, wait_s: float) -> web.HTTPError:
    seconds = math.ceil(wait_s)
    error = _Refused(
        429,
        f"Too many failed sign-ins from {address}: at most {per_minute} a minute for a user name, and "
        f"{_ADDRESS_FACTOR * per_minute} for all, are allowed. Wait {seconds} s, then try again.",
    )
    error.headers = {"Retry-After": str(seconds)}
    return error

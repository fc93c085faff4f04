"""The identity port on JupyterHub's REST API: owners of tokens, sign-in for the portal, sessions, new tokens.

Wired by the server's bootstrap. The owner of a token is cached for half a minute, so that a page that polls costs
the hub one request. Concurrent requests with the same token wait for the same answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import httpx2

from commonage import tracing
from commonage.domain.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    TooMany,
    Unauthenticated,
    Unavailable,
)
from commonage.domain.principals import Principal, Scope
from commonage.ports.identity import Account, IssuedToken
from commonage.server.http_client import http_client
from commonage.wire.hub import CALLBACK_PATH, OAUTH_CLIENT_ID

_KNOWN_S = 30.0  # a revoked token works for up to this long
_UNKNOWN_S = 5.0  # shorter: a token just made must not be refused for long
_MAX_CACHED = 10_000
_PAGE = 200
_SERVER_NAME = re.compile(r"(?=.{1,30}$)[a-z][a-z0-9]*(-[a-z0-9]+)*")  # the hub's rule
_SCOPES = frozenset(scope.value for scope in Scope)


class HubIdentity:
    """Calls the hub, as its service `commonage`, at `hub_url` (no trailing slash).

    `doubt` returns why the hub may not recognize a valid token now (empty: no reason). The hub records each use of a
    token, and recognizes none if it cannot write.
    """

    def __init__(
        self,
        hub_url: str,
        service_token: str,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        doubt: Callable[[], str] = str,
    ) -> None:
        self._service_token = service_token
        self._doubt = doubt
        self._monotonic = monotonic
        self._client = http_client(
            base_url=f"{hub_url}/hub/api/",
            transport=transport,
            timeout=httpx2.Timeout(10, read=30),
            limits=httpx2.Limits(max_connections=50, max_keepalive_connections=10),
        )
        self._cache: OrderedDict[bytes, tuple[float, Principal | None]] = OrderedDict()
        self._pending: dict[bytes, asyncio.Task[Principal | None]] = {}

    async def aclose(self) -> None:
        await self._client.aclose()

    async def whois(self, token: str) -> Principal | None:
        """The owner of the token; None if it is not valid. Raises Unavailable."""
        digest = hashlib.sha256(token.encode()).digest()  # the tokens themselves are not kept in memory
        cached = self._cache.get(digest)
        if cached is not None and cached[0] > self._monotonic():
            return cached[1]
        pending = self._pending.get(digest)
        if pending is None:
            pending = self._pending[digest] = asyncio.create_task(self._fetch_owner(token, digest))
            pending.add_done_callback(lambda _: self._pending.pop(digest, None))
        # A caller that is cancelled while it waits must not cancel the answer for the others.
        return await asyncio.shield(pending)

    def forget(self, token: str) -> None:
        self._cache.pop(hashlib.sha256(token.encode()).digest(), None)

    def authorize_url(self, state: str) -> str:
        """The path, below the proxy's address, where a browser signs in."""
        query = {"client_id": OAUTH_CLIENT_ID, "redirect_uri": CALLBACK_PATH, "response_type": "code", "state": state}
        return f"/hub/api/oauth2/authorize?{urlencode(query)}"

    async def exchange(self, code: str) -> str:
        """The user's token for an OAuth code. Raises Unauthenticated, Unavailable."""
        response = await self._send(
            "POST",
            "oauth2/token",
            data={
                "client_id": OAUTH_CLIENT_ID,
                "client_secret": self._service_token,
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": CALLBACK_PATH,
            },
        )
        if response.status_code != httpx2.codes.OK:
            raise Unauthenticated("The sign-in is no longer valid. Sign in again.")
        return str(_json(response)["access_token"])

    async def start_session(self, user: str, name: str, options: Mapping[str, Any]) -> None:
        """Start a session through the hub. Raises Conflict if it runs already or still stops, InvalidInput with the
        hub's reason.
        """
        if name and not _SERVER_NAME.fullmatch(name):
            raise InvalidInput(
                f"Invalid session name {name[:60]!r}. It is part of an address: use at most 30 lower-case letters, "
                "digits and single hyphens, beginning with a letter.",
                field="name",
                code="invalid-name",
            )
        response = await self._call("POST", _server_path(user, name), json={"user_options": dict(options)})
        if response.is_success:
            return
        message = _message(response)
        if "already running" in message or "is pending" in message:
            raise Conflict(f"Session {name or 'default'} of {user} already exists: {message}")
        if response.status_code == httpx2.codes.NOT_FOUND:
            raise NotFound(f"User not found in JupyterHub: {user}.", code="user-not-found")
        if response.status_code == httpx2.codes.TOO_MANY_REQUESTS:  # the control plane's answer to the hub's spawner
            raise TooMany(message, code="too-many-workloads")
        if "maximum of" in message:  # names that JupyterHub remembers, with those of ended sessions
            raise TooMany(
                f"JupyterHub remembers as many names of sessions of {user} as it may: {message} Delete old ones on "
                "its page /hub/home, or use an earlier name.",
                code="too-many-workloads",
            )
        raise InvalidInput(message)

    async def is_open(self, user: str, name: str) -> bool:
        """Whether the hub leads to the session: it has seen it answer, and its route is made. Raises Unavailable."""
        response = await self._call("GET", f"users/{_quoted(user)}")
        if response.status_code == httpx2.codes.NOT_FOUND:
            return False
        _check(response)
        return bool(_json(response).get("servers", {}).get(name, {}).get("ready"))

    async def stop_session(self, user: str, name: str) -> None:
        """Stop a session through the hub. An unknown or stopped session is no error."""
        response = await self._call("DELETE", _server_path(user, name))
        _check(response, httpx2.codes.NOT_FOUND, httpx2.codes.BAD_REQUEST)

    async def share_session(self, user: str, name: str, visitor: str) -> None:
        """Let `visitor` open that session. The hub's spawner ends it. Raises NotFound."""
        response = await self._call("POST", f"shares/{_quoted(user)}/{_quoted(name)}", json={"user": visitor})
        if response.status_code in (httpx2.codes.NOT_FOUND, httpx2.codes.BAD_REQUEST):
            raise NotFound(f"Session or user not found in JupyterHub: {_message(response)}", code="user-not-found")
        _check(response)

    async def expires_at(self, token: str) -> float | None:
        """When this token expires, in unix seconds; None if never. Raises Unauthenticated if it is not valid."""
        response = await self._send("GET", "user", token=token)
        if response.is_success:
            owner = _json(response)
            path = f"users/{_quoted(str(owner['name']))}/tokens/{owner['token_id']}"
            response = await self._call("GET", path)
        if await self._is_unknown_token(response):
            raise Unauthenticated("The token is unknown or expired. Get a new one with `commonage login`.")
        _check(response)
        return _expiry(_json(response))

    async def mint_token(self, user: str, scopes: Sequence[Scope], note: str, expires_s: int | None) -> IssuedToken:
        """A new API token of `user` with scopes that the user has. Raises NotFound, Forbidden, InvalidInput."""
        response = await self._call(
            "POST",
            f"users/{_quoted(user)}/tokens",
            json={"note": note, "expires_in": expires_s, "scopes": [scope.value for scope in scopes]},
        )
        if response.status_code == httpx2.codes.FORBIDDEN:  # the control plane may mint for every user of the hub
            raise NotFound(f"User not found in JupyterHub: {user}.", code="user-not-found")
        if response.status_code == httpx2.codes.BAD_REQUEST and "must not exceed" in _message(response):
            raise InvalidInput(
                f"A token cannot last {expires_s} seconds: the setting `token_lifetime` is the limit. Request a "
                "shorter lifetime, or raise the setting and restart the server.",
                field="expires_s",
            )
        if response.status_code == httpx2.codes.BAD_REQUEST:
            raise Forbidden(f"JupyterHub refused a token for {user}: {_message(response)}")
        _check(response)
        made = _json(response)
        expires_at = _expiry(made)
        if expires_at is None:  # the request asked for a token that expires
            raise Unavailable("JupyterHub issued a token that never expires. See its log.")
        return IssuedToken(str(made["id"]), str(made["token"]), expires_at)

    async def revoke_token(self, user: str, token_id: str) -> None:
        """Revoke a token of `user`. An unknown token is no error."""
        response = await self._call("DELETE", f"users/{_quoted(user)}/tokens/{token_id}")
        _check(response, httpx2.codes.NOT_FOUND)

    async def is_admin(self, user: str) -> bool:
        """Whether the user is an admin in the hub; False also for an unknown name."""
        response = await self._call("GET", f"users/{_quoted(user)}")
        if response.status_code == httpx2.codes.NOT_FOUND:
            return False
        _check(response)
        return bool(_json(response).get("admin"))

    async def ensure_user(self, user: str) -> None:
        response = await self._call("POST", f"users/{_quoted(user)}")
        if response.status_code == httpx2.codes.BAD_REQUEST:  # the hub's own message says no more than that
            raise InvalidInput(
                f"Invalid user name {user[:60]!r}. Use at most 63 lower-case letters, digits and . _ @ + -, or follow "
                "the authenticator's username_pattern.",
                field="user",
            )
        _check(response, httpx2.codes.CONFLICT)

    async def account(self, user: str) -> Account | None:
        response = await self._call("GET", f"users/{_quoted(user)}")
        if response.status_code == httpx2.codes.NOT_FOUND:
            return None
        _check(response)
        return _account(_json(response), len(await self._tokens(user)))

    async def accounts(self) -> Sequence[Account]:
        found: list[Account] = []
        while True:
            query = urlencode({"offset": len(found), "limit": _PAGE})
            response = await self._call("GET", f"users?{query}")
            _check(response)
            page = _json(response, list)
            found += (_account(model) for model in page)
            if len(page) < _PAGE:
                return sorted(found, key=lambda one: one.name)

    async def _tokens(self, user: str) -> Sequence[str]:
        """The ids of all its tokens: of sessions and sign-ins, too."""
        response = await self._call("GET", f"users/{_quoted(user)}/tokens")
        if response.status_code == httpx2.codes.NOT_FOUND:
            return []
        _check(response)
        models = _json(response)
        return [str(one["id"]) for kind in ("api_tokens", "oauth_tokens") for one in models.get(kind, ())]

    async def revoke_tokens(self, user: str) -> None:
        for token_id in await self._tokens(user):
            await self.revoke_token(user, token_id)
        self._forget_user(user)

    def _forget_user(self, user: str) -> None:
        """Ask the hub again about the tokens of this user, which it may know no longer, or under another name."""
        known = [key for key, (_, principal) in self._cache.items() if principal is not None and principal.name == user]
        for key in known:
            del self._cache[key]

    async def rename_user(self, user: str, to: str) -> None:
        before = await self._call("GET", f"users/{_quoted(user)}")
        if before.status_code == httpx2.codes.NOT_FOUND:
            return
        _check(before)
        response = await self._call("PATCH", f"users/{_quoted(user)}", json={"name": to})
        if response.status_code == httpx2.codes.BAD_REQUEST and "already exists" in _message(response):
            raise Conflict(f"JupyterHub has another user {to[:60]!r}. Remove that user, or give it another name.")
        _check(response)
        self._forget_user(user)

    async def remove_user(self, user: str) -> None:
        response = await self._call("DELETE", f"users/{_quoted(user)}")
        if response.status_code == httpx2.codes.BAD_REQUEST:
            raise Conflict(f"JupyterHub cannot remove the user {user[:60]!r} now: {_message(response)}")
        _check(response, httpx2.codes.NOT_FOUND)
        self._forget_user(user)

    async def group(self, name: str) -> Sequence[str] | None:
        response = await self._call("GET", f"groups/{_quoted(name)}")
        if response.status_code == httpx2.codes.NOT_FOUND:
            return None
        _check(response)
        return [str(user) for user in _json(response).get("users", ())]

    async def rename_group(self, name: str, to: str) -> None:
        members = await self.group(name)
        if members is None:
            return
        _check(await self._call("POST", f"groups/{_quoted(to)}"), httpx2.codes.CONFLICT)
        if members:
            _check(await self._call("POST", f"groups/{_quoted(to)}/users", json={"users": list(members)}))
        await self.remove_group(name)
        for user in members:
            self._forget_user(user)

    async def remove_group(self, name: str) -> None:
        _check(await self._call("DELETE", f"groups/{_quoted(name)}"), httpx2.codes.NOT_FOUND)

    async def _fetch_owner(self, token: str, digest: bytes) -> Principal | None:
        response = await self._send("GET", "user", token=token)
        if await self._is_unknown_token(response):
            principal = None
        elif response.is_success:
            principal = _principal(_json(response))
        else:
            raise Unavailable(
                f"JupyterHub answered {response.status_code} to a token check. Try again in a few seconds."
            )
        self._cache[digest] = (self._monotonic() + (_KNOWN_S if principal else _UNKNOWN_S), principal)
        self._cache.move_to_end(digest)
        while len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)
        return principal

    async def _is_unknown_token(self, response: httpx2.Response) -> bool:
        """True if the hub does not know the token. Raises Unavailable if the hub cannot tell."""
        if response.status_code not in {httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN}:
            return False
        if why := await asyncio.to_thread(self._doubt):
            raise Unavailable(f"The token cannot be checked now: {why}")
        return True

    async def _call(self, method: str, path: str, json: Mapping[str, Any] | None = None) -> httpx2.Response:
        """Call the hub as the service. Raises Unavailable for errors that only time can fix."""
        response = await self._send(method, path, token=self._service_token, json=json)
        if response.status_code in {502, 503, 504}:
            raise Unavailable(f"JupyterHub is not ready: {_message(response)}")
        return response

    async def _send(self, method: str, path: str, token: str | None = None, **arguments: Any) -> httpx2.Response:
        headers = tracing.headers() if token is None else {"Authorization": f"token {token}", **tracing.headers()}
        try:
            return await self._client.request(method, path, headers=headers, **arguments)
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise Unavailable("JupyterHub does not answer. Try again in a few seconds.") from error


def _json(response: httpx2.Response, kind: type[object] = dict) -> Any:
    """Raises Unavailable, for the answer of a program that is not the hub."""
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, kind):
        raise Unavailable("Another program than JupyterHub answers at its address. Check `hub_url`.")
    return answer


def _server_path(user: str, name: str) -> str:
    base = f"users/{_quoted(user)}"
    return f"{base}/servers/{_quoted(name)}" if name else f"{base}/server"


def _account(model: Mapping[str, Any], tokens: int = 0) -> Account:
    return Account(
        name=str(model["name"]),
        groups=tuple(sorted(model.get("groups") or ())),
        admin=bool(model.get("admin")),
        tokens=tokens,
        sessions=tuple(sorted(model.get("servers") or ())),
    )


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _principal(model: Mapping[str, Any]) -> Principal | None:
    """The user in the hub's answer. None for a token of a service: other services have no access."""
    if model.get("kind") != "user":
        return None
    return Principal(
        name=str(model["name"]),
        scopes=frozenset(Scope(scope) for scope in model.get("scopes", ()) if scope in _SCOPES),
        groups=tuple(model.get("groups") or ()),
    )


def _expiry(model: Mapping[str, Any]) -> float | None:
    expires_at = model.get("expires_at")
    return datetime.fromisoformat(str(expires_at)).timestamp() if expires_at else None


def _message(response: httpx2.Response) -> str:
    """The hub's own error message, if there is one."""
    try:
        message = response.json().get("message")
    except (ValueError, AttributeError):
        message = None
    return str(message or f"JupyterHub answered {response.status_code} {response.reason_phrase}")


def _check(response: httpx2.Response, *accepted: int) -> None:
    """Raise the error of a refusal, unless its status is accepted."""
    if response.is_success or response.status_code in accepted:
        return
    message = _message(response)
    if response.status_code == httpx2.codes.NOT_FOUND:
        raise NotFound(message, code="user-not-found")
    if response.status_code == httpx2.codes.FORBIDDEN:
        raise Forbidden(message)
    if response.is_server_error:
        raise Unavailable(message)
    raise InvalidInput(message)

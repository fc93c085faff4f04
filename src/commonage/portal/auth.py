"""Sign-in to the portal by the hub's OAuth, and the session cookie. Called by `site` for every request.

The hub's token travels in a cookie that only this server can read: encrypted and signed, so that a restart of the
control plane signs nobody out and no table of sessions is needed. The hub decides at each request whether the token
is still valid (the identity port caches the answer for half a minute).
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from commonage.domain.errors import Forbidden, Unauthenticated
from commonage.domain.principals import Principal
from commonage.ports.clock import Clock
from commonage.ports.identity import Identity
from commonage.wire.hub import CALLBACK_PATH, PORTAL_PATH

HOME = PORTAL_PATH
SESSION_COOKIE = "commonage-session"
BROWSER_COOKIE = "commonage-sign-in"
SERVICE_COOKIE = "commonage-service"
TICKET_S = 60
SESSION_S = 14 * 24 * 3600
SIGN_IN_S = 15 * 60
_LONGEST_NEXT = 1000


@dataclass(frozen=True, slots=True)
class Visitor:
    """The user of a page. `csrf` must be sent back with every change.

    `address` is the IP address of the browser, empty if unknown.
    """

    principal: Principal
    csrf: str
    address: str = ""


class SignInNeeded(Unauthenticated):
    """Nobody is signed in on this browser, or the sign-in has expired."""


class PortalAuth:
    """Sign-in, session cookie and the guard of every POST.

    `secret` is any text that only this installation knows and that outlives a restart; the key is derived from it.
    `host_cookies` is for HTTPS where users' servers have names below the portal's: they may set cookies for the
    portal's name as well, but none with the prefix `__Host-`. Such a cookie has no path, so it cannot be used if
    users' servers share the portal's own name. `admit` raises Forbidden for a user whose name was given up.
    """

    def __init__(
        self,
        identity: Identity,
        clock: Clock,
        secret: str,
        *,
        host_cookies: bool = False,
        admit: Callable[[Principal], None] = lambda _principal: None,
    ) -> None:
        self._identity, self._admit = identity, admit
        self._clock = clock
        self._prefix, self._path = ("__Host-", "/") if host_cookies else ("", HOME)
        derive = HKDF(hashes.SHA256(), length=64, salt=None, info=b"commonage portal 1").derive(secret.encode())
        self._box = Fernet(base64.urlsafe_b64encode(derive[:32]))
        self._csrf_key = derive[32:]

    async def visitor(self, request: Request) -> Visitor:
        """The visitor of this request. Raises SignInNeeded, or Unavailable while the hub does not answer."""
        session = self._open("session", self._cookie(request, SESSION_COOKIE), SESSION_S)
        if session is None:
            raise SignInNeeded("Sign in to see this page.")
        principal = await self._identity.whois(session["token"])
        if principal is None:
            raise SignInNeeded("The sign-in has expired. Sign in again.")
        self._admit(principal)
        return Visitor(principal, self._csrf(session["nonce"]), request.client.host if request.client else "")

    def to_sign_in(self, request: Request, back_to: str) -> Response:
        """Send the browser to the hub; it comes back to the callback, and then to `back_to`.

        The state binds the answer to this browser: a link made by another person signs nobody in.
        """
        browser = self._cookie(request, BROWSER_COOKIE)
        if not 20 <= len(browser) <= 64:
            browser = secrets.token_urlsafe(24)
        state = self._seal("sign-in", {"browser": browser, "next": _own_path(back_to)})
        response = RedirectResponse(self._identity.authorize_url(state), status_code=302)
        self._set(request, response, (BROWSER_COOKIE, browser), SIGN_IN_S)
        return response

    async def callback(self, request: Request) -> Response:
        """The redirect from the hub after sign-in. Raises Unauthenticated if its state does not match this browser."""
        query = request.query_params
        if refused := query.get("error"):
            raise Unauthenticated(f"JupyterHub refused the sign-in ({refused[:100]}). Sign in again, or ask an admin.")
        state = self._open("sign-in", query.get("state"), SIGN_IN_S)
        browser = self._cookie(request, BROWSER_COOKIE)
        if state is None or not hmac.compare_digest(state["browser"].encode(), browser.encode()):
            raise Unauthenticated("The sign-in began in another browser, or too long ago. Sign in again.")
        token = await self._identity.exchange(query.get("code", ""))
        if await self._identity.whois(token) is None:
            raise Unauthenticated("JupyterHub does not recognize the token of this sign-in. Sign in again.")
        response = RedirectResponse(_own_path(state["next"]), status_code=302)
        session = self._seal("session", {"token": token, "nonce": secrets.token_urlsafe(18)})
        self._set(request, response, (SESSION_COOKIE, session), SESSION_S)
        return response

    def ticket(self, request: Request, workload_id: str) -> str:
        """A text that signs this browser in to one service; `visitor` has checked the request. Raises SignInNeeded."""
        session = self._open("session", self._cookie(request, SESSION_COOKIE), SESSION_S)
        if session is None:
            raise SignInNeeded("Sign in to open this service.")
        return self._seal("service", {"token": session["token"], "workload": workload_id})

    def opened_ticket(self, ticket: str, workload_id: str) -> str | None:
        """The hub's token in a ticket for this service that was made a moment ago."""
        return self._of_service(ticket, workload_id, TICKET_S)

    def opened_service_cookie(self, cookie: str | None, workload_id: str) -> str | None:
        """The hub's token in the cookie that a ticket became."""
        return self._of_service(cookie, workload_id, SESSION_S)

    def _of_service(self, sealed: str | None, workload_id: str, age_s: int) -> str | None:
        content = self._open("service", sealed, age_s)
        return content["token"] if content is not None and content["workload"] == workload_id else None

    def set_service_cookie(self, response: Response, ticket: str, path: str, secure: bool) -> None:
        response.set_cookie(
            SERVICE_COOKIE, ticket, max_age=SESSION_S, path=path, secure=secure, httponly=True, samesite="lax"
        )

    def forget(self, response: Response) -> Response:
        """Remove the session from the browser. The hub's own sign-out, which follows, ends the token."""
        secure = bool(self._prefix)  # otherwise the browser rejects the prefix, and keeps the cookie
        name = f"{self._prefix}{SESSION_COOKIE}"
        response.delete_cookie(name, path=self._path, secure=secure, httponly=True, samesite="lax")
        return response

    def guard_reading(self, request: Request, visitor: Visitor) -> None:
        """Show a page to a person who opens it, and to a script or frame only with the token of a portal page.

        Otherwise a page of a user's server at the same origin could fetch it, and the token in it. Raises
        Forbidden.
        """
        is_navigation = request.headers.get("sec-fetch-dest", "document") == "document"
        if not is_navigation and not self._is_token(visitor, request.headers.get("x-csrf-token", "")):
            raise Forbidden("Scripts and frames of other pages cannot read this page. Reload it.", code="csrf")

    def check_origin(self, request: Request) -> None:
        """Allow a change only from a portal page, judged by the browser's headers. Raises Forbidden."""
        site = request.headers.get("sec-fetch-site")
        origin = request.headers.get("origin")
        foreign = site not in (None, "same-origin", "none")
        if site is None and origin is not None:
            foreign = origin.partition("://")[2] != request.headers.get("host")
        if foreign:
            raise _forged()

    def check_form(self, visitor: Visitor, given: str) -> None:
        """Allow a change only with the token of a form that was made for this visitor. Raises Forbidden."""
        if not self._is_token(visitor, given):
            raise _forged()

    def _is_token(self, visitor: Visitor, given: str) -> bool:
        return hmac.compare_digest(visitor.csrf.encode(), given.encode())

    def _cookie(self, request: Request, name: str) -> str:
        return request.cookies.get(f"{self._prefix}{name}", "")

    def _csrf(self, nonce: str) -> str:
        return hmac.new(self._csrf_key, nonce.encode(), sha256).hexdigest()

    def _seal(self, purpose: str, content: dict[str, str]) -> str:
        text = json.dumps({"for": purpose, **content})
        return self._box.encrypt_at_time(text.encode(), int(self._clock.now())).decode()

    def _open(self, purpose: str, sealed: str | None, age_s: int) -> dict[str, str] | None:
        """The content that the portal sealed for this purpose at most `age_s` seconds ago; None for anything else."""
        if not sealed:
            return None
        try:
            content = self._box.decrypt_at_time(sealed, age_s, int(self._clock.now()))
        except (InvalidToken, ValueError):  # ValueError: the text cannot be a token
            return None
        opened: dict[str, str] = json.loads(content)
        return opened if opened.get("for") == purpose else None

    def _set(self, request: Request, response: Response, cookie: tuple[str, str], age_s: int) -> None:
        secure = bool(self._prefix) or request.url.scheme == "https"
        name, value = f"{self._prefix}{cookie[0]}", cookie[1]
        response.set_cookie(name, value, max_age=age_s, path=self._path, secure=secure, httponly=True, samesite="lax")


def _forged() -> Forbidden:
    return Forbidden("The form has expired, or is not from this portal. Reload the page.", code="csrf")


def _own_path(path: str) -> str:
    """`path` if it is a page of the portal, otherwise its front page, so that a crafted link cannot redirect
    elsewhere.
    """
    plain = path.startswith(HOME) and len(path) <= _LONGEST_NEXT and path.isprintable() and "\\" not in path
    return path if plain and not path.startswith(CALLBACK_PATH) else HOME

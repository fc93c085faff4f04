"""Sign-in from a learning platform (Moodle, Canvas …) by LTI 1.3: the authenticator `lti`, and its pages at the hub.

1. The platform sends the browser to `login`, which sets a cookie and redirects back to the platform.
2. The platform posts a signed message to `launch`. Cookie and message must belong together.

The platform is another site, so the hub's XSRF check cannot protect these forms. The cookie does: it has a random
state, which the platform returns, and a nonce, which the platform signs.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import secrets
import time
from typing import Any
from urllib.parse import quote, urlsplit

import jwt
from jupyterhub.auth import Authenticator
from jupyterhub.handlers import BaseHandler
from jupyterhub.utils import maybe_future
from tornado import web
from tornado.httputil import url_concat
from traitlets import Dict, Set, TraitError, Unicode

from commonage.hub import lti_refusals as say
from commonage.hub.lti_message import (
    MAX_AGE_S,
    Course,
    Refused,
    Registration,
    checked,
    course_of,
    target_of,
    user_name,
)
from commonage.wire.hub import LTI_CONFIG_PATH, PORTAL_PATH, SIGN_IN_PATH

_LOGIN, _LAUNCH, _KEYS = (f"/hub/lti/{name}" for name in ("login", "launch", "keys"))
_COOKIE = "commonage-lti"
_REQUIRED = ("issuer", "client_id", "deployment_ids", "authorize_url", "jwks_url")
_DAY_S = 24 * 3600
_KEYS_TIMEOUT_S = 10
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
TEACHERS = "teachers"


class LtiAuthenticator(Authenticator):
    """Users come from one platform, where this server is registered as an external tool."""

    login_service = Unicode("your learning platform", help="Name of the platform, shown on the sign-in page.").tag(
        config=True
    )
    issuer = Unicode(help="The platform's issuer (platform id), for example https://moodle.example.org").tag(
        config=True
    )
    client_id = Unicode(help="The client id that the platform gave to this tool.").tag(config=True)
    deployment_ids = Set(Unicode(), help="The deployments of the tool on the platform.").tag(config=True)
    authorize_url = Unicode(help="The platform's authentication request URL.").tag(config=True)
    jwks_url = Unicode(help="The platform's public keyset URL.").tag(config=True)
    username_claim = Unicode(
        "sub",
        help="Claim with the user name: sub, email, custom:NAME or ext:NAME. Users must not be able to change it.",
    ).tag(config=True)
    username_prefix = Unicode("lti-", help="Prefix of all user names.").tag(config=True)
    allowed_courses = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        help="Courses whose members may sign in: the course id, and the JupyterHub group of its members.",
    ).tag(config=True)
    tool_url = Unicode(help="The origin of the hub, as the platform reaches it.").tag(config=True)

    contact: str | None = None

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        missing = [name for name in _REQUIRED if not getattr(self, name)]
        if missing:
            raise TraitError(
                f"LtiAuthenticator.{missing[0]} is not set. Register this server at the platform as an external tool, "
                f"and copy what the platform shows: {', '.join(missing)}."
            )
        for name in ("tool_url", "authorize_url", "jwks_url"):
            if not _is_safe(getattr(self, name)):
                raise TraitError(
                    f"LtiAuthenticator.{name} is {getattr(self, name)!r}, and must begin with https://. Browsers send "
                    "the cookie of the sign-in by HTTPS only, and keys that come without it may be forged. For this "
                    "server, set `domain` or `public_url`."
                )
        if self.manage_groups:
            raise TraitError(
                "Authenticator.manage_groups is set, and would remove users from the groups of their other courses at "
                "each sign-in. Remove it: allowed_courses adds users to groups."
            )
        self.keys = jwt.PyJWKClient(self.jwks_url, timeout=_KEYS_TIMEOUT_S)
        self._used: dict[str, float] = {}  # nonces of accepted messages, until these expire

    @property
    def helper(self) -> str:
        return self.contact or "the administrator of this server"

    def tool(self, path: str) -> str:
        return f"{self.tool_url}{path}"

    def get_handlers(self, app: Any) -> list[Any]:
        pages = {_LOGIN: Login, _LAUNCH: Launch, _KEYS: Keys, LTI_CONFIG_PATH: Configuration}
        return [(path.removeprefix("/hub"), page) for path, page in pages.items()]

    def get_custom_html(self, base_url: str) -> str:
        return f"<p>{html.escape(say.from_course(self.login_service))}</p>"

    async def authenticate(self, handler: Any, data: Any = None) -> dict[str, Any] | None:
        """Admit the user whose message `Launch` has checked, and no other user.

        The hub also calls this for posts to its sign-in form or its API (`data`), which any client can send.
        """
        if not isinstance(handler, Launch) or handler.claims is None:
            return None
        name = user_name(handler.claims, self.username_claim, self.username_prefix, self.helper)
        if not self.validate_username(self.normalize_username(name)):
            raise Refused(say.unusable_user_name(name, self.helper))
        return {"name": name, "course": course_of(handler.claims)}

    async def check_allowed(self, username: str, authentication: Any = None) -> bool:
        course: Course | None = (authentication or {}).get("course")
        if course is None:  # not called by a launch, but for example at the start of the hub
            return bool(await maybe_future(super().check_allowed(username, authentication)))
        if course.id in self.allowed_courses or await maybe_future(super().check_allowed(username, authentication)):
            return True
        raise Refused(say.course_not_admitted(course.id, course.title, self.helper))

    async def claims_of(self, token: str, nonce: str) -> dict[str, Any]:
        """Check a message, once. Raises Refused."""
        platform = Registration(self.issuer, self.client_id, frozenset(self.deployment_ids), self.helper)
        try:
            # This waits for the platform, at most every five minutes and for new keys.
            key = await asyncio.to_thread(self.keys.get_signing_key_from_jwt, token)
        except (jwt.PyJWKClientConnectionError, ValueError):  # ValueError: its answer is no JSON
            self.log.exception("The keys of the learning platform cannot be read: %s", self.jwks_url)
            raise Refused(say.keys_unavailable(), is_outage=True) from None
        except jwt.PyJWKClientError:
            raise Refused(say.bad_signature(self.helper)) from None
        except jwt.PyJWTError as error:
            raise Refused(say.malformed(str(error), self.helper)) from None
        claims = checked(token, key, nonce, platform)
        now = time.time()
        self._used = {used: until for used, until in self._used.items() if until > now}
        if nonce in self._used:
            raise Refused(say.not_this_browser(self.helper))
        self._used[nonce] = now + 2 * MAX_AGE_S
        return claims

    def groups_after(self, groups: set[str], course: Course) -> set[str]:
        """The groups of a user who came from this course. The platform says nothing about other courses."""
        group = self.allowed_courses.get(course.id)
        if group is None:
            return groups
        teachers = f"{group}:{TEACHERS}"
        return groups - {teachers} | {group} | ({teachers} if course.teaches else set())


class _Page(BaseHandler):
    authenticator: LtiAuthenticator

    def check_xsrf_cookie(self) -> None:
        """No check: the platform posts these forms, and cannot have the hub's token."""

    @property
    def _cookie_options(self) -> dict[str, Any]:
        # Another site posts the message. Browsers send only cookies with SameSite=None along with such a form.
        return {"secure": True, "httponly": True, "samesite": "None", "path": "/" if self._prefix else "/hub/lti/"}

    @property
    def _prefix(self) -> str:
        # Without the prefix, a session at a subdomain could set this cookie, and sign a user in under another name.
        return "__Host-" if self.authenticator.tool_url.startswith("https:") else ""

    def remember(self, state: str, nonce: str) -> None:
        self.set_signed_cookie(
            self._prefix + _COOKIE, f"{state} {nonce}", expires_days=None, max_age=MAX_AGE_S, **self._cookie_options
        )

    def remembered(self) -> tuple[str, str]:
        """State and nonce from this browser's cookie, which is removed; both are empty without one."""
        name = self._prefix + _COOKIE
        value = (self.get_signed_cookie(name, max_age_days=MAX_AGE_S / _DAY_S) or b"").decode()
        self.clear_cookie(name, **self._cookie_options)
        state, _, nonce = value.partition(" ")
        return state, nonce

    def refused(self, message: str, status: int = 403) -> web.HTTPError:
        self.log.warning("LTI sign-in refused: %r", message)
        return web.HTTPError(status, message)


class Login(_Page):
    """The login initiation URL. It accepts GET and POST, as the platform chooses."""

    def get(self) -> None:
        ours = self.authenticator
        issuer, hint = self.get_query_or_body("iss"), self.get_query_or_body("login_hint")
        if issuer != ours.issuer:
            raise self.refused(say.unknown_platform(issuer, ours.helper))
        client_id = self.get_query_or_body("client_id") or ours.client_id
        if client_id != ours.client_id:
            raise self.refused(say.unknown_client(client_id, ours.helper))
        if not hint:
            raise self.refused(say.no_login_hint(), 400)
        state, nonce = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self.remember(state, nonce)
        query = {
            "response_type": "id_token",
            "response_mode": "form_post",
            "scope": "openid",
            "prompt": "none",
            "client_id": client_id,
            "redirect_uri": ours.tool(_LAUNCH),
            "login_hint": hint,
            "state": state,
            "nonce": nonce,
        }
        if message_hint := self.get_query_or_body("lti_message_hint"):
            query["lti_message_hint"] = message_hint
        self.redirect(url_concat(ours.authorize_url, query), status=303)

    post = get

    def get_query_or_body(self, name: str) -> str:
        return str(self.get_argument(name, "", strip=False))


class Launch(_Page):
    """The redirect URL, to which the platform posts the signed message."""

    claims: dict[str, Any] | None = None

    async def post(self) -> None:
        ours = self.authenticator
        state, nonce = self.remembered()
        if not state or not hmac.compare_digest(state.encode(), self.get_body_argument("state", "").encode()):
            raise self.refused(say.not_this_browser(ours.helper))
        if error := self.get_body_argument("error", ""):
            about = self.get_body_argument("error_description", "")
            raise self.refused(say.platform_refused(f"{error} {about}".strip(), ours.helper))
        try:
            self.claims = await ours.claims_of(self.get_body_argument("id_token", ""), nonce)
            user = await self.login_user()
        except Refused as refused:
            raise self.refused(refused.message, 503 if refused.is_outage else 403) from None
        if user is None:  # the name is blocked
            raise self.refused(say.blocked(ours.helper))
        course = course_of(self.claims)
        user.sync_groups(ours.groups_after({group.name for group in user.groups}, course))
        # The portal may still remember another user of this browser, so it must ask the hub again.
        self.redirect(f"{SIGN_IN_PATH}?next={quote(self._page(), safe='')}", status=303)

    def _page(self) -> str:
        """The page of the portal that the platform's link leads to; the overview for any other address."""
        target = urlsplit(target_of(self.claims or {}))
        is_ours = f"{target.scheme}://{target.netloc}" == self.authenticator.tool_url
        if not is_ours or not target.path.startswith(PORTAL_PATH):
            return PORTAL_PATH
        return target.path + (f"?{target.query}" if target.query else "")


class Keys(BaseHandler):
    """The keyset of this tool, which platforms require. It is empty, because this tool signs nothing."""

    def get(self) -> None:
        self.finish({"keys": []})


class Configuration(BaseHandler):
    """Settings to enter at the platform, as JSON, which Canvas reads."""

    authenticator: LtiAuthenticator

    def get(self) -> None:
        ours, name = self.authenticator, self.settings["template_vars"].get("site_name", "Commonage")
        page = f"{ours.tool_url}{PORTAL_PATH}"
        placement = {
            "placement": "course_navigation",
            "message_type": "LtiResourceLinkRequest",
            "target_link_uri": page,
            "windowTarget": "_blank",
        }
        self.finish(
            {
                "title": name,
                "description": f"Notebooks with GPUs on {name}",
                "target_link_uri": page,
                "oidc_initiation_url": ours.tool(_LOGIN),
                "redirect_uris": [ours.tool(_LAUNCH)],
                "public_jwk_url": ours.tool(_KEYS),
                "scopes": [],
                "extensions": [
                    {
                        "platform": "canvas.instructure.com",
                        "privacy_level": "anonymous" if ours.username_claim == "sub" else "public",
                        "settings": {"placements": [placement]},
                    }
                ],
            }
        )


def _is_safe(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)

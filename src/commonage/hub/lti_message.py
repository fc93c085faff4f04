"""Checks the signed message with which a learning platform sends a user here (LTI 1.3). Called by `hub.lti`."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import jwt

from commonage.hub import lti_refusals as say

MAX_AGE_S = 600
_LEEWAY_S = 60  # clocks differ
# The platform signs with a private key. Symmetric algorithms and "none" would let others sign.
_ALGORITHMS = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512"]
_CLAIM = "https://purl.imsglobal.org/spec/lti/claim/"
_INSTRUCTOR = "http://purl.imsglobal.org/vocab/lis/v2/membership#Instructor"
_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")


class Refused(Exception):
    """The text is for the user. `is_outage`: the same message may be accepted later."""

    def __init__(self, message: str, *, is_outage: bool = False) -> None:
        super().__init__(message)
        self.message, self.is_outage = message, is_outage


@dataclass(frozen=True)
class Registration:
    """The platform's settings. `helper` is the contact that refusals name."""

    issuer: str
    client_id: str
    deployments: frozenset[str]
    helper: str


@dataclass(frozen=True)
class Course:
    """A course of the platform. `id` is empty if the launch came from no course."""

    id: str
    title: str
    teaches: bool


def checked(token: str, key: Any, nonce: str, platform: Registration) -> dict[str, Any]:
    """The claims of a message, which must be for this server and answer the sign-in with `nonce`. Raises Refused."""
    claims, helper = _decoded(token, key, platform), platform.helper
    if claims["iat"] < time.time() - MAX_AGE_S - _LEEWAY_S:
        raise Refused(say.expired(helper))
    if not hmac.compare_digest(str(claims["nonce"]).encode(), nonce.encode()):
        raise Refused(say.not_this_browser(helper))
    is_for_several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if claims.get("azp", None if is_for_several else platform.client_id) != platform.client_id:
        raise Refused(say.unknown_client(str(claims.get("azp")), helper))
    if (deployment := str(claims.get(f"{_CLAIM}deployment_id", ""))) not in platform.deployments:
        raise Refused(say.unknown_deployment(deployment, helper))
    if (kind := claims.get(f"{_CLAIM}message_type")) != "LtiResourceLinkRequest":
        raise Refused(say.not_a_resource_link(str(kind), helper))
    if (version := claims.get(f"{_CLAIM}version")) != "1.3.0":
        raise Refused(say.malformed(f"version {version}", helper))
    return claims


def _decoded(token: str, key: Any, platform: Registration) -> dict[str, Any]:
    helper = platform.helper
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=_ALGORITHMS,
            audience=platform.client_id,
            issuer=platform.issuer,
            leeway=_LEEWAY_S,
            options={"require": ["exp", "iat", "iss", "aud", "nonce"]},
        )
    except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError):
        raise Refused(say.expired(helper)) from None
    except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError, jwt.InvalidKeyError):
        raise Refused(say.bad_signature(helper)) from None
    except jwt.InvalidAudienceError:
        raise Refused(say.unknown_client("another tool's", helper)) from None
    except jwt.InvalidIssuerError:
        raise Refused(say.unknown_platform("another one", helper)) from None
    except jwt.PyJWTError as error:
        raise Refused(say.malformed(str(error), helper)) from None
    return claims


def user_name(claims: Mapping[str, Any], claim: str, prefix: str, helper: str) -> str:
    """The user name in `claim`: a claim of the message, or `custom:NAME` or `ext:NAME` for one within these claims.

    No other claim replaces a missing one: else a user who can remove a claim could choose between two names. The
    platform's user id (`sub`) is case-sensitive and user names are not, so other ids than plain ones become digests.
    Raises Refused.
    """
    group, _, name = claim.rpartition(":")
    within = _object(claims.get(f"{_CLAIM}{group}")) if group in ("custom", "ext") else claims
    value = within.get(name if within is not claims else claim)
    if not isinstance(value, str | int) or not str(value).strip():
        raise Refused(say.no_user_name(claim, helper))
    text = str(value).strip()
    if claim == "sub" and not _PLAIN.fullmatch(text):
        text = sha256(text.encode()).hexdigest()[:32]
    return f"{prefix}{text}".lower()


def course_of(claims: Mapping[str, Any]) -> Course:
    """The course of the launch. Only a role in this course counts: a professor may be a student in another one."""
    context = _object(claims.get(f"{_CLAIM}context"))
    roles = claims.get(f"{_CLAIM}roles")
    teaches = isinstance(roles, list) and any(role in (_INSTRUCTOR, "Instructor") for role in roles)
    title = context.get("title") or context.get("label") or ""
    return Course(str(context.get("id", "")), str(title), teaches)


def target_of(claims: Mapping[str, Any]) -> str:
    """The signed address of the page to open after sign-in. The one in the unsigned request is not used."""
    return str(claims.get(f"{_CLAIM}target_link_uri", ""))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

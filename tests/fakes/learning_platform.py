"""A fake of a learning platform with LTI 1.3: a course page with a link, the authorization page, and the keyset."""

import html
import time
from typing import Any
from urllib.parse import urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse, RedirectResponse

CLAIM = "https://purl.imsglobal.org/spec/lti/claim/"
ROLE = "http://purl.imsglobal.org/vocab/lis/v2/membership#"
PROFESSOR = "http://purl.imsglobal.org/vocab/lis/v2/institution/person#Instructor"


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class LearningPlatform:
    """Launches `visitor` into the tool at `tool`; `changed` are claims that differ from those of a usual launch.

    It `answers` to who asks for its keys, or is overloaded. `sent` has the forms that it had browsers post to the tool.
    """

    ISSUER, CLIENT, DEPLOYMENT, COURSE = "https://moodle.example.org", "commonage-tool", "7", "42"

    def __init__(self) -> None:
        self.tool, self.target = "", ""
        self.visitor, self.roles = "2", ["Learner"]
        self.changed: dict[str, Any] = {}
        self.key = self.signs_with = new_key()
        self.sent: list[dict[str, str]] = []
        self.keys_read, self.answers = 0, True
        self.app = FastAPI()
        self.app.add_api_route("/course", self.course, response_class=HTMLResponse)
        self.app.add_api_route("/auth", self.authorize, methods=["GET"], response_class=HTMLResponse)
        self.app.add_api_route("/keys", self.keys)
        self.app.add_api_route("/by-link", self.by_link)

    @property
    def initiation(self) -> dict[str, str]:
        return {
            "iss": self.ISSUER,
            "client_id": self.CLIENT,
            "lti_deployment_id": self.DEPLOYMENT,
            "login_hint": self.visitor,
            "lti_message_hint": "link 5",
            "target_link_uri": self.target,
        }

    async def course(self) -> str:
        """Moodle posts the login initiation."""
        return _form(f"{self.tool}/hub/lti/login", self.initiation, "<button id=tool>Notebooks</button>")

    async def by_link(self) -> RedirectResponse:
        """Other platforms redirect to it."""
        return RedirectResponse(f"{self.tool}/hub/lti/login?{urlencode(self.initiation)}")

    async def keys(self) -> dict[str, Any]:
        if not self.answers:
            raise HTTPException(503)
        self.keys_read += 1
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [{**public, "kid": "1", "use": "sig", "alg": "RS256"}]}

    async def authorize(
        self,
        client_id: str,
        redirect_uri: str,
        login_hint: str,
        lti_message_hint: str,
        state: str,
        nonce: str,
        response_mode: str,
        prompt: str,
    ) -> str:
        assert (client_id, login_hint, lti_message_hint) == (self.CLIENT, self.visitor, "link 5")
        assert (response_mode, prompt) == ("form_post", "none")
        assert redirect_uri == f"{self.tool}/hub/lti/launch"  # platforms accept registered addresses only
        fields = {"state": state, "id_token": self.message(nonce)}
        self.sent.append(fields)
        return _form(redirect_uri, fields, "<script>document.forms[0].submit()</script>")

    def message(self, nonce: str) -> str:
        now = int(time.time())
        claims = {
            "iss": self.ISSUER,
            "aud": self.CLIENT,
            "sub": self.visitor,
            "iat": now,
            "exp": now + 60,
            "nonce": nonce,
            f"{CLAIM}version": "1.3.0",
            f"{CLAIM}message_type": "LtiResourceLinkRequest",
            f"{CLAIM}deployment_id": self.DEPLOYMENT,
            f"{CLAIM}target_link_uri": self.target,
            f"{CLAIM}resource_link": {"id": "5"},
            f"{CLAIM}roles": [f"{ROLE}{role}" for role in self.roles],
            f"{CLAIM}context": {"id": self.COURSE, "label": "ML", "title": "Machine <Learning>"},
            **self.changed,
        }
        kept = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(kept, self.signs_with, algorithm="RS256", headers={"kid": "1"})


def _form(action: str, fields: dict[str, str], end: str) -> str:
    inputs = "".join(
        f'<input type=hidden name="{name}" value="{html.escape(value)}">' for name, value in fields.items()
    )
    return f'<!doctype html><form method=post action="{action}">{inputs}{end}</form>'

"""A malicious user of the platform: signs in by the form as a browser does, calls the hub with the cookie."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, Self

import httpx2

from commonage.wire.hub import PORTAL_PATH


class SignedIn:
    def __init__(self, url: str, name: str, password: str) -> None:
        self.http = httpx2.Client(base_url=url, follow_redirects=True, trust_env=False, timeout=30)
        self.http.get("/hub/login")
        form = {"username": name, "password": password, "_xsrf": self.http.cookies.get("_xsrf", path="/hub/") or ""}
        self.page = self.http.post("/hub/login", params={"next": PORTAL_PATH}, data=form)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    @property
    def is_in(self) -> bool:
        return self.http.get(PORTAL_PATH).url.path == PORTAL_PATH

    def hub(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        """A call of the hub's API with nothing but the cookies."""
        self.http.get("/hub/token")  # renews the cookie against forged requests
        with contextlib.suppress(httpx2.CookieConflict):
            xsrf = self.http.cookies.get("_xsrf", path="/hub/")
        return self.http.request(method, f"/hub/api{path}", params={"_xsrf": xsrf or ""}, json=body)

    def token(self, name: str, **fields: Any) -> str:
        """A new token from the hub's page, which may do whatever the user may."""
        made = self.hub("POST", f"/users/{name}/tokens", fields)
        assert made.status_code == 201, made.text
        return str(made.json()["token"])

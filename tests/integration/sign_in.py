"""Signing in to the portal with a password, as a browser does."""

import re
import ssl

import httpx2

from commonage.wire.hub import PORTAL_PATH


def sign_in(url: str, user: str, password: str, verify: ssl.SSLContext | bool = True) -> str | None:
    """Go to the portal, be sent to the hub, sign in, come back. Returns the user whom the portal greets."""
    with httpx2.Client(follow_redirects=True, trust_env=False, timeout=30, verify=verify) as browser:
        page = browser.get(f"{url}{PORTAL_PATH}")
        assert "/hub/login" in str(page.url), page.url
        token = browser.cookies.get("_xsrf", path="/hub/") or re.search(r'name="_xsrf" value="([^"]+)"', page.text)[1]
        page = browser.post(str(page.url), data={"username": user, "password": password, "_xsrf": token})
        assert page.is_success, page.text
        return user if str(page.url) == f"{url}{PORTAL_PATH}" and user in page.text else None

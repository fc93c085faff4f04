"""The configuration files that docs/operate/sign-in.md shows, with the addresses of fakes in place of its examples."""

from pathlib import Path

_GUIDE = Path(__file__).parents[2] / "docs" / "operate" / "sign-in.md"
_SECTIONS = {
    "github": ("GitHub", "GitHubOAuthenticator"),
    "generic-oauth": ("OpenID Connect", "GenericOAuthenticator"),
    "ldap": ("LDAP", "LDAPAuthenticator"),
    "pam": ("PAM", "PAMAuthenticator"),
    "lti": ("LTI: a learning platform", "LtiAuthenticator"),
}
CONTACT = "gpu-help@example.org"


def configuration(authenticator: str, **replaced: object) -> str:
    """The guide's file for this authenticator, in which the options of `replaced` have other values."""
    title, section = _SECTIONS[authenticator]
    _, _, text = _GUIDE.read_text().partition(f"\n### {title}\n")
    shown = text.partition("```python\n")[2].partition("```")[0]
    return shown + "".join(f"c.{section}.{option} = {value!r}\n" for option, value in replaced.items())


def github_at(url: str) -> dict[str, object]:
    return {"github_url": url, "github_api": f"{url}/api"}


def openid_at(url: str) -> dict[str, object]:
    return {"authorize_url": f"{url}/auth", "token_url": f"{url}/token", "userdata_url": f"{url}/userinfo"}

"""One table of scopes: the same names on both sides, known to JupyterHub, written in the guide."""

from pathlib import Path

from jupyterhub.scopes import _custom_scope_pattern, scope_definitions

from commonage.domain.principals import Scope
from commonage.hub import scopes

GUIDE = Path(__file__).parents[3] / "docs" / "operate" / "sign-in.md"


def test_same_names_as_the_domain() -> None:
    assert set(scopes.SCOPES) == {scope.value for scope in Scope}


def test_jupyterhub_accepts_the_scopes() -> None:
    assert all(_custom_scope_pattern.match(name) for name in scopes.SCOPES)
    used = [*scopes.USER_SCOPES, *scopes.ADMIN_SCOPES, *scopes.PORTAL_SCOPES, *scopes.SESSION_SCOPES]
    assert {scope.partition("!")[0] for scope in used} <= {*scope_definitions, *scopes.SCOPES}


def test_guide_explains_each_scope() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    for name, definition in scopes.SCOPES.items():
        assert f"| `{name}` | {definition['description']} |" in guide

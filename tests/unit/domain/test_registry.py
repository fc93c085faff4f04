"""Rights in the registry: members push their tenant's, everybody pulls the public, a node pulls all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.domain.errors import InvalidInput
from commonage.domain.images import Access, Rights, granted, parse_access, rights_of_member

MEMBER = rights_of_member(["lab", "commons"])


def may(scope: str, rights: Rights) -> list[str]:
    return [f"{one.name}:{','.join(one.actions)}" for one in granted(parse_access([scope]), rights)]


@pytest.mark.parametrize(
    ("scope", "rights", "gets"),
    [
        ("repository:lab/torch:pull,push", MEMBER, ["lab/torch:pull,push"]),
        ("repository:lab/torch:pull,push,delete", MEMBER, ["lab/torch:pull,push"]),
        ("repository:other/torch:pull,push", MEMBER, []),
        ("repository:labs/torch:pull", MEMBER, []),
        ("repository:lab:pull", MEMBER, []),
        ("repository:public/base:pull,push", MEMBER, ["public/base:pull"]),
        ("repository(plugin):lab/torch:pull", MEMBER, ["lab/torch:pull"]),
        ("registry:catalog:*", MEMBER, []),
        ("registry:catalog:*", Rights(everything=True), ["catalog:*"]),
        ("repository:any/thing:pull,push,delete", Rights(everything=True), ["any/thing:pull,push,delete"]),
        ("repository:any/thing:pull,push", Rights(pulls_all=True), ["any/thing:pull"]),
        ("repository:lab/torch:pull,push", rights_of_member(["lab"], writes=False), ["lab/torch:pull"]),
        ("repository:lab/torch:pull", rights_of_member(["lab"], reads=False, writes=False), []),
    ],
)
def test_as_much_is_granted_as_may_be(scope: str, rights: Rights, gets: list[str]) -> None:
    assert may(scope, rights) == gets


def test_several_things_are_asked_for_at_once() -> None:
    asked = parse_access(["repository:lab/a:pull repository:other/b:pull", "repository:public/c:pull"])
    assert [one.name for one in granted(asked, MEMBER)] == ["lab/a", "public/c"]


@pytest.mark.parametrize("scope", ["lab/torch", "repository:lab/torch", "repository:lab/torch:PULL", "x" * 5000])
def test_what_is_no_scope_is_refused(scope: str) -> None:
    with pytest.raises(InvalidInput, match="repository:TENANT/NAME:pull,push"):
        parse_access([scope])
    with pytest.raises(InvalidInput, match="at most 64"):
        parse_access(["repository:a/b:pull"] * 65)


@given(
    st.lists(st.sampled_from(["lab", "other", "public", "commons"]), max_size=3),
    st.sampled_from(["lab", "other", "public", "commons", "labs"]),
)
def test_nobody_but_members_and_admins_writes(scopes: list[str], scope: str) -> None:
    asked = [Access("repository", f"{scope}/x", ("push",))]
    assert bool(granted(asked, rights_of_member(scopes))) == (scope in scopes and scope != "public")

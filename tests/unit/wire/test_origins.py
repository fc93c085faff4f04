"""Names of users' sessions: valid, and never one name for two users."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.wire.origins import label_of, session_domain, session_url

LABEL = re.compile(r"(?!..--)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
USERS = st.from_regex(r"[a-z0-9][a-z0-9._@+-]{0,62}", fullmatch=True) | st.text(min_size=1)


@pytest.mark.parametrize("user", ["alice", "a", "a-b", "team-7", "x" * 63])
def test_name_that_can_be_a_label_is_one(user: str) -> None:
    assert label_of(user) == user


@given(USERS)
def test_every_user_has_a_valid_label(user: str) -> None:
    assert LABEL.fullmatch(label_of(user))


@given(USERS, USERS)
def test_two_users_never_share_a_label(one: str, other: str) -> None:
    assert (label_of(one) == label_of(other)) is (one == other)


@pytest.mark.parametrize("user", ["a.b", "a@b", "a_b", "a--b", "a-", "7", "Alice", "alice\n", "a+b", "ä"])
def test_label_of_another_name_cannot_be_chosen_as_a_name(user: str) -> None:
    label = label_of(user)
    assert label != user
    assert label_of(label) != label


def test_address_of_a_session() -> None:
    origin = "https://*.hub.example.org:8443"
    assert session_url(origin, "alice", "") == "https://alice.hub.example.org:8443/user/alice/"
    assert session_url("http://*.localhost:8000", "alice", "gpu") == "http://alice.localhost:8000/user/alice/gpu/"
    assert session_url("", "a b", "c") == "/user/a%20b/c/"
    assert session_domain(origin) == "hub.example.org"

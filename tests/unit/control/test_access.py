"""Answers about access, from roles, scopes and ownership."""

import pytest

from commonage.control.access import Access, access_of
from commonage.control.queries.node_views import DeviceView, NodeView
from commonage.control.queries.visibility import visible_holders, visible_nodes, visible_workload
from commonage.control.settings import ControlSettings
from commonage.domain.errors import Forbidden
from commonage.domain.explanations import Holder
from commonage.domain.permissions import PERMISSIONS, Permission, Role, RoleBinding, SubjectKind
from commonage.domain.principals import Principal, Scope
from commonage.domain.reasons.waiting import Resources
from commonage.domain.tenants import Rules, Tenant
from commonage.messages.permissions import ACTIONS, ROLES, reference
from commonage.ports.store import Visible
from commonage.testing import factories as make

ALL = frozenset({Scope.READ, Scope.SUBMIT, Scope.MANAGE, Scope.TOKENS})


def binding(role: Role, *, user: str = "", group: str = "") -> RoleBinding:
    return RoleBinding(SubjectKind.USER if user else SubjectKind.GROUP, user or group, role)


LAB = Tenant("lab", sites=("north",), members=(binding(Role.TEACHER, user="tea"), binding(Role.VIEWER, group="deans")))
SETTINGS = ControlSettings(
    rules=Rules((Tenant("commons", sites=("here",)), LAB, Tenant("course", sites=("south",)))),
    platform_roles=(binding(Role.OPERATOR, group="night"), binding(Role.ADMIN, user="boss")),
)


def access(user: str, *groups: str, scopes: frozenset[Scope] = ALL) -> Access:
    return access_of(Principal(user, scopes, groups), SETTINGS)


def test_roles_come_from_users_groups_and_the_hub() -> None:
    assert access("tea").roles_in("lab") == {Role.TEACHER}
    assert access("tea", "lab", "deans").roles_in("lab") == {Role.TEACHER, Role.VIEWER, Role.MEMBER}
    assert access("ann").roles_in("lab") == frozenset()
    assert access("ann").roles_in("commons") == {Role.MEMBER}, "all users are members of the default tenant"
    assert access("ann", "nowhere").roles_in("nowhere") == frozenset(), "a group makes no tenant"
    assert access("ann", "night").platform == {Role.OPERATOR}
    assert access("root", scopes=frozenset({Scope.ADMIN})).platform == {Role.ADMIN}
    assert access("deans").roles_in("lab") == frozenset(), "a user is not the group of the same name"


@pytest.mark.parametrize("permission", Permission)
@pytest.mark.parametrize("role", Role)
def test_a_role_permits_what_its_row_says(role: Role, permission: Permission) -> None:
    bound = binding(role, user="ann")
    settings = ControlSettings(
        rules=Rules((Tenant("lab", members=() if role.of_platform else (bound,)),)),
        platform_roles=(bound,) if role.of_platform else (),
    )
    found = access_of(Principal("ann", ALL), settings)
    assert found.may(permission, "lab") == (permission in PERMISSIONS[role])
    assert found.may(permission) == (role.of_platform and permission in PERMISSIONS[role])


def test_roles_of_tenants_permit_nothing_on_the_platform() -> None:
    assert not [role for role in Role if not role.of_platform and any(one.of_platform for one in PERMISSIONS[role])]


@pytest.mark.parametrize("permission", Permission)
def test_a_token_without_scopes_permits_nothing(permission: Permission) -> None:
    assert not access("boss", scopes=frozenset()).may(permission, "lab")
    assert not access("ann", scopes=frozenset()).may_on(permission, "ann", "lab")


def test_a_refusal_names_the_roles_or_the_scope() -> None:
    with pytest.raises(Forbidden) as refused:
        access("ann").need(Permission.DRAIN_NODES)
    assert refused.value.problem_code == "permission-missing"
    assert refused.value.reason is not None and refused.value.reason.roles == ("operator", "admin")
    with pytest.raises(Forbidden, match="custom:commonage:manage") as refused:
        access("boss", scopes=frozenset({Scope.READ, Scope.SUBMIT})).need(Permission.DRAIN_NODES)
    assert refused.value.problem_code == "scope-missing"


def test_owners_keep_their_workloads_in_a_tenant_that_they_left() -> None:
    session = frozenset({Scope.READ, Scope.SUBMIT})
    assert access("ann", scopes=session).may_on(Permission.STOP_WORKLOADS, "ann", "lab")
    assert not access("tea", scopes=session).may_on(Permission.STOP_WORKLOADS, "ann", "lab"), "not from a session"
    assert access("tea").may_on(Permission.STOP_WORKLOADS, "ann", "lab")


def test_the_store_is_asked_for_what_is_visible() -> None:
    assert access("boss").visible is None
    assert access("ann").visible == Visible("ann", (), ("commons",))
    assert access("ann", "deans").visible == Visible("ann", ("lab",), ("commons", "lab"))
    assert (access("ann").sees_others, access("ann", "deans").sees_others) == (False, True)


def test_only_nodes_of_own_sites_are_visible() -> None:
    views = [
        NodeView(make.node(site, site=site), 0, 0, (), 0) for site in ("here", "north", "south")
    ]  # fmt: skip
    seen = {user: [one.node.site for one in visible_nodes(views, access(user))] for user in ("ann", "tea", "boss")}
    assert seen == {"ann": ["here"], "tea": ["here", "north"], "boss": ["here", "north", "south"]}


def holder(owner: str, tenant: str, mib: int, ends_at: float | None) -> Holder:
    return Holder(owner, "name", owner, "job", "n", Resources(gpu_memory_mib=mib), ends_at, tenant)


def test_other_tenants_are_one_total_with_the_last_end() -> None:
    mine = holder("ann", "course", 1, 5.0)
    others = [holder("bob", "lab", 2, 10.0), holder("eve", "course", 4, 20.0)]
    total = Holder("", "", "", "", "n", Resources(gpu_memory_mib=6), 20.0)
    assert visible_holders([others[0], mine, others[1]], access("ann")) == (mine, total)
    endless = visible_holders([*others, holder("eve", "course", 1, None)], access("ann"))
    assert [(one.holds.gpu_memory_mib, one.ends_at) for one in endless] == [(7, None)]
    assert visible_holders(others, access("boss")) == tuple(others)


def test_device_holders_are_hidden_on_visible_nodes() -> None:
    device = DeviceView(make.device(), 0, 0, None, None, (holder("bob", "lab", 2, None),))
    view = NodeView(make.node("n", site="here"), 0, 0, (device,), 1)
    (found,) = visible_nodes([view], access("ann"))
    assert found.devices[0].holders[0].is_anonymous


def test_a_name_made_from_the_command_is_content() -> None:
    unnamed = make.workload(owner="ann", tenant="lab", name="train --key x", command=("train", "--key", "x"))
    named = make.workload(owner="ann", tenant="lab", name="thesis", command=("train",))
    viewer = access("dean", "deans")
    assert [visible_workload(one, viewer).spec.name for one in (unnamed, named)] == ["", "thesis"]
    assert visible_workload(unnamed, access("tea")) == unnamed


def test_every_permission_and_role_is_explained() -> None:
    assert (set(ACTIONS), set(ROLES)) == (set(Permission), set(Role))
    assert all(f"| `{one}` |" in reference() for one in (*Permission, *Role))

"""Limits nodes, explanations and workloads to the part that a reader may see.

Allocations of other tenants are shown as an anonymous total. Used by queries, API and portal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace

from commonage.control.access import Access
from commonage.control.queries.node_views import NodeView
from commonage.domain.explanations import Ahead, Explanation, Holder
from commonage.domain.nodes import Node
from commonage.domain.permissions import Permission
from commonage.domain.reasons.waiting import FreeButKept, InQueue, NodeShortfall, Resources
from commonage.domain.workloads import Spec, Workload, name_of_command


def visible_nodes(views: Sequence[NodeView], access: Access) -> list[NodeView]:
    """The nodes of the sites that the reader may use, with holders as it may see them."""
    return [
        replace(
            view,
            devices=tuple(replace(one, holders=visible_holders(one.holders, access)) for one in view.devices),
        )
        for view in views
        if access.sees_site(view.node.site)
    ]


def visible_holders(holders: Sequence[Holder], access: Access) -> tuple[Holder, ...]:
    """The holders of tenants that the reader sees, and one anonymous holder per node for all others."""
    shown: list[Holder] = []
    hidden: dict[str, list[Holder]] = {}
    for holder in holders:
        if _is_known(holder.owner, holder.tenant, access):
            shown.append(holder)
        else:
            hidden.setdefault(holder.node, []).append(holder)
    return (*shown, *(_total(node, some) for node, some in hidden.items()))


def visible_explanation(found: Explanation, access: Access, nodes: Iterable[Node]) -> Explanation:
    """The explanation without other tenants, and without nodes of sites that the reader may not use."""
    hidden = access.hidden_nodes(nodes)
    reasons = tuple(
        one for one in found.reasons if not isinstance(one, NodeShortfall | FreeButKept) or one.node not in hidden
    )
    groups = tuple(
        replace(
            group,
            nearest=tuple(one if _is_known(one.owner, one.tenant, access) else Ahead() for one in group.nearest),
        )
        for group in found.jobs_ahead
    )
    holders = visible_holders([one for one in found.holders if one.node not in hidden], access)
    sites = tuple(one for one in found.sites if access.sees_site(one.site))
    return replace(
        found,
        reasons=reasons or (InQueue(),),
        jobs_ahead=groups,
        holders=holders,
        sites=sites if len(sites) > 1 else (),
    )


def visible_workload(found: Workload, access: Access) -> Workload:
    """The workload, without its content if the reader may only know about it."""
    spec, attempt = visible_spec(found.spec, access), found.attempt
    if spec is found.spec:
        return found
    return replace(found, spec=spec, attempt=None if attempt is None else replace(attempt, url=None))


def visible_spec(spec: Spec, access: Access) -> Spec:
    """The spec, without its content if the reader may only know about the workload."""
    if access.may_on(Permission.READ_OUTPUT, spec.owner, spec.tenant):
        return spec
    name = "" if spec.name == name_of_command(spec.command) else spec.name
    return replace(spec, name=name, command=(), variables=(), secrets=(), dropped_secrets=())


def _is_known(owner: str, tenant: str, access: Access) -> bool:
    return owner == access.principal.name or access.may(Permission.SEE_TENANT, tenant)


def _total(node: str, hidden: Sequence[Holder]) -> Holder:
    ends = [one.ends_at for one in hidden]
    known = [end for end in ends if end is not None]
    sums = {one.name: sum(getattr(holder.holds, one.name) for holder in hidden) for one in fields(Resources)}
    return Holder("", "", "", "", node, Resources(**sums), max(known) if len(known) == len(ends) else None)

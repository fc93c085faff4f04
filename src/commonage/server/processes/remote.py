"""Hub and proxy in pods of their own: `commonage component NAME` with `children = remote`.

Each makes its configuration from the same settings and secrets as the control plane. They share no folder; the proxy
fetches its rules over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from commonage.server.data_dir import write_private
from commonage.server.origins import origins_of
from commonage.server.processes.children import Child, Supervisor, first_of
from commonage.server.processes.components import ComponentError, check_places
from commonage.server.processes.hub import HubPlan, hub_child, proxy_child
from commonage.server.proxy_rules import RulesFile, RulesSource, api_rules, follow_rules, ready_rules
from commonage.server.secrets import read_given_secret
from commonage.server.settings.settings import Settings
from commonage.wire.hub import CONTROL_RULES_PATH, HUB_RULES_PATH

_LOOK_EVERY_S = 0.1


async def run_remote_component(name: str, settings: Settings, stopping: asyncio.Event) -> None:
    """Run hub or proxy until it is stopped. Raises ComponentError, ChildFailed, SecretsError, InvalidInput."""
    check_places(settings)
    if settings.secrets_dir is None:
        raise ComponentError(
            "children = remote needs secrets_dir: the components share the secrets in it, a mounted Secret. Set it."
        )
    plan = remote_plan(settings)
    plan.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    (plan.data_dir / "logs").mkdir(mode=0o700, exist_ok=True)
    if name == "hub":
        await _run(hub_child(plan), stopping)
    elif name == "proxy":
        await _run_proxy(plan, read_given_secret(settings.secrets_dir, "proxy_token"), stopping)
    else:
        raise ComponentError(
            f"Unknown component {name[:40]!r}. With children = remote the components are hub and proxy."
        )


def remote_plan(settings: Settings) -> HubPlan:
    """Raises InvalidInput if the origins contradict each other."""
    origins = origins_of(settings, settings.port)
    ports = (settings.port, settings.control_port, settings.hub_port, settings.proxy_api_port)
    return HubPlan(settings.data_dir.absolute(), settings, *ports, origins.hub, origins.sessions)


async def _run_proxy(plan: HubPlan, token: str, stopping: asyncio.Event) -> None:
    child, folder = proxy_child(plan), plan.rules_file.parent
    await asyncio.to_thread(_write_api_rules, folder / "api.yaml", plan.proxy_api_url, token)
    sources = (
        RulesSource("the hub", f"{plan.hub_url}{HUB_RULES_PATH}", folder / "hub.yaml"),
        RulesSource("the control plane", f"{plan.control_url}{CONTROL_RULES_PATH}", folder / "services.yaml"),
    )
    following = [asyncio.create_task(follow_rules(one, token), name=f"rules of {one.name}") for one in sources]
    following.append(asyncio.create_task(_tell_ready(sources, folder / "ready.yaml"), name="readiness"))
    try:
        await _run(child, stopping)
    finally:
        for task in following:
            task.cancel()
        await asyncio.wait(following)


async def _tell_ready(sources: Sequence[RulesSource], file: Path) -> None:
    """Have traefik answer at READY_PATH once it has all rules. Users who reached it before would find no session."""
    while not all(one.file.exists() for one in sources):  # noqa: ASYNC110 - those of an earlier container count, too
        await asyncio.sleep(_LOOK_EVERY_S)
    await RulesFile(file).put(ready_rules())


def _write_api_rules(file: Path, api_url: str, token: str) -> None:
    write_private(file, api_rules(api_url, token))


async def _run(child: Child, stopping: asyncio.Event) -> None:
    supervisor = Supervisor([child])
    starting = asyncio.create_task(supervisor.start())
    await first_of(starting, stopping.wait())
    try:
        if starting.done():
            starting.result()
            await stopping.wait()
    finally:
        starting.cancel()
        await asyncio.wait({starting})
        await supervisor.stop()

"""JupyterHub's spawner for Commonage: a thin client of the control plane's API.

A session is a workload of kind `session`, so that it uses the same queue, quota and accounting as every other
workload. The spawner only submits it, follows it until it answers, polls it, and stops it. The only state that
survives a restart of the hub is the workload's id in the hub's database.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from jupyterhub import orm
from jupyterhub.spawner import Spawner, SpawnException
from jupyterhub.utils import maybe_future, url_escape_path, url_path_join
from pydantic import ValidationError
from traitlets import Unicode, default

from commonage import tracing
from commonage.hub.following import Follower, SessionEnded, Steps
from commonage.hub.options import EXTRAS, read_options, render_form, render_unavailable
from commonage.sdk.asynchronous import AsyncClient
from commonage.sdk.errors import ApiError
from commonage.units import UnitError, with_units_in_names
from commonage.wire.hub import SERVICE_NAME
from commonage.wire.visits import VisitorIn
from commonage.wire.workloads import TERMINAL_STATES, SubmitIn, WorkloadOut

_LIVE = ("held", "queued", "starting", "running")
_SECRET = frozenset({"JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN"})
_POLL_S = 4.0  # less than the hub's poll interval
_PATIENCE_S = 30.0
_clients: dict[str, AsyncClient] = {}  # one for all spawners of this hub, by the API's address


class CommonageSpawner(Spawner):
    api_url = Unicode(help="Where the control plane's API answers.").tag(config=True)
    sessions_api_url = Unicode(help="Where sessions reach that API.").tag(config=True)
    api_token_file = Unicode(help="File with the token by which the hub may act for its users.").tag(config=True)
    session_ip = Unicode("127.0.0.1", help="Address that a session listens on, inside where it runs.").tag(config=True)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.workload_id = ""
        self.key = ""
        self._steps = Steps()
        self._noticing = asyncio.Lock()
        super().__init__(*args, **kwargs)  # loads the state

    # --- state in the hub's database -----------------------------------------------------------------------------

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load the state that `get_state` gave before the hub restarted."""
        super().load_state(state)
        self.workload_id = str(state.get("workload", ""))
        self.key = str(state.get("key", ""))

    def get_state(self) -> dict[str, Any]:
        """The workload's id, and the key that finds it if the id was never received."""
        return {**super().get_state(), "workload": self.workload_id, "key": self.key}

    def clear_state(self) -> None:
        super().clear_state()
        self.workload_id = self.key = ""

    def _keep_state(self) -> None:
        """Save the state now. The hub itself does so only after the start, for which a session may wait days."""
        self.orm_spawner.state = self.get_state()
        self.db.commit()

    # --- options -------------------------------------------------------------------------------------------------

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Any:
        return lambda spawner, options: None  # they are read at the start

    async def get_options_form(self) -> str:
        """The form, rendered for each view, because it shows the free resources."""
        try:
            offer = await self._client.launch_options(self.user.name, self._groups)
        except ApiError as error:
            return render_unavailable(error.detail)
        return render_form(offer, self._last_choice())

    def options_from_form(self, form_data: Mapping[str, list[str]]) -> dict[str, str]:
        """The options from the form, or from query parameters with the prefix `opt-`."""
        return _options(form_data)

    def _last_choice(self) -> dict[str, str]:
        try:
            return read_options(self.orm_spawner.user_options or {})
        except ValueError:  # chosen in an earlier version
            return {}

    # --- lifecycle -----------------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Submit the session and wait until it answers; its address. Raises SpawnException, always with a reason."""
        request = getattr(self.handler, "request", None)
        clicked = request.headers.get(tracing.HEADER, "") if request is not None else ""
        with tracing.span("hub.spawn", clicked, begins=True, kind="session"):
            return await self._start()

    async def _start(self) -> str:
        self._steps = Steps()
        try:
            ask = self._submission()
            await self._stop_leftovers()
            self._end_visits()
            # The hub stores the key before the control plane knows it: if the hub is killed at any time, it finds the
            # session again.
            self.key = ask.key or ""
            self._keep_state()
            if self.key.startswith("again-"):
                self._steps.add(await why_again(self._client, self.key), 1)
            self._steps.add("Requesting resources", 2)
            self.workload_id = (await self._client.submit(ask)).workload.id
            self._keep_state()
            return await self._follow()
        except ApiError as error:
            raise _Refused(error.detail, reason=error.code, status_code=error.status or 503) from error
        except SessionEnded as error:
            raise _Refused(str(error), reason=error.state) from error
        finally:
            self._steps.close()

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        async for step in self._steps.read():
            yield step

    async def get_url(self) -> str:
        """Called after a restart of the hub. A session that was waiting then is followed until it answers."""
        self._steps = Steps()
        try:
            return f"{await self._follow()}{self.server.base_url}"
        except SessionEnded as error:
            # The hub calls only this and accepts no exception: it will try the address, and give up.
            self.log.warning("The session %s of %s ended: %s", self.workload_id, self._log_name, error)
            self.http_timeout = 1
            return str(self.server.url)
        finally:
            self._steps.close()

    async def poll(self) -> int | None:
        """None while it waits or runs, otherwise its exit status. Without an answer from the API it counts as alive."""
        try:
            async with asyncio.timeout(_POLL_S):
                workload = await self._find()
        except (ApiError, TimeoutError) as error:
            self.log.warning("Cannot ask about the session of %s: %s", self._log_name, error)
            return None
        if workload is None:
            return 0
        if workload.state not in TERMINAL_STATES:
            await self._check_visitors(workload.id)
            return None
        self.log.info("The session %s of %s ended: %s", workload.id, self._log_name, workload.reason.message)
        return workload.exit_code if workload.exit_code is not None else int(workload.state != "succeeded")

    async def poll_and_notify(self) -> int | None:
        """Poll, and if the session has ended, have the hub clean up after it.

        One at a time: the hub's timer and requests call this, and one that did not wait for the clean-up of another
        would start a session that the clean-up then takes for the ended one.
        """
        async with self._noticing:
            status: int | None = await super().poll_and_notify()
            return status

    def add_poll_callback(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Add a callback for the end of this session. A stop may overtake it; then its server is stopped already, or
        is that of a later start.
        """

        async def unless_stopped() -> None:
            if not self._stop_pending and self.user.spawners.get(self.name) is self:
                await maybe_future(callback(*args, **kwargs))

        super().add_poll_callback(unless_stopped)

    async def stop(self, now: bool = False) -> None:
        """Stop the session, and wait until it has ended. One that has ended, or is unknown, is no error."""
        workload = await self._find()
        if workload is not None:
            await self._end(workload.id, "stopped from the hub")

    def run_post_stop_hook(self) -> Any:
        """Revoke the session's token, and end visits.

        After a restart the hub no longer has the token at hand and would leave it valid.
        """
        note = f"Server at {url_path_join(self.user.base_url, url_escape_path(self.name), '/')}"
        for token in self.user.orm_user.api_tokens:
            if token.note == note:
                self.db.delete(token)
        self._end_visits()
        return super().run_post_stop_hook()

    # --- visitors: users whom the control plane let into this session of another user ------------------------------

    async def _check_visitors(self, workload_id: str) -> None:
        """End the visits of those who may no longer stay. Without an answer they stay until the next poll."""
        visitors = {
            share.user.name: VisitorIn(
                name=share.user.name, admin=share.user.admin, groups=[group.name for group in share.user.groups]
            )
            for share in self.orm_spawner.shares
            if share.user is not None
        }
        if not visitors:
            return
        try:
            async with asyncio.timeout(_POLL_S):
                staying = (await self._client.check_visitors(workload_id, list(visitors.values()))).names
        except (ApiError, TimeoutError) as error:
            self.log.warning("Cannot ask about the visitors of %s: %s", self._log_name, error)
            return
        self._end_visits(visitors.keys() - set(staying))

    def _end_visits(self, names: Collection[str] | None = None) -> None:
        """End the visits of these users, by default of all, and end their sign-ins to this session."""
        shares = [
            share for share in self.orm_spawner.shares if names is None or getattr(share.user, "name", "") in names
        ]
        for share in shares:
            for token in () if share.user is None else share.user.api_tokens:
                if token.client_id == self.oauth_client_id:
                    self.db.delete(token)
            self.db.delete(share)
        self.db.commit()

    # --- requests ------------------------------------------------------------------------------------------------

    @property
    def _client(self) -> AsyncClient:
        client = _clients.get(self.api_url)
        if client is None:
            token = Path(self.api_token_file).read_text(encoding="utf-8").strip()
            client = _clients[self.api_url] = AsyncClient(self.api_url, token, reconnect_timeout_s=_PATIENCE_S)
        return client

    @property
    def _groups(self) -> list[str]:
        return sorted(group.name for group in self.user.groups)

    @property
    def _requested_by_control(self) -> bool:
        """True if the start request comes from the control plane, not from a user."""
        requester = getattr(self.handler, "current_user", None)
        return isinstance(requester, orm.Service) and requester.name == SERVICE_NAME

    async def _follow(self) -> str:
        version = url_path_join(self.server.base_url, "api")  # needs no authentication
        return await Follower(self._client, self.workload_id, version, self._steps.add).wait_until_ready()

    async def _find(self) -> WorkloadOut | None:
        if self.workload_id:
            try:
                return await self._client.workload(self.workload_id)
            except ApiError as error:
                if error.status == 404:
                    return None
                raise
        if not self.key:
            return None
        async for workload in self._client.workloads(owner=self.user.name, kind="session", state=_LIVE):
            if workload.key == self.key:
                self.workload_id = workload.id
                return workload
        return None

    async def _stop_leftovers(self) -> None:
        """Stop workloads under this name that the hub has lost (for example after its database was restored): no user
        can reach them.
        """
        async for workload in self._client.workloads(owner=self.user.name, kind="session", state=_LIVE):
            if workload.name == self.name:
                await self._end(workload.id, "replaced by a new session of the same name")

    async def _end(self, workload_id: str, reason: str) -> None:
        try:
            await self._client.stop(workload_id, reason)
            await self._client.wait(workload_id)
        except ApiError as error:
            if error.code != "already-ended" and error.status != 404:
                raise

    def _submission(self) -> SubmitIn:
        """The submission, from the options and the values that a Jupyter server needs from its hub."""
        given = self.user_options or {}
        options: dict[str, Any] = dict(_options(given))
        if "volumes" in options:
            options["volumes"] = [one.strip() for one in options["volumes"].split(",") if one.strip()]
        if self._requested_by_control:
            options |= {name: given[name] for name in EXTRAS if name in given}
        else:  # the control plane still checks whether the owner may have these choices
            options["groups"] = self._groups
        try:
            options = with_units_in_names(options)
        except UnitError as error:
            raise _Refused(str(error), reason="invalid-input") from error
        environment = {name: str(value) for name, value in self.get_env().items() if value is not None}
        environment["JUPYTERHUB_SERVICE_URL"] = f"http://{self.session_ip}:{{port}}{self.server.base_url}"
        environment["COMMONAGE_URL"] = self.sessions_api_url
        fields = {
            "kind": "session",
            "name": self.name,  # "" for the default one; with no command, it runs the environment's own Jupyter server
            "owner": self.user.name,
            "key": f"hub-{secrets.token_hex(16)}",
            # The same token serves `commonage run` in the notebook's terminal.
            "secrets": {name: environment[name] for name in _SECRET} | {"COMMONAGE_TOKEN": self.api_token},
            **options,
            "variables": {
                **options.get("variables", {}),
                **{name: value for name, value in environment.items() if name not in _SECRET},
            },
        }
        try:
            return SubmitIn.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise _Refused(f"{field}: {first['msg']}", reason="invalid-input") from error


async def why_again(client: AsyncClient, key: str) -> str:
    """Tell why a session is started again. Its key ends with the id of the workload that it replaces."""
    try:
        ended = await client.workload(key.split("-", 2)[-1])
    except ApiError:  # only the cause is unknown
        return "Your session is started again."
    return f"Your session is started again. {ended.reason.message}"


class _Refused(SpawnException):
    """An error shown to users by its message alone, without its class and code."""

    @property
    def jupyterhub_message(self) -> str:
        return str(self.message)


def _options(given: Mapping[str, Any]) -> dict[str, str]:
    try:
        return read_options(given)
    except ValueError as error:
        raise _Refused(str(error), reason="invalid-options") from error

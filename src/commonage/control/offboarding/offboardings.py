"""Renames and removes users and tenants: plans, carries out one step after the other, and continues after a restart.

Used by API and portal. Each finished step is written with its event; what is written stays done. A step that fails is
repeated until it succeeds, and its error is shown.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from commonage.control.access import access_of
from commonage.control.offboarding.names import Names
from commonage.control.offboarding.plans import OffboardingPlan
from commonage.control.offboarding.steps import Steps
from commonage.control.settings import ControlSettings
from commonage.control.signals import wait_at_most
from commonage.control.state.writer import Writer
from commonage.domain.errors import CommonageError, Conflict, InvalidInput, NotFound
from commonage.domain.iterations import Iterations
from commonage.domain.offboarding import Change, DataChoice, Offboarding, Subject, Wanted, WorkChoice
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons import offboarding as reasons
from commonage.domain.workloads import Event, EventKind, IdSequence
from commonage.ports.clock import Clock
from commonage.ports.identity import Account, Identity
from commonage.ports.store import Filter, Store
from commonage.resources.documents import parse
from commonage.wire.hub import USER_NAME

log = logging.getLogger(__name__)
EVERY_S = 1.0  # while workloads end
AGAIN_S = 15.0  # after an error
IDLE_S = 3600.0
ITERATION_S = 6 * 3600.0  # archiving a large home takes long


@dataclass(frozen=True, slots=True)
class UserView:
    """A user: of the hub, or known by work, history or a retired name.

    `roles`: those on the platform, then those in tenants, as `TENANT: ROLE`.
    """

    name: str
    admin: bool
    groups: tuple[str, ...]
    roles: tuple[str, ...]
    live: int
    home_mib: int | None
    in_hub: bool
    offboarding: Offboarding | None


class PlanRefused(Conflict):
    """The plan has obstacles, or the admin saw another one."""


class Offboardings:
    """`home_mib` is the measured size of a user's home. `on_names` is called when names change that hold back work."""

    def __init__(
        self,
        steps: Steps,
        names: Names,
        settings: ControlSettings,
        chance: Callable[[int], int],
        home_mib: Callable[[str], int | None],
        on_names: Callable[[], None],
    ) -> None:
        self._steps, self._planner, self.names, self._settings = steps, steps.planner, names, settings
        self._store: Store = steps.store
        self._writer: Writer = steps.writer
        self._clock: Clock = steps.clock
        self._identity: Identity = steps.identity
        self._chance, self._home_mib, self._on_names = chance, home_mib, on_names
        self._ids = IdSequence()
        self._starting = asyncio.Lock()
        self._changed = asyncio.Event()
        self._unsure = False  # a commit failed, and it is unknown whether it was written
        self.iterations = Iterations("offboardings", self._clock.now, ITERATION_S)

    async def open(self) -> None:
        """Read what is retired and what is to be finished. Called before the loops run."""
        self.names.put(await self._store.offboardings())
        if self.names.all():
            self._ids.follow(self.names.all()[-1].id.removeprefix("o"))

    # --- use cases ------------------------------------------------------------------------------------------------

    async def plan(self, principal: Principal, wanted: Wanted) -> OffboardingPlan:
        """Preview `begin`. Raises InvalidInput, NotFound, Conflict if the name is being changed already."""
        access_of(principal, self._settings).need(Permission.SEE_PLATFORM)
        self._check(principal, wanted)
        self._need_free(wanted)
        await self._need_known(wanted)
        return await self._planner.plan(wanted)

    async def left_in(self, tenant: str, *, members: bool) -> reasons.TenantNotEmpty | None:
        """Why the resource of a tenant may not be deleted without an offboarding; None if it may.

        `members`: they are a reason, too. Then it raises Unavailable while the hub does not answer.
        """
        if tenant == self._settings.default_tenant:
            return None
        return await self._planner.left_in(tenant, members=members)

    async def begin(self, principal: Principal, wanted: Wanted, version: str) -> Offboarding:
        """Begin what a plan of this version says; the steps follow by themselves. The same request again returns it.

        Raises PlanRefused if the plan is another one by now or has obstacles, and what `plan` raises.
        """
        access_of(principal, self._settings).need(Permission.MANAGE_PLATFORM)
        self._check(principal, wanted)
        async with self._starting:
            await self._reread()
            there = self.names.retired(wanted.subject, wanted.name)
            if there is not None and there.wanted == wanted:
                return there
            plan = await self.plan(principal, wanted)
            if plan.obstacles:
                raise PlanRefused(plan.obstacles[0], code="plan-obstructed")
            if plan.version != version:
                raise PlanRefused(
                    f"The plan for {wanted.subject} {wanted.name} has changed since you saw it. Read the new plan, and "
                    "confirm that one.",
                    code="version-mismatch",
                )
            now = self._clock.now()
            begun = Offboarding(f"o{self._ids.next(now, self._chance(1 << 20))}", wanted, version, principal.name, now)
            started = reasons.OffboardingStarted(
                by=principal.name, subject=wanted.subject.value, name=wanted.name, to=wanted.to
            )
            await self._write(begun, started)
        self._on_names()
        self._changed.set()
        return begun

    def all(self, principal: Principal) -> Sequence[Offboarding]:
        """Newest first. For operators and admins."""
        access_of(principal, self._settings).need(Permission.SEE_PLATFORM)
        return list(reversed(self.names.all()))

    def one(self, principal: Principal, offboarding_id: str) -> Offboarding:
        access_of(principal, self._settings).need(Permission.SEE_PLATFORM)
        found = self.names.get(offboarding_id)
        if found is None:
            raise NotFound(
                f"There is no renaming or removal {offboarding_id[:60]!r}. `commonage user ls` lists users.",
                code="offboarding-not-found",
            )
        return found

    async def release(self, principal: Principal, offboarding_id: str) -> Offboarding:
        """Permit others to take the name that was given up. Repeating it changes nothing. Raises NotFound, Conflict."""
        access_of(principal, self._settings).need(Permission.MANAGE_PLATFORM)
        async with self._starting:
            await self._reread()
            found = self.one(principal, offboarding_id)
            wanted = found.wanted
            if found.is_pending:
                raise Conflict(
                    f"The {wanted.subject} {wanted.name} is still being changed. Release the name when it is done.",
                    code="offboarding-pending",
                )
            if found.released_at is not None:
                return found
            after = replace(found, released_at=self._clock.now(), released_by=principal.name)
            released = reasons.NameReleased(by=principal.name, subject=wanted.subject.value, name=wanted.name)
            await self._write(after, released)
        return after

    async def users(self, principal: Principal) -> Sequence[UserView]:
        """Users of the hub, and others who own work or whose names are retired, by name. For operators and admins."""
        access_of(principal, self._settings).need(Permission.SEE_PLATFORM)
        accounts = {one.name: one for one in await self._identity.accounts()}
        live_state = self._steps.live_state
        names = {*accounts, *(one.spec.owner for one in (*live_state, *live_state.cron_jobs.values()))}
        names |= {one.wanted.name for one in self.names.all() if one.wanted.subject is Subject.USER}
        return [self._view(name, accounts.get(name)) for name in sorted(names)]

    async def user(self, principal: Principal, name: str) -> UserView:
        """One user. For operators and admins. Raises NotFound."""
        access_of(principal, self._settings).need(Permission.SEE_PLATFORM)
        account = await self._identity.account(name)
        if account is None and self.names.retired(Subject.USER, name) is None:
            await self._need_known(Wanted(Subject.USER, Change.REMOVE, name))
        return self._view(name, account)

    def _view(self, name: str, account: Account | None) -> UserView:
        groups = () if account is None else account.groups
        access = access_of(Principal(name, frozenset(), groups), self._settings)
        roles = sorted(role.value for role in access.platform)
        roles += [
            f"{tenant.name}: {role.value}"
            for tenant in self._settings.rules.tenants
            for role in sorted(access.roles_in(tenant.name))
        ]
        return UserView(
            name=name,
            admin=account is not None and account.admin,
            groups=groups,
            roles=tuple(roles),
            live=len(self._planner.work_of(Subject.USER, name)),
            home_mib=self._home_mib(name),
            in_hub=account is not None,
            offboarding=self.names.claimed(Subject.USER, name),
        )

    # --- checks ---------------------------------------------------------------------------------------------------

    def _check(self, principal: Principal, wanted: Wanted) -> None:
        if wanted.change is Change.RENAME:
            _check_rename(wanted)
        else:
            _check_removal(wanted)
        if wanted.subject is Subject.USER and wanted.name == principal.name:
            raise InvalidInput("You cannot rename or remove yourself. Ask another admin.", field="name")
        if wanted.subject is Subject.TENANT and self._settings.default_tenant in (wanted.name, wanted.to):
            raise InvalidInput(
                f"{self._settings.default_tenant} is the default tenant. Change the setting `default_tenant` first.",
                field="name",
            )

    def _need_free(self, wanted: Wanted) -> None:
        there = self.names.claimed(wanted.subject, wanted.name) or self.names.awaited(wanted.subject, wanted.name)
        if there is None:
            return
        what = f"{wanted.subject} {wanted.name}"
        if there.is_pending:
            raise Conflict(
                f"The {what} is part of a change that is not done ({there.id}). Wait until that is done.",
                code="offboarding-pending",
            )
        raise Conflict(
            f"The {what} was {'renamed' if there.wanted.to else 'removed'} already ({there.id}). If somebody uses the "
            "name again, release it first.",
            code="name-not-released",
        )

    async def _need_known(self, wanted: Wanted) -> None:
        """Raise NotFound for a name that stands for nothing."""
        name = wanted.name
        if wanted.subject is Subject.TENANT:
            if all(one.name != name for one in self._settings.rules.tenants):
                there = ", ".join(one.name for one in self._settings.rules.tenants) or "none"
                raise NotFound(f"There is no tenant {name[:60]!r}. Tenants: {there}.", code="tenant-not-found")
            return
        if await self._identity.account(name) is not None or self._planner.work_of(Subject.USER, name):
            return
        if (await self._store.workloads(Filter(owner=name), limit=1)).items or await self._planner.folders_of(wanted):
            return
        if self._planner.cron_jobs_of(wanted):
            return
        raise NotFound(
            f"There is no user {name[:60]!r}, and no data of such a user. `commonage user ls` lists users.",
            code="user-not-found",
        )

    # --- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        if self.names.pending():
            self._on_names()
        while True:
            rest_s = await self.tick()
            with self.iterations.rest():
                await wait_at_most(rest_s, self._changed, self._clock)
            self._changed.clear()

    async def tick(self) -> float:
        """Continue with each change; returns the seconds until it is worth trying again."""
        rest_s = IDLE_S
        try:
            await self._reread()
        except CommonageError as error:
            log.warning("renamings and removals wait for the store: %s", error)
            return AGAIN_S
        for offboarding in self.names.pending():
            try:
                rest_s = min(rest_s, EVERY_S if await self._go_on(offboarding) else IDLE_S)
            except CommonageError as error:
                await self._note_error(offboarding, error)
                rest_s = min(rest_s, AGAIN_S)
        return rest_s

    async def _go_on(self, offboarding: Offboarding) -> bool:
        """Carry out steps until one has to wait; False when all are done."""
        current = offboarding
        while (step := current.next_step) is not None:
            if not await self._steps.run(step, current):
                return True
            wanted, now = current.wanted, self._clock.now()
            current = current.after(step, now)
            events: list[Reason] = [
                reasons.OffboardingStep(subject=wanted.subject.value, name=wanted.name, step=step.value)
            ]
            if not current.is_pending:
                done = reasons.OffboardingDone(
                    by=current.by, subject=wanted.subject.value, name=wanted.name, to=wanted.to
                )
                events.append(done)
            await self._write(current, *events)
        self._on_names()
        return False

    async def _reread(self) -> None:
        """After a commit with an unknown outcome, take what the store has."""
        if self._unsure:
            self.names.put(await self._store.offboardings())
            self._unsure = False

    async def _note_error(self, offboarding: Offboarding, error: CommonageError) -> None:
        current = self.names.get(offboarding.id) or offboarding
        wanted = current.wanted
        log.warning("%s %s is not changed yet (step %s): %s", wanted.subject, wanted.name, current.next_step, error)
        if current.last_error != str(error):
            try:
                await self._write(replace(current, last_error=str(error)))
            except CommonageError as again:
                log.warning("cannot note that: %s", again)

    async def _write(self, offboarding: Offboarding, *happened: Reason) -> None:
        now, wanted = self._clock.now(), offboarding.wanted
        tenant = wanted.name if wanted.subject is Subject.TENANT else None
        events = [Event(EventKind.AUDIT, now, one, tenant=tenant) for one in happened]
        try:
            await self._writer.write(events=events, offboardings=[offboarding])
        except CommonageError:
            self._unsure = True
            raise
        self.names.put([offboarding])


def _check_rename(wanted: Wanted) -> None:
    if not wanted.to:
        raise InvalidInput("A rename needs the new name.", field="to")
    if wanted.to == wanted.name:
        raise InvalidInput(f"{wanted.name!r} is the present name. Choose another one.", field="to")
    if wanted.subject is Subject.TENANT:
        parse({"kind": "Tenant", "name": wanted.to})
    elif not re.match(USER_NAME, wanted.to):
        raise InvalidInput(
            f"Invalid user name {wanted.to[:60]!r}. Use at most 63 lower-case letters, digits and . _ @ + -.",
            field="to",
        )
    if wanted.heir:
        raise InvalidInput("A rename hands nothing over to others. Leave `heir` out.", field="heir")


def _check_removal(wanted: Wanted) -> None:
    if wanted.to:
        raise InvalidInput("A removal has no new name. Name who gets the work and data in `heir`.", field="to")
    gives = wanted.workloads is WorkChoice.HAND_OVER or wanted.data is DataChoice.HAND_OVER
    if gives and not wanted.heir:
        raise InvalidInput(f"Name the {wanted.subject} who gets the work or the data.", field="heir")
    if wanted.heir == wanted.name:
        raise InvalidInput(f"{wanted.name} cannot be handed over to itself.", field="heir")

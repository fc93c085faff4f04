"""Bundles that users uploaded: their owners, limits on count and size, and when they are removed.

Users can submit only with bundles that they uploaded: the digest of another user's bundle gives no access. The adapter
stores the files. This module keeps the list of them in memory from the start, so that a submission does not wait for
the disk. Used by the API and by the use cases that submit and start workloads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from commonage.control.access import access_of
from commonage.control.settings import ControlSettings
from commonage.control.state.live_state import LiveState
from commonage.control.state.writer import Writer
from commonage.control.tenants import tenant_of
from commonage.domain.errors import CommonageError, NotFound, TooMany, Unavailable
from commonage.domain.iterations import Iterations
from commonage.domain.principals import Principal, Scope
from commonage.domain.requests import format_duration, format_memory
from commonage.domain.volumes import folder_name
from commonage.domain.workloads import Spec
from commonage.ports.bundles import Bundles, KeptBundle, ReceivedBundle
from commonage.ports.clock import Clock

log = logging.getLogger(__name__)
EVERY_S = 600.0
ITERATION_S = 900.0  # a slow disk may need this long
MAX_AT_ONCE = 100  # removed in one pass
UPLOADS_PER_USER = 4  # at the same time
UPLOADS = 64  # the same, for all users together
UPLOAD_WITHIN_S = 900  # a slow sender occupies one of those places
SOON_S = 600.0
"""At a limit, unneeded bundles older than this are removed first: they will hardly be submitted any more."""
KNOWN_S = 60.0
"""Less than SOON_S. Avoids scanning all workloads at each upload of a user at a limit."""
_MIB = 1024 * 1024
_Key = tuple[str, str]  # owner and digest


@dataclass(frozen=True, slots=True)
class _Share:
    """The limits for one user or one tenant."""

    whose: str
    by: Literal["owner", "tenant"]
    folder: str
    most: int
    max_mib: int

    def of(self, kept: Iterable[KeptBundle]) -> list[KeptBundle]:
        return [bundle for bundle in kept if getattr(bundle, self.by) == self.folder]

    def is_full(self, mine: Sequence[KeptBundle], size: int) -> bool:
        return len(mine) >= self.most or sum(bundle.size for bundle in mine) + size > self.max_mib * _MIB


class UserBundles:
    """Stores, finds and removes bundles. Each bundle is kept once for each tenant and user."""

    def __init__(
        self, files: Bundles, live_state: LiveState, writer: Writer, clock: Clock, settings: ControlSettings
    ) -> None:
        self._files, self._live_state, self._writer, self._clock = files, live_state, writer, clock
        self._settings, self._limits = settings, settings.bundles
        self._kept: dict[_Key, dict[str, KeptBundle]] = {}  # by tenant
        self._uploads: Counter[str] = Counter()
        self._last_needed: tuple[float, frozenset[_Key]] = (0.0, frozenset())  # time and result of the last computation
        self.iterations = Iterations("bundles", clock.now, ITERATION_S)
        self._changing = asyncio.Lock()  # guards what lies on the disk

    async def open(self) -> None:
        """Read the list of bundles. Link ownerless ones of an older release to live workloads that need them."""
        for bundle in await self._files.all():
            self._put(bundle)
        for spec in {
            id(workload.spec): workload.spec for workload in self._live_state if workload.spec.bundle
        }.values():
            try:
                source = self._of(spec.owner, spec.bundle) or self._of(None, spec.bundle)
                if source is not None and not self._has(spec):
                    await self._link(source, spec)
            except CommonageError as error:  # the workload fails with this error when it is started
                log.warning("a bundle of %s is not there any more: %s", spec.owner, error)

    async def send(self, principal: Principal, chunks: AsyncIterator[bytes]) -> KeptBundle:
        """Keep an archive for its sender. Raises TooMany, TooLarge, InvalidInput, Unavailable; then it is not kept."""
        principal.need(Scope.SUBMIT)
        access = access_of(principal, self._settings)
        tenant = tenant_of(None, access, access).name
        with self._receiving(principal.name):
            try:
                async with asyncio.timeout(UPLOAD_WITHIN_S):
                    received = await self._files.receive(chunks)
            except TimeoutError:
                raise Unavailable(
                    f"Upload too slow: it was not complete after {format_duration(UPLOAD_WITHIN_S)}. Send less, or "
                    "over a faster connection."
                ) from None
            try:
                return await self._keep(received, tenant, principal.name)
            finally:
                await self._files.discard(received)

    async def _keep(self, received: ReceivedBundle, tenant: str, owner: str) -> KeptBundle:
        async with self._changing:
            there = self._of(owner, received.digest)
            if there is not None:
                with suppress(NotFound):  # its file was removed, and this upload replaces it
                    return await self._used(there)
            await self._make_room(tenant, owner, received.size)
            kept = KeptBundle(
                folder_name(tenant), folder_name(owner), received.digest, received.size, self._clock.now()
            )
            await self._files.keep(received, kept)
            self._put(kept)
            return kept

    @contextmanager
    def _receiving(self, owner: str) -> Iterator[None]:
        """Count a running upload: its digest, and so whether it is new, is known only at its end."""
        for count, most, whose in (
            (self._uploads[owner], UPLOADS_PER_USER, "you send"),
            (self._uploads.total(), UPLOADS, "all users send"),
        ):
            if count >= most:
                raise TooMany(
                    f"Too many uploads: {whose} {count} bundles now, and {most} are allowed at the same time. Send "
                    "them one after the other.",
                    code="too-many-uploads",
                )
        self._uploads[owner] += 1
        try:
            yield
        finally:
            self._uploads[owner] -= 1
            if not self._uploads[owner]:
                del self._uploads[owner]

    async def _make_room(self, tenant: str, owner: str, size: int) -> None:
        """Raise TooMany if one more bundle of this size exceeds a limit even after unneeded ones are removed."""
        limits = self._limits
        for share in (
            _Share(f"user {owner}", "owner", folder_name(owner), limits.per_user, limits.per_user_mib),
            _Share(f"tenant {tenant}", "tenant", folder_name(tenant), limits.per_tenant, limits.per_tenant_mib),
        ):
            mine = share.of(self._all())
            if share.is_full(mine, size):
                await self._remove_unneeded(mine, SOON_S, known_s=KNOWN_S)
                mine = share.of(self._all())
            if share.is_full(mine, size):
                raise TooMany(
                    f"Too many bundles: the {share.whose} keeps {len(mine)} of {share.most} allowed, with "
                    f"{format_memory(_mib(mine))} of {format_memory(share.max_mib)} in all, and {size >> 10} KiB more "
                    f"were sent. A bundle is removed {format_duration(limits.keep_s)} after the last workload that "
                    "needs it has ended: wait for workloads to end or stop some, and keep large data in a volume.",
                    code="too-many-bundles",
                )

    def find(self, sender: Principal, spec: Spec) -> KeptBundle:
        """Find the bundle that a spec names among those of its sender and of its owner. Raises NotFound."""
        found = self._of(sender.name, spec.bundle) or self._of(spec.owner, spec.bundle)
        if found is None:
            raise _gone(spec)
        return found

    async def claim(self, sender: Principal, spec: Spec) -> None:
        """Protect the bundle of a workload from removal until the workload is written. Raises NotFound, TooMany."""
        if spec.bundle is None:
            return
        async with self._changing:
            found = self.find(sender, spec)
            if self._has(spec):
                await self._used(self._kept[_key(spec)][folder_name(spec.tenant)])
            else:
                await self._make_room(spec.tenant, spec.owner, found.size)
                await self._link(found, spec)

    def path(self, spec: Spec) -> Path | None:
        """Path of a workload's archive, None if it has no bundle. Raises NotFound."""
        if spec.bundle is None:
            return None
        if not self._has(spec):
            raise _gone(spec)
        return self._files.path(self._kept[_key(spec)][folder_name(spec.tenant)])

    def _of(self, owner: str | None, digest: str | None) -> KeptBundle | None:
        """Find a bundle of this user under any tenant. With user None: a bundle of an older release."""
        of_tenants = self._kept.get(("" if owner is None else folder_name(owner), digest or ""), {})
        return next(iter(of_tenants.values()), None)

    def _has(self, spec: Spec) -> bool:
        return folder_name(spec.tenant) in self._kept.get(_key(spec), {})

    def _all(self) -> list[KeptBundle]:
        return [bundle for of_tenants in self._kept.values() for bundle in of_tenants.values()]

    def _put(self, bundle: KeptBundle) -> None:
        self._kept.setdefault((bundle.owner, bundle.digest), {})[bundle.tenant] = bundle

    async def _used(self, bundle: KeptBundle) -> KeptBundle:
        """Update the time of last use. Raises NotFound if the file is gone."""
        used = replace(bundle, used_at=self._clock.now())
        self._put(used)
        try:
            await self._files.note_use(used)
        except NotFound:
            self._forget(used)
            raise
        return used

    async def _link(self, source: KeptBundle, spec: Spec) -> None:
        tenant, owner = folder_name(spec.tenant), folder_name(spec.owner)
        linked = replace(source, tenant=tenant, owner=owner, used_at=self._clock.now())
        await self._files.link(source, linked)
        self._put(linked)

    async def run(self) -> None:
        while True:
            try:
                removed = await self.collect()
            except CommonageError as error:
                log.warning("bundles are not removed: %s", error)
                removed = 0
            with self.iterations.rest():
                await self._clock.sleep(EVERY_S if removed < MAX_AT_ONCE else 1.0)

    async def collect(self) -> int:
        """Remove some bundles that no live workload has needed for long; returns their number. Raises Unavailable."""
        async with self._changing:
            return await self._remove_unneeded(self._all(), self._limits.keep_s)

    async def _remove_unneeded(self, among: Iterable[KeptBundle], unused_s: float, known_s: float = 0.0) -> int:
        """Takes the lock, as submissions do to claim a bundle. `known_s`: see `_needed`."""
        since = self._clock.now() - unused_s
        old = [bundle for bundle in among if bundle.used_at < since]
        if not old or self._writer.stuck:  # submitted workloads may not be in the live state yet
            return 0
        needed = self._needed(known_s)
        doomed = [bundle for bundle in old if (bundle.owner, bundle.digest) not in needed][:MAX_AT_ONCE]
        for bundle in doomed:
            self._forget(bundle)
            await self._files.remove(bundle)
        if doomed:
            log.info("removed %d bundles that no workload needs", len(doomed))
        return len(doomed)

    def _forget(self, bundle: KeptBundle) -> None:
        of_tenants = self._kept[bundle.owner, bundle.digest]
        del of_tenants[bundle.tenant]
        if not of_tenants:
            del self._kept[bundle.owner, bundle.digest]

    def _needed(self, known_s: float) -> frozenset[_Key]:
        """Bundles that live workloads and cron jobs need; the result may be `known_s` seconds old.

        Workloads submitted since then have claimed their bundles, so those are too recent to be removed.
        """
        at, needed = self._last_needed
        if known_s and self._clock.now() - at < known_s:
            return needed
        lasting = [cron_job.spec for cron_job in self._live_state.cron_jobs.values()]
        each = [*(workload.spec for workload in self._live_state), *lasting]
        specs = {(spec.owner, spec.bundle) for spec in each if spec.bundle}
        mine = {(folder_name(owner), digest) for owner, digest in specs if digest}
        needed = frozenset(mine | {("", digest) for _, digest in mine})
        self._last_needed = self._clock.now(), needed
        return needed


def _mib(kept: Iterable[KeptBundle]) -> int:
    return sum(bundle.size for bundle in kept) // _MIB


def _key(spec: Spec) -> _Key:
    return folder_name(spec.owner), spec.bundle or ""


def _gone(spec: Spec) -> NotFound:
    return NotFound(
        f"Bundle not found: {spec.owner} keeps none with the digest {(spec.bundle or '')[:16]}…. It was not sent, or "
        "was removed as no workload needed it. Send the files again and submit again.",
        code="bundle-not-found",
    )

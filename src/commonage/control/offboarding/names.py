"""Names of users and tenants that are being changed, or were given up. Asked at sign-in, at submission and by timers.

`offboardings` is the only writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commonage.domain.errors import Forbidden
from commonage.domain.offboarding import Change, Offboarding, Step, Subject
from commonage.domain.principals import Principal
from commonage.domain.reasons import Reason
from commonage.domain.reasons.offboarding import NameRetired, WaitsForNewName
from commonage.domain.workloads import Spec

_Key = tuple[Subject, str]


class Names:
    """`pending` are the changes that are not done. A name is looked up in one step, because each request asks."""

    def __init__(self) -> None:
        self._all: dict[str, Offboarding] = {}
        self._retired: dict[_Key, Offboarding] = {}
        self._reserved: dict[_Key, Offboarding] = {}  # the new names of renames that are not done

    def put(self, changed: Iterable[Offboarding]) -> None:
        self._all.update((one.id, one) for one in changed)
        ordered = self.all()
        kept = [one for one in ordered if one.released_at is None]
        self._retired = {(one.wanted.subject, one.wanted.name): one for one in kept}
        self._reserved = {
            (one.wanted.subject, one.wanted.to): one for one in ordered if one.is_pending and one.wanted.to
        }

    def all(self) -> Sequence[Offboarding]:
        """Oldest first."""
        return [self._all[key] for key in sorted(self._all)]

    def get(self, offboarding_id: str) -> Offboarding | None:
        return self._all.get(offboarding_id)

    def pending(self) -> Sequence[Offboarding]:
        return [one for one in self.all() if one.is_pending]

    def retired(self, subject: Subject, name: str) -> Offboarding | None:
        """The change by which this name was or is being given up; None if it is free or was released."""
        return self._retired.get((subject, name))

    def claimed(self, subject: Subject, name: str) -> Offboarding | None:
        """The change that gives this name up, or takes it."""
        return self.retired(subject, name) or self._reserved.get((subject, name))

    def awaited(self, subject: Subject, name: str) -> Offboarding | None:
        """The change that will hand something over to this name."""
        return next((one for one in self.pending() if (one.wanted.subject, one.wanted.heir) == (subject, name)), None)

    def admit(self, principal: Principal) -> None:
        """Raise Forbidden for a name that was given up or is being changed.

        While the work of a user who is renamed ends, the user may still read.
        """
        found = self.claimed(Subject.USER, principal.name)
        if found is None:
            return
        is_old, renames = found.wanted.name == principal.name, found.wanted.change is Change.RENAME
        if is_old and renames and Step.WORKLOADS not in found.done:
            return
        raise Forbidden(_reason(found, principal.name), code="name-retired")

    def check(self, owner: str, tenant: str) -> None:
        """Raise Forbidden if nothing new may be submitted for this owner or tenant."""
        for key in ((Subject.USER, owner), (Subject.TENANT, tenant)):
            found = self.claimed(*key)
            if found is not None:
                raise Forbidden(_reason(found, key[1]), code="name-retired")

    def held(self, owner: str, tenant: str) -> Reason | None:
        """Why a cron job may not run now: its owner or tenant is being changed. None if it may."""
        for key in ((Subject.USER, owner), (Subject.TENANT, tenant)):
            found = self.claimed(*key)
            if found is not None and found.is_pending:
                return _reason(found, key[1])
        return None

    def shortfall(self, spec: Spec) -> Reason | None:
        """Why work that waits may not start: it will get another owner or tenant. None if it may."""
        for key in ((Subject.USER, spec.owner), (Subject.TENANT, spec.tenant)):
            found = self._retired.get(key)
            if found is not None and found.is_pending and found.wanted.holds_queue:
                wanted = found.wanted
                return WaitsForNewName(subject=wanted.subject.value, name=wanted.name, receiver=wanted.receiver)
        return None


def _reason(found: Offboarding, name: str) -> NameRetired:
    wanted = found.wanted
    return NameRetired(
        subject=wanted.subject.value,
        name=name,
        to=wanted.to,
        pending=found.is_pending,
    )

"""Limits on live workloads per user, per tenant and in total. Called by `workloads` at submission."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from commonage.control.limits import Limits
from commonage.control.state.live_state import CountKey, LiveState, count_keys
from commonage.domain.errors import TooMany
from commonage.domain.reasons.refusals import LimitOf, TooManyWorkloads
from commonage.domain.workloads import Kind, Spec

CODE = "too-many-workloads"


class LiveLimits:
    """Counts the live workloads and those that are being written."""

    def __init__(self, live_state: LiveState, limits: Limits) -> None:
        self._live_state = live_state
        self._limits = limits
        self._coming: dict[str, Spec] = {}  # by the id of the (first) workload

    def check(self, spec: Spec) -> None:
        """Raise TooMany if the limits leave no room for it."""
        more, limits = max(1, spec.array_size), self._limits
        for key in count_keys(spec):
            there, most = self._live(key), self._most(key)
            if there + more > most:
                of = LimitOf.TENANT if key[0] == "tenant" else LimitOf.USER
                raise _too_many(of, key[1], spec, there, most)
        # The last tenth is reserved for sessions: a user who fills the queue must not keep others from their notebooks.
        most = limits.workloads if spec.kind is Kind.SESSION else limits.workloads - limits.workloads // 10
        there = self._live()
        if there + more > most:
            raise _too_many(LimitOf.EVERYBODY, "", spec, there, most)

    @contextmanager
    def room(self, spec: Spec, workload_id: str) -> Iterator[None]:
        """Reserve room for the workload until it is live. Raises TooMany."""
        self.check(spec)
        self._coming[workload_id] = spec
        try:
            yield
        finally:
            del self._coming[workload_id]

    def _most(self, key: CountKey) -> int:
        kind, name = key
        if kind == "tenant":
            own = self._live_state.snapshot.rules.tenant(name).max_workloads
            return self._limits.workloads_per_tenant if own is None else own
        return self._limits.workloads_per_user if kind == "user" else self._limits.sessions_per_user

    def _live(self, key: CountKey | None = None) -> int:
        """Number of workloads under a key, None: in total; includes those that are being written."""
        coming = sum(
            max(1, spec.array_size)
            for workload_id, spec in self._coming.items()
            if (key is None or key in count_keys(spec)) and self._live_state.get(workload_id) is None
        )
        return coming + (len(self._live_state) if key is None else self._live_state.count(key))


def _too_many(of: LimitOf, name: str, spec: Spec, live: int, limit: int) -> TooMany:
    sessions, submitted = spec.kind is Kind.SESSION, max(1, spec.array_size)
    why = TooManyWorkloads(of=of, name=name, sessions=sessions, live=live, submitted=submitted, limit=limit)
    return TooMany(why, code=CODE)

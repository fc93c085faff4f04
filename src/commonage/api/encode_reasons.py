"""Reasons, from the domain to the wire: where codes get their text. Called by whatever else encodes."""

from __future__ import annotations

from commonage import messages
from commonage.domain.codec import to_json
from commonage.domain.reasons import Reason
from commonage.wire.workloads import ReasonOut


def reason(found: Reason) -> ReasonOut:
    """A reason with its sentence."""
    return ReasonOut(code=found.code, params=to_json(found)["params"], message=messages.text(found))


def optional(found: Reason | None) -> ReasonOut | None:
    """The same, of what may be absent."""
    return None if found is None else reason(found)

"""Texts of reasons: turns a reason code and its parameters into sentences. Called where text is shown.

One module for each family of `commonage.domain.reasons`. Texts are whole sentences that stand alone. Not in this
package: errors without a reason (written where they are raised), titles of problems (`api.problems`), and labels and
hints of the portal (in its templates).
"""

from __future__ import annotations

from collections.abc import Iterable

from commonage.domain.codec import to_json
from commonage.domain.errors import CommonageError
from commonage.domain.reasons import Reason
from commonage.messages import (
    attempts,
    classes,
    cron_jobs,
    devices,
    engines,
    materials,
    nodes,
    notes,
    offboarding,
    permissions,
    refusals,
    resources,
    waiting,
)
from commonage.messages.template import Params, Texts

_FAMILIES = (
    waiting, refusals, permissions, attempts, nodes, devices, engines, notes, resources, offboarding, cron_jobs,
    materials,
    classes,
)  # fmt: skip
TEXTS: Texts = {reason: text for family in _FAMILIES for reason, text in family.TEXTS.items()}


def text(reason: Reason) -> str:
    """The sentences for a reason, with those of its causes. Never fails: a site reports any parameters."""
    template = TEXTS[type(reason)]
    try:
        return template.format_map(Params(reason, text)) if isinstance(template, str) else template(reason, text)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return f"{reason.code}: {to_json(reason)['params']}"


def texts(reasons: Iterable[Reason]) -> str:
    """The sentences for several reasons, one after the other."""
    return " ".join(text(reason) for reason in reasons)


def of_error(error: CommonageError) -> str:
    """The sentences for an error, of its reason if it has one."""
    return error.message if error.reason is None else text(error.reason)

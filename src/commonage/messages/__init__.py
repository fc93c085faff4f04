"""The only place with sentences for users: a reason becomes text here, last, for API, portal and whoever prints.

One module for each family of `commonage.domain.reasons`. Texts are whole sentences that stand alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from commonage.domain.errors import CommonageError
from commonage.domain.reasons import Reason
from commonage.messages import attempts, devices, nodes, notes, refusals, waiting
from commonage.messages.template import Params, Texts

TEXTS: Texts = {**waiting.TEXTS, **refusals.TEXTS, **attempts.TEXTS, **nodes.TEXTS, **devices.TEXTS, **notes.TEXTS}


def text(reason: Reason) -> str:
    """The sentences for a reason, with those of its causes."""
    template = TEXTS[type(reason)]
    return template.format_map(Params(reason, text)) if isinstance(template, str) else template(reason, text)


def texts(reasons: Iterable[Reason]) -> str:
    """The sentences for several reasons, one after the other."""
    return " ".join(text(reason) for reason in reasons)


def of_error(error: CommonageError) -> str:
    """The sentences for an error, of its reason if it has one."""
    return error.message if error.reason is None else text(error.reason)

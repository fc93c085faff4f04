"""Fills the messages of `commonage.wire` from the objects of the domain and of control. Called by the routes.

`tests/unit/api/test_fields.py` compares the fields of every message with those of its source classes.
"""

from __future__ import annotations

from functools import cache
from typing import TypeVar

from pydantic import BaseModel

from commonage import messages
from commonage.domain.codec import to_json
from commonage.domain.reasons import Reason
from commonage.wire.reasons import ReasonOut

Message = TypeVar("Message", bound=BaseModel)


def fill(model: type[Message], *sources: object, **own: object) -> Message:
    """Build a message: each field comes from `own`, otherwise from the first source that has an attribute of its name.

    Reasons get their text. Objects within sources are read by their attributes (pydantic's `from_attributes`).
    """
    values = dict(own)
    for name, index in _sources_of_fields(model, *map(type, sources)):
        if name not in own:
            value = getattr(sources[index], name)
            values[name] = reason(value) if isinstance(value, Reason) else value
    return model.model_validate(values, from_attributes=True)


@cache
def _sources_of_fields(model: type[BaseModel], *sources: type) -> tuple[tuple[str, int], ...]:
    found = {
        name: index for index, source in reversed([*enumerate(sources)]) for name in model.model_fields
        if hasattr(source, name)
    }  # fmt: skip
    return tuple(found.items())


def reason(given: Reason) -> ReasonOut:
    return ReasonOut(code=given.code, params=to_json(given)["params"], message=messages.text(given))


def optional_reason(given: Reason | None) -> ReasonOut | None:
    return None if given is None else reason(given)

"""The options of a session: from the hub's form or its API to plain options, and the form itself.

Only the shape is checked here. The control plane checks availability, and explains a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from commonage.wire.environments import LaunchOptions

# The options of a session's owner, with the same names everywhere: form, query, the hub's API, portal. They are fields
# of `SubmitIn`; `time` and `memory` are text with a unit, as on the command line.
CHOICES = ("environment", "cpus", "memory", "gpus", "time", "tenant", "volumes", "requeue")
# Options with several values; as one text they are separated by commas.
_LISTS = ("volumes",)
# A checkbox of the form, or a boolean of the API.
_BOOLEANS = ("requeue",)
# Options that the control plane adds when it lets the hub start a session. It has checked that the owner may have them;
# from any other caller, and from the options of an earlier start, they are ignored.
EXTRAS = ("key", "priority", "variables", "preemptible", "on", "one_numa", "near", "grace", "class_meeting")

_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("commonage.hub"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def read_options(given: Mapping[str, Any]) -> dict[str, str]:
    """Options as text; empty ones are left out. Raises ValueError, with a sentence for the user.

    A form and a query give lists of strings, the API strings and numbers.
    """
    unknown = sorted(set(given) - {*CHOICES, *EXTRAS})
    if unknown:
        raise ValueError(f"a session has no option {', '.join(unknown)}; there are {', '.join(CHOICES)}")
    options: dict[str, str] = {}
    for name in CHOICES:
        value = given.get(name)
        if isinstance(value, Sequence) and not isinstance(value, str):
            if name in _LISTS:
                value = [",".join(str(one).strip() for one in value if one)]
            if len(value) > 1:
                raise ValueError(f"{name} was given {len(value)} times; give it once")
            value = value[0] if value else None
        if value is None or value == "":
            continue
        if name in _BOOLEANS and isinstance(value, bool):
            value = str(value).lower()
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"{name} must be text or a number, not {value!r}")
        text = str(value).strip()
        if text:
            options[name] = text
    return options


def render_form(offer: LaunchOptions, chosen: Mapping[str, str]) -> str:
    """The inside of the hub's form, with the available choices, the free resources, and the previous choices."""
    environments = [entry for entry in offer.environments if "session" in entry.kinds]
    volumes = [one for one in offer.volumes if not one.always]
    return _templates.get_template("options_form.html").render(
        offer=offer, environments=environments, volumes=volumes, chosen=chosen
    )


def render_unavailable(reason: str) -> str:
    return _templates.get_template("options_unavailable.html").render(reason=reason)

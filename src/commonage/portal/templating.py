"""The template environment and its filters for quantities. Everything is escaped except markup made here.

Times are written as UTC for browsers without scripts; the page's script shows them in the reader's time zone and
updates "3 min ago".
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from commonage import messages
from commonage.control.classes.meetings import Meetings
from commonage.control.nodes.node_states import reasons_for
from commonage.control.settings import ControlSettings
from commonage.control.usage.attribution import unattributed
from commonage.domain.materials import printable
from commonage.domain.requests import format_cpus, format_duration, format_memory
from commonage.domain.time_zones import utc
from commonage.messages import explanations
from commonage.messages.notes import unattributed as unattributed_in_words
from commonage.messages.waiting import resources
from commonage.portal import labels
from commonage.portal.static_files import Assets
from commonage.portal.views.launch_form import command_text, gpus_text
from commonage.wire.hub import DOCS_PATH, docs_page

FOLDER = Path(__file__).parent / "templates"
_DOCS = re.compile(rf"{DOCS_PATH}(?:[\w/-]+\.html(?:#[\w-]+)?)?")


def make_templates(assets: Assets, settings: ControlSettings, meetings: Meetings) -> Environment:
    """The environment of all templates; an unknown name is an error, not an empty text."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
    )
    environment.filters.update(
        memory=lambda mib: format_memory(mib) if mib else "0",
        bytes=_bytes,
        cpus=format_cpus,
        duration=format_duration,
        ago=lambda at: instant(at, "ago"),
        since=lambda at: instant(at, "for"),
        left=lambda at: instant(at, "left"),
        moment=lambda at: instant(at, "moment"),
        clock=lambda at: instant(at, "clock"),
        hours=hours,
        percent=percent,
        money=money,
        command=command_text,
        gpus=gpus_text,
        linked=linked,
        coded=coded,
        path=printable,
        text=lambda reason: messages.text(reason) if reason else "",
        texts=messages.texts,
        sentence=messages.of_error,
        resources=resources,
        summary=explanations.summary,
        ahead=explanations.ahead,
        unattributed=lambda view: unattributed_in_words(unattributed(view.device, view.unattributed)),
    )
    environment.globals.update(
        asset=assets.url,
        docs_page=docs_page,
        sign_of=labels.sign_of,
        title_of=labels.title_of,
        link_to=partial(labels.link_to, settings=settings),
        may_visit=partial(labels.may_visit, meetings=meetings),
        may_enter=partial(labels.may_enter, meetings=meetings),
        reasons_for=reasons_for,
        service_address=labels.service_address,
        kind_signs=labels.KINDS,
        state_signs=labels.STATES,
        isolation_words=labels.ISOLATION,
        environment_signs=labels.ENVIRONMENTS,
        image_signs=labels.IMAGES,
        node_signs=labels.NODES,
        seat_signs=labels.SEATS,
    )
    return environment


def instant(at: float, form: str) -> Markup:
    """`at` (unix seconds) as a time element.

    `form`: `ago`, `for` (duration since), `left`, `moment` (day and time) or `clock` (time).
    """
    when = utc(at)
    shown = when.strftime("%H:%M:%S UTC" if form == "clock" else "%Y-%m-%d %H:%M UTC")
    return Markup('<time datetime="{}" data-form="{}">{}</time>').format(
        when.isoformat(timespec="seconds").replace("+00:00", "Z"), form, shown
    )


def hours(value: float) -> str:
    """`0.004`, `0.35`, `12.4`, `1,240`: about three digits."""
    if value == 0:
        return "0"
    if value < 0.0005:
        return "< 0.001"
    if value < 0.1:
        return f"{value:.3f}"
    if value < 10:
        return f"{value:.2f}"
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def coded(text: str) -> Markup:
    """Text between backticks becomes code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704  # escaped before


def linked(text: str) -> Markup:
    """A message with links to the pages of the documentation that it names."""
    return Markup(_DOCS.sub(r'<a href="\g<0>">\g<0></a>', str(escape(text))))  # noqa: S704  # escaped before


def percent(part: float, whole: float) -> str:
    """`part` of `whole` in percent, for geometry: `37.5`, within 0..100."""
    if whole <= 0:
        return "0"
    return f"{min(100.0, max(0.0, 100 * part / whole)):.2f}".rstrip("0").rstrip(".")


def money(value: float, currency: str) -> str:
    """`1.25 EUR`; amounts below one hundredth are marked as such."""
    shown = "< 0.01" if 0 < value < 0.01 else f"{value:,.2f}"
    return f"{shown} {currency}".strip()


def _bytes(size: int) -> str:
    """The size of a file: three digits are enough."""
    amount, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"

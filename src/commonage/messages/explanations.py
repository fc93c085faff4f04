"""Texts of an explanation: the whole answer in one paragraph, and the jobs ahead."""

from __future__ import annotations

from commonage.domain.explanations import Ahead, Confidence, Explanation, Holder, JobsAhead, Precedence, SiteChoice
from commonage.domain.requests import format_duration
from commonage.messages import text
from commonage.messages.template import moment
from commonage.messages.waiting import resources

_AHEAD = {
    Precedence.PRIORITY: "with a higher priority",
    Precedence.FAIR_SHARE: "of users who used less lately",
    Precedence.OLDER: "waiting longer",
    Precedence.OWN: "of the same owner",
}
_STARTS = {
    Confidence.LIMITS: "Expected to start within {}.",
    Confidence.LIKELY: "Likely to start in about {}.",
    Confidence.GUESS: "May start in about {} (a guess).",
}


def summary(found: Explanation) -> str:
    """Why it waits and until when, or why it is where it is."""
    if found.position is None or found.startable_now:
        return " ".join(text(one) for one in found.reasons)
    at = f" at {found.site}" if found.site else ""
    would = "" if found.is_queued else "It would have "
    parts = [f"{would}{'position' if would else 'Position'} {found.position} of {found.queue_length} in the queue{at}."]
    parts += [text(one) for one in found.reasons[:1]]
    if found.holders:
        one = found.holders[0]
        whose = "Another tenant" if one.is_anonymous else f"A {one.kind} of {one.owner}"
        parts.append(f"{whose} holds {resources(one.holds)}{_until(one)}.")
    if found.expected_start_at is not None:
        parts.append(_STARTS[found.confidence].format(format_duration(found.expected_start_at - found.at)))
    if found.pending_node is not None:
        parts.append(text(found.pending_node))
    return " ".join(parts)


def site_choice(found: SiteChoice) -> str:
    """`east: Not enough GPU memory: … Room expected at 14:00.`"""
    room = "" if found.free_at is None else f" Room at {moment(found.free_at)} at the latest."
    return f"{found.site}: {text(found.reason)}{room}"


def holder(found: Holder) -> str:
    """`job of ann, 8 GiB of GPU memory until 2026-11-23 14:05 UTC`; for a total of others `another tenant, …`."""
    whose = "another tenant" if found.is_anonymous else f"{found.kind} of {found.owner}"
    return f"{whose}, {resources(found.holds)}{_until(found)}"


def _until(found: Holder) -> str:
    return "" if found.ends_at is None else f" until {moment(found.ends_at)}"


def request_ahead(one: Ahead) -> str:
    return f"{one.kind or 'workload'} of {one.owner or 'another tenant'}"


def ahead(found: JobsAhead) -> str:
    """`3 with a higher priority (job of ann, session of bob, …)`."""
    said = f"{found.count} {_AHEAD[found.precedence]}"
    if found.precedence is Precedence.OWN:
        return said
    named = ", ".join(dict.fromkeys(map(request_ahead, found.nearest)))
    return f"{said} ({named}{', …' if found.count > len(found.nearest) else ''})"

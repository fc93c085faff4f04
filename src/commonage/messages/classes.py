"""Texts of `commonage.domain.reasons.classes`."""

from __future__ import annotations

from commonage.domain.reasons import classes as r
from commonage.messages.template import Say, Texts, moment, sentence


def _starts(reason: r.SeatStarts, say: Say) -> str:
    return f"The session is {reason.state}. {say(reason.cause) if reason.cause is not None else ''}".strip()


def _over_quota(reason: r.ClassOverQuota, say: Say) -> str:
    return (
        f"Class {reason.class_name} cannot have {reason.seats} seats on {moment(reason.starts_at)}: together with "
        f"other classes of tenant {reason.tenant} at that time they exceed its quota. {say(reason.cause)} Give each "
        "seat a smaller share, plan fewer seats, or ask an admin for a larger quota."
    )


TEXTS: Texts = {
    r.SeatNotStarted: "No session yet.",
    r.SeatStarts: _starts,
    r.SeatUnused: "The session has run for {lasted_s}. Nothing was computed in it yet.",
    r.SeatWorks: "Computed at {used_at}.",
    r.SeatIdle: "Nothing was computed for {idle_s}.",
    r.SeatRestarts: "The session was started {attempts} times in this meeting.",
    r.StudentUnknown: (
        "{user} never signed in to JupyterHub, so no session can be started ahead. The session starts when {user} "
        "signs in and opens the class. An admin can let classes create users with the setting `class_users`."
    ),
    r.SeatFailed: "The session could not be started, and is tried again. {cause}",
    r.ClassAnnouncement: lambda reason, _: f"{reason.by} to all of class {reason.class_name}: {sentence(reason.text)}",
    r.ClassEnds: "Class {class_name} is over. Save your work: your session stops at {stops_at}.",
    r.ClassOver: "Stopped, because class {class_name} is over. Files in your home are kept.",
    r.ClassEnded: (
        "Stopped, because class {class_name} was deleted or belongs to another tenant now. Files in your home are kept."
    ),
    r.ClassKeepsGpu: (
        "The session keeps its GPU while the meeting of class {class_name} is on: starting it again without one would "
        "take its student out of the class. Try it after the meeting."
    ),
    r.ClassBeyondMaxAge: (
        "Sessions of class {class_name} would run for {lasts_s}, from `ahead` before a meeting to `grace` after it, "
        "and would end earlier, at their maximum age of {max_age_s}. Make the meeting shorter, or ask an admin for a "
        "longer `max_age` of the tenant or environment."
    ),
    r.StudentNotMember: (
        "{user} is not a member of tenant {tenant}, and sessions of a class start only for its members. Ask an admin "
        "to add {user}, or a group of {user}, as a member of the tenant, or take {user} off the roster."
    ),
    r.LeftRoster: "Stopped, because its owner is no longer on the roster of class {class_name}.",
    r.ConsentAsked: "{by} asks {student} to open the session in class {class_name}.",
    r.ConsentGiven: "{student} lets {teacher} open the session in class {class_name} until the meeting ends.",
    r.ConsentWithdrawn: "{student} does not let {teacher} open the session in class {class_name}.",
    r.ConsentNeeded: (
        "The session of {student} belongs to class {class_name}, and can be opened only with the consent of the "
        "student. Ask for consent on the page of the class or with `commonage class ask {class_name} {student}`. The "
        "student answers in the portal."
    ),
    r.ClassOverQuota: _over_quota,
    r.ClassNotReserved: "No room is reserved for class {class_name}. {cause}",
    r.ClassGone: "Class {class_name} is deleted. Its sessions are stopped, and its reservations are removed.",
}

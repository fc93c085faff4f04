"""Routes of classes: teachers create them, see the seats and write to all; students start their session and answer."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from commonage.api.fill import fill, optional_reason, reason
from commonage.api.routes.workloads import request_out, session_address, workload_for
from commonage.api.routing import BODY, QUERY, Context, Guarded, asks, body_of, caller, context, problems, read_json
from commonage.control.classes.classes import ClassView, Seat
from commonage.control.resources.resources import ANY_VERSION
from commonage.domain.classes import ClassMeeting
from commonage.domain.permissions import Permission
from commonage.domain.principals import Principal
from commonage.wire.classes import (
    AskIn,
    ClassIn,
    ClassList,
    ClassMessageIn,
    ClassOut,
    ConsentIn,
    ConsentOut,
    MeetingOut,
    SeatOut,
)
from commonage.wire.workloads import WorkloadOut

router = APIRouter(route_class=Guarded, tags=["classes"])
CLASS = "/classes/{name}"
_EXAMPLE = {
    "document": {
        "tenant": "course",
        "users": ["ada", "grace"],
        "gpus": "4GiB",
        "times": [{"starts": "2026-11-24 14:00", "ends": "16:00", "every": "week", "last_day": "2027-02-02"}],
        "time_zone": "Europe/Berlin",
    }
}
_PUT = ("unknown-reference", "managed-elsewhere", "version-mismatch", "unschedulable", "invalid-calendar")


@router.get("/classes", summary="List classes", responses=problems())
@asks(Permission.SEE_TENANT)
async def list_classes(request: Request) -> ClassList:
    """Classes of your tenants, and those that you attend."""
    api, principal = context(request), caller(request)
    return ClassList(items=[class_out(api, principal, view) for view in api.control.classes.visible(principal)])


@router.get(CLASS, summary="Show a class", responses=problems("class-not-found"))
@asks(Permission.SEE_TENANT)
async def one_class(request: Request, name: str) -> ClassOut:
    """One class, with the seat of each student for those who teach."""
    api, principal = context(request), caller(request)
    return class_out(api, principal, api.control.classes.one(principal, name))


@router.put(
    CLASS,
    summary="Create or replace a class",
    responses=problems(*BODY, *_PUT),
    openapi_extra=body_of(ClassIn, _EXAMPLE),
)
@asks(Permission.TEACH)
async def put_class(request: Request, name: str) -> ClassOut:
    """Refused if its seats exceed the quota of the tenant. `reason` says which room is missing at present."""
    api, principal = context(request), caller(request)
    body = await read_json(request, ClassIn)
    version = ANY_VERSION if body.version is None else body.version
    view = await api.control.classes.put(
        principal, name, body.document, version, roster=body.roster, calendar=body.calendar
    )
    return class_out(api, principal, view)


@router.delete(
    CLASS,
    summary="Delete a class",
    responses=problems(*QUERY, "class-not-found", "resource-in-use", "managed-elsewhere"),
)
@asks(Permission.TEACH)
async def delete_class(request: Request, name: str, force: bool = False) -> ClassOut:
    """Its reservations are removed. While its sessions run only with `force`, which stops them."""
    api, principal = context(request), caller(request)
    before = class_out(api, principal, api.control.classes.one(principal, name))
    await api.control.classes.delete(principal, name, force=force)
    return before


@router.post(
    CLASS + "/messages",
    summary="Send a message to all students",
    responses=problems(*BODY, "class-not-found", "no-meeting"),
    openapi_extra=body_of(ClassMessageIn, {"text": "Save your work: we restart at 15:00."}),
)
@asks(Permission.TEACH)
async def announce(request: Request, name: str) -> ClassOut:
    """Shown in the portal, and as an event of each session. The newest message replaces the one before."""
    api, principal = context(request), caller(request)
    body = await read_json(request, ClassMessageIn)
    return class_out(api, principal, await api.control.classes.announce(principal, name, body.text))


@router.post(
    CLASS + "/questions",
    summary="Ask a student to open the session",
    responses=problems(*BODY, "class-not-found", "student-not-found", "no-meeting"),
    openapi_extra=body_of(AskIn, {"student": "ada"}),
)
@asks(Permission.TEACH)
async def ask(request: Request, name: str) -> ConsentOut:
    """The student answers in the portal. With the consent, open the session like any other."""
    body = await read_json(request, AskIn)
    found = await context(request).control.classes.ask(caller(request), name, body.student)
    return fill(ConsentOut, found)


@router.post(
    CLASS + "/consents",
    summary="Let a teacher open your session, or not",
    responses=problems(*BODY, "class-not-found", "consent-not-asked", "no-meeting"),
    openapi_extra=body_of(ConsentIn, {"teacher": "grace", "given": True}),
)
@asks(Permission.SUBMIT)
async def answer_consent(request: Request, name: str) -> ConsentOut:
    """Holds until the meeting ends, or until you withdraw it. A visit ends within seconds.

    To give consent, use the portal or your own token: tokens of sessions may only refuse.
    """
    body = await read_json(request, ConsentIn)
    found = await context(request).control.classes.answer(caller(request), name, body.teacher, given=body.given)
    return fill(ConsentOut, found)


@router.post(
    CLASS + "/session",
    summary="Start your session in a class",
    responses=problems("class-not-found", "no-meeting", "not-a-member"),
)
@asks(Permission.SUBMIT)
async def start_session(request: Request, name: str) -> WorkloadOut:
    """Your session in the meeting that is on; started if it does not run."""
    api, principal = context(request), caller(request)
    return workload_for(api, principal, await api.control.classes.start(principal, name))


def class_out(api: Context, principal: Principal, view: ClassView) -> ClassOut:
    one = view.one
    session = view.session
    return fill(
        ClassOut,
        view,
        one,
        request=request_out(one.request),
        seat_count=one.seats,
        version=view.resource.version,
        meeting=None if view.meeting is None else _meeting_out(view.meeting, principal),
        reason=optional_reason(view.reason),
        seats=[_seat_out(seat) for seat in view.seats],
        session_url=None if session is None else session_address(session, api.control.settings.session_origin),
        document=view.resource.document if view.teaches else None,
    )


def _meeting_out(meeting: ClassMeeting, principal: Principal) -> MeetingOut:
    mine = [one for one in meeting.consents if principal.name in (one.student, one.teacher)]
    return fill(MeetingOut, meeting, consents=[fill(ConsentOut, one) for one in mine])


def _seat_out(seat: Seat) -> SeatOut:
    return fill(
        SeatOut,
        seat,
        reason=reason(seat.reason),
        workload_id=None if seat.workload is None else seat.workload.id,
    )

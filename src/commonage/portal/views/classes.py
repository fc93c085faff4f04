"""Classes: the list, the page of one with a tile for each student, and the form. Students start their session here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from commonage import messages
from commonage.control.classes.classes import ClassView
from commonage.control.resources.resources import ANY_VERSION
from commonage.domain.classes import Class
from commonage.domain.errors import CommonageError, Forbidden, InvalidInput, Unavailable
from commonage.domain.permissions import Permission
from commonage.domain.resources import Document
from commonage.domain.workloads import Kind, State, Workload
from commonage.portal import live
from commonage.portal.auth import HOME, Visitor
from commonage.portal.site import Site, continue_at, form_text
from commonage.wire.origins import session_url

_TEXTS = (
    "name", "tenant", "title", "seats", "environment", "gpus", "cpus", "memory", "material", "time_zone", "ahead",
    "grace", "at_end",
)  # fmt: skip
_LINES = ("users", "groups")
_TIMES = ("starts", "ends", "every", "last_day")
_PARTS = "parts/class.html"
_MAX_FILE = 500_000
_LIVE = ("seats", "mine")


@dataclass(frozen=True, slots=True)
class ClassForm:
    """The fields as text. `errors` by field; "" holds an error of the whole form. `times` are kept if none is given."""

    values: Mapping[str, str]
    times: Sequence[Mapping[str, str]] = ()
    errors: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Document) -> ClassForm:
        texts = {name: str(document.get(name) or "") for name in _TEXTS}
        lines = {name: "\n".join(document.get(name, ())) for name in _LINES}
        return cls({**texts, **lines, **dict.fromkeys(_TIMES, "")}, document.get("times", ()))

    def document(self) -> Document:
        found: Document = {name: self.values[name] for name in _TEXTS if name != "name" and self.values[name]}
        found |= {name: self.values[name].split() for name in _LINES if self.values[name].split()}
        given = {name: self.values[name].replace("T", " ") for name in _TIMES if self.values[name]}
        found["times"] = [given] if given else list(self.times)
        return found


def routes(site: Site) -> list[Route]:
    """GET classes, classes/NAME, its live stream and its session; POST the form and what teachers and students do."""
    view = _Classes(site)
    changes = {
        "message": view.message,
        "ask": view.ask,
        "answer": view.answer,
        "start": view.start,
        "remove": view.remove,
    }
    return [
        Route("/classes", site.page(view.page), methods=["GET"]),
        Route("/class-form", site.page(view.form), methods=["GET"]),
        Route("/class-form", site.page(view.put), methods=["POST"]),
        Route("/classes/{name}", site.page(view.one), methods=["GET"]),
        Route("/classes/{name}/live", site.page(view.live), methods=["GET"]),
        Route("/classes/{name}/session", site.page(view.session), methods=["GET"]),
        *(Route(f"/classes/{{name}}/{name}", site.page(each), methods=["POST"]) for name, each in changes.items()),
    ]


class _Classes:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._control = site.control
        self._classes = site.control.classes

    async def page(self, request: Request, visitor: Visitor) -> Response:
        values = {
            "section": "classes",
            "classes": self._classes.visible(visitor.principal),
            "may_create": bool(self._site.access(visitor).tenants(Permission.TEACH)),
        }
        return self._site.render(request, visitor, "classes.html", values)

    async def one(self, request: Request, visitor: Visitor) -> Response:
        values = {"section": "classes", **self._gather(request, visitor)}
        return self._site.render(request, visitor, "class.html", values)

    def _gather(self, request: Request, visitor: Visitor) -> dict[str, Any]:
        view = self._classes.one(visitor.principal, request.path_params["name"])
        return {"view": view, "now": self._control.clock.now(), "questions": _questions(view, visitor)}

    async def live(self, request: Request, visitor: Visitor) -> Response:
        self._gather(request, visitor)  # an error page, before the stream begins
        draw_part = self._site.parts(visitor, _PARTS)

        async def draw() -> live.Parts:
            values = self._gather(request, visitor)
            return {part: draw_part(part, values) for part in _LIVE}

        changes = self._control.queries.follow(visitor.principal)
        return self._site.stream(request, visitor, live.updates(self._control.clock, changes, live.only_changed(draw)))

    async def session(self, request: Request, visitor: Visitor) -> Response:
        """The link that a teacher gives to students: it leads into their session, as soon as that is open."""
        view = self._classes.one(visitor.principal, request.path_params["name"])
        if view.session is None:
            return self._back(view.one.name)
        if await self._is_open(view.session):
            return RedirectResponse(self._address(view.session), status_code=303)
        return self._wait(request, visitor, view.one, view.session)

    async def _is_open(self, session: Workload) -> bool:
        if session.state is not State.RUNNING:
            return False
        try:
            return await self._control.identity.is_open(session.spec.owner, session.spec.name)
        except Unavailable:  # the page tries again
            return False

    def _address(self, session: Workload) -> str:
        return session_url(self._control.settings.session_origin, session.spec.owner, session.spec.name)

    def _wait(self, request: Request, visitor: Visitor, one: Class, session: Workload) -> Response:
        """A page of ours. That of the hub shows the steps of a start, and a session may run before the hub sees it."""
        values = {"section": "classes", "one": one, "session": session}
        return self._site.render(request, visitor, "class_session.html", values)

    # --- changes ----------------------------------------------------------------------------------------------------

    async def message(self, request: Request, visitor: Visitor) -> Response:
        name, sent = request.path_params["name"], await request.form()
        await self._classes.announce(visitor.principal, name, form_text(sent, "text"))
        return self._back(name)

    async def ask(self, request: Request, visitor: Visitor) -> Response:
        name, sent = request.path_params["name"], await request.form()
        await self._classes.ask(visitor.principal, name, form_text(sent, "student"))
        return self._back(name)

    async def answer(self, request: Request, visitor: Visitor) -> Response:
        name, sent = request.path_params["name"], await request.form()
        given = form_text(sent, "given") == "yes"
        await self._classes.answer(visitor.principal, name, form_text(sent, "teacher"), given=given)
        return self._back(name)

    async def start(self, request: Request, visitor: Visitor) -> Response:
        found = await self._classes.start(visitor.principal, request.path_params["name"])
        if await self._is_open(found):
            return continue_at(self._address(found))
        one = self._classes.one(visitor.principal, request.path_params["name"]).one
        return self._wait(request, visitor, one, found)

    async def remove(self, request: Request, visitor: Visitor) -> Response:
        await self._classes.delete(visitor.principal, request.path_params["name"], force=True)
        return RedirectResponse(f"{HOME}classes", status_code=303)

    def _back(self, name: str) -> Response:
        return RedirectResponse(f"{HOME}classes/{name}", status_code=303)

    # --- the form ---------------------------------------------------------------------------------------------------

    async def form(self, request: Request, visitor: Visitor) -> Response:
        name = request.query_params.get("name", "")
        if not name:
            return self._show(request, visitor, ClassForm.of({"time_zone": "UTC"}), 0)
        view = self._classes.one(visitor.principal, name)
        self._site.access(visitor).need(Permission.TEACH, view.one.tenant)
        return self._show(request, visitor, ClassForm.of(view.resource.document), view.resource.version)

    async def put(self, request: Request, visitor: Visitor) -> Response:
        sent = await request.form()
        version = int(form_text(sent, "version") or 0) if form_text(sent, "version").isdigit() else ANY_VERSION
        before = {} if not version else self._classes.one(visitor.principal, form_text(sent, "name")).resource.document
        values = {name: form_text(sent, name) for name in (*_TEXTS, *_LINES, *_TIMES)}
        form = ClassForm(values, before.get("times", ()))
        try:
            roster, calendar = [await _file(sent, name) for name in ("roster", "calendar")]
            await self._classes.put(
                visitor.principal, values["name"], form.document(), version, roster=roster, calendar=calendar
            )
        except Forbidden:
            raise
        except CommonageError as error:  # the entered values are kept
            at = (error.field or "").partition(".")[0] if isinstance(error, InvalidInput) else ""
            known = at in (*values, "roster", "calendar")
            failed = ClassForm(values, form.times, {at if known else "": messages.of_error(error)})
            return self._show(request, visitor, failed, version, status=error.status)
        return self._back(values["name"])

    def _show(
        self, request: Request, visitor: Visitor, form: ClassForm, version: int, *, status: int = 200
    ) -> Response:
        tenants = self._site.access(visitor).tenants(Permission.TEACH)
        if not tenants:
            self._site.access(visitor).need(Permission.TEACH, form.values["tenant"])
        names = {tenant.name for tenant in tenants}
        offered = self._control.catalogue.environments_for(visitor.principal, self._control.settings)
        values = {
            "section": "classes",
            "form": form,
            "version": version,
            "tenants": tenants,
            "environments": [one for one in offered if Kind.SESSION in one.kinds],
            "volumes": [one for one in self._control.settings.volumes if any(one.is_for(name) for name in names)],
        }
        return self._site.render(request, visitor, "class_form.html", values, status)


def _questions(view: ClassView, visitor: Visitor) -> list[Any]:
    """The consents that the visitor gave, refused or is asked for."""
    meeting = view.meeting
    return [] if meeting is None else [one for one in meeting.consents if one.student == visitor.principal.name]


async def _file(sent: FormData, name: str) -> str | None:
    """The text of an uploaded file; None without one."""
    given = sent.get(name)
    if not isinstance(given, UploadFile) or not given.filename:
        return None
    content = await given.read(_MAX_FILE + 1)
    try:
        if len(content) > _MAX_FILE:
            raise InvalidInput("the file is larger than 500 kB", field=name)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput("the file is no text in UTF-8; save it as UTF-8", field=name) from None

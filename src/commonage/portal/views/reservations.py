"""Reservations page; admins make and cancel reservations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from commonage import messages
from commonage.control.reservations import Wanted
from commonage.control.settings import ControlSettings
from commonage.domain.errors import CommonageError, InvalidInput
from commonage.domain.permissions import Permission
from commonage.domain.reasons import Reason
from commonage.domain.requests import Request as ResourceRequest
from commonage.domain.requests import parse_cpus, parse_gpus, parse_memory
from commonage.domain.time_zones import zone_of
from commonage.domain.windows import window_of, windows
from commonage.portal.auth import HOME, Visitor
from commonage.portal.site import Site, form_text
from commonage.portal.views.launch_form import number

T = TypeVar("T")
FIELDS = (
    "tenant", "title", "starts_at", "ends_at", "time_zone", "count", "gpus", "cpus", "memory", "owner", "every",
    "last_day",
)  # fmt: skip
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class ReservationForm:
    """The fields as text, and their errors; the key "" holds an error of the whole form."""

    values: Mapping[str, str]
    errors: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Mapping[str, str]) -> ReservationForm:
        return cls({name: given.get(name, "").strip()[:_LONGEST] for name in FIELDS})

    def refused(self, error: InvalidInput) -> ReservationForm:
        name = error.field if error.field in FIELDS else ""
        return replace(self, errors={**self.errors, name or "": messages.of_error(error)})

    def wanted(self, now: float, settings: ControlSettings) -> tuple[Wanted | None, ReservationForm]:
        errors: dict[str, str] = {}

        def parsed(name: str, parse: Callable[[str], T], otherwise: T) -> T:
            try:
                return parse(self.values[name]) if self.values[name] else otherwise
            except InvalidInput as error:
                errors[name] = messages.of_error(error)
                return otherwise

        request = ResourceRequest(
            parsed("cpus", parse_cpus, settings.default_cpus_milli),
            parsed("memory", parse_memory, settings.default_memory_mib),
            parsed("gpus", parse_gpus, None),
        )
        count = parsed("count", partial(number, name="count", label="Count", most=10_000), 1)
        try:
            wanted = self._in_windows(now, request, count)
        except InvalidInput as error:
            errors[error.field or ""] = messages.of_error(error)
            wanted = None
        return (None if errors else wanted), replace(self, errors=errors)

    def _in_windows(self, now: float, request: ResourceRequest, count: int) -> Wanted:
        v = self.values
        begin, end = window_of(v["starts_at"], v["ends_at"], zone_of(v["time_zone"] or "UTC"), now)
        return Wanted(
            tenant=v["tenant"],
            windows=windows(begin, end, v["every"] or None, v["last_day"] or None),
            request=request,
            count=count,
            title=v["title"],
            owner=v["owner"] or None,
        )


def routes(site: Site) -> list[Route]:
    """GET reservations; POST reservations to reserve, reservations/ID/remove to cancel."""
    control = site.control

    async def page(request: Request, visitor: Visitor) -> Response:
        return show(request, visitor, ReservationForm.read({"time_zone": "UTC", "count": "1"}))

    async def add(request: Request, visitor: Visitor) -> Response:
        site.access(visitor).need(Permission.RESERVE)
        sent = await request.form()
        form = ReservationForm.read({name: form_text(sent, name) for name in FIELDS})
        wanted, form = form.wanted(control.clock.now(), control.settings)
        if wanted is None:
            return show(request, visitor, form, status=422)
        try:
            made = await control.reservations.add(visitor.principal, wanted)
        except InvalidInput as error:
            return show(request, visitor, form.refused(error), status=422)
        except CommonageError as error:  # on any error the entered values are kept
            return show(request, visitor, form.refused(InvalidInput(messages.of_error(error))), status=409)
        if made.shortfalls:
            fresh = ReservationForm.read({"time_zone": form.values["time_zone"], "count": "1"})
            return show(request, visitor, fresh, why=made.shortfalls)
        return RedirectResponse(f"{HOME}reservations", status_code=303)

    async def remove(request: Request, visitor: Visitor) -> Response:
        await control.reservations.remove(visitor.principal, request.path_params["id"])
        return RedirectResponse(f"{HOME}reservations", status_code=303)

    def show(
        request: Request, visitor: Visitor, form: ReservationForm, *, status: int = 200, why: Reason | None = None
    ) -> Response:
        values = {
            "section": "nodes",
            "reservations": control.reservations.visible(visitor.principal),
            "now": control.clock.now(),
            "tenants": site.access(visitor).tenants(Permission.RESERVE),
            "defaults": control.settings,
            "form": form,
            "why": why,
        }
        return site.render(request, visitor, "reservations.html", values, status)

    return [
        Route("/reservations", site.page(page), methods=["GET"]),
        Route("/reservations", site.page(add), methods=["POST"]),
        Route("/reservations/{id}/remove", site.page(remove), methods=["POST"]),
    ]

"""Reservations page; admins make and cancel reservations."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from commonage import messages
from commonage.control.tenants import tenants
from commonage.domain.errors import CommonageError, InvalidInput
from commonage.domain.principals import Scope
from commonage.domain.reasons import Reason
from commonage.portal.auth import HOME, Visitor
from commonage.portal.site import Site, form_text
from commonage.portal.views.reservation_form import FIELDS, ReservationForm


def routes(site: Site) -> list[Route]:
    """GET reservations; POST reservations to reserve, reservations/ID/remove to cancel."""
    view = _Reservations(site)
    return [
        Route("/reservations", site.page(view.page), methods=["GET"]),
        Route("/reservations", site.page(view.add), methods=["POST"]),
        Route("/reservations/{id}/remove", site.page(view.remove), methods=["POST"]),
    ]


class _Reservations:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._control = site.control

    async def page(self, request: Request, visitor: Visitor) -> Response:
        return self._show(request, visitor, ReservationForm.read({"time_zone": "UTC", "count": "1"}))

    async def add(self, request: Request, visitor: Visitor) -> Response:
        visitor.who.need(Scope.ADMIN)
        sent = await request.form()
        form = ReservationForm.read({name: form_text(sent, name) for name in FIELDS})
        wanted, form = form.wanted(self._control.clock.now(), self._control.settings)
        if wanted is None:
            return self._show(request, visitor, form, status=422)
        try:
            made = await self._control.reservations.add(visitor.who, wanted)
        except InvalidInput as error:
            return self._show(request, visitor, form.refused(error), status=422)
        except CommonageError as error:  # on any error the entered values are kept
            return self._show(request, visitor, form.refused(InvalidInput(messages.of_error(error))), status=409)
        if made.shortfalls:
            fresh = ReservationForm.read({"time_zone": form.values["time_zone"], "count": "1"})
            return self._show(request, visitor, fresh, why=made.shortfalls)
        return RedirectResponse(f"{HOME}reservations", status_code=303)

    async def remove(self, request: Request, visitor: Visitor) -> Response:
        await self._control.reservations.remove(visitor.who, request.path_params["id"])
        return RedirectResponse(f"{HOME}reservations", status_code=303)

    def _show(
        self, request: Request, visitor: Visitor, form: ReservationForm, *, status: int = 200, why: Reason | None = None
    ) -> Response:
        values = {
            "section": "nodes",
            "reservations": self._control.reservations.visible(visitor.who),
            "now": self._control.clock.now(),
            "tenants": tenants(self._control.settings),
            "defaults": self._control.settings,
            "form": form,
            "why": why,
        }
        return self._site.render(request, visitor, "reservations.html", values, status)

"""The page "Users and tenants": admins rename and remove them, after a plan that they confirm with its version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from commonage import messages
from commonage.control.offboarding.offboardings import PlanRefused
from commonage.control.offboarding.plans import OffboardingPlan
from commonage.domain.errors import CommonageError, InvalidInput
from commonage.domain.offboarding import Change, DataChoice, Subject, Wanted, WorkChoice
from commonage.domain.permissions import Permission
from commonage.portal.auth import HOME, Visitor
from commonage.portal.site import Site, form_text

E = TypeVar("E", bound=StrEnum)
FIELDS = ("subject", "change", "name", "to", "heir", "workloads", "data", "keep_account")
_DEFAULTS = {"subject": "user", "change": "remove", "workloads": "stop", "data": "archive"}
_LONGEST = 128


@dataclass(frozen=True, slots=True)
class OffboardingForm:
    """The fields as text. The error "" is one of the whole form."""

    values: Mapping[str, str]
    errors: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Callable[[str], str]) -> OffboardingForm:
        return cls({name: given(name)[:_LONGEST] or _DEFAULTS.get(name, "") for name in FIELDS})

    @property
    def wanted(self) -> Wanted:
        """Raises InvalidInput."""
        v = self.values
        change = _choice(Change, v["change"], "change")
        return Wanted(
            _choice(Subject, v["subject"], "subject"),
            change,
            v["name"],
            to=v["to"] if change is Change.RENAME else "",
            heir=v["heir"] if change is Change.REMOVE else "",
            workloads=_choice(WorkChoice, v["workloads"], "workloads"),
            data=_choice(DataChoice, v["data"], "data"),
            keep_account=bool(v["keep_account"]),
        )

    def refused(self, error: CommonageError) -> OffboardingForm:
        where = error.field if isinstance(error, InvalidInput) and error.field in FIELDS else ""
        return OffboardingForm(self.values, {where or "": messages.of_error(error)})


def _choice(kind: type[E], text: str, name: str) -> E:
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput(f"Choose one of {', '.join(kind)}.", field=name) from None


def routes(site: Site) -> list[Route]:
    """GET people, offboard, offboard/ID; POST offboard/plan, offboard, offboard/ID/release."""
    return [*_lists(site), *_forms(site)]


def _lists(site: Site) -> list[Route]:
    """Users and tenants, and each change with its steps."""
    control = site.control

    async def page(request: Request, visitor: Visitor) -> Response:
        users = await control.offboardings.users(visitor.principal)
        values = {
            "section": "platform",
            "users": users,
            "tenants": control.tenants.all(visitor.principal),
            "changes": control.offboardings.all(visitor.principal),
            "default_tenant": control.settings.default_tenant,
        }
        return site.render(request, visitor, "people.html", values)

    async def one(request: Request, visitor: Visitor) -> Response:
        found = control.offboardings.one(visitor.principal, request.path_params["id"])
        return site.render(request, visitor, "offboarding.html", {"section": "platform", "change": found})

    async def release(request: Request, visitor: Visitor) -> Response:
        found = await control.offboardings.release(visitor.principal, request.path_params["id"])
        return RedirectResponse(f"{HOME}offboard/{found.id}", status_code=303)

    return [
        Route("/people", site.page(page), methods=["GET"]),
        Route("/offboard/{id}", site.page(one), methods=["GET"]),
        Route("/offboard/{id}/release", site.page(release), methods=["POST"]),
    ]


def _forms(site: Site) -> list[Route]:
    """The form (`offboard?subject=&name=&change=`), its plan, and the confirmation."""
    control = site.control

    async def form(request: Request, visitor: Visitor) -> Response:
        site.access(visitor).need(Permission.SEE_PLATFORM)
        return show(request, visitor, OffboardingForm.read(lambda name: request.query_params.get(name, "").strip()))

    async def plan(request: Request, visitor: Visitor) -> Response:
        site.access(visitor).need(Permission.SEE_PLATFORM)
        return await planned(request, visitor, sent_form(await request.form()))

    async def planned(
        request: Request, visitor: Visitor, sent: OffboardingForm, error: CommonageError | None = None
    ) -> Response:
        """The plan as it is now; after a refusal with its error."""
        try:
            found = await control.offboardings.plan(visitor.principal, sent.wanted)
        except CommonageError as why:
            return show(request, visitor, sent.refused(why), status=why.status)
        if error is not None:
            return show(request, visitor, sent.refused(error), found, error.status)
        return show(request, visitor, sent, found)

    async def begin(request: Request, visitor: Visitor) -> Response:
        site.access(visitor).need(Permission.MANAGE_PLATFORM)
        data = await request.form()
        sent = sent_form(data)
        try:
            begun = await control.offboardings.begin(visitor.principal, sent.wanted, form_text(data, "version"))
        except PlanRefused as refused:
            return await planned(request, visitor, sent, refused)
        except CommonageError as error:
            return show(request, visitor, sent.refused(error), status=error.status)
        return RedirectResponse(f"{HOME}offboard/{begun.id}", status_code=303)

    def show(
        request: Request,
        visitor: Visitor,
        form: OffboardingForm,
        found: OffboardingPlan | None = None,
        status: int = 200,
    ) -> Response:
        values: dict[str, Any] = {"section": "platform", "form": form, "plan": found}
        values["items"] = [] if found is None else [messages.text(one) for one in found.items]
        values["obstacles"] = [] if found is None else [messages.text(one) for one in found.obstacles]
        values["may_change"] = site.access(visitor).may(Permission.MANAGE_PLATFORM)
        return site.render(request, visitor, "offboard.html", values, status)

    return [
        Route("/offboard", site.page(form), methods=["GET"]),
        Route("/offboard/plan", site.page(plan), methods=["POST"]),
        Route("/offboard", site.page(begin), methods=["POST"]),
    ]


def sent_form(sent: FormData) -> OffboardingForm:
    return OffboardingForm.read(lambda name: form_text(sent, name))

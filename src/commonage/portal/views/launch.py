"""Launch page: one form for sessions, jobs and services, with a dry run that is repeated while the user types."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from commonage import messages
from commonage.control.workloads.cron_jobs import NewCronJob
from commonage.domain.cron_jobs import CronRule
from commonage.domain.errors import CommonageError, InvalidInput, NotFound, Unschedulable
from commonage.domain.explanations import Explanation
from commonage.domain.principals import Principal
from commonage.domain.usage import Suggestion
from commonage.portal import live
from commonage.portal.auth import HOME, Visitor
from commonage.portal.site import Site, form_text
from commonage.portal.views.launch_form import FIELDS, Earlier, LaunchForm, profile_values

_PARTS = "parts/launch.html"
_SECRET = "secret-"  # noqa: S105 - what the names of the fields begin with in which secrets are entered


def routes(site: Site) -> list[Route]:
    """GET and POST launch; POST launch/dry-run for the form's requests while the user types."""
    view = _Launch(site)
    return [
        Route("/launch", site.page(view.page), methods=["GET"]),
        Route("/launch", site.page(view.submit), methods=["POST"]),
        Route("/launch/dry-run", site.page(view.dry_run), methods=["POST"]),
    ]


class _Launch:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._control = site.control

    async def page(self, request: Request, visitor: Visitor) -> Response:
        form, earlier = await self._prefilled(request, visitor.principal)
        return await self._show(request, visitor, form, earlier)

    async def submit(self, request: Request, visitor: Visitor) -> Response:
        form = await _sent(request)
        again = form.values["again"]
        earlier = await self._earlier(visitor.principal, again)
        if again and earlier is None:
            form = form.changed(again="").refused(InvalidInput(
                f"Workload not found: {again[:60]}, which this form runs again, no longer exists. Its files, variables "
                "and secrets cannot be reused. Submit again to launch without them."
            ))  # fmt: skip
            return await self._show(request, visitor, form, None, 409)
        submission, form = form.submission(earlier)
        rule, form = form.rule()
        if submission is None or form.errors:
            return await self._show(request, visitor, form, earlier, 422)
        try:
            if rule is not None:
                made = await self._control.cron_jobs.create(visitor.principal, NewCronJob(submission, rule))
                return RedirectResponse(f"{HOME}cron-jobs/{made.id}", status_code=303)
            submitted = await self._control.workloads.submit(visitor.principal, submission)
        except InvalidInput as error:
            return await self._show(request, visitor, form.refused(error), earlier, 422)
        except CommonageError as error:  # on any error the entered values are kept
            form = form.refused(InvalidInput(messages.of_error(error)))
            return await self._show(request, visitor, form, earlier, 409)
        return RedirectResponse(f"{HOME}workloads/{submitted.workloads[0].id}", status_code=303)

    async def dry_run(self, request: Request, visitor: Visitor) -> Response:
        """The result and the errors of the fields, as parts of the page."""
        form = await _sent(request)
        earlier = await self._earlier(visitor.principal, form.values["again"])
        form, explanation, never = await self._considered(visitor.principal, form, earlier)
        draw = self._site.parts(visitor, _PARTS)
        suggestion = await self._suggestion(visitor.principal, form, earlier)
        rule, form = form.rule()
        values = {
            "form": form,
            "explanation": explanation,
            "never": never,
            "suggestion": suggestion,
            "next_times": self._next_times(rule),
        }
        parts = {f"error-{name}": draw("error", {"text": form.errors.get(name, "")}) for name in FIELDS}
        parts["verdict"] = draw("verdict", values)
        return HTMLResponse(live.partials(parts))

    async def _considered(
        self, principal: Principal, form: LaunchForm, earlier: Earlier | None
    ) -> tuple[LaunchForm, Explanation | None, str | None]:
        """The form with its errors, the result of the dry run, and the reason if it could never start."""
        submission, form = form.submission(earlier, considered=True)
        if submission is None:
            return form, None, None
        try:
            return form, await self._control.workloads.dry_run(principal, submission), None
        except Unschedulable as error:
            return form, None, messages.of_error(error)
        except InvalidInput as error:
            return form.refused(error), None, None
        except CommonageError as error:  # shown in place of a verdict
            return form, None, messages.of_error(error)

    def _next_times(self, rule: CronRule | None) -> Sequence[float]:
        return () if rule is None else rule.next_times(self._control.clock.now())

    async def _suggestion(self, principal: Principal, form: LaunchForm, earlier: Earlier | None) -> Suggestion | None:
        """The suggestion from earlier runs of the same; None while the form cannot be read."""
        submission, _ = form.submission(earlier)
        if submission is None:
            return None
        try:
            return await self._control.advice.on(principal, submission)
        except CommonageError:  # the verdict says it already
            return None

    async def _prefilled(self, request: Request, principal: Principal) -> tuple[LaunchForm, Earlier | None]:
        query = request.query_params
        form = LaunchForm.read(query)
        earlier = await self._earlier(principal, form.values["again"])
        if earlier is not None:  # otherwise it is gone or not visible to the user: show an empty form
            form = LaunchForm.again(earlier.workload)
            form = form.changed(**{name: query[name] for name in FIELDS if name in query})
        else:
            form = form.changed(again="")
        return form.changed(key=f"portal-{secrets.token_hex(12)}"), earlier

    async def _earlier(self, principal: Principal, workload_id: str) -> Earlier | None:
        """The workload to run again; None if it does not exist or the visitor may not see it."""
        if not workload_id:
            return None
        try:
            workload = await self._control.queries.workload(principal, workload_id)
        except NotFound:
            return None
        has_files = False
        if workload.spec.bundle is not None:
            with contextlib.suppress(NotFound):  # removed since, or another user's
                self._control.bundles.find(principal, replace(workload.spec, owner=principal.name))
                has_files = True
        return Earlier(workload, principal.name, has_files)

    async def _show(
        self, request: Request, visitor: Visitor, form: LaunchForm, earlier: Earlier | None, status: int = 200
    ) -> Response:
        options = self._control.launch.options(visitor.principal)
        considered, explanation, never = await self._considered(visitor.principal, form, earlier)
        values: dict[str, Any] = {
            "section": "launch",
            "earlier": earlier,
            "form": form if status != 200 else considered,
            "options": options,
            "profiles": [(one, profile_values(one)) for one in options.profiles],
            "home_use": self._control.homes.of(visitor.principal),
            "volumes": [one for one in self._control.volumes.offered(visitor.principal) if not one.volume.always],
            "simulated": options.simulated_gpus,
            "explanation": explanation,
            "never": never,
            "suggestion": await self._suggestion(visitor.principal, form, earlier),
            "next_times": self._next_times(form.rule()[0]),
            "defaults": self._control.settings,
        }
        return self._site.render(request, visitor, "launch.html", values, status)


async def _sent(request: Request) -> LaunchForm:
    form = await request.form()

    def several(name: str) -> str:
        return ",".join(one for one in form.getlist(name) if isinstance(one, str) and one)

    values = {name: form_text(form, name) for name in FIELDS}
    filled = LaunchForm.read(values | {"volumes": several("volumes"), "keep": several("keep")})
    # A value counts as it was entered, blanks included.
    entered = {
        name.removeprefix(_SECRET): value
        for name, value in form.items()
        if name.startswith(_SECRET) and isinstance(value, str) and value
    }
    return replace(filled, secrets=entered)

"""Suggests a resource request from earlier runs of the same work. Called by the API and the portal's forms."""

from __future__ import annotations

from dataclasses import dataclass

from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.settings import ControlSettings
from commonage.control.usage.usage_reports import UsageReports
from commonage.control.workloads.submission import Submission, spec_of
from commonage.domain.principals import Principal, Scope
from commonage.domain.usage import Suggestion, suggestion_of


@dataclass(slots=True)
class Advice:
    """Reads usage reports; changes nothing."""

    usage_reports: UsageReports
    catalogue: Catalogue
    settings: ControlSettings

    async def on(self, who: Principal, submission: Submission) -> Suggestion | None:
        """Suggest from the owner's last runs; None without earlier runs. Raises the errors of `submit`."""
        who.need(Scope.SUBMIT)
        spec = spec_of(submission, who, self.catalogue, self.settings)
        found = await self.usage_reports.alike(spec.owner, spec.environment, spec.command)
        return suggestion_of(found, spec.request.gpu)

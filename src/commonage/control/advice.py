"""What to ask for, as earlier runs of the same work tell it. Called by API and portal while somebody asks."""

from __future__ import annotations

from dataclasses import dataclass

from commonage.control.catalogue import Catalogue
from commonage.control.receipts import Receipts
from commonage.control.settings import ControlSettings
from commonage.control.submission import Submission, spec_of
from commonage.domain.principals import Principal, Scope
from commonage.domain.suggestions import Suggestion, suggestion_of


@dataclass(slots=True)
class Advice:
    """Reads receipts; changes nothing."""

    receipts: Receipts
    catalogue: Catalogue
    settings: ControlSettings

    async def on(self, who: Principal, ask: Submission) -> Suggestion | None:
        """From the last runs of the one it is for; None where there were none. Raises what submit raises of the ask."""
        who.need(Scope.SUBMIT)
        spec = spec_of(ask, who, self.catalogue, self.settings)
        found = await self.receipts.alike(spec.owner, spec.environment, spec.command)
        return suggestion_of(found, spec.request.gpu)

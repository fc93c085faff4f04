"""The setting `gpu_slots`: the number of equal slots of each GPU, for all GPUs or by model.

`3` splits every GPU in three; `A100=4,T4=2` those whose model name contains that word. A MIG instance has no slots: it
is one already. Used by `isolation.devices`; the slots that a request takes are computed in `domain/requests.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from commonage.domain.errors import InvalidInput
from commonage.domain.nodes import Device

MAX_SLOTS = 64
_PART = re.compile(r"(?:(?P<model>[A-Za-z0-9][\w ./+-]{0,62}?)\s*=\s*)?(?P<count>\d{1,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Slots:
    """`by_model`: words of a model's name in lower case, with a count each; `otherwise` for all others (0: none)."""

    by_model: tuple[tuple[str, int], ...] = ()
    otherwise: int = 0

    def of(self, device: Device) -> int:
        """The number of slots of this GPU; 0 for shares of any size. The longest matching model name applies."""
        if device.parent_uuid is not None:
            return 0
        model = device.model.lower()
        fitting = [(len(word), count) for word, count in self.by_model if word in model]
        return max(fitting)[1] if fitting else self.otherwise


def parse_slots(text: str) -> Slots:
    """The slots of `3`, `A100=4,T4=2`, `A100=4,2`; empty or 0: none. Raises InvalidInput that names the wrong part."""
    by_model: dict[str, int] = {}
    otherwise: int | None = None
    for part in (part.strip() for part in text.split(",") if part.strip()):
        match = _PART.fullmatch(part)
        if match is None or int(match["count"]) > MAX_SLOTS:
            raise _invalid(part, f"write a number of slots up to {MAX_SLOTS}, like 3, or A100=4,T4=2")
        if match["model"] is not None:
            if by_model.setdefault(match["model"].lower(), int(match["count"])) != int(match["count"]):
                raise _invalid(part, "this model is named twice")
        elif otherwise is not None:
            raise _invalid(part, "there is more than one number without a model")
        else:
            otherwise = int(match["count"])
    return Slots(tuple(by_model.items()), otherwise or 0)


def _invalid(part: str, why: str) -> InvalidInput:
    shown = repr(part if len(part) <= 60 else part[:57] + "...")
    return InvalidInput(f"gpu_slots has {shown}: {why}", field="gpu_slots", code="invalid-gpu-slots")

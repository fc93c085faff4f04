"""The settings of bundles, the files that users send along with work: a part of `settings`' table."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from commonage.server.settings.table import Row, setting
from commonage.server.settings.types import Mib, Seconds

_SHORTEST_S = 3600
_SIZE = "an amount of space, like 2GiB"
_NUMBER = "a number from 1 to 1000000"
Number = Annotated[int, Field(ge=1, le=1_000_000)]


def _long_enough(value: int) -> int:
    if value < _SHORTEST_S:
        raise ValueError("less than an hour, and whoever has sent files must have time to submit with them")
    return value


class BundleSettings(BaseModel):
    """How much users and tenants may send along, and how long it is kept. Sizes are MiB of packed files."""

    max_bundle: Mib = setting(
        64,
        "Largest bundle that may be sent along with a workload, packed.",
        Row("an amount of space, like 64MiB", "Bundles"),
    )
    bundles_per_user: Number = setting(500, "Bundles that are kept of one user.", Row(_NUMBER, "Bundles"))
    bundle_space_per_user: Mib = setting(
        2 * 1024, "Disk space that all bundles of one user may take.", Row(_SIZE, "Bundles")
    )
    bundles_per_tenant: Number = setting(
        5000, "Bundles that are kept of all members of one tenant.", Row(_NUMBER, "Bundles")
    )
    bundle_space_per_tenant: Mib = setting(
        20 * 1024, "Disk space that all bundles of one tenant may take.", Row(_SIZE, "Bundles")
    )
    keep_bundles: Annotated[Seconds, AfterValidator(_long_enough)] = setting(
        86_400,
        "How long a bundle is kept that no live workload needs, since it was sent or submitted with last.",
        Row("a duration of at least an hour, like 1d", "Bundles"),
    )

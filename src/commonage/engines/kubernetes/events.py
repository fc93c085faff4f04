"""Events of a Pod: messages of the cluster in addition to its status."""

from __future__ import annotations

from commonage.engines.kubernetes.client import Client, Refused, Resource
from commonage.engines.kubernetes.manifest import Manifest

EVENTS = Resource("/api/v1", "events")
_HIDDEN = (403, 404)


async def last_warning(client: Client, pod: Manifest) -> str:
    """The newest warning about the Pod; empty without one, or without the right to read events. Raises EngineFailure.

    Events are kept for an hour.
    """
    metadata = pod["metadata"]
    fields = f"involvedObject.uid={metadata['uid']},type=Warning"
    try:
        found = await client.get(EVENTS.path(metadata["namespace"]), fieldSelector=fields)
    except Refused as error:
        if error.http_status in _HIDDEN:
            return ""
        raise
    newest = max(found["items"], key=_at, default=None)
    return "" if newest is None else f"{newest.get('reason', '')}: {newest.get('message', '')}"


def _at(event: Manifest) -> str:
    """Its time, which is in another field for each generation of clients."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(one) for one in times if one), str(event["metadata"].get("creationTimestamp", "")))

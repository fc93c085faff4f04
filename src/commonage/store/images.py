"""Images of the catalogue in the database, each under its name. Called by `sql_store`.

Removed images stay, to explain why they are unavailable. All columns except the name, the tenant and the removal
are JSON; fields that an older program did not write get their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Connection

from commonage.domain.images import USUAL_PATH, Image, Kernel, Provenance, Removal, SourceFile
from commonage.domain.workloads import Kind
from commonage.store.codec import Row, clean, clean_or_none
from commonage.store.database import Database
from commonage.store.statements import Prepared, upsert
from commonage.store.tables import images

_COLUMNS = ("name", "tenant", "removed_at", "body")
_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class Images:
    """The repository of images."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._upsert = Prepared(upsert(images, database.dialect), database.dialect)

    def write(self, connection: Connection, rows: Iterable[Row]) -> None:
        """Insert or replace by name."""
        self._upsert.many(connection, rows)

    async def all(self) -> Sequence[Image]:
        """All images, including removed ones, by name."""
        which = select(*(images.c[name] for name in _COLUMNS)).order_by(images.c.name)
        return [_image(row) for row in await self._database.read(which)]


def image_row(image: Image) -> Row:
    """A whole row."""
    return {
        "name": clean(image.name),
        "tenant": clean_or_none(image.tenant),
        "removed_at": image.removed.at if image.removed is not None else None,
        "body": _encoder.encode(
            {
                "reference": image.reference,
                "by": clean(image.by),
                "at": image.at,
                "title": clean(image.title),
                "description": clean(image.description),
                "size_bytes": image.size_bytes,
                "kinds": list(image.kinds),
                "kernels": [[clean(one.name), clean(one.title), clean(one.prefix)] for one in image.kernels],
                "server_prefix": clean(image.server_prefix),
                "path": clean(image.path),
                "variables": [[clean(name), clean(value)] for name, value in image.variables],
                "needs_gpu": image.needs_gpu,
                "least_vram_mib": image.least_vram_mib,
                "provenance": _provenance_to_json(image.provenance),
                "removed_by": clean(image.removed.by) if image.removed is not None else None,
            }
        ),
    }


def _provenance_to_json(made: Provenance) -> Mapping[str, Any]:
    return {
        "by": clean(made.by),
        "at": made.at,
        "builder": clean(made.builder),
        "base": clean(made.base),
        "base_digest": made.base_digest,
        "files": [[clean(one.path), one.digest] for one in made.files],
        "commit": made.commit,
        "dirty": made.dirty,
    }


def _image(row: Sequence[Any]) -> Image:
    name, tenant, removed_at, body = row
    read: Mapping[str, Any] = json.loads(body)
    return Image(
        name=name,
        tenant=tenant,
        reference=read["reference"],
        by=read["by"],
        at=read["at"],
        title=read.get("title", ""),
        description=read.get("description", ""),
        size_bytes=read.get("size_bytes"),
        kinds=tuple(Kind(kind) for kind in read.get("kinds", ())),
        kernels=tuple(Kernel(*kernel) for kernel in read.get("kernels", ())),
        server_prefix=read.get("server_prefix", ""),
        path=read.get("path", USUAL_PATH),
        variables=tuple((key, value) for key, value in read.get("variables", ())),
        needs_gpu=read.get("needs_gpu", False),
        least_vram_mib=read.get("least_vram_mib", 0),
        provenance=_provenance(read.get("provenance", {})),
        removed=Removal(read.get("removed_by") or "", removed_at) if removed_at is not None else None,
    )


def _provenance(read: Mapping[str, Any]) -> Provenance:
    files = tuple(SourceFile(path, digest) for path, digest in read.get("files", ()))
    return Provenance(**{**read, "files": files})

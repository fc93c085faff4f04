"""From the wire to the domain: an image that is to be registered."""

from __future__ import annotations

from commonage.domain.images import USUAL_PATH, Image, Kernel, Provenance, SourceFile
from commonage.domain.workloads import Kind
from commonage.wire.images import ImageIn, ProvenanceIn


def image(ask: ImageIn) -> Image:
    """What is asked; whose it is and who asks is control's to fill in."""
    with_server = (Kind.SESSION,) if ask.server_prefix else ()
    kinds = (*with_server, Kind.JOB, Kind.SERVICE) if ask.kinds is None else tuple(Kind(one) for one in ask.kinds)
    return Image(
        name=ask.name,
        tenant=None,
        reference=ask.reference,
        by="",
        at=0.0,
        title=ask.title,
        description=ask.description,
        size_bytes=ask.size_bytes,
        kinds=tuple(dict.fromkeys(kinds)),
        kernels=tuple(Kernel(one.name, one.title or one.name, one.prefix) for one in ask.kernels),
        server_prefix=ask.server_prefix,
        path=ask.path or USUAL_PATH,
        variables=tuple(ask.variables.items()),
        needs_gpu=ask.needs_gpu,
        least_vram_mib=ask.vram_mib or 0,
        provenance=_provenance(ask.provenance),
    )


def _provenance(ask: ProvenanceIn) -> Provenance:
    return Provenance(
        at=ask.at,
        builder=ask.builder,
        base=ask.base,
        base_digest=ask.base_digest or "",
        files=tuple(SourceFile(one.path, one.digest) for one in ask.files),
        commit=ask.commit,
        dirty=ask.dirty,
    )

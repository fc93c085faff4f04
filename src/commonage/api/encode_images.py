"""From the domain to the wire: images."""

from __future__ import annotations

from commonage.api.encode_reasons import optional
from commonage.control.catalogue.images import ImageView
from commonage.domain.images import Image, Kernel, Provenance, environments_of
from commonage.wire.images import ImageOnNodeOut, ImageOut, KernelOut, ProvenanceOut, SourceFileOut


def image(view: ImageView) -> ImageOut:
    """An image now."""
    known = view.image
    return ImageOut(
        name=known.name,
        tenant=known.tenant,
        reference=known.reference,
        digest=known.digest,
        title=known.title,
        description=known.description,
        size_bytes=known.size_bytes,
        kinds=[kind.value for kind in known.kinds],
        kernels=[_kernel(one, known) for one in known.kernels],
        environments=[one.name for one in environments_of(known)],
        needs_gpu=known.needs_gpu,
        vram_mib=known.least_vram_mib,
        by=known.by,
        at=known.at,
        provenance=_provenance(known.provenance),
        nodes=[
            ImageOnNodeOut(node=one.node, state=one.state.value, reason=optional(one.reason), progress=one.progress)
            for one in view.nodes
        ],
        running=view.running,
        waiting=view.waiting,
        mine=view.mine,
    )


def _kernel(kernel: Kernel, image: Image) -> KernelOut:
    whole = image.name if len(image.kernels) < 2 else f"{image.name}/{kernel.name}"
    return KernelOut(name=kernel.name, title=kernel.title, prefix=kernel.prefix, environment=whole)


def _provenance(made: Provenance) -> ProvenanceOut:
    return ProvenanceOut(
        by=made.by,
        at=made.at,
        builder=made.builder,
        base=made.base,
        base_digest=made.base_digest,
        files=[SourceFileOut(path=one.path, digest=one.digest) for one in made.files],
        commit=made.commit,
        dirty=made.dirty,
    )

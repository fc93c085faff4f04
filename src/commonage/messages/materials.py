"""Texts of `commonage.domain.reasons.materials`."""

from __future__ import annotations

from commonage.domain.reasons import materials as r
from commonage.domain.requests import format_memory
from commonage.messages.template import Texts, count, sentence

_STAYS = "The version in force stays."

TEXTS: Texts = {
    r.MaterialPublished: lambda reason, _: (
        f"Material {reason.material} has a new version with {count(reason.files, 'file')}, commit {reason.commit[:12]}."
    ),
    r.MaterialSyncing: "Sync of material {material}: {step}, {percent}%.",
    r.MaterialUnreachable: lambda reason, _: (
        f"The repository of material {reason.material} cannot be read. {_STAYS} "
        + (sentence(reason.detail) + " " if reason.detail else "")
        + "Check the address, and that the deploy key or token is valid."
    ),
    r.MaterialBranchMissing: (
        "The repository of material {material} has no branch {branch}. " + _STAYS + " Push the branch, or change it."
    ),
    r.MaterialFolderMissing: lambda reason, _: (
        f"Commit {reason.commit[:12]} of material {reason.material} has no folder {reason.folder}. {_STAYS} "
        "Push the folder, or change it in the material."
    ),
    r.MaterialTooLarge: lambda reason, _: (
        f"The new version of material {reason.material} is larger than {format_memory(reason.limit_mib)}. {_STAYS} "
        "Put large data in another volume, or raise the material's size."
    ),
    r.MaterialTooManyFiles: (
        "The new version of material {material} has {files} or more files and links, and {limit} are allowed. "
        + _STAYS
        + " Pack small "
        "files into an archive, or put them in another volume."
    ),
    r.MaterialDiskFull: lambda reason, _: (
        f"The platform's disk has no room for the new version of material {reason.material}: "
        f"{format_memory(reason.needed_mib)} needed, {reason.free_mib} MiB free. {_STAYS} An admin has to free space."
    ),
    r.MaterialNotWritten: lambda reason, _: (
        f"The new version of material {reason.material} cannot be written. {_STAYS} {sentence(reason.detail)}"
    ),
    r.MaterialWithoutVersion: "Material {material} has no version yet: its repository was not read so far.",
    r.CopyNeedsSpace: lambda reason, _: (
        f"Your home has no room for material {reason.material}: {reason.needed_mib} MiB needed, {reason.free_mib} MiB "
        "free. Your files are unchanged. Delete some files; the rest follows within a minute."
    ),
    r.CopyNotWritten: lambda reason, _: (
        f"Material {reason.material} cannot be copied to your home. Your files are unchanged. {sentence(reason.detail)}"
    ),
    r.CopyInterrupted: (
        "Files of material {material} changed while it was copied to your home. The rest follows within a minute."
    ),
}

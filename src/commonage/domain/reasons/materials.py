"""Materials: why a repository is not taken over, and why a copy in a home is not complete."""

from __future__ import annotations

from commonage.domain.reasons.base import Reason


class MaterialPublished(Reason):
    """A commit of a material's repository is in force. `files` is their number."""

    material: str
    commit: str
    files: int


class MaterialSyncing(Reason):
    """A sync of a material runs. `percent` of the current `step` is done."""

    material: str
    step: str
    percent: int


class MaterialUnreachable(Reason):
    """The repository of a material cannot be read. The version in force stays. `detail` is git's message."""

    material: str
    detail: str


class MaterialBranchMissing(Reason):
    """The repository of a material has no such branch. The version in force stays."""

    material: str
    branch: str


class MaterialFolderMissing(Reason):
    """The branch of a material has no such folder. The version in force stays."""

    material: str
    folder: str
    commit: str


class MaterialTooLarge(Reason):
    """The new version of a material exceeds its size limit. The version in force stays."""

    material: str
    limit_mib: int


class MaterialTooManyFiles(Reason):
    """The new version of a material has too many files. The version in force stays."""

    material: str
    files: int
    limit: int


class MaterialDiskFull(Reason):
    """The platform's disk has no room for the new version of a material. The version in force stays."""

    material: str
    needed_mib: int
    free_mib: int


class MaterialNotWritten(Reason):
    """The platform cannot write the new version of a material. The version in force stays."""

    material: str
    detail: str


class MaterialWithoutVersion(Reason):
    """Nothing of the material's repository was read so far."""

    material: str


class CopyNeedsSpace(Reason):
    """A home has no room for the files of a material. Files that are there are unchanged."""

    material: str
    needed_mib: int
    free_mib: int


class CopyNotWritten(Reason):
    """The copy of a material in a home cannot be written. `detail` is the error of the file system."""

    material: str
    detail: str


class CopyInterrupted(Reason):
    """Files changed while a material was copied to a home. The rest follows in the next round."""

    material: str

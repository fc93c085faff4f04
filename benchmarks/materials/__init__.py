"""Course files: sync, copies in homes, and pushes of a large repository."""

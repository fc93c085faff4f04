"""Materials on disk.

| subject | module |
|---|---|
| versions of a repository, as folders that are never changed | `versions.py` |
| the copy of a version in a home, which its user edits | `copies.py` |
| homes on this machine, in threads | `home_copies.py` |
| deploy key, token and webhook secret | `credentials.py` |
| the port, in threads | `materials.py` |
"""

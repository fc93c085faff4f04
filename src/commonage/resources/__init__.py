"""The forms of platform resources: what a document of each kind may contain, their JSON Schema, and their differences.

Pure. `control.resources` uses it for the API; `server.settings` for tables of the same form in `commonage.toml`.
"""

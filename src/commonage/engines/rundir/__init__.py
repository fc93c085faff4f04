"""State of attempts on disk, for all engines: run folders, logs, workspaces, latest statuses.

`runs.py` describes a run folder. `runs_engine.py` is the base class of engines: it implements stop, status and logs.
Imported by engines; imports none of them. Nothing here starts or ends a process.
"""

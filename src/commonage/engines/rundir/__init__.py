"""State of attempts for all engines: run folders, logs and workspaces on disk, latest statuses in memory.

`runs.py` describes a run folder, `run.py` an attempt in memory. `runs_engine.py` is the base class of engines: it
implements start, stop, status, logs and housekeeping. Imported by engines; imports none of them.
"""

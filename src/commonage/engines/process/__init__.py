"""Engine that runs workloads as plain processes of this node, for the embedded default and for tests.

    engine.py        ProcessEngine, which bootstrap creates
    launcher.py      starts the shim (shim.sh) of an attempt, and determines how it ended
    translate.py     start request to arguments and variables, those of its GPU shares included
    groups/          processes of an attempt: control groups, or a mark in the environment
    environments.py  Python environments, built with uv (uv.py)
    warm/            sessions that are forked from a preloaded process
    exec.py          commands in the context of a running attempt

It limits memory and CPU if the kernel allows it, and keeps attempts alive over a restart of the control plane. It does
not isolate users from each other, and reports that.
"""

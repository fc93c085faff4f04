"""Engine that runs workloads as plain processes of this node, for the embedded default and for tests.

The entry point is `engine.ProcessEngine`; bootstrap creates one. It limits memory and CPU if the kernel allows it,
keeps runs alive over a restart of the control plane, and does not isolate users from each other, which it reports.
"""

"""The engine that runs workloads as plain processes of this machine, for the embedded default and for tests.

`engine.ProcessEngine` is the door; bootstrap makes one. It holds memory and CPU where the kernel lets it,
keeps runs alive over a restart of the control plane, and does not isolate people from each other, which it
says.
"""

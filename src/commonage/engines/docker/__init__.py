"""The engine that runs workloads as containers of a Docker daemon on the control plane's own machine.

`engine.DockerEngine` is the door; bootstrap makes one. `doctor.examine_daemon` says what a daemon can do.
"""

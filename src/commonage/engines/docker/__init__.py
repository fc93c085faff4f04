"""Engine that runs workloads as containers of a Docker daemon on the control plane's own node.

The entry point is `engine.DockerEngine`; bootstrap creates one. `doctor.examine_daemon` reports a daemon's features.
"""

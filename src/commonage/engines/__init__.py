"""Engines run workloads: one package for each kind, each an implementation of the engine port (`ports.engine`).

    process/      plain processes of this node                          launcher.py starts a shim for an attempt
    docker/       containers of one Docker daemon                       launcher.py creates the container
    swarm/        services of a Docker Swarm                            launcher.py creates the service
    containers/   shared by engines with containers; containers/daemon: by those with Docker daemons
    rundir/       shared by all: state of attempts on disk and in memory
    settings.py   settings of all engines

`translate.py` of an engine maps a start request to a process, a container or a service. GPU shares become environment
variables in `process/translate.py` (`enforced`) and `containers/program.py`.
"""

"""Runs attempts as Pods of a Kubernetes cluster: our scheduler places them, the cluster checks and binds them.

engine.py     the engine port; open, close, nodes, measure, and what follows the cluster
life.py       one attempt: launched, followed as its Pod tells, ended
launcher.py   creates the Pod of an attempt, at most once, behind a scheduling gate
translate.py  start request -> Pod, Secret, ConfigMap, Service; pure
statuses.py   what a Pod says of its attempt: waiting, running, ended, and why; pure
run.py        what is known of an attempt
cache.py      a copy of the cluster's objects: list, watch and list again, with a diff
client.py     calls of the API by lightkube; its errors become EngineFailure
events.py     the cluster's warnings about a Pod
logs.py       follows a Pod's output and copies it to the run folder
queues.py     the Kueue queue of a namespace, and the flavor of a node
images.py     pulls an image before it is needed, by a Pod
nodes.py, stats.py, doctor.py   nodes that are silent, measurements, missing rights
channels/     WebSockets: commands in Pods, files into them, connections to their ports
placement/    capacity of nodes, refusals of the cluster, node pools, Kueue
gpus/         the GPU modes of a cluster, and what each writes into a Pod; pure
tenants/      namespaces, quotas, network and admission policies, rights, as manifests
storage/      claims for homes and volumes, and how a Pod mounts them, as manifests
"""

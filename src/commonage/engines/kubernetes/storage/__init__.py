"""Homes and volumes as claims of the cluster: pure functions to manifests, and the mounts of a pod."""

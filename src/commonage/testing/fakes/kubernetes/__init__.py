"""A double of a Kubernetes cluster: its API server, scheduler and kubelets in one process. Used by tests."""

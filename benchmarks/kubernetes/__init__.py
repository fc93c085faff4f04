"""Commonage's engine on the Kubernetes cluster that KUBECONFIG names, and the cluster alone as the baseline."""

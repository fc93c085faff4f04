"""The modes in which a Kubernetes cluster gives GPUs to Pods: detection, devices, changes of a Pod, granted uuids."""

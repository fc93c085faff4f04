"""The agent in a Pod of a Kubernetes node: it measures, and changes nothing."""

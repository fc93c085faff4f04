"""Namespaces of tenants: quotas, network, admission and access policies, and the loop that applies them."""

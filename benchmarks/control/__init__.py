"""The control plane as clients see it, and its parts alone: API, store, process engine."""

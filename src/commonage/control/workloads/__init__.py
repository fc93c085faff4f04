"""Use cases of workloads: submit, stop, run commands in them."""

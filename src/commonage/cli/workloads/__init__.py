"""Commands for workloads: submit, follow, list, explain and stop them."""

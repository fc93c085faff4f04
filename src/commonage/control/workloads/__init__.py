"""What users do to workloads: submit, stop, run commands in them."""

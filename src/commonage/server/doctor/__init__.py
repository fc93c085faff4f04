"""What may be wrong with this machine, its server and its GPUs."""

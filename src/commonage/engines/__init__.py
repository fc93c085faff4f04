"""What runs workloads: one package for each kind of engine, each an implementation of the engine port."""

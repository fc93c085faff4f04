"""In-memory implementations of ports: engine, clock, store, metrics."""

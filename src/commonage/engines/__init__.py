"""Engines, which run workloads: one package for each kind, each an implementation of the engine port."""

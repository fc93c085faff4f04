"""The scheduler alone: passes over many nodes, plans and explanations of a long queue."""

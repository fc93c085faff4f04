"""Where a request fits, and what a choice of node wastes."""

"""Commands for nodes and node pools: list, join, drain and remove them."""

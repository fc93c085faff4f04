"""Sessions and jobs through a whole installation, and through baselines."""

"""Queue order, fair share, quotas, sites and run time estimates."""

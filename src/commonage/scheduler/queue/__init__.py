"""Who is next: order, fair share, quotas, sites, and how long workloads usually run."""

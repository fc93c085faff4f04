"""Platform resources: tenants, sites, environments, volumes, node pools, priority classes and prices, while it runs."""

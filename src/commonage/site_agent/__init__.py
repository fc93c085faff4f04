"""What runs on an appliance: a machine, or a cluster, that is a site of a control plane elsewhere."""

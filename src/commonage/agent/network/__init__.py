"""The network of this node's containers: firewall, and gateway to the control plane."""

"""Placement in a cluster: our scheduler chooses the node, the cluster checks and binds.

`capacity` reads the resources of nodes for the scheduler, `refusals` reads why the cluster does not run a pod on its
node, `placeholders` and `elastic_pools` grow node pools, and `kueue` hands pods to Kueue. `translate` pins a pod to its
node.
"""

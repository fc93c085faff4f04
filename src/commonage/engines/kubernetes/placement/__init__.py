"""Placement in a cluster: our scheduler chooses the node, the cluster checks and binds.

`capacity` tells the scheduler what nodes have, `affinity` pins a pod to its node, `refusals` reads why the cluster does
not run it there, and `kueue` hands pods to Kueue.
"""

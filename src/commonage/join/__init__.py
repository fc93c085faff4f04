"""Joining: tokens, the join script, the join config of the site, and the join service with its listener.

`config`, `client` and `join.sh` travel to the node, so they use the standard library only; the join
steps of `commonage.agent` run there. `service`, `listener`, `tokens` and `node_identity` run in the control plane.
"""

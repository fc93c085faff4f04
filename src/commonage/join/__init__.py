"""Joining: the token a node shows, the script that starts it, the site's terms, and the join server.

`join_config`, `fetch` and `join.sh` go to the node and need nothing but the standard library; `commonage.agent.join`
does the
work there. `tokens`, `join_service` and `join_client` are the control plane's side.
"""

"""Joining: the token a node shows, the script that starts it, the site's terms, and the join server.

`terms`, `fetch` and `join.sh` go to the node and need nothing but the standard library; `commonage.agent.join` does the
work there. `tokens`, `office` and `door` are the control plane's side.
"""

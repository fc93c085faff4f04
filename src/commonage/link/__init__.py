"""The link between the control plane and the agents of a site, and the certificate authority that both trust.

`ca` signs certificates; `listener` and `agents` are the control plane's side; `frames`, `messages` and `codec` are what
both sides speak. Those use the standard library alone, because an agent's node has nothing else.
"""

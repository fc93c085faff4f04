"""The link between the control plane and the agents of a site, and the certificate authority that both trust.

`certificate_authority` signs certificates; `listener` and `agent_connections` are the control plane's side. `messages`
and `connection` are the protocol of both sides: they use the standard library only, because they travel to the nodes.
"""

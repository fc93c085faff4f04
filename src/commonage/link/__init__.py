"""The link between the control plane and the agents on the machines of a site, and the authority that both trust.

`ca` signs certificates, `listener` and `agents` are the control plane's side; `frames`, `messages` and `codec` are what
both sides speak, of the standard library alone, for an agent's machine has nothing else.
"""

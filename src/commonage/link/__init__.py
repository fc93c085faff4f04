"""The link between the control plane and the agents of a site, and the certificate authority that both trust.

| question | module |
|---|---|
| messages and requests of both sides | `messages.py` |
| messages, requests and their results, whatever carries them | `exchange.py` |
| the link of a node agent | `connection.py` |
| the link of a site elsewhere, with streams | `sites/` |
| commands in attempts over a link | `execs.py` |
| TCP forwarding, for tunnels and relays | `forwarding.py` |
| admission of agents that dial; tunnels of containers | `listener.py` |
| the control plane's view of all agents (port `Agents`) | `agent_connections.py` |
| the last reports, kept over a restart | `saved_reports.py` |
| TLS of the listeners | `tls.py` |
| the authority's key and signatures | `certificate_authority.py` |
| which certificates hold, and which are revoked | `issued_certificates.py` |
| the agent's archive for joining nodes | `bundle.py` |

`messages`, `exchange`, `connection`, `execs` and `forwarding` use the standard library only, because they travel to the
nodes.
"""

"""The site link: one connection by which an appliance serves the control plane. It dials; no port is open there.

| question | module |
|---|---|
| requests, messages and streams on one connection | `connection.py` |
| streams, their types and their flow control | `streams.py` |
| a TCP connection on a TLS connection of its own | `tunnel_connection.py` |
| who dials these, when, and how many | `tunnel_pool.py` |
| which frame is sent next | `outbox.py` |
| binary frames | `frames.py` |
| hello, welcome, and versions of the protocol | `messages.py` |
| admission of sites that dial | `listener.py` |
| the links of all sites, on the control plane | `links.py` |
| which sites may connect | `registry.py` |
| tokens for admins, certificates for machines that join | `service.py` |
| dialling, again and again; renewal of the certificate | `dialer.py` |
| the identity of a site, on the appliance | `credentials.py` |
"""

"""The site link: one connection by which an appliance serves the control plane. It dials; no port is open there.

| question | module |
|---|---|
| one connection: frames, streams, tunnels | `transport/` |
| what is sent, and versions of the protocol | `messages/` |
| admission of sites that dial | `listener.py` |
| the links of all sites, on the control plane | `links.py` |
| which sites may connect | `registry.py` |
| tokens for admins, certificates for machines that join | `service.py` |
| dialling, again and again; renewal of the certificate | `dialer.py` |
| the identity of a site, on the appliance | `credentials.py` |
"""

"""The site agent: runs on an appliance, and serves its local engine to the control plane over the site link.

| question | module |
|---|---|
| requests of the control plane, and the loops | `agent.py` |
| start requests that were accepted, kept over a crash | `attempts.py` |
| the statuses that the control plane knows or will know | `statuses.py` |
| logs, commands and connections as streams | `streams.py` |
| files of jobs | `bundles.py` |
| samples of an outage | `samples.py` |
| GPUs of the site, and warnings about them | `devices.py` |
| how workloads reach the hub and the control plane | `gateway.py` |
| homes and volumes: sizes and limits | `storage.py` |
| nodes that join this site | `joining.py` |
| images of the control plane's registry | `images.py` |
| what the control plane says of itself, for the next start | `network.py` |
| joining as a site | `join.py` |

While the link is down the agent continues: it starts the accepted attempts, and its engine keeps attempts that run or
have ended until the control plane has stored their ends.
"""

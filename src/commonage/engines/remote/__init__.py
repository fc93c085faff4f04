"""The engine of an appliance: the engine port over a site link, with the last known state while the link is down.

| question | module |
|---|---|
| the port | `engine.py` |
| commands that wait for the link, and their delivery | `commands.py` |
| statuses as the site last reported them | `statuses.py` |
| what a site may say | `claims.py` |
| the site's times as times of this side | `clock.py` |
| GPUs as the site last measured them | `devices.py` |
| what survives a restart of the control plane | `records.py` |
| nodes that join the site | `joining.py` |
| homes and volumes of the site | `storage.py` |
| logs and commands in attempts | `streams.py` |
| addresses of the control plane that lead to attempts | `tunnels.py` |
| the engines of all joined sites | `sites.py` |
"""

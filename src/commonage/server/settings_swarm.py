"""The settings of the Swarm engine alone: a part of `settings`' table. It has those of the Docker engine, too."""

from __future__ import annotations

from pydantic import BaseModel

from commonage.server.settings_table import Row, setting
from commonage.server.settings_types import OptionalPath, OptionalText, PrivateRange


class SwarmSettings(BaseModel):
    """Where the machines of a Swarm meet."""

    shared_dir: OptionalPath = setting(
        None,
        "Folder that every machine of a Swarm sees under this very path: workspaces and logs lie there. The data "
        "folder if left out, which then must be such (docs/howto/swarm.md).",
        Row("a folder", "Containers"),
    )
    swarm_address: OptionalText = setting(
        None,
        "Address of this machine by which containers on all machines reach the hub; what Swarm says it is if left out.",
        Row("an IP address of this machine", "Containers"),
    )
    swarm_networks: PrivateRange = setting(
        "10.214.0.0/16",
        "Range of addresses for the networks of the tenants over all machines of a Swarm.",
        Row("a private range like 10.214.0.0/16", "Containers"),
    )
    swarm_encrypted: bool = setting(
        False,
        "Whether what passes between machines on the networks of the tenants is encrypted, which costs some speed.",
        Row("true or false", "Containers"),
    )

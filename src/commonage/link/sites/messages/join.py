"""Messages of a site link about nodes that join an appliance, which has its own join service and authority.

The control plane's end is `engines.remote.joining`, the site's is `site_agent.joining`.
"""

from __future__ import annotations

from dataclasses import dataclass

from commonage.link.messages import Nothing, RequestType

# --- from the control plane ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WantedToken:
    """`for_s`: how long it shall be valid."""

    for_s: int


@dataclass(frozen=True, slots=True)
class NodeToken:
    token: str
    url: str
    command: str


@dataclass(frozen=True, slots=True)
class NodeKit:
    """`bundle` in base64."""

    script: str
    script_sha256: str
    bundle: str


@dataclass(frozen=True, slots=True)
class NodeName:
    node: str


@dataclass(frozen=True, slots=True)
class Removal:
    """`gone`: the node does not exist any more, so join tokens stay valid."""

    node: str
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The steps that were done, one sentence each."""

    done: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Admitted:
    admitted: bool


NODE_TOKEN = RequestType("make-node-token", WantedToken, NodeToken, 20.0)
NODE_KIT = RequestType("get-node-kit", Nothing, NodeKit, 60.0)
REVOKE_NODE_TOKENS = RequestType("revoke-node-tokens", Nothing, Done, 20.0)
IS_NODE_ADMITTED = RequestType("is-node-admitted", NodeName, Admitted, 20.0)
REMOVE_NODE = RequestType("remove-node", Removal, Done, 60.0)

# --- from the site ------------------------------------------------------------------------------------------------

NODE_LEFT = RequestType("node-left", NodeName, Nothing, 15.0)
"""The node has left the site, and runs nothing of it any more."""

"""A real server answers the conversations as the double does (tests/contract/engines/kubernetes/test_double.py)."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from tests.kubernetes.conftest import kubectl
from tests.kubernetes.conversations import CONVERSATIONS, Conversation, Speaker
from tests.kubernetes.rig import IMAGE

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda one: one.__name__)
async def test_a_real_server_answers_likewise(conversation: Conversation, namespace: str) -> None:
    nodes = json.loads(await asyncio.to_thread(kubectl, "get", "nodes", "-o", "json"))["items"]
    node = nodes[0]["metadata"]["name"]
    speaker = Speaker.open(Path(os.environ["KUBECONFIG"]), namespace, node, IMAGE)
    async with speaker.http:
        assert await conversation(speaker) == CONVERSATIONS[conversation]

"""The double of a cluster answers as a real one does: tests/kubernetes/test_double.py holds the same conversations."""

from pathlib import Path

import pytest
from tests.kubernetes.conversations import CONVERSATIONS, Conversation, Speaker
from tests.kubernetes.rig import IMAGE

from commonage.testing.fakes.kubernetes.cluster import FakeCluster

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda one: one.__name__)
async def test_the_double_answers_as_a_real_server(conversation: Conversation, tmp_path: Path) -> None:
    async with FakeCluster(tmp_path, nodes=["node-1", "node-2"], images=[IMAGE]) as cluster:
        speaker = Speaker.open(cluster.kubeconfig, "commonage", "node-1", IMAGE)
        async with speaker.http:
            assert await conversation(speaker) == CONVERSATIONS[conversation]

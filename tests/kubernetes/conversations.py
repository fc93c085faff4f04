"""Conversations with an API server, and the answers that the double and a real one must both give.

Uids, times, versions and the names of the surroundings are taken out of the answers.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig

from commonage.engines.kubernetes.manifest import Manifest
from commonage.testing.fakes.kubernetes.patches import merge_patched

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
GATE = {"name": "example.org/wait"}
Facts = list[Any]


@dataclass
class Speaker:
    """One side of a conversation, in a namespace of its own."""

    http: httpx.AsyncClient
    namespace: str
    node: str
    image: str

    @classmethod
    def open(cls, kubeconfig: Path, namespace: str, node: str, image: str) -> Speaker:
        config = KubeConfig.from_file(kubeconfig).get()
        http = AsyncClient(config, ConnectionParams(timeout=httpx.Timeout(60.0), trust_env=False))
        return cls(http, namespace, node, image)

    def path(self, plural: str, name: str = "", sub: str = "") -> str:
        return "/".join(part for part in (f"/api/v1/namespaces/{self.namespace}/{plural}", name, sub) if part)

    async def ask(self, method: str, path: str, body: Manifest | None = None, kind: str = "", **query: str) -> Manifest:
        """The answer; `code` is its status."""
        headers = {"Content-Type": kind or "application/json"} if body is not None else {}
        content = None if body is None else json.dumps(body)
        answer = await self.http.request(method, path, params=query, content=content, headers=headers)
        try:
            found: Manifest = answer.json()
        except ValueError:
            found = {"text": answer.text}
        return {**found, "code": answer.status_code}

    async def refusal(self, method: str, path: str, body: Manifest | None = None, kind: str = "", **query: str) -> Any:
        answer = await self.ask(method, path, body, kind, **query)
        return answer["code"], answer.get("reason"), self.clean(answer.get("message", ""))

    async def until(self, path: str, is_so: Callable[[Manifest], Any]) -> Manifest:
        async with asyncio.timeout(90):
            while not is_so(found := await self.ask("GET", path)):  # noqa: ASYNC110 - it is elsewhere
                await asyncio.sleep(0.05)
        return found

    async def events(self, path: str, count: int, **query: str) -> list[Manifest]:
        """The first events of a watch."""
        found: list[Manifest] = []
        params = {"watch": "1", "timeoutSeconds": "60", **query}
        async with self.http.stream("GET", path, params=params) as answer:
            async for line in answer.aiter_lines():
                found.append(json.loads(line))
                if len(found) == count:
                    break
        return found

    def clean(self, text: str) -> str:
        for known, word in ((self.namespace, "NAMESPACE"), (self.node, "NODE"), (self.image, "IMAGE")):
            text = text.replace(known, word)
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID", text)
        text = re.sub(r"\b\d+/\d+ nodes", "0/N nodes", re.sub(r"\b\d+ (?=node\(s\)|Preemption)", "N ", text))
        return re.sub(r"version: \d+ \(\d+\)", "version: V (V)", text)

    def pod(self, name: str, script: str, **changes: Any) -> Manifest:
        """One that runs a script on the node, and meets the Pod Security level `restricted`."""
        field = {"key": "metadata.name", "operator": "In", "values": [self.node]}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
        container = {
            "name": "main",
            "image": self.image,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script],
            "resources": {"requests": {"cpu": "1m"}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        security = {"runAsUser": 1000, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        spec = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "shareProcessNamespace": True,
            "affinity": {"nodeAffinity": affinity},
            "securityContext": security,
            "containers": [container | changes.pop("container", {})],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec | changes}


def config_map(name: str, data: Manifest, **metadata: Any) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data}


def main_state(pod: Manifest) -> Manifest:
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{"state": {}}]
    return dict(statuses[0]["state"])


def scheduled(pod: Manifest) -> Manifest:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == "PodScheduled"), {})


# --- the table ------------------------------------------------------------------------------------------------------


async def refuses_what_is_not_there(speaker: Speaker) -> Facts:
    return [
        await speaker.refusal("GET", speaker.path("pods", "missing")),
        await speaker.refusal("DELETE", speaker.path("pods", "missing")),
        await speaker.refusal("GET", "/api/v1/nonsense"),
        await speaker.refusal("POST", "/api/v1/namespaces/not-there/configmaps", config_map("one", {})),
    ]


async def creates_once(speaker: Speaker) -> Facts:
    path, made = speaker.path("configmaps"), config_map("once", {"a": "1"})
    first = await speaker.ask("POST", path, made)
    return [first["code"], first["data"], await speaker.refusal("POST", path, made)]


async def applies_fields_of_a_manager(speaker: Speaker) -> Facts:
    path = speaker.path("configmaps", "applied")

    async def apply(data: Manifest, manager: str, force: str = "false") -> Manifest:
        return await speaker.ask("PATCH", path, config_map("applied", data), APPLY, fieldManager=manager, force=force)

    made = await apply({"a": "1", "b": "1"}, "one")
    same = await apply({"a": "1", "b": "1"}, "one")
    other = await apply({"c": "1"}, "two")
    conflict = await apply({"a": "2"}, "two")
    less = await apply({"a": "1"}, "one")
    forced = await apply({"a": "2"}, "two", "true")
    return [
        (made["code"], made["data"]),
        (same["code"], same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]),
        other["data"],
        (conflict["code"], conflict["reason"], conflict["message"]),
        less["data"],
        forced["data"],
        await speaker.refusal("PATCH", path, config_map("applied", {}), APPLY),
    ]


async def merges_patches(speaker: Speaker) -> Facts:
    path = speaker.path("configmaps", "merged")
    await speaker.ask("POST", speaker.path("configmaps"), config_map("merged", {"a": "1", "b": "1"}))
    merged = await speaker.ask("PATCH", path, {"data": {"a": None, "c": "1"}}, MERGE)
    strategic = await speaker.ask("PATCH", path, {"data": {"b": None}}, STRATEGIC)
    return [merged["data"], strategic["data"], (await speaker.ask("PATCH", path, {}, "text/plain"))["code"]]


async def keeps_immutable_secrets(speaker: Speaker) -> Facts:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fixed"}, "immutable": True}
    await speaker.ask("POST", speaker.path("secrets"), secret | {"data": {"a": "MQ=="}})
    return [await speaker.refusal("PATCH", speaker.path("secrets", "fixed"), {"data": {"a": "Mg=="}}, MERGE)]


async def deletes_under_conditions(speaker: Speaker) -> Facts:
    path = speaker.path("configmaps", "guarded")
    made = await speaker.ask("POST", speaker.path("configmaps"), config_map("guarded", {}))
    uid = made["metadata"]["uid"]
    wrong = await speaker.refusal("DELETE", path, {"preconditions": {"uid": "other"}})
    old = await speaker.refusal("PATCH", path, {"metadata": {"resourceVersion": "1"}}, MERGE)
    right = await speaker.ask("DELETE", path, {"preconditions": {"uid": uid}})
    return [wrong, old, (right["code"], right["status"]), (await speaker.ask("GET", path))["code"]]


async def lists_in_pages_by_label(speaker: Speaker) -> Facts:
    path = speaker.path("configmaps")
    for name in ("page-1", "page-2", "page-3"):
        await speaker.ask("POST", path, config_map(name, {}, labels={"page": "yes"}))
    first = await speaker.ask("GET", path, labelSelector="page=yes", limit="2")
    rest = await speaker.ask("GET", path, labelSelector="page=yes", **{"continue": first["metadata"]["continue"]})
    one = await speaker.ask("GET", path, fieldSelector="metadata.name=page-2")
    stale = await speaker.ask("GET", path, limit="2", labelSelector="page")
    names = [[item["metadata"]["name"] for item in page["items"]] for page in (first, rest, one, stale)]
    return [first["kind"], *names, "kind" in first["items"][0]]


async def watches_by_label(speaker: Speaker) -> Facts:
    path, selector = speaker.path("configmaps"), {"labelSelector": "watched=yes"}
    listed = await speaker.ask("GET", path, **selector)
    one = speaker.path("configmaps", "watched-1")
    await speaker.ask("POST", path, config_map("watched-1", {"a": "1"}, labels={"watched": "yes"}))
    await speaker.ask("POST", path, config_map("watched-2", {}))
    await speaker.ask("PATCH", one, {"data": {"a": "2"}}, MERGE)
    await speaker.ask("PATCH", one, {"metadata": {"labels": {"watched": "no"}}}, MERGE)
    await speaker.ask("PATCH", one, {"metadata": {"labels": {"watched": "yes"}}}, MERGE)
    await speaker.ask("DELETE", one)
    version = listed["metadata"]["resourceVersion"]
    events = await speaker.events(path, 5, resourceVersion=version, **selector)
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    told = [(event["type"], event["object"]["metadata"]["name"], event["object"]["data"]["a"]) for event in events]
    return [*told, versions == sorted(versions)]


async def refuses_to_watch_from_an_expired_version(speaker: Speaker) -> Facts:
    path = speaker.path("configmaps")
    await speaker.ask("POST", path, config_map("watched-3", {}))
    (expired,) = await speaker.events(path, 1, resourceVersion="1")
    if expired["type"] != "ERROR":
        pytest.skip("this cluster is young: it still has all changes since its first")
    return [expired["type"], expired["object"]["code"], expired["object"]["reason"]]


async def holds_gated_pods(speaker: Speaker) -> Facts:
    path = speaker.path("pods", "gated")
    made = await speaker.ask("POST", speaker.path("pods"), speaker.pod("gated", "exit 0", schedulingGates=[GATE]))
    held = scheduled(await speaker.until(path, scheduled))
    without = {"spec": {"schedulingGates": [{**GATE, "$patch": "delete"}]}}
    other = await speaker.refusal("PATCH", path, merge_patched(without, {"metadata": {"uid": "other"}}), STRATEGIC)
    mine = {"metadata": {"uid": made["metadata"]["uid"]}}
    freed = await speaker.ask("PATCH", path, merge_patched(without, mine), STRATEGIC)
    done = await speaker.until(path, lambda pod: pod["status"]["phase"] == "Succeeded")
    return [
        (held["status"], held["reason"]),
        other,
        "schedulingGates" in freed["spec"],
        done["spec"]["nodeName"] == speaker.node,
    ]


async def collects_what_a_pod_owns(speaker: Speaker) -> Facts:
    made = await speaker.ask("POST", speaker.path("pods"), speaker.pod("owner", "exit 0", schedulingGates=[GATE]))
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": made["metadata"]["uid"]}
    owned = config_map("owned", {}, ownerReferences=[owner])
    await speaker.ask("POST", speaker.path("configmaps"), owned)
    await speaker.ask("DELETE", speaker.path("pods", "owner"))
    gone = await speaker.until(speaker.path("configmaps", "owned"), lambda found: found["code"] == 404)
    return [gone["reason"]]


async def says_why_a_pod_has_no_node(speaker: Speaker) -> Facts:
    container = {"resources": {"requests": {"cpu": "9000"}}}
    await speaker.ask("POST", speaker.path("pods"), speaker.pod("large", "exit 0", container=container))
    found = scheduled(await speaker.until(speaker.path("pods", "large"), scheduled))
    return [found["reason"], speaker.clean(found["message"])]


async def refuses_to_change_a_pod(speaker: Speaker) -> Facts:
    made = speaker.pod("fixed", "exit 0", schedulingGates=[GATE])
    await speaker.ask("POST", speaker.path("pods"), made)
    code, reason, message = await speaker.refusal(
        "PATCH", speaker.path("pods", "fixed"), {"spec": {"hostname": "other"}}, STRATEGIC
    )
    return [code, reason, message[:86]]


async def runs_a_pod_to_its_end(speaker: Speaker) -> Facts:
    path, script = speaker.path("pods", "short"), "echo one; echo two; exit 3"
    await speaker.ask("POST", speaker.path("pods"), speaker.pod("short", script))
    done = await speaker.until(path, lambda pod: pod["status"]["phase"] in ("Failed", "Succeeded"))
    end = main_state(done)["terminated"]
    log = speaker.path("pods", "short", "log")
    texts = [
        (await speaker.ask("GET", log, **query))["text"]
        for query in ({}, {"tailLines": "1"}, {"follow": "true"}, {"sinceTime": "2100-01-01T00:00:00Z"})
    ]
    stamped = (await speaker.ask("GET", log, timestamps="true"))["text"].splitlines()
    is_stamped = [bool(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z (one|two)$", line)) for line in stamped]
    return [done["status"]["phase"], end["exitCode"], end["reason"], *texts, is_stamped]


async def stops_a_pod_with_grace(speaker: Speaker) -> Facts:
    path = speaker.path("pods", "long")
    script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    await speaker.ask("POST", speaker.path("pods"), speaker.pod("long", script))
    await speaker.until(speaker.path("pods", "long", "log"), lambda found: found.get("text") == "ready\n")
    running = await speaker.until(path, lambda pod: "running" in main_state(pod))
    asked = await speaker.ask("DELETE", path, {"gracePeriodSeconds": 40})
    longer = await speaker.ask("DELETE", path, {"gracePeriodSeconds": 50})
    query = {"resourceVersion": running["metadata"]["resourceVersion"], "fieldSelector": "metadata.name=long"}
    last: Manifest = {}
    async with speaker.http.stream("GET", speaker.path("pods"), params={"watch": "1", **query}) as answer:
        async for line in answer.aiter_lines():
            last = json.loads(line)
            if last["type"] == "DELETED":
                break
    grace = [one["metadata"]["deletionGracePeriodSeconds"] for one in (asked, longer) if one["code"] == 200]
    return [grace[0], set(grace) <= {40}, last["type"], main_state(last["object"])["terminated"]["exitCode"]]


async def waits_for_a_secret(speaker: Speaker) -> Facts:
    path = speaker.path("pods", "keyed")
    container = {"envFrom": [{"secretRef": {"name": "late"}}]}
    await speaker.ask("POST", speaker.path("pods"), speaker.pod("keyed", 'echo "$KEY"', container=container))
    waiting = main_state(await speaker.until(path, lambda pod: "message" in main_state(pod).get("waiting", {})))[
        "waiting"
    ]
    log = await speaker.refusal("GET", speaker.path("pods", "keyed", "log"))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"}, "data": {"KEY": "b3Blbg=="}}
    await speaker.ask("POST", speaker.path("secrets"), secret)
    await speaker.until(path, lambda pod: pod["status"]["phase"] == "Succeeded")
    text = (await speaker.ask("GET", speaker.path("pods", "keyed", "log")))["text"]
    return [waiting["reason"], waiting["message"], log, text]


async def misses_an_image(speaker: Speaker) -> Facts:
    path, container = speaker.path("pods", "no-image"), {"image": "localhost/commonage-test/not-there:1"}
    await speaker.ask("POST", speaker.path("pods"), speaker.pod("no-image", "exit 0", container=container))
    waiting = main_state(await speaker.until(path, lambda pod: "message" in main_state(pod).get("waiting", {})))[
        "waiting"
    ]
    return [waiting["reason"], waiting["message"]]


async def holds_a_quota(speaker: Speaker) -> Facts:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    await speaker.ask("POST", speaker.path("resourcequotas"), quota)
    path = speaker.path("resourcequotas", "none")
    await speaker.until(path, lambda found: "hard" in (found.get("status") or {}))
    code, reason, message = await speaker.refusal("POST", speaker.path("pods"), speaker.pod("extra", "exit 0"))
    await speaker.ask("DELETE", path)
    await speaker.until(path, lambda found: found["code"] == 404)
    return [code, reason, re.sub(r"used: pods=\d+", "used: pods=N", message)]


Conversation = Callable[[Speaker], Awaitable[Facts]]
CONVERSATIONS: dict[Conversation, Facts] = {
    refuses_what_is_not_there: [
        (404, "NotFound", 'pods "missing" not found'),
        (404, "NotFound", 'pods "missing" not found'),
        (404, "NotFound", "the server could not find the requested resource"),
        (404, "NotFound", 'namespaces "not-there" not found'),
    ],
    creates_once: [201, {"a": "1"}, (409, "AlreadyExists", 'configmaps "once" already exists')],
    applies_fields_of_a_manager: [
        (201, {"a": "1", "b": "1"}),
        (200, True),
        {"a": "1", "b": "1", "c": "1"},
        (409, "Conflict", 'Apply failed with 1 conflict: conflict with "one": .data.a'),
        {"a": "1", "c": "1"},
        {"a": "2"},
        (
            422,
            "Invalid",
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
        ),
    ],
    merges_patches: [{"b": "1", "c": "1"}, {"c": "1"}, 415],
    keeps_immutable_secrets: [
        (
            422,
            "Invalid",
            'Secret "fixed" is invalid: data: Forbidden: field is immutable when `immutable` is set',
        )
    ],
    deletes_under_conditions: [
        (
            409,
            "Conflict",
            'Operation cannot be fulfilled on ConfigMap "guarded": the UID in the precondition (other) does not match '
            "the UID in record (UID). The object might have been deleted and then recreated",
        ),
        (
            409,
            "Conflict",
            'Operation cannot be fulfilled on configmaps "guarded": the object has been modified; please apply your '
            "changes to the latest version and try again",
        ),
        (200, "Success"),
        404,
    ],
    lists_in_pages_by_label: [
        "ConfigMapList",
        ["page-1", "page-2"],
        ["page-3"],
        ["page-2"],
        ["page-1", "page-2"],
        False,
    ],
    watches_by_label: [
        ("ADDED", "watched-1", "1"),
        ("MODIFIED", "watched-1", "2"),
        ("DELETED", "watched-1", "2"),
        ("ADDED", "watched-1", "2"),
        ("DELETED", "watched-1", "2"),
        True,
    ],
    refuses_to_watch_from_an_expired_version: ["ERROR", 410, "Expired"],
    holds_gated_pods: [
        ("False", "SchedulingGated"),
        (422, "Invalid", 'Pod "gated" is invalid: metadata.uid: Invalid value: "other": field is immutable'),
        False,
        True,
    ],
    collects_what_a_pod_owns: ["NotFound"],
    says_why_a_pod_has_no_node: [
        "Unschedulable",
        "0/N nodes are available: 1 Insufficient cpu, N node(s) didn't satisfy plugin(s) [NodeAffinity]. no new claims "
        "to deallocate, preemption: 0/N nodes are available: N Preemption is not helpful for scheduling.",
    ],
    refuses_to_change_a_pod: [
        422,
        "Invalid",
        'Pod "fixed" is invalid: spec: Forbidden: pod updates may not change fields other than ',
    ],
    runs_a_pod_to_its_end: ["Failed", 3, "Error", "one\ntwo\n", "two\n", "one\ntwo\n", "", [True, True]],
    stops_a_pod_with_grace: [40, True, "DELETED", 7],
    waits_for_a_secret: [
        "CreateContainerConfigError",
        'secret "late" not found',
        (400, "BadRequest", 'container "main" in pod "keyed" is waiting to start: CreateContainerConfigError'),
        "open\n",
    ],
    misses_an_image: [
        "ErrImageNeverPull",
        'Container image "localhost/commonage-test/not-there:1" is not present with pull policy of Never',
    ],
    holds_a_quota: [
        403,
        "Forbidden",
        'pods "extra" is forbidden: exceeded quota: none, requested: pods=1, used: pods=N, limited: pods=0',
    ],
}

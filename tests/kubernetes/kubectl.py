"""The cluster that KUBECONFIG names, by kubectl (or the program that KUBECTL names)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commonage.domain.errors import EngineFailure
from commonage.engines.kubernetes.manifest import Manifest


@dataclass(frozen=True)
class Kubectl:
    """`config`: a file instead of KUBECONFIG."""

    config: str = ""

    def with_token(self, token: str, config: Path) -> Kubectl:
        """The same cluster, as another user. The admin's client certificate would win over a token, so it goes."""
        known = json.loads(self.must("config", "view", "--raw", "--minify", "-o", "json"))
        known["users"] = [{"name": known["users"][0]["name"], "user": {"token": token}}]
        config.write_text(json.dumps(known), encoding="utf-8")
        return Kubectl(str(config))

    def run(self, *arguments: str, manifest: Manifest | None = None) -> subprocess.CompletedProcess[str]:
        options = (f"--kubeconfig={self.config}",) if self.config else ()
        return subprocess.run(
            (os.environ.get("KUBECTL", "kubectl"), *options, *arguments),
            input=None if manifest is None else json.dumps(manifest),
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def must(self, *arguments: str, manifest: Manifest | None = None) -> str:
        done = self.run(*arguments, manifest=manifest)
        if done.returncode:
            raise EngineFailure(done.stderr.strip())
        return done.stdout

    def refusal(self, manifest: Manifest) -> str:
        """Why the server would refuse to create it; empty if it would not."""
        return self.run("create", "--dry-run=server", "-f", "-", manifest=manifest).stderr

    async def get(self, manifest: Manifest) -> Manifest | None:
        text = await asyncio.to_thread(self.must, "get", *_named(manifest), "--ignore-not-found", "-o", "json")
        found: Manifest | None = json.loads(text) if text else None
        return found

    async def list(self, api_version: str, kind: str, selector: str, namespace: str) -> Sequence[Manifest]:
        where = ("-n", namespace) if namespace else ()
        found = await self._json("get", _resource(api_version, kind), "-l", selector, *where, "-o", "json")
        items: list[Manifest] = found["items"]
        return items

    async def _json(self, *arguments: str, manifest: Manifest | None = None) -> Any:
        return json.loads(await asyncio.to_thread(self.must, *arguments, manifest=manifest))


def _named(manifest: Manifest) -> tuple[str, ...]:
    meta = manifest["metadata"]
    where = ("-n", meta["namespace"]) if "namespace" in meta else ()
    return (_resource(manifest["apiVersion"], manifest["kind"]), meta["name"], *where)


def _resource(api_version: str, kind: str) -> str:
    group = api_version.partition("/")[0] if "/" in api_version else ""
    return f"{kind.lower()}.{group}" if group else kind.lower()

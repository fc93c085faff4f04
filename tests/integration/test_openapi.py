"""The API matches its OpenAPI description, as schemathesis checks it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.api_world import served

from commonage.api.app import describe
from commonage.wire.hub import API_PATH

HERE = Path(__file__).parent
METHODS = {"get", "post", "put", "patch", "delete"}


def operations() -> list[tuple[str, dict]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in describe()["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    ]


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    with served(tmp_path, run=False) as url:
        command = [
            str(Path(sys.executable).with_name("schemathesis")),
            *("--config-file", str(HERE / "schemathesis.toml")),
            *("run", f"{url}{API_PATH}/openapi.json", "--url", f"{url}{API_PATH}"),
            *("--header", "Authorization: Bearer admin:root"),
            *("--suppress-health-check", "all"),
        ]
        # It stores its examples in the working directory, and imports its hooks from the path.
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE), "HOME": str(tmp_path)}
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.fail(result.stdout[-20_000:] + result.stderr, pytrace=False)


def test_every_operation_is_described() -> None:
    assert [name for name, one in operations() if not one.get("summary") or not one.get("description")] == []


def test_every_operation_declares_its_errors_as_problem_documents() -> None:
    bare = [
        f"{name} {status}"
        for name, one in operations()
        for status, response in one["responses"].items()
        if status >= "400" and "GET /health" not in name and "application/problem+json" not in response["content"]
    ]
    assert bare == []


def test_every_operation_but_health_needs_a_token() -> None:
    description = describe()
    assert description["security"] == [{"bearer": []}]
    # A webhook has a signature instead.
    open_ones = {"GET /health", "POST /materials/{name}/webhook"}
    assert {name for name, one in operations() if "security" in one} == open_ones
    assert {name for name, one in operations() if "401" not in one["responses"]} == {"GET /health"}


def test_every_body_has_an_example() -> None:
    bodies = [one["requestBody"]["content"] for _, one in operations() if "requestBody" in one]
    assert bodies
    assert all("example" in body["application/json"] for body in bodies if "application/json" in body)


def test_every_reference_resolves() -> None:
    description = describe()
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(description)))
    assert named
    assert named - set(description["components"]["schemas"]) == set()

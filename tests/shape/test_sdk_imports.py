"""The SDK: its import is cheap, and its blocking client is generated from the asynchronous one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import commonage.sdk


def test_import_is_cheap() -> None:
    code = (
        "import sys, commonage.sdk\n"
        "assert not {'httpx2', 'pydantic', 'asyncio'} & set(sys.modules), 'heavy'\n"
        "from commonage.sdk import ApiError, Unreachable\n"
        "assert not {'httpx2', 'pydantic', 'asyncio'} & set(sys.modules), 'heavy errors'\n"
        "from commonage.sdk import Client, SubmitIn\n"
        "assert 'httpx2' in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_public_names_exist() -> None:
    assert all(getattr(commonage.sdk, name) for name in commonage.sdk.__all__)
    with pytest.raises(AttributeError):
        _ = commonage.sdk.nothing


def test_blocking_client_is_up_to_date() -> None:
    command = [sys.executable, "scripts/sdk.py", "--check"]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr

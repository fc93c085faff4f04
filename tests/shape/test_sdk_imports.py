"""Importing the SDK costs nothing until one of its names is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import commonage.sdk


def test_the_import_is_light() -> None:
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


def test_every_public_name_is_there() -> None:
    assert all(getattr(commonage.sdk, name) for name in commonage.sdk.__all__)
    with pytest.raises(AttributeError):
        _ = commonage.sdk.nothing

"""Lets a failing assertion of a contract suite show what it compared, as one in a test file does."""

import pytest

pytest.register_assert_rewrite(
    "commonage.testing.engine_contract",
    "commonage.testing.engine_rig",
    "commonage.testing.metrics_contract",
    "commonage.testing.store_contract",
    "commonage.testing.store_reading_contract",
)

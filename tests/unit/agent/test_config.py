"""The agent's settings: written values are read back, and errors name the wrong value."""

from pathlib import Path

import pytest

from commonage.agent.config import AgentConfig, config_text, read_config, split_address
from commonage.domain.errors import InvalidInput

MIN = AgentConfig("w1", ("10.0.0.1:8444", "[fd00::1]:8444"), "/a.crt", "/a.key", "/a.csr", "/ca.crt")


@pytest.mark.parametrize(
    "config",
    [
        MIN,
        AgentConfig(
            'w "ö" \\', ("hub:1",), "/a", "/b", "/c", "/d", labels=(("zone", "b"), ("a b", "1")), firewall=False,
            fence_after_s=2.5, cpus_milli=500, site_networks=("10.0.0.0/8",),
        ),
    ],
)  # fmt: skip
def test_config_round_trips(tmp_path: Path, config: AgentConfig) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(config_text(config))
    assert read_config(file) == config


def test_config_text_omits_defaults() -> None:
    assert "firewall" not in config_text(MIN)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("colour = 1", "has colour, which is not known"),
        ("cpus_milli = 'many'", "cpus_milli should be int"),
        ("control = ['hub']", "'hub' is not an address"),
        ("control = []", "must not be empty"),
        ("node = ", "is not TOML"),
    ],
)
def test_errors_name_the_wrong_setting(tmp_path: Path, more: str, words: str) -> None:
    file = tmp_path / "agent.toml"
    lines = [line for line in config_text(MIN).splitlines() if line.partition(" =")[0] != more.partition(" =")[0]]
    file.write_text("\n".join([*lines, more]))
    with pytest.raises(InvalidInput, match=words):
        read_config(file)
    with pytest.raises(InvalidInput, match="joining a site writes this file"):
        read_config(tmp_path / "none")


def test_splits_addresses() -> None:
    assert split_address("[fd00::1]:8444") == ("fd00::1", 8444)
    for wrong in ("", "hub", ":80", "hub:0", "hub:99999", "hub:x"):
        with pytest.raises(InvalidInput, match="not an address"):
            split_address(wrong)

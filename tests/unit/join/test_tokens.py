"""Join tokens, the script and the terms, without a network."""

import base64
import hashlib
import json
import os
import ssl
import subprocess
from pathlib import Path

import pytest
import yaml

from commonage.domain.errors import CommonageError, Forbidden, InvalidInput
from commonage.join.client import JoinClient, JoinRefused, read_token
from commonage.join.config import JoinConfig, JoinConfigError
from commonage.join.script import cloud_init, digest_of, join_script
from commonage.join.tokens import Tokens
from commonage.link.certificate_authority import CertificateAuthority

FAR = 4_000_000_000.0
AT = ("10.0.0.1:8445",)
JOIN_CONFIG = JoinConfig(
    site="Lab", authority="PEM", agents=("h:1",), managers=("h:2",), swarm_token="t", shared_dir="/s", mark="m", now=1.0
)


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "joining" / "secret", "a" * 64)


def test_token_is_valid_until_it_expires(tokens: Tokens) -> None:
    token = tokens.make(AT, 1000.0, 600)
    tokens.check(token, 1600.0)
    with pytest.raises(Forbidden, match="expired"):
        tokens.check(token, 1601.0)


def test_the_secret_is_kept_and_private(tokens: Tokens, tmp_path: Path) -> None:
    token = tokens.make(AT, 1000.0)
    secret = tmp_path / "joining" / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    Tokens(secret, "a" * 64).check(token, 1000.0)
    secret.chmod(0o644)
    with pytest.raises(CommonageError, match="chmod 600"):
        tokens.check(token, 1000.0)


def test_revocation_invalidates_all_tokens(tokens: Tokens) -> None:
    token = tokens.make(AT, 1000.0)
    tokens.revoke_all()
    with pytest.raises(Forbidden, match="revoked"):
        tokens.check(token, 1000.0)
    tokens.check(tokens.make(AT, 1000.0), 1000.0)


@pytest.mark.parametrize("for_s", [59, 0, -1, 7 * 86400 + 1])
def test_a_token_lasts_a_minute_to_a_week(tokens: Tokens, for_s: int) -> None:
    with pytest.raises(InvalidInput, match="1 minute to 7 days"):
        tokens.make(AT, 1000.0, for_s)


def changed(token: str, **fields: object) -> str:
    """The same token with other words in it, and the old signature."""
    version, body, signature = token.split(".")
    said = json.loads(base64.urlsafe_b64decode(body + "==")) | fields
    return f"{version}.{base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip('=')}.{signature}"


@pytest.mark.parametrize("fields", [{"until": int(FAR)}, {"purpose": "admin"}, {"at": ["evil:1"]}])
def test_changed_tokens_are_refused(tokens: Tokens, fields: dict[str, object]) -> None:
    with pytest.raises(Forbidden):
        tokens.check(changed(tokens.make(AT, 1000.0), **fields), 1000.0)


@pytest.mark.parametrize("token", ["", "x", "cmj1..", "cmj1.a.b", "cmj2.a.b", "ä.ö.ü", "cmj1." + "A" * 5000 + ".x"])
def test_malformed_tokens_are_refused_on_both_sides(tokens: Tokens, token: str) -> None:
    with pytest.raises(Forbidden):
        tokens.check(token, 1000.0)
    with pytest.raises(JoinRefused, match="not a join token"):
        read_token(token)


def test_token_names_addresses_and_authority(tokens: Tokens) -> None:
    said = read_token(tokens.make(AT, 0.0))
    assert (said["at"], said["authority"], said["purpose"]) == (list(AT), "a" * 64, "join")


def test_refuses_script_of_another_site(tmp_path: Path) -> None:
    ours, others = CertificateAuthority.open(tmp_path / "a"), CertificateAuthority.open(tmp_path / "b")
    token = Tokens(tmp_path / "secret", ours.fingerprint).make(AT, FAR)
    JoinClient(token, ours.certificate)
    with pytest.raises(JoinRefused, match="different sites"):
        JoinClient(token, others.certificate)
    with pytest.raises(JoinRefused, match="cannot be read"):
        JoinClient(token, "nothing")


def test_fingerprint_is_of_the_certificate(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path)
    assert authority.fingerprint == hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority.certificate)).hexdigest()


def test_script_is_valid_shell_and_reproducible(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path / "ca")
    script = join_script('Lab\n"$(reboot)"', authority.certificate)
    assert script == join_script('Lab\n"$(reboot)"', authority.certificate)
    assert digest_of(script) == hashlib.sha256(script.encode()).hexdigest()
    assert "@" not in "".join(line for line in script.splitlines() if line.startswith("@"))
    checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    # The name stands in a comment, on one line.
    assert script.splitlines()[1] == '# Joins this machine to Lab"$(reboot)". Run it as root:'


def test_script_without_token_says_where_to_get_one(tmp_path: Path) -> None:
    script = tmp_path / "join.sh"
    script.write_text(join_script("Lab", "PEM"))
    ran = subprocess.run(
        ["sh", script, "--plan"], capture_output=True, text=True, check=False, env={"PATH": os.defpath}
    )
    assert ran.returncode == 1
    assert ("a join token is required" if os.geteuid() == 0 else "must run as root") in ran.stderr


def test_cloud_init_contains_script_and_token(tmp_path: Path) -> None:
    script = join_script("Lab", CertificateAuthority.open(tmp_path / "ca").certificate)
    made = cloud_init(script, "cmj1.a.b", ["--share", "nas:/it's here"])
    assert made.startswith("#cloud-config\n")
    read = yaml.safe_load(made)
    brought, token = read["write_files"]
    assert (brought["content"], brought["permissions"]) == (script, "0700")
    assert (token["content"], token["permissions"]) == ("cmj1.a.b\n", "0600")
    (command,) = read["runcmd"]
    assert command.startswith(f"sh {brought['path']} --token-file {token['path']} --share 'nas:/it'\"'\"'s here'")


def test_join_config_round_trips() -> None:
    sent = json.loads(json.dumps(JOIN_CONFIG.to_json() | {"of": "a newer version"}))
    assert JoinConfig.from_json(sent) == JOIN_CONFIG


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([], "not a JSON object"),
        ({"site": "x"}, "lacks authority, agents"),
        (JOIN_CONFIG.to_json() | {"managers": "h:1"}, "managers"),
        (JOIN_CONFIG.to_json() | {"shared_dir": None}, "shared_dir"),
        (JOIN_CONFIG.to_json() | {"daemon": []}, "must be objects"),
        (JOIN_CONFIG.to_json() | {"now": "noon"}, "now in the join config"),
    ],
)
def test_invalid_join_config_is_refused(said: object, why: str) -> None:
    with pytest.raises(JoinConfigError, match=why):
        JoinConfig.from_json(said)

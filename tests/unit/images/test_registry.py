"""Images in the registry's folder, and unused ones."""

import errno
import json
import os
import resource
from pathlib import Path

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from commonage.domain.images import Access
from commonage.images.registry import (
    LASTS_S,
    Signer,
    key_id,
    last_needed,
    needed,
    note_needed,
    size_bytes,
    stored,
    tagged,
    unneeded,
)

HUB = "hub.example:5000"
OLD, YOUNG, LIMIT = 1000.0, 3000.0, 2000.0


class Storage:
    """A folder as docker-registry has it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, repository: str, digit: str, at: float, content: object = None, tag: str | None = None) -> str:
        code = digit * 64
        base = self.root / "docker/registry/v2"
        link = base / "repositories" / repository / "_manifests/revisions/sha256" / code / "link"
        blob = base / "blobs/sha256" / code[:2] / code / "data"
        for path, text in ((link, f"sha256:{code}"), (blob, json.dumps(content or {}))):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        os.utime(link, (at, at))
        if tag is not None:
            named = base / "repositories" / repository / "_manifests/tags" / tag / "current/link"
            named.parent.mkdir(parents=True)
            named.write_text(f"sha256:{code}")
        return f"sha256:{code}"

    def blob(self, digest: str) -> Path:
        code = digest.removeprefix("sha256:")
        return self.root / "docker/registry/v2/blobs/sha256" / code[:2] / code / "data"

    def unneeded(self, *keep: str) -> list[str]:
        return [str(one) for one in unneeded(self.root, needed(self.root, HUB, keep), LIMIT)]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path)


def test_an_empty_folder_has_nothing(storage: Storage) -> None:
    assert stored(storage.root) == []
    assert storage.unneeded() == []
    assert size_bytes(storage.root) == 0


def test_what_is_there_is_found_with_its_repository_and_time(storage: Storage) -> None:
    storage.put("lab/torch", "a", OLD)
    storage.put("public/deep/er", "b", YOUNG)
    found = stored(storage.root)
    assert [(one.repository, one.digest[7:10], one.at) for one in found] == [
        ("lab/torch", "aaa", OLD),
        ("public/deep/er", "bbb", YOUNG),
    ]
    assert size_bytes(storage.root) == 4


def test_the_old_that_is_not_named_goes_the_rest_stays(storage: Storage) -> None:
    kept = storage.put("lab/kept", "a", OLD)
    storage.put("lab/kept", "b", OLD)
    storage.put("lab/young", "c", YOUNG)
    storage.put("lab/tagged", "d", OLD, tag="2.4")
    gone = storage.unneeded(f"{HUB}/lab/kept@{kept}", f"{HUB}/lab/tagged:2.4", "elsewhere.example/lab/kept:1")
    assert gone == [f"lab/kept@sha256:{'b' * 64}"]


def test_the_same_image_in_two_repositories_is_two(storage: Storage) -> None:
    digest = storage.put("lab/a", "a", OLD)
    storage.put("other/a", "a", OLD)
    assert storage.unneeded(f"{HUB}/lab/a@{digest}") == [f"other/a@{digest}"]


def test_the_parts_of_an_index_stay_with_it(storage: Storage) -> None:
    part = storage.put("lab/many", "b", OLD)
    other = storage.put("lab/new", "d", OLD)
    index = storage.put("lab/many", "a", OLD, {"manifests": [{"digest": part}]})
    storage.put("lab/new", "c", YOUNG, {"manifests": [{"digest": other}]})
    assert storage.unneeded(f"{HUB}/lab/many@{index}") == []
    assert storage.unneeded() == [f"lab/many@{index}", f"lab/many@{part}"]


def test_a_tag_that_is_damaged_names_nothing(storage: Storage) -> None:
    storage.put("lab/a", "a", OLD, tag="1")
    named = storage.root / "docker/registry/v2/repositories/lab/a/_manifests/tags/1/current/link"
    assert tagged(storage.root, "lab/a", "1") == f"sha256:{'a' * 64}"
    named.write_text("nonsense")
    assert tagged(storage.root, "lab/a", "1") is None
    assert tagged(storage.root, "lab/a", "2") is None


def test_what_was_needed_lately_stays_and_so_do_the_parts_of_an_index(storage: Storage) -> None:
    part = storage.put("lab/many", "b", OLD)
    index = storage.put("lab/many", "a", OLD, {"manifests": [{"digest": part}]})
    other = storage.put("lab/other", "c", OLD)
    lately, long_ago = {f"lab/many@{index}": YOUNG}, {f"lab/other@{other}": OLD + 1}
    assert [str(one) for one in unneeded(storage.root, (), LIMIT, lately | long_ago)] == [f"lab/other@{other}"]


def test_when_images_were_needed_is_kept_for_those_that_are_there(tmp_path: Path) -> None:
    file = tmp_path / "needed.json"
    assert last_needed(file) == {}
    note_needed(file, {"lab/a@1": 1.0, "lab/gone@2": 1.0}, {"lab/a@1": 5.0, "lab/b@3": 5.0}, {"lab/a@1", "lab/b@3"})
    assert last_needed(file) == {"lab/a@1": 5.0, "lab/b@3": 5.0}
    assert [one.name for one in tmp_path.iterdir()] == ["needed.json"]


@pytest.mark.parametrize("content", ["{ half", "[]", '{"lab/a@1": null}', '{"lab/a@1": []}'])
def test_notes_that_are_damaged_say_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "needed.json"
    file.write_text(content)
    assert last_needed(file) == {}


def test_on_a_full_disk_what_was_noted_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "needed.json"
    note_needed(file, {}, {"lab/a@1": 1.0}, {"lab/a@1"})

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    note_needed(file, {"lab/a@1": 1.0}, {"lab/a@1": 2.0}, {"lab/a@1"})
    assert last_needed(file) == {"lab/a@1": 1.0}
    assert [one.name for one in tmp_path.iterdir()] == ["needed.json"]


@pytest.mark.parametrize(
    "content", [{"manifests": [1]}, {"manifests": [{}]}, {"manifests": 1}, [], "deep"], ids=lambda one: str(one)[:20]
)
def test_what_is_no_index_has_no_parts(storage: Storage, content: object) -> None:
    """A catalogue entry may name the digest of anything that was pushed."""
    digest = storage.put("lab/odd", "a", OLD, content)
    if content == "deep":
        storage.blob(digest).write_text("[" * 1_000_000)
    assert needed(storage.root, HUB, [f"{HUB}/lab/odd@{digest}"]) == {f"lab/odd@{digest}"}


def test_a_layer_is_not_read_into_memory(storage: Storage) -> None:
    digest = storage.put("lab/layer", "a", OLD)
    os.truncate(storage.blob(digest), 600 * 1024 * 1024)
    resource.setrlimit(resource.RLIMIT_AS, (_memory_now() + 200 * 1024 * 1024, resource.RLIM_INFINITY))
    try:
        assert needed(storage.root, HUB, [f"{HUB}/lab/layer@{digest}"]) == {f"lab/layer@{digest}"}
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _memory_now() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


NOW = 1_790_000_000.0


def test_a_token_says_for_whom_for_what_and_how_long() -> None:
    signer = Signer()
    text = signer.sign("ann", "hub:5000", [Access("repository", "lab/torch", ("pull", "push"))], NOW)
    key = x509.load_pem_x509_certificate(signer.certificate(NOW).encode()).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    said = jwt.decode(
        text, key, algorithms=["ES256"], audience="hub:5000", options={"verify_exp": False, "verify_nbf": False}
    )
    assert (said["sub"], said["iss"], said["exp"] - said["iat"]) == ("ann", "commonage", LASTS_S)
    assert said["access"] == [{"type": "repository", "name": "lab/torch", "actions": ["pull", "push"]}]
    assert jwt.get_unverified_header(text)["kid"] == key_id(key)


def test_another_run_of_the_registry_believes_none_of_it() -> None:
    text = Signer().sign("ann", "hub:5000", [], NOW)
    other = x509.load_pem_x509_certificate(Signer().certificate(NOW).encode()).public_key()
    assert isinstance(other, ec.EllipticCurvePublicKey)
    with pytest.raises(jwt.InvalidSignatureError):
        jwt.decode(text, other, algorithms=["ES256"], audience="hub:5000")


def test_the_key_identifier_is_twelve_groups_of_four() -> None:
    groups = key_id(ec.generate_private_key(ec.SECP256R1()).public_key()).split(":")
    assert [len(group) for group in groups] == [4] * 12
    assert all(set(group) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") for group in groups)

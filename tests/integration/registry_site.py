"""For the tests of images: the API with a real registry behind it, and small packages and bases made right here.

The registry answers at an address of its own, which is no loopback: for those Docker checks no certificate.
"""

import asyncio
import base64
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from click.testing import Result
from tests.contract.harness.dockerd import minimal_image
from tests.contract.harness.leftovers import unmount_below
from tests.integration.api_world import Api, served
from tests.integration.command_line import commonage_at
from uv import find_uv_bin

from commonage.domain.tenants import Rules, Tenant
from commonage.link.certificate_authority import CertificateAuthority
from commonage.server.processes.ports import free_port
from commonage.server.processes.registry import PlatformRegistry, RegistryPlan
from commonage.wire.hub import API_PATH

ADDRESS = "10.98.255.1"
MACHINE_PASSWORD = "of-the-nodes"
KEEP_DAYS = 7

T = TypeVar("T")


@dataclass
class Site:
    """A registry, the API before it, and the command line of people. `bob` is in the tenant `lab`, `ann` in `other`."""

    url: str
    registry: PlatformRegistry
    api: Api
    folder: Path
    loop: asyncio.AbstractEventLoop
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.registry.about.address

    @property
    def storage(self) -> Path:
        return self.folder / "registry/storage"

    def wait(self, what: Coroutine[Any, Any, T]) -> T:
        """Do something in the server's loop."""
        return asyncio.run_coroutine_threadsafe(what, self.loop).result(60)

    def commonage(self, *arguments: str, token: str = "bob") -> Result:
        return commonage_at(self.url, self.folder / "home", self.environ)(*arguments, token=token)

    def buildah(self, *arguments: str) -> str:
        for _ in range(5):
            done = subprocess.run(
                ["buildah", *arguments], env={**os.environ, **self.environ}, capture_output=True, text=True, check=False
            )
            if "sealing memfd copy" not in done.stderr:  # as commonage.images.buildah does
                break
        assert done.returncode == 0, done.stderr
        return done.stdout

    def age(self, repository: str) -> None:
        """Backdate the content of a repository: pushed and last needed long ago."""
        then = time.time() - (KEEP_DAYS + 1) * 86400
        folder = self.storage / "docker/registry/v2/repositories" / repository / "_manifests/revisions/sha256"
        for link in folder.glob("*/link"):
            os.utime(link, (then, then))
        noted = self.storage.parent / "needed.json"
        if noted.exists():
            known = json.loads(noted.read_text())
            noted.write_text(
                json.dumps({one: then if one.startswith(f"{repository}@") else at for one, at in known.items()})
            )


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    held: list[tuple[asyncio.AbstractEventLoop, Api]] = []

    def prepare(api: Api) -> None:
        api.identity.groups = {"bob": ("lab",), "ann": ("other",)}
        held.append((asyncio.get_running_loop(), api))

    with own_address(), served(folder, prepare=prepare, rules=Rules(tenants=(Tenant("lab"), Tenant("other")))) as url:
        (loop, api) = held[0]
        (folder / "logs").mkdir()
        plan = RegistryPlan(
            folder / "registry", folder / "logs", ADDRESS, free_port(ADDRESS), ADDRESS,
            f"{url}{API_PATH}/registry/token", KEEP_DAYS,
        )  # fmt: skip
        registry = PlatformRegistry(plan, CertificateAuthority.open(folder / "authority"), MACHINE_PASSWORD)
        made = Site(url, registry, api, folder, loop, buildah_store(folder))
        made.wait(registry.start())
        api.app.state.context.registry = registry
        try:
            yield made
        finally:
            made.wait(registry.stop())
            forget_store(folder)


@contextmanager
def own_address() -> Iterator[None]:
    """An address of this machine that is no loopback, for as long as it is needed."""
    command = ["ip", "addr", "replace", f"{ADDRESS}/32", "dev", "lo"]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([*command[:2], "del", *command[3:]], check=True, capture_output=True)


def buildah_store(folder: Path) -> dict[str, str]:
    """An image store for these tests. Without support for overlay file systems, it makes whole copies."""
    settings = folder / "storage.conf"
    store = folder / "store"
    environ = {"CONTAINERS_STORAGE_CONF": str(settings)}
    for driver in ("overlay", "vfs"):
        settings.write_text(
            f'[storage]\ndriver = "{driver}"\nrunroot = "{store}/run"\ngraphroot = "{store}/{driver}"\n'
        )
        if (
            subprocess.run(
                ["buildah", "info"], env={**os.environ, **environ}, capture_output=True, check=False
            ).returncode
            == 0
        ):
            break
    return environ


def forget_store(folder: Path) -> None:
    """Remove the store, and what buildah has left mounted in it."""
    unmount_below(folder)
    shutil.rmtree(folder / "store", ignore_errors=True)


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str], script: str | None = None) -> None:
    """A package as pip takes it. `script`: the name of a program that calls `main` of its module."""
    info = f"{name}-{version}.dist-info"
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script is not None:
        contents[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script} = {name}:main\n"
    rows = []
    for path, text in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text.encode())}")
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))


def wheels(folder: Path, hub_version: str) -> Path:
    """Packages with conflicting requirements, and a minimal Jupyter."""
    folder.mkdir()
    for version in ("1.0", "2.0"):
        wheel(folder, "alpha", version, {"alpha.py": f"version = {version!r}\n"})
    wheel(folder, "ipykernel", "7.0", {"ipykernel.py": "", "ipykernel_launcher.py": "print('a kernel')\n"})
    wheel(folder, "jupyterlab", "4.0", {"jupyterlab.py": ""})
    program = {"jupyterhub.py": "def main():\n    print('a server')\n"}
    wheel(folder, "jupyterhub", hub_version, program, script="jupyterhub-singleuser")
    return folder


def base_tar() -> bytes:
    """The small test image, with the additional libraries that uv needs."""
    buffer = BytesIO(minimal_image())
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        known = set(archive.getnames())
        listed = subprocess.run(["ldd", find_uv_bin()], capture_output=True, text=True, check=True).stdout.split()
        for path in (word for word in listed if word.startswith("/")):
            if path.lstrip("/") not in known and path not in known:
                archive.add(os.path.realpath(path), path)
    return buffer.getvalue()


def fake_debootstrap(folder: Path, tar: bytes) -> None:
    """A `debootstrap` that unpacks the small image: what the real one does takes minutes and a mirror."""
    folder.mkdir()
    (folder / "root.tar").write_bytes(tar)
    program = folder / "debootstrap"
    program.write_text(
        "#!/bin/sh\nset -e\n"
        'for word in "$@"; do previous=$last; last=$word; done\n'
        f'echo "I: Retrieving from $last"\ntar -x -C "$previous" -f {folder}/root.tar\n'
        'mkdir -p "$previous/etc/apt" "$previous/var/cache/apt/archives"\n'
        'echo "deb $last bookworm main" > "$previous/etc/apt/sources.list"\n'
        'echo of-this-node > "$previous/etc/hostname"\n'
        'echo x > "$previous/var/cache/apt/archives/a.deb"\n'
    )
    program.chmod(0o755)


def registry_auth(user: str, password: str, address: str) -> str:
    """The credentials header of a pull from Docker."""
    known = {"username": user, "password": password, "serveraddress": address}
    return base64.urlsafe_b64encode(json.dumps(known).encode()).decode()

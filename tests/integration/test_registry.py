"""Images from end to end: built without a network, pushed by who may, pulled by Docker, thrown out when unneeded.

A real registry, buildah and dockerd; packages and base are small ones made by the tests.
"""

import asyncio
import hashlib
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import httpx2
import jwt
import pytest
from tests.contract.engines.remote.rig import RemoteRealRig
from tests.contract.engines.rigs import docker_rig
from tests.contract.harness.dockerd import NO_RULES, Dockerd, new_folder
from tests.contract.harness.leftovers import trusted_by_docker
from tests.integration.registry_site import (
    ADDRESS,
    MACHINE_PASSWORD,
    Site,
    base_tar,
    fake_debootstrap,
    site,
    wheels,
)

from commonage import messages
from commonage.catalogue import builtin_environments
from commonage.domain.errors import CommonageError
from commonage.domain.images import Environment
from commonage.domain.reasons.attempts import PullingImage
from commonage.domain.statuses import Phase, Status
from commonage.engines.docker.client import Client
from commonage.engines.docker.engine import DockerEngine
from commonage.ports.registry import NODE, PullToken, RegistryAccount
from commonage.server.processes.ports import free_port
from commonage.site_agent.images import PullTokens
from commonage.testing.behaviour import Behaviour

pytestmark = [
    pytest.mark.needs("docker", "images"),
    # The registry's own, too: it is on this machine.
    pytest.mark.allow_hosts(["127.0.0.1", "::1", "localhost", ADDRESS]),
]

BUILT = "lab/two"
SECRET_PLACE = "https://user:s3cret@index.example/simple"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("registry")) as made:
        yield made


@pytest.fixture(scope="module")
def built(here: Site) -> str:
    """An image with two kernels that contradict each other, built offline on a Debian base. Gives its local name."""
    folder = here.folder
    fake_debootstrap(folder / "bin", base_tar())
    pinned = next(one.requirements for one in builtin_environments() if one.name == "notebook")
    hub = next(one for one in pinned if one.startswith("jupyterhub==")).split()[0].removeprefix("jupyterhub==")
    packages = wheels(folder / "wheels", hub)
    for number in (1, 2):
        (folder / f"list{number}.txt").write_text(f"alpha=={number}.0\n")
    (folder / "pip.conf").write_text(f"[global]\nindex-url = {SECRET_PLACE}\n")
    here.environ |= {"PATH": f"{folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PIP_CONFIG_FILE": str(folder / "pip.conf")}
    done = here.commonage(
        "image", "build", "-t", BUILT, "--suite", "bookworm", "--mirror", "http://ada:of-the-mirror@mirror.example/debian",
        "--kernel", f"one={folder}/list1.txt", "--kernel", f"two={folder}/list2.txt", "--wheels", str(packages),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "kernel one " in done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def pushed(here: Site, built: str) -> str:
    """The same in the registry and in the catalogue. Gives the reference."""
    done = here.commonage("image", "push", BUILT, "--title", "Two at once")
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


@pytest.fixture(scope="module")
def docker() -> Iterator[Dockerd]:
    daemon = Dockerd(new_folder(), NO_RULES)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.remove()


def run_in(here: Site, image: str, *command: str) -> str:
    """Output of the command in a container of the image, by a file: buildah may lose that of a short command."""
    container = here.buildah("from", "--pull-never", image).strip()
    try:
        words = ("sh", "-c", '"$@" >/said', "sh", *command)
        here.buildah("run", "--isolation", "chroot", container, "--", *words)
        return (Path(here.buildah("mount", container).strip()) / "said").read_text()
    finally:
        here.buildah("rm", container)


def small(here: Site, name: str, content: str, base: str = "localhost/commonage/debian:bookworm") -> str:
    folder = here.folder / name.replace("/", "-")
    folder.mkdir()
    (folder / "Containerfile").write_text(f"FROM {base}\nCOPY file /file\n")
    (folder / "file").write_text(content)
    here.buildah("bud", "--quiet", "--tag", f"localhost/{name}", str(folder))
    return f"localhost/{name}"


def pull(docker: Dockerd, image: str, account: RegistryAccount | None) -> list[dict[str, object]]:
    async def pulling() -> list[dict[str, object]]:
        client = Client(docker.url)
        try:
            login = None if account is None else account.login
            async with aclosing(client.pull(image, login)) as messages:  # type: ignore[type-var]  # a generator
                return [dict(message) async for message in messages]
        finally:
            await client.close()

    return asyncio.run(pulling())


# --- built ------------------------------------------------------------------------------------------------------


def test_two_kernels_that_contradict_each_other_are_in_one_image(here: Site, built: str) -> None:
    for name, version in (("one", "1.0"), ("two", "2.0")):
        python = f"/opt/commonage/kernels/{name}/bin/python"
        assert run_in(here, built, python, "-c", "import alpha; print(alpha.version)").strip() == version
        spec = json.loads(run_in(here, built, "cat", f"/usr/local/share/jupyter/kernels/{name}/kernel.json"))
        assert spec["argv"][0] == f"/opt/commonage/kernels/{name}/bin/commonage-kernel"
    assert run_in(here, built, "jupyterhub-singleuser").strip() == "a server"
    settings = run_in(here, built, "cat", "/opt/commonage/server/etc/jupyter/jupyter_server_config.json")
    assert json.loads(settings)["MultiKernelManager"] == {"default_kernel_name": "one"}


def test_nothing_of_this_node_s_settings_stays_in_the_image(here: Site, built: str) -> None:
    words = "-e s3cret -e of-the-mirror -e of-this-node"
    search = f"grep -rl {words} /etc /opt /root /run /usr/local /var /tmp 2>&1; true"
    assert run_in(here, built, "sh", "-c", search) == ""
    assert "mirror.example" in run_in(here, built, "cat", "/etc/apt/sources.list")
    assert run_in(here, built, "sh", "-c", "ls /run /var/cache/apt/archives").split("\n")[0] == "/run:"
    assert "commonage" not in run_in(here, built, "ls", "/run")


def test_who_built_it_and_from_what_stands_in_its_labels(here: Site, built: str) -> None:
    described = json.loads(here.buildah("inspect", "--type", "image", built))
    known = described["OCIv1"]["config"]["Labels"]
    assert set(json.loads(known["org.commonage.image.files"])) == {"list1.txt", "list2.txt"}
    assert known["org.commonage.image.builder"].startswith("buildah ")
    assert described["ImageAnnotations"]["org.opencontainers.image.base.digest"].startswith("sha256:")


def test_a_second_build_uses_the_layers_of_the_first(here: Site, built: str) -> None:
    folder = here.folder
    arguments = ["image", "build", "-t", "lab/again", "--suite", "bookworm", "--wheels", str(folder / "wheels"), "-v"]
    done = here.commonage(*arguments, "--kernel", f"one={folder}/list1.txt", "--kernel", f"two={folder}/list1.txt")
    assert done.exit_code == 0, done.output
    assert "Using cache" in done.stderr
    python = "/opt/commonage/kernels/two/bin/python"
    assert run_in(here, "localhost/lab/again", python, "-c", "import alpha; print(alpha.version)").strip() == "1.0"


def test_a_containerfile_gets_pip_s_settings_as_a_secret(here: Site, built: str) -> None:
    folder = here.folder / "context"
    folder.mkdir()
    (folder / "Containerfile").write_text(
        "FROM localhost/commonage/debian:bookworm\n"
        "RUN --mount=type=secret,id=pip,target=/etc/pip.conf grep -c s3cret /etc/pip.conf > /counted\n"
        "COPY data /data\n"
    )
    (folder / "data").write_text("mine")
    done = here.commonage("image", "build", "-t", "lab/file", "-f", str(folder / "Containerfile"), str(folder))
    assert done.exit_code == 0, done.output
    assert run_in(here, "localhost/lab/file", "cat", "/counted", "/data") == "1\nmine"
    assert run_in(here, "localhost/lab/file", "sh", "-c", "cat /etc/pip.conf 2>/dev/null; true") == ""


def test_of_a_containerfile_the_step_that_failed_is_told(here: Site, built: str) -> None:
    folder = here.folder / "fails"
    folder.mkdir()
    file = folder / "Containerfile"
    for step, says in (
        ("RUN echo why >&2; exit 3", ["  why", "  exit status 3", "`--verbose` shows every line of the build."]),
        ("RUNN true", ["Unknown instruction RUNN in"]),
        ("COPY none /", [f"COPY and ADD take files only from the folder {folder}"]),
        ("FROM localhost/none", ["Image not found on this machine: localhost/none:latest."]),
    ):
        file.write_text(f"FROM localhost/commonage/debian:bookworm\nRUN echo before\n{step}\n")
        done = here.commonage("image", "build", "-t", "lab/fails", "-f", str(file))
        assert (done.exit_code, done.stdout) == (2, ""), step
        assert f"commonage: {step}, in {file}, failed:\n" in done.stderr
        assert all(f"\n{line}" in done.stderr for line in says), done.stderr
        assert "  before" not in done.stderr
    assert here.buildah("containers", "-q") == "", "nothing of a failed build stays mounted"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-t", "lab/x"), "nothing to build from"),
        (("-t", "Lab", "--kernel", "a=list1.txt"), "is not the name of an image"),
        (("-t", "lab/x", "--kernel", "A=list1.txt"), "Invalid kernel name"),
        (("-t", "lab/x", "--kernel", "a"), "Write NAME=FILE"),
        (
            ("-t", "lab/x", "--kernel", "a=missing.txt", "--base", "localhost/x"),
            "missing.txt of the kernel a do not exist",
        ),
        (("-t", "lab/x", "--kernel", "a=broken.txt", "--suite", "bookworm"), "alpha==9.9"),
    ],
)
def test_what_cannot_be_built_says_why(here: Site, built: str, arguments: tuple[str, ...], says: str) -> None:
    (here.folder / "broken.txt").write_text("alpha==9.9\n")
    words = [word.replace("=", f"={here.folder}/") if word.endswith(".txt") else word for word in arguments]
    more = ["--wheels", str(here.folder / "wheels")]
    done = here.commonage("image", "build", *words, *more)
    assert done.exit_code == 2, done.output
    assert says in done.output


# --- pushed ------------------------------------------------------------------------------------------------------


def test_what_was_pushed_is_in_the_catalogue_pinned(here: Site, pushed: str) -> None:
    assert pushed.startswith(f"{here.address}/lab/two@sha256:")
    shown = json.loads(here.commonage("image", "show", BUILT, "--json").stdout)
    assert shown["reference"] == pushed
    assert [one["name"] for one in shown["kernels"]] == ["one", "two"]
    assert shown["environments"] == ["lab/two", "lab/two/one", "lab/two/two"]
    assert shown["kinds"] == ["session", "job", "service"]
    assert shown["by"] == "bob"
    assert shown["size_bytes"] > 1_000_000
    lists = {name: (here.folder / name).read_bytes() for name in ("list1.txt", "list2.txt")}
    assert {one["path"]: one["digest"] for one in shown["provenance"]["files"]} == {
        name: f"sha256:{hashlib.sha256(content).hexdigest()}" for name, content in lists.items()
    }
    assert (here.folder / "list2.txt").stat().st_mtime <= shown["provenance"]["at"] <= time.time()
    assert shown["provenance"]["by"] == "bob"
    assert shown["provenance"]["base"] == "localhost/commonage/debian:bookworm"
    assert BUILT in here.commonage("image", "ls").stdout
    assert "one: Python (one)" in here.commonage("image", "show", BUILT).stdout


def test_who_is_no_member_neither_pushes_nor_sees_it(here: Site, pushed: str) -> None:
    refused = here.commonage("image", "push", "lab/mine", "--from", "localhost/lab/two", token="ann")
    assert refused.exit_code == 2
    assert "ann is no member of 'lab'; names begin with commons/…, other/…" in refused.output
    assert "pushing to" not in refused.output
    assert "lab/two" not in here.commonage("image", "ls", token="ann").output
    for name, why in (("other/x", "bob is no member of 'other'"), ("public/x", "only admins may give an image")):
        for words in (("push", name, "--from", "localhost/lab/two"), ("build", "-t", name, "-f", __file__)):
            refused = here.commonage("image", *words)
            assert (refused.exit_code, refused.stdout) == (2, ""), words
            assert why in refused.stderr
            assert "done after" not in refused.stderr


def test_what_is_somebody_elses_is_neither_built_nor_pushed(
    here: Site, pushed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = Path(here.storage, "docker/registry/v2/repositories/lab/two/_manifests/tags")
    before = [one.read_text() for one in sorted(tags.glob("**/link"))]
    monkeypatch.setitem(here.api.identity.groups, "ann", ("lab",))
    for words in (("push", BUILT, "--from", "localhost/lab/two"), ("build", "-t", BUILT, "-f", __file__)):
        refused = here.commonage("image", *words, token="ann")
        assert refused.exit_code == 2, words
        assert (
            "lab/two is bob's; only bob, managers of its tenant and admins may push another in its place"
            in refused.stderr
        )
        assert "done after" not in refused.stderr
    assert [one.read_text() for one in sorted(tags.glob("**/link"))] == before


def test_an_image_that_is_not_here_cannot_be_pushed(here: Site) -> None:
    done = here.commonage("image", "push", "lab/nothing")
    assert done.exit_code == 2
    assert "no image localhost/lab/nothing:latest on this machine" in done.output


def test_an_image_in_which_nothing_could_run_is_not_pushed(here: Site) -> None:
    small(here, "lab/empty", "x", base="scratch")
    done = here.commonage("image", "push", "lab/empty")
    assert done.exit_code == 2
    assert "workloads need /bin/sh" in done.output


def test_without_a_token_the_registry_says_nothing(here: Site) -> None:
    context = ssl.create_default_context(cadata=here.registry.about.certificate)
    with httpx2.Client(base_url=f"https://{here.address}", verify=context, trust_env=False) as client:
        assert client.get("/v2/lab/two/tags/list").status_code == 401
        forged = here.registry.token("ann", []).text
        answer = client.get("/v2/lab/two/tags/list", headers={"Authorization": f"Bearer {forged}"})
        assert answer.status_code == 401
    with httpx2.Client(trust_env=False) as stranger, pytest.raises(httpx2.ConnectError, match=r"(?i)certificate"):
        stranger.get(f"https://{here.address}/v2/")


# --- whose it is ---------------------------------------------------------------------------------------------------


class Person:
    """A client of the registry that behaves like Docker: it asks where to get a token for its request, and gets one."""

    def __init__(self, here: Site, token: str) -> None:
        self._login = (token.rpartition(":")[2], token)
        context = ssl.create_default_context(cadata=here.registry.about.certificate)
        self._registry = httpx2.Client(base_url=f"https://{here.address}", verify=context, trust_env=False)

    def asks(self, method: str, path: str) -> httpx2.Response:
        refused = self._registry.request(method, path)
        assert refused.status_code == 401
        said = dict(re.findall(r'(\w+)="([^"]*)"', refused.headers["www-authenticate"]))
        scopes = {"service": said["service"], "scope": said["scope"].split()}
        given = httpx2.get(said["realm"], params=scopes, auth=self._login, trust_env=False)
        assert given.status_code == 200, given.text
        shown = {
            "Authorization": f"Bearer {given.json()['token']}",
            "Accept": "application/vnd.oci.image.manifest.v1+json",
        }
        return self._registry.request(method, path, headers=shown)

    def close(self) -> None:
        self._registry.close()


def test_images_of_a_tenant_are_its_members_alone_at_the_registry_itself(here: Site, pushed: str) -> None:
    """The registry permits what the API grants, for each layer, also under another name."""
    manifest = f"/v2/lab/two/manifests/{pushed.partition('@')[2]}"
    bob, reads, ann, admin = people = [Person(here, one) for one in ("bob", "read:bob", "ann", "admin:root")]
    try:
        found = bob.asks("GET", manifest)
        assert found.status_code == 200
        layer = found.json()["layers"][0]["digest"]
        assert [one.asks("GET", manifest).status_code for one in (reads, admin, ann)] == [200, 200, 401]
        assert ann.asks("GET", "/v2/lab/two/tags/list").status_code == 401
        assert ann.asks("HEAD", f"/v2/lab/two/blobs/{layer}").status_code == 401
        assert bob.asks("HEAD", f"/v2/lab/two/blobs/{layer}").status_code == 200
        # Nor has who may push somewhere else it put there.
        assert ann.asks("HEAD", f"/v2/other/mine/blobs/{layer}").status_code == 404
        assert ann.asks("POST", f"/v2/other/mine/blobs/uploads/?mount={layer}&from=lab/two").status_code == 401
        assert [one.asks("POST", "/v2/lab/two/blobs/uploads/").status_code for one in (reads, ann, bob)] == [
            401, 401, 202,
        ]  # fmt: skip
        assert [one.asks("DELETE", manifest).status_code for one in (bob, ann)] == [401, 401]
        assert ann.asks("POST", "/v2/other/mine/blobs/uploads/").status_code == 202
    finally:
        for one in people:
            one.close()


def test_a_base_may_come_from_the_sites_registry_for_who_may_have_it(here: Site, pushed: str) -> None:
    words = ["image", "build", "--base", pushed, "--kernel", f"three={here.folder}/list1.txt", "--no-server"]
    words += ["--wheels", str(here.folder / "wheels")]
    refused = here.commonage(*words, "-t", "other/more", token="ann")
    assert refused.exit_code == 2
    assert re.search(r"unauthorized|denied", refused.output)
    done = here.commonage(*words, "-t", "lab/more")
    assert done.exit_code == 0, done.output
    for kernel, version in (("two", "2.0"), ("three", "1.0")):
        python = f"/opt/commonage/kernels/{kernel}/bin/python"
        assert run_in(here, "localhost/lab/more", python, "-c", "import alpha; print(alpha.version)").strip() == version


# --- pulled ------------------------------------------------------------------------------------------------------


def test_docker_pulls_with_the_authority_and_the_nodes_account(here: Site, pushed: str, docker: Dockerd) -> None:
    account = RegistryAccount(here.address, NODE, MACHINE_PASSWORD)
    with pytest.raises(CommonageError, match=r"(?i)certificate"):
        pull(docker, pushed, account)
    with trusted_by_docker(here.address, here.registry.about.certificate):
        with pytest.raises(CommonageError, match=r"(?i)unauthorized|denied|not known|access"):
            pull(docker, pushed, None)
        with pytest.raises(CommonageError, match=r"(?i)unauthorized|denied|not known|access"):
            pull(docker, pushed, RegistryAccount(here.address, NODE, "guessed"))
        told = pull(docker, pushed, account)
    assert any("progressDetail" in message for message in told)
    found = docker.ask("GET", f"/images/{pushed}/json")
    assert pushed in found["RepoDigests"]


@pytest.mark.anyio
async def test_shows_the_progress_of_an_image_to_users_who_wait_for_it(
    here: Site, pushed: str, docker: Dockerd, tmp_path: Path
) -> None:
    """With the Docker engine, a real registry and a real daemon."""
    with suppress(RuntimeError):
        docker.ask("DELETE", f"/images/{pushed}?force=1")
    account = RegistryAccount(here.address, NODE, MACHINE_PASSWORD)
    seen: list[Status] = []

    async def watch(engine: DockerEngine) -> None:
        async with aclosing(engine.watch()) as statuses:  # type: ignore[type-var]  # a generator
            async for status in statuses:
                seen.append(status)

    with trusted_by_docker(here.address, here.registry.about.certificate):
        async with docker_rig(tmp_path, docker, account=account) as rig:
            watching = asyncio.create_task(watch(await rig.engine()))
            order = rig.start_request(
                Behaviour(prints=("here",)), environment=Environment("lab/two", "Two", image=pushed)
            )
            assert (await rig.ended(order)).exit_code == 0
            watching.cancel()
            await asyncio.wait([watching])
    told = [one for one in seen if one.attempt_id == order.attempt_id and one.phase is Phase.STARTING]
    fetching = [one for one in told if isinstance(one.reason, PullingImage) and one.reason.total_bytes]
    assert fetching, {one.reason for one in told}
    parts = [one.progress for one in fetching if one.progress is not None]
    assert parts and all(0 <= one <= 1 for one in parts)


@pytest.mark.anyio
async def test_each_kernel_of_what_was_built_is_an_environment_of_its_own(
    here: Site, pushed: str, docker: Dockerd, tmp_path: Path
) -> None:
    """From the lists of requirements to what a job says: two that contradict each other, in one image."""
    catalogue = here.api.control.catalogue
    account = RegistryAccount(here.address, NODE, MACHINE_PASSWORD)
    says = ("python", "-c", "import alpha, sys; print(alpha.version, sys.prefix)")
    with trusted_by_docker(here.address, here.registry.about.certificate):
        async with docker_rig(tmp_path, docker, account=account) as rig:
            for kernel, version in (("one", "1.0"), ("two", "2.0")):
                environment = catalogue[f"{BUILT}/{kernel}"]
                assert environment.image == pushed
                order = rig.start_request(Behaviour(), environment=environment, command=says)
                assert (await rig.ended(order)).exit_code == 0
                assert await rig.lines(order.attempt_id) == [f"{version} /opt/commonage/kernels/{kernel}"]


# --- pulled by an appliance ---------------------------------------------------------------------------------------


@asynccontextmanager
async def appliance(
    folder: Path, docker: Dockerd, pull_token: Callable[[str, str], PullToken | None]
) -> AsyncIterator[RemoteRealRig]:
    """A site agent with a Docker engine, and the control plane's end of its link."""
    tokens = PullTokens(lambda: rig.gateway.connection)
    async with docker_rig(folder / "inner", docker, get_pull_token=tokens.get) as inner:
        rig = RemoteRealRig(inner, folder)
        rig.pull_token = pull_token
        try:
            yield rig
        finally:
            await rig.close()


@pytest.mark.anyio
async def test_an_appliance_pulls_with_a_token_for_the_image_of_its_workload(
    here: Site, pushed: str, docker: Dockerd, tmp_path: Path
) -> None:
    with suppress(RuntimeError):
        docker.ask("DELETE", f"/images/{pushed}?force=1")
    given: list[tuple[str, str, PullToken]] = []

    def pull_token(site: str, image: str) -> PullToken | None:
        token = here.registry.pull_token(site, image)
        assert token is not None
        given.append((site, image, token))
        return token

    with trusted_by_docker(here.address, here.registry.about.certificate):
        async with appliance(tmp_path, docker, pull_token) as rig:
            environment = Environment("lab/two", "Two", image=pushed)
            order = rig.start_request(Behaviour(prints=("here",)), environment=environment)
            assert (await rig.ended(order)).exit_code == 0
            again = rig.start_request(Behaviour(), environment=environment)
            assert (await rig.ended(again)).exit_code == 0
    [(site, image, token)] = given  # the second one needs none
    assert (site, image) == ("site", pushed)
    claims = jwt.decode(token.text, options={"verify_signature": False})
    assert claims["access"] == [{"type": "repository", "name": "lab/two", "actions": ["pull"]}]
    assert claims["exp"] - claims["iat"] == token.lasts_s <= 3600
    assert token.text not in repr(token)
    kept = [one for one in tmp_path.rglob("*") if one.is_file() and token.text.encode() in one.read_bytes()]
    assert kept == [], "no file of either end has the token"


@pytest.mark.anyio
async def test_an_appliance_that_does_not_reach_the_registry_says_what_to_do(docker: Dockerd, tmp_path: Path) -> None:
    registry = f"{ADDRESS}:{free_port(ADDRESS)}"
    async with appliance(tmp_path, docker, lambda _site, _image: PullToken(registry, "secret", 60)) as rig:
        order = rig.start_request(Behaviour(), environment=Environment("x", "X", image=f"{registry}/lab/x:1"))
        ended = await rig.ended(order)
    assert ended.exit_code == 1
    assert ended.reason is not None
    said = messages.text(ended.reason)
    assert f"registry {registry} cannot be reached from this machine" in said
    assert "`docker load`" in said


@pytest.mark.anyio
async def test_an_appliance_without_trust_in_the_registry_says_what_to_do(
    here: Site, pushed: str, docker: Dockerd, tmp_path: Path
) -> None:
    with suppress(RuntimeError):
        docker.ask("DELETE", f"/images/{pushed}?force=1")
    async with appliance(tmp_path, docker, here.registry.pull_token) as rig:
        ended = await rig.ended(rig.start_request(Behaviour(), environment=Environment("x", "X", image=pushed)))
    assert ended.exit_code == 1
    assert ended.reason is not None
    assert f"/etc/docker/certs.d/{here.address}/ca.crt" in messages.text(ended.reason)


# --- thrown out --------------------------------------------------------------------------------------------------


def test_what_is_old_and_removed_goes_the_rest_stays(here: Site, pushed: str) -> None:
    for name, content in (("lab/gone", "a" * 100_000), ("lab/young", "b")):
        small(here, name, content)
        assert here.commonage("image", "push", name).exit_code == 0
    for repository in ("lab/gone", "lab/two"):
        here.age(repository)
    assert here.commonage("image", "collect").exit_code == 2  # for admins
    kept = json.loads(here.commonage("image", "collect", "--json", token="admin:root").stdout)
    assert kept["images"] == []
    assert here.commonage("image", "rm", "lab/gone", "lab/young").exit_code == 0
    # It was needed until a moment ago: what began to start in it may be fetching it still.
    assert json.loads(here.commonage("image", "collect", "--json", token="admin:root").stdout)["images"] == []
    here.age("lab/gone")
    thrown = json.loads(here.commonage("image", "collect", "--json", token="admin:root").stdout)
    assert [one.partition("@")[0] for one in thrown["images"]] == ["lab/gone"]
    assert thrown["freed_bytes"] > 0
    # It is as before: what was thrown out can be pushed again, layers and all.
    again = here.commonage("image", "push", "lab/gone")
    assert again.exit_code == 0, again.output
    assert ADDRESS in again.stdout

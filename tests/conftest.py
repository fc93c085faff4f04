"""Fixtures and markers of all tests: the event loop, optional programs, a fresh PostgreSQL database.

A test that needs something which a machine may lack is marked `@pytest.mark.needs("postgresql")`; MACHINERY below has
the names. Without it the test is skipped, and the summary says how to install it. With CI=true no test may be skipped:
missing machinery fails the test, and any other skip fails the run.
"""

import os
import secrets
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import hypothesis
import pytest
from tests import made_ahead
from tests.fakes.waiting import in_thread
from xdist.scheduler import LoadFileScheduling

pytest_plugins = ["tests.hanging"]
hypothesis.settings.register_profile(
    "commonage", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("commonage")  # how fast an example is depends on what else the node does
ACCEPTANCE = "tests/acceptance/"
SHARING = (ACCEPTANCE, "tests/contract/engines/docker/", "tests/contract/engines/swarm/")
"""Folders whose files go to one worker: the first starts whole systems, the others share a daemon or a Swarm."""
FIRST = (
    ACCEPTANCE,
    "tests/integration/test_swarm_loss.py",
    "tests/security/test_origins.py",
    "tests/contract/engines/swarm/",
    "tests/integration/test_joining.py",
    "tests/integration/test_deploy.py",
)
"""The slowest tests, which start first. Those that need no preparation come before the others."""
IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
POSTGRES_VARIABLE = "COMMONAGE_TEST_POSTGRES_URL"
INSTALL_HINT = "run `make test INSTALL=1` as root, which installs it from Debian"


class Machinery(NamedTuple):
    """Something of the node: whether it is here, and how to get it."""

    is_here: Callable[[], bool]
    how: str


def chromium_path() -> str | None:
    """Return the path of Debian's Chromium (or Chrome), the only browser that the tests use; None if it is not
    installed.
    """
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))),
        None,
    )


def _may_limit_memory() -> bool:
    """Say whether this process may make cgroups that limit memory, in version 2 or in version 1."""
    root = Path("/sys/fs/cgroup")
    unified = root / "cgroup.controllers"
    home = root if unified.exists() else root / "memory"
    if unified.exists() and "memory" not in unified.read_text().split():
        return False
    probe = home / f"commonage-probe-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        probe.mkdir()
    except OSError:
        return False
    probe.rmdir()
    return True


def _may_administer() -> bool:
    """Say whether this process may mount file systems and make networks, as root of a container often may not."""
    net_admin, sys_admin = 12, 21
    status = Path("/proc/self/status").read_text()
    capabilities = int(next(line for line in status.splitlines() if line.startswith("CapEff")).split()[1], 16)
    return os.geteuid() == 0 and all(capabilities >> bit & 1 for bit in (net_admin, sys_admin))


MACHINERY = {
    "postgresql": Machinery(
        lambda: bool(os.environ.get(POSTGRES_VARIABLE)),
        f"{INSTALL_HINT}; or name a server of your own in {POSTGRES_VARIABLE}",
    ),
    "chromium": Machinery(lambda: chromium_path() is not None, INSTALL_HINT),
    "gcc": Machinery(lambda: shutil.which("gcc") is not None, INSTALL_HINT),
    "git": Machinery(lambda: shutil.which("git") is not None, INSTALL_HINT),
    "cgroups": Machinery(_may_limit_memory, "run the tests as root on a node whose cgroups are writable"),
    "docker": Machinery(
        lambda: _may_administer() and all(shutil.which(name) for name in ("dockerd", "iptables")),
        f"{INSTALL_HINT} (docker.io and iptables), and run the tests as a root who may mount and make networks",
    ),
    "deploy": Machinery(
        lambda: all(shutil.which(name) for name in ("buildah", "debootstrap", "docker", "docker-compose")),
        f"{INSTALL_HINT} (buildah, debootstrap, docker-compose)",
    ),
    "vnc": Machinery(lambda: shutil.which("vncserver") is not None, INSTALL_HINT),
    "haproxy": Machinery(lambda: shutil.which("haproxy") is not None, INSTALL_HINT),
    "openssh": Machinery(
        lambda: all(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("ssh", "sshd", "rsync")),
        f"{INSTALL_HINT} (openssh-server and rsync)",
    ),
    "debootstrap": Machinery(
        lambda: all(shutil.which(name) for name in ("debootstrap", "ssh")), f"{INSTALL_HINT} (with openssh-client)"
    ),
    "nodes": Machinery(
        lambda: (
            os.geteuid() == 0
            and all(shutil.which(name) for name in ("qemu-system-x86_64", "debootstrap", "ssh"))
            and Path("/usr/lib/x86_64-linux-gnu/ganesha/libfsalvfs.so").exists()
        ),
        f"{INSTALL_HINT} (qemu-system-x86, debootstrap, nfs-ganesha-vfs)",
    ),
    "xfs": Machinery(
        lambda: _may_administer() and shutil.which("mkfs.xfs") is not None,
        f"{INSTALL_HINT} (xfsprogs), and run the tests as a root who may mount file systems",
    ),
    "mounts": Machinery(_may_administer, "run the tests as a root who may mount file systems"),
    "images": Machinery(
        lambda: os.geteuid() == 0 and all(shutil.which(name) for name in ("buildah", "docker-registry")),
        f"{INSTALL_HINT} (buildah and docker-registry)",
    ),
    "root": Machinery(lambda: os.geteuid() == 0, "run the tests as root"),
}


def _missing(item: pytest.Item) -> str:
    names = [name for mark in item.iter_markers("needs") for name in mark.args]
    return next(
        (f"{name} is missing here: {MACHINERY[name].how}" for name in names if not MACHINERY[name].is_here()), ""
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or with CI=true fail, a test whose machinery is missing."""
    reason = _missing(item)
    if reason and IN_CI:
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the first worker of a parallel run begin with what others will wait for."""
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0":
        made_ahead.begin([item for item in session.items if made_ahead.needed(item) and not _missing(item)])


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for what is made ahead before pytest-timeout begins to count."""
    if made_ahead.needed(item) and not _missing(item):
        made_ahead.wait_for(item)
    return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest tests first."""
    items.sort(key=lambda item: next((at for at, one in enumerate(FIRST) if item.nodeid.startswith(one)), len(FIRST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Give each file, or folder in SHARING, to one worker."""

    class ByFileOrFolder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in SHARING if nodeid.startswith(folder)), None) or super()._split_scope(
                nodeid
            )

    return ByFileOrFolder(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List skipped tests with reasons, so that a partial run is not mistaken for a whole one."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section("not run on this machine")
    for report in sorted(skipped, key=lambda report: report.nodeid):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")
    if IN_CI:
        terminalreporter.line("CI=true: a skipped test is a failure.", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """With CI=true let any skip fail the run, whatever its reason."""
    made_ahead.end()
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if IN_CI and reporter is not None and reporter.stats.get("skipped") and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run coroutine tests on asyncio only: it is what the server runs on."""
    return "asyncio"


@pytest.fixture
def no_blocking() -> Iterator[None]:
    """Let a blocking call inside a coroutine raise. Opt-in, for the rooms that run in the server's event loop."""
    from blockbuster import blockbuster_ctx

    with blockbuster_ctx("commonage"):
        yield


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """Make an empty database for one test and drop it afterwards. Gives a URL for SQLAlchemy with asyncpg.

    A test that uses it is marked `needs("postgresql")`.
    """
    with _database("template0") as url:
        yield url


@pytest.fixture
def migrated_postgres_url(migrated_postgres: str) -> Iterator[str]:
    """The same with the current schema."""
    with _database(migrated_postgres) as url:
        yield url


@pytest.fixture(scope="session")
def migrated_postgres() -> Iterator[str]:
    """The name of a database with the current schema, to make others from."""
    from commonage.store.upgrade import upgrade

    with _database("template0") as url:
        in_thread(upgrade(url))
        yield urlsplit(url).path.removeprefix("/")


@contextmanager
def _database(template: str) -> Iterator[str]:
    server = os.environ[POSTGRES_VARIABLE]
    name = f"commonage_{secrets.token_hex(6)}"
    _execute(server, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    try:
        yield urlsplit(server)._replace(scheme="postgresql+asyncpg", path=f"/{name}").geturl()
    finally:
        _execute(server, f'DROP DATABASE "{name}" WITH (FORCE)')


def _execute(server: str, statement: str) -> None:
    async def execute() -> None:
        import asyncpg

        connection = await asyncpg.connect(urlsplit(server)._replace(scheme="postgresql").geturl())
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    in_thread(execute())


@pytest.fixture(scope="session")
def commonage_command() -> str:
    """Return the path of the `commonage` command that is installed for this interpreter."""
    return str(Path(sys.executable).with_name("commonage"))

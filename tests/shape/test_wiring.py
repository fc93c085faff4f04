"""Objects are wired by constructor arguments, methods and signals: no module assigns attributes of another module's
objects.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "commonage"

RECORDS = {
    "agent/steps/step.py": "agent",  # JoinContext: data that the join steps share
    "engines/containers/attempt_backend.py": "engines",  # Run: what an engine knows of an attempt
    "engines/rundir/run.py": "engines",  # EngineRun
    "engines/kubernetes/run.py": "engines/kubernetes",
    "engines/process/run.py": "engines/process",
    "testing/fakes/run.py": "testing",  # FakeRun: the program that the fake engine plays
    "testing/fakes/kubernetes/containers.py": "testing/fakes/kubernetes",
    "ports/store.py": "control",  # Batch: the writer fills it before it is committed
}
"""Modules whose classes are plain data that a whole package keeps, and that package."""

FOREIGN = {
    "agent/connection.py": {"context.minimum_version"},  # ssl is set up so, here and below
    # Starlette keeps state there; FastAPI documents how its description is extended.
    "api/app.py": {"app.state.context", "api.state.context", "mount.path_regex", "api.openapi"},
    "cli/workloads/job_file.py": {"key.tag", "value.tag"},  # nodes of PyYAML
    "engines/process/processes.py": {"shim.returncode"},  # a Popen that is not to wait any more
    "gpu/isolation/driver_limit.py": {"limits.nameSpace", "limits.softLimit", "limits.hardLimit"},  # a struct of C
    "join/listener.py": {"context.minimum_version"},
    "join/client.py": {"self._trust.minimum_version"},
    "link/bundle.py": {"entry.size", "entry.mode"},  # tarfile has no constructor arguments
    "link/sites/credentials.py": {"context.minimum_version"},
    "link/tls.py": {"context.minimum_version", "context.verify_mode"},
    "sdk/bundles.py": {"entry.size", "entry.mode"},
    "site_agent/join.py": {"context.check_hostname", "context.verify_mode"},
    "server/processes/https.py": {"context.check_hostname", "context.verify_mode"},
    "server/web.py": {"self._server.should_exit"},  # how uvicorn is stopped
    "server/workload_gateway.py": {"response.raw_headers"},  # the only way to send repeated headers
    "store/database.py": {"connection.isolation_level"},  # of sqlite3
}
"""Attributes of other people's objects that are set as their libraries have it."""

PATCHES = (
    "hub/", "files/injected/", "engines/process/warm/zygote.py", "engines/docker/warm/template.py",
    "engines/rundir/preloading.py", "engines/rundir/unpack_child.py",
)  # fmt: skip
"""Modules that configure or patch a foreign program in its own process: JupyterHub, frameworks, the interpreter."""


def _assigned(tree: ast.Module) -> Iterator[tuple[ast.Attribute, bool]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node, isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def _attributes(tree: ast.Module) -> set[str]:
    """Attributes of this module's classes: fields, and names that methods assign to `self`."""
    found = {node.attr for node, is_own in _assigned(tree) if is_own}
    for one in [one for one in ast.walk(tree) if isinstance(one, ast.ClassDef)]:
        targets = [part.target for part in one.body if isinstance(part, ast.AnnAssign)]
        targets += [target for part in one.body if isinstance(part, ast.Assign) for target in part.targets]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_no_attribute_is_assigned_from_outside_its_module() -> None:
    trees = {path.relative_to(SRC).as_posix(): ast.parse(path.read_bytes()) for path in sorted(SRC.rglob("*.py"))}
    records = {record: _attributes(trees[record]) for record in RECORDS}
    wrong, used = [], set()
    for name, tree in trees.items():
        if name.startswith(PATCHES):
            continue
        allowed = _attributes(tree).union(
            *(fields for record, fields in records.items() if name.startswith(f"{RECORDS[record]}/"))
        )
        for node, is_own in _assigned(tree):
            if ast.unparse(node) in FOREIGN.get(name, ()):
                used.add((name, ast.unparse(node)))
            elif not is_own and node.attr not in allowed:
                wrong.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "give it to the constructor, or call a method that says what happens:\n" + "\n".join(wrong)
    assert used == {(name, one) for name, every in FOREIGN.items() for one in every}, "some are not assigned any more"

"""Runs a session's Jupyter server without what no session uses, and exits without freeing its memory.

The environment's own Python runs this: in a container by -c, with the program and its arguments after it (program.py);
on a node in a fork of the warm parent (zygote.py). So it uses the standard library only. A server takes about two
seconds of a core until it answers; a third of that is JupyterHub's tables and pages, which a session does not have.
Where Node.js is installed, 0.3 s more is Node.js, started twice to be asked for its settings. After its exit handlers
a server spends another half second freeing each object; for thirty servers that stop at once that is most of the time.
"""

import sys

NAMES = ("jupyterhub.orm", "jupyterhub.roles", "jupyterhub.handlers", "jupyterhub.handlers.pages", "sqlalchemy")
"""Imported by JupyterHub's code for sessions, and not used."""
NAMED = {"jupyterhub.handlers.pages": "HealthCheckHandler", "sqlalchemy.exc": "SQLAlchemyError"}
"""Names taken from such a module at import, for isinstance checks. In a session no object is an instance."""


PROGRAM = "jupyterhub-singleuser"


class Exit:
    """Ends the process after its other exit handlers, with `code`. Make it before they are registered."""

    def __init__(self) -> None:
        import atexit  # noqa: PLC0415 - not before the path is right

        self.code = 1  # of an uncaught exception
        atexit.register(self._leave)

    def _leave(self) -> None:
        import os  # noqa: PLC0415 - likewise

        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.code)


def main() -> None:
    del sys.argv[0]
    sys.path[0] = sys.argv[0].rpartition("/")[0]  # as for any program; with -c it would be the working folder
    run(Exit())


def run(end: Exit) -> None:
    """Run the program in sys.argv, which has its full path."""
    import runpy  # noqa: PLC0415 - not before the path is right

    if sys.argv[0].rpartition("/")[2] == PROGRAM:
        import_without_the_hub()
        start_no_node()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        end.code = 0
    except SystemExit as error:
        end.code = error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
        raise


def import_without_the_hub() -> None:
    """Import JupyterHub's code for sessions without the modules that it does not use, if it works without them.

    A later import of one of them gets the real module. So does that code itself, if it uses one after all.
    """
    import importlib  # noqa: PLC0415 - not before main() has set the path
    import types  # noqa: PLC0415 - likewise

    class Left(types.ModuleType):
        """Placeholder for a module, which is imported on first use of an attribute."""

        def __getattr__(self, name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            if NAMED.get(self.__name__) == name:
                return type(name, (Exception,), {})
            put_back()  # with its neighbours, which it may need itself
            return getattr(importlib.import_module(self.__name__), name)

    def put_back() -> None:
        for name, module in left.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

    left = {name: Left(name) for name in (*NAMES, *NAMED) if name not in sys.modules}
    sys.modules.update(left)
    try:
        importlib.import_module("jupyterhub.singleuser")
    except Exception:  # another version, or missing: the program imports it again in full, and reports why
        for name in [name for name in sys.modules if name.partition(".")[0] == "jupyterhub"]:
            del sys.modules[name]
    put_back()


def start_no_node() -> None:
    """Answer two questions that each server asks Node.js at its start, without starting it.

    JupyterLab asks yarn for its registry, and uses the answer only to build extensions from source. Its language
    servers are looked for in npm's global folder, which is npm's setting, or follows from the place of Node.js.
    """
    import contextlib  # noqa: PLC0415 - not before main() has set the path
    import importlib  # noqa: PLC0415 - likewise

    with contextlib.suppress(Exception):  # another version, or missing
        commands = vars(importlib.import_module("jupyterlab.commands"))
        if "_yarn_config" in commands:
            commands["_yarn_config"] = lambda _logger: {"yarn config": {}, "npm config": {}}
    with contextlib.suppress(Exception):
        api = importlib.import_module("jupyter_lsp.types").LanguageServerManagerAPI
        if hasattr(api, "_npm_prefix"):
            setattr(api, "_npm_prefix", lambda _self, npm: global_folder(npm))  # noqa: B010 - it is not ours


def global_folder(npm: str) -> str:
    """The result of `npm prefix -g` for an installation without a file `npmrc`."""
    import os  # noqa: PLC0415 - likewise

    for name in ("NPM_CONFIG_PREFIX", "npm_config_prefix"):
        if os.environ.get(name):
            return os.environ[name]
    try:
        with open(os.path.expanduser("~/.npmrc"), encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition("=")
                if name.strip() == "prefix" and value.strip():
                    return os.path.expanduser(value.strip().replace("${HOME}", "~"))
    except (OSError, ValueError):
        pass
    folder = os.path.dirname(os.path.dirname(npm))
    return "/usr/local" if folder == "/usr" else folder  # Debian's own npm


if __name__ == "__main__":
    main()

"""Runs a session's Jupyter server without the parts that only a hub needs, and exits without freeing its memory.

Given to the environment's own Python with -c, with the program and its arguments after it (session.py), so this uses
the standard library only. A server takes about two seconds of a core until it answers; a third of that is JupyterHub's
tables and pages, which a session does not have. After its exit handlers a server spends another half second freeing
each object; for thirty servers that stop at once that is most of the time.
"""

import sys

NAMES = ("jupyterhub.orm", "jupyterhub.roles", "jupyterhub.handlers", "jupyterhub.handlers.pages", "sqlalchemy")
"""Imported by JupyterHub's code for sessions, and not used."""
NAMED = {"jupyterhub.handlers.pages": "HealthCheckHandler", "sqlalchemy.exc": "SQLAlchemyError"}
"""Names taken from such a module at import, for isinstance checks. In a session no object is an instance."""


def main() -> None:
    del sys.argv[0]
    sys.path[0] = sys.argv[0].rpartition("/")[0]  # as for any program; with -c it would be the working folder
    import atexit  # noqa: PLC0415 - not before the path is right
    import os  # noqa: PLC0415 - likewise
    import runpy  # noqa: PLC0415 - likewise

    code = 1  # of an uncaught exception

    @atexit.register  # registered first, so it runs last
    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    if sys.argv[0].endswith("/jupyterhub-singleuser"):
        import_without_the_hub()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code & 0xFF if isinstance(end.code, int) else int(end.code is not None)
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


if __name__ == "__main__":
    main()

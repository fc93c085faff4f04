"""Runs a session's Jupyter server: without what only a hub needs, and leaving without taking its memory apart.

Given to the environment's own Python with -c, with the program and its arguments after it (session.py), so this uses
the standard library only. Of the first two seconds of a core that a server takes until it answers, JupyterHub's tables
and pages are a third, and a session has neither. A server that has ended everything of its own, and has run what it
wanted run at its exit, goes on for half a second to free each object: for thirty that are stopped at once that is most
of it.
"""

import sys

NAMES = ("jupyterhub.orm", "jupyterhub.roles", "jupyterhub.handlers", "jupyterhub.handlers.pages", "sqlalchemy")
"""What JupyterHub's code for sessions imports and does not use."""
NAMED = {"jupyterhub.handlers.pages": "HealthCheckHandler", "sqlalchemy.exc": "SQLAlchemyError"}
"""What it takes out of such a module when it is imported, to ask whether something is one. In a session nothing is."""


def main() -> None:
    """Run the program in the place of this one."""
    del sys.argv[0]
    sys.path[0] = sys.argv[0].rpartition("/")[0]  # as for any program; with -c it would be the working folder
    import atexit  # noqa: PLC0415 - not before the path is right
    import os  # noqa: PLC0415 - likewise
    import runpy  # noqa: PLC0415 - likewise

    code = 1  # of what is not caught here

    @atexit.register  # what is registered first runs last
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
    """Import JupyterHub's code for sessions while modules that it does not use are left out, if it does without them.

    Whoever imports one of them later gets it. So does that code itself, when it asks one for more after all.
    """
    import importlib  # noqa: PLC0415 - not before main() has set the path
    import types  # noqa: PLC0415 - likewise

    class Left(types.ModuleType):
        """In the place of a module, which is imported when something of it is asked for."""

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
    except Exception:  # of another version, or not there: the program imports it anew with everything, and says why
        for name in [name for name in sys.modules if name.partition(".")[0] == "jupyterhub"]:
            del sys.modules[name]
    put_back()


if __name__ == "__main__":
    main()

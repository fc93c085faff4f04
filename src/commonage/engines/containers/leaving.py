"""Runs a program of Python's to its end, and leaves without taking its memory apart.

Given to the environment's own Python with -c, with the program and its arguments after it (session.py), so this uses
the standard library only. A Jupyter server that has ended everything of its own, and has run what it wanted run at its
exit, goes on for half a second of a core to free each object: for thirty that are stopped at once that is most of it.
"""

import sys


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

    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code & 0xFF if isinstance(end.code, int) else int(end.code is not None)
        raise


if __name__ == "__main__":
    main()

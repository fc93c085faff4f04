"""PYTHONSTARTUP of a session: loads `%%commonage` in IPython kernels, and does nothing in other Pythons."""


def _commonage_startup() -> None:
    import os  # noqa: PLC0415 - the names here are those of the user
    import sys  # noqa: PLC0415 - likewise

    shell = globals().get("get_ipython")
    if shell is None:
        return
    here = os.path.dirname(os.path.abspath(os.environ["PYTHONSTARTUP"]))
    if here not in sys.path:
        sys.path.append(here)
    shell().extension_manager.load_extension("commonage_magic")


_commonage_startup()
del _commonage_startup

"""The files of a Jupyter kernel in a virtual environment of its own, wherever that is: in an image or on a node.

A kernel starts by a script. Where `COMMONAGE_PACKAGES` allows it, the script puts a virtual environment of the user
over that of the kernel: packages that the user installs are there, and hide those of the kernel. Standard library only.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

VARIABLE = "COMMONAGE_PACKAGES"
"""The folder, below the home, of the packages that the user adds. Each kernel has a folder in it."""
KERNEL_PACKAGES = ("ipykernel", "pip")
"""Packages that each kernel needs in addition to its own."""
BUILD_CONSTRAINTS = "setuptools<81\n"
"""For packages without a wheel: some, like visdom, still build with `pkg_resources`, which newer setuptools lack."""
DEFAULT_KERNEL = "python3"
"""Notebooks that name no kernel use this name, so they open in this kernel at once."""
START, ADDED = "bin/commonage-kernel", "bin/commonage-packages"

_START = """\
#!/bin/sh
# Starts this kernel, with the packages that its user added where that is allowed.
base={base} python={base}/bin/python
if [ -n "${variable}" ]; then
  added=$HOME/${variable}/{name}
  if "$python" -I "$base/{added}" "$added"; then
    python=$added/bin/python
    export VIRTUAL_ENV="$added" PATH="$added/bin:$PATH"
  else
    echo "The packages in $added cannot be used; the kernel starts without them." >&2
  fi
fi
exec "$python" -m ipykernel_launcher "$@"
"""
_ADDED = '''\
"""Makes the virtual environment of a user over that of the kernel, unless it is there. Usage: THIS FOLDER"""
import os
import sys
import sysconfig
import venv
from pathlib import Path

folder = Path(sys.argv[1])
known, base = folder / "base", f"{sys.prefix}\\n{sys.version}\\n"
try:
    fresh = known.read_text(encoding="utf-8") == base and os.access(folder / "bin" / "python", os.X_OK)
except OSError:
    fresh = False
if not fresh:
    venv.EnvBuilder(symlinks=True).create(folder)
    packages = sysconfig.get_path("purelib")
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    (own / "commonage-base.pth").write_text(f"import site; site.addsitedir({packages!r})\\n", encoding="utf-8")
    for name in ("pip", "pip3"):
        script = folder / "bin" / name
        script.write_text('#!/bin/sh\\nexec "${0%/*}/python" -m pip "$@"\\n', encoding="utf-8")
        script.chmod(0o755)
    known.write_text(base, encoding="utf-8")
'''


def kernel_title(name: str) -> str:
    return "Python" if name == DEFAULT_KERNEL else f"Python ({name})"


def kernel_spec(name: str, prefix: str) -> str:
    """Jupyter's description of a kernel: kernel.json. Programs started in it are those of its environment."""
    return json.dumps(
        {
            "argv": [f"{prefix}/{START}", "-f", "{connection_file}"],
            "display_name": kernel_title(name),
            "language": "python",
            "env": {"PATH": f"{prefix}/bin:${{PATH}}", "VIRTUAL_ENV": prefix},
            "metadata": {"debugger": True},
        },
        indent=1,
    )


def start_script(name: str, prefix: str) -> str:
    return (
        _START.replace("{base}", shlex.quote(prefix))
        .replace("{name}", name)
        .replace("{added}", ADDED)
        .replace("{variable}", VARIABLE)
    )


def packages_script() -> str:
    return _ADDED


def server_settings(kernels: Sequence[str]) -> str:
    """Jupyter's settings for a server whose own Python is no kernel."""
    return json.dumps(
        {
            "KernelSpecManager": {"ensure_native_kernel": False},
            "MultiKernelManager": {"default_kernel_name": kernels[0]} if kernels else {},
        }
    )


def packages_folder(environment: str) -> str:
    """The folder of the packages that a user adds to an environment, relative to the home. Without `:`, for PATH."""
    return f".commonage/packages/{environment.replace(':', '@')}"

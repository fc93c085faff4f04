"""Debian packages that stand for NVIDIA's driver and container toolkit, in a folder that is a mirror of them.

What they put on a node does there what NVIDIA's do as far as can be seen: once `modprobe nvidia` was run
`nvidia-smi` and NVML know two GPUs, and the toolkit gives them to containers.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.fakes.gpus.harness import GPUS, MEMORY_MIB, device_numbers, put_toolkit
from tests.fakes.nvml.harness import LIBRARY, build_library

STATE = "usr/share/fake-nvml/state"
_TOOLKIT = "usr/lib/fake-toolkit"
_SMI = f"""#!/bin/sh
[ -e /{STATE} ] || {{ echo "NVIDIA-SMI couldn't communicate with the NVIDIA driver." >&2; exit 9; }}
case "$1" in
--query-gpu=driver_version) echo 570.10; echo 570.10 ;;
--query-gpu=memory.total) echo {MEMORY_MIB}; echo {MEMORY_MIB} ;;
*) exit 2 ;;
esac
"""
_MODPROBE = f"""#!/bin/sh
[ "$1" = nvidia ] && cp /{STATE}.asleep /{STATE}
"""
_LDCONFIG = "#!/bin/sh\nldconfig\n"


def make_mirror(folder: Path, kernel: str, others: Sequence[Path] = ()) -> None:
    """A flat mirror in `folder`, with these other packages, too. `kernel`: that of the nodes, for its headers."""
    folder.mkdir()
    work = folder / "work"
    for name, build in {
        "nvidia-driver": _driver,
        "nvidia-smi": _smi,
        "libcuda1": _cuda,
        "nvidia-container-toolkit": _toolkit,
        f"linux-headers-{kernel}": _nothing,
    }.items():
        root = work / name
        (root / "DEBIAN").mkdir(parents=True)
        more = build(root)
        fields = {
            "Package": name,
            "Version": "570.10-1",
            "Architecture": "amd64",
            "Maintainer": "Tests <tests@example.org>",
            **more,
            "Description": "stands for the real one",
        }
        (root / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
        _run("dpkg-deb", "--build", "--root-owner-group", "-Znone", root, folder / f"{name}.deb")
    shutil.rmtree(work)
    for deb in others:
        shutil.copy(deb, folder)
    (folder / "Packages").write_text("\n".join(_entry(deb) for deb in sorted(folder.glob("*.deb"))))


def _entry(deb: Path) -> str:
    content = deb.read_bytes()
    fields = _run("dpkg-deb", "--field", deb)
    return f"{fields}Filename: ./{deb.name}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"


def _driver(root: Path) -> Mapping[str, str]:
    """The kernel's module, by a `modprobe` of its own; what NVML will say once it is loaded."""
    _put(root, "usr/local/sbin/modprobe", _MODPROBE)
    (root / STATE).parent.mkdir(parents=True)
    lines = ("driver 570.10", "nvml 12.570.10", "cuda 12080", *(line for gpu in GPUS for line in gpu))
    (root / f"{STATE}.asleep").write_text("\n".join(lines) + "\n")
    return {}


def _smi(root: Path) -> Mapping[str, str]:
    _put(root, "usr/bin/nvidia-smi", _SMI)
    libraries = root / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    work = root.parent / "nvml"
    work.mkdir()
    shutil.copy(build_library(work), libraries / LIBRARY)
    _put(root, "DEBIAN/postinst", _LDCONFIG)
    return {}


def _cuda(root: Path) -> Mapping[str, str]:
    libraries = root / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    out = libraries / "libcuda.so.1"
    _run("gcc", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c", "/dev/null", "-o", out)
    _put(root, "DEBIAN/postinst", _LDCONFIG)
    return {}


def _toolkit(root: Path) -> Mapping[str, str]:
    place = root / _TOOLKIT
    place.mkdir(parents=True)
    programs = put_toolkit(place, Path("/", _TOOLKIT), "/usr/bin/python3")
    for program in programs:
        (root / "usr/bin").mkdir(exist_ok=True)
        (root / "usr/bin" / program).symlink_to(f"/{_TOOLKIT}/{program}")
    _put(root, "usr/bin/nvidia-ctk", "#!/bin/sh\n")
    made = "".join(
        f"mknod -m 666 /{_TOOLKIT}/dev/{name} c {number >> 8 & 0xFFF} {number & 0xFF | number >> 12 & 0xFFF00}\n"
        for name, number in device_numbers().items()
    )
    _put(root, "DEBIAN/postinst", f"#!/bin/sh\nset -e\nmkdir -p /{_TOOLKIT}/dev\n{made}")
    return {"Depends": "python3"}


def _nothing(root: Path) -> Mapping[str, str]:
    return {}


def _put(root: Path, name: str, text: str) -> None:
    place = root / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(0o755)


def _run(*words: str | Path) -> str:
    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"{words[0]}: {ran.stderr}")
    return ran.stdout

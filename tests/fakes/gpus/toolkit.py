"""Stands for NVIDIA's container toolkit in the tests. As its first word says it is

- `nvidia-container-runtime-hook`: run by runc before a container starts, as a daemon's `nvidia` device driver has it;
- `nvidia-container-runtime`: a runc that has each container run that hook.

What it reads of a container are its variables, as NVIDIA's does, and it does to the container what NVIDIA's does: the
GPUs that are asked for are mounted as devices and allowed to its control group, with the libraries of the driver.
`gpus.json` in the same folder lists the GPUs. A separate program that needs only Python.
"""

import ctypes
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TABLE = HERE / "gpus.json"
NEW_MOUNTS, BIND = 0x00020000, 4096
LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Run as the runtime, or as its hook."""
    if sys.argv[1] == "nvidia-container-runtime":
        run_as_runtime(sys.argv[2:])
    state = json.load(sys.stdin)
    config = json.loads((Path(state["bundle"]) / "config.json").read_text())
    variables = dict(word.partition("=")[::2] for word in config["process"].get("env", []))
    give(asked_for(variables), variables, state, Path(state["bundle"], config["root"]["path"]))


def run_as_runtime(words: list[str]) -> None:
    """Add the hook to a container that is created, then run runc."""
    if "create" in words:
        place = next((words[at + 1] for at, word in enumerate(words) if word in ("--bundle", "-b")), ".")
        file = Path(place) / "config.json"
        config = json.loads(file.read_text())
        hook = HERE / "nvidia-container-runtime-hook"
        config.setdefault("hooks", {}).setdefault("prestart", []).append({"path": str(hook), "args": [str(hook)]})
        file.write_text(json.dumps(config))
    os.execvp("runc", ["runc", *words])


def asked_for(variables: dict[str, str]) -> list[dict[str, Any]] | None:
    """The GPUs; None if the container is to have nothing of the driver, either."""
    table = json.loads(TABLE.read_text())
    old_image = "CUDA_VERSION" in variables and "NVIDIA_REQUIRE_CUDA" not in variables
    wanted = variables.get("NVIDIA_VISIBLE_DEVICES", "all" if old_image else "void")
    if wanted in ("", "void"):
        return None
    if wanted in ("all", "none"):
        return list(table["gpus"]) if wanted == "all" else []
    known = {name: gpu for gpu in table["gpus"] for name in (gpu["uuid"], gpu["index"])}
    words = wanted.split(",")
    if unknown := [word for word in words if word not in known]:
        sys.exit(f"nvidia-container-cli: device error: {unknown[0]}: unknown device")
    if (needed := variables.get("NVIDIA_REQUIRE_CUDA", "")) > table["cuda"]:
        sys.exit(
            f"nvidia-container-cli: requirement error: unsatisfied condition: {needed}, please update your driver to a "
            "newer version, or use an earlier cuda container"
        )
    return [known[word] for word in words]


def give(gpus: list[dict[str, Any]] | None, variables: dict[str, str], state: dict[str, Any], root: Path) -> None:
    """Let the container have them, and what is theirs."""
    if gpus is None:
        return
    with open(HERE / "limits", "a") as limits:
        limits.write(f"{state['id']} {variables.get('NVIDIA_GPU_MEMORY_LIMIT', '-')}\n")
    devices = [Path(gpu["path"]) for gpu in gpus] + ([HERE / "dev/nvidiactl"] if gpus else [])
    if variables.get("NVIDIA_GDS") == "enabled":
        devices.append(HERE / "dev/nvidia-fs0")
    capabilities = (variables.get("NVIDIA_DRIVER_CAPABILITIES") or "utility,compute").split(",")
    libraries = [HERE / "lib" / name for word, name in _LIBRARIES.items() if {word, "all"} & set(capabilities)]
    allow(devices, state["pid"])
    with open(f"/proc/{state['pid']}/ns/mnt", "rb") as there:
        must(LIBC.setns(there.fileno(), NEW_MOUNTS))
    for source, target in [(one, f"dev/{one.name}") for one in devices] + [
        (one, f"usr/lib/{one.name}") for one in libraries
    ]:
        place = root / target
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        must(LIBC.mount(os.fsencode(source), os.fsencode(place), None, BIND, None))


_LIBRARIES = {"compute": "libcuda.so.1", "utility": "libnvidia-ml.so.1"}


def allow(devices: list[Path], pid: int) -> None:
    """In control groups of version 1. With version 2 the tests' devices are such as every container may open."""
    groups = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    for _, controllers, path in groups:
        if "devices" in controllers.split(","):
            for device in devices:
                number = os.stat(device).st_rdev
                rule = f"c {os.major(number)}:{os.minor(number)} rw"
                Path(f"/sys/fs/cgroup/devices{path}/devices.allow").write_text(rule)


def must(failed: int) -> None:
    """Exit with the C library's error."""
    if failed:
        sys.exit(f"nvidia-container-cli: {os.strerror(ctypes.get_errno())}")


def make_devices(folder: Path, names: dict[str, int]) -> None:
    """The driver's files in `folder`, by the numbers of devices that this machine has."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in names.items():
        os.mknod(folder / name, stat.S_IFCHR | 0o666, number)
        (folder / name).chmod(0o666)


if __name__ == "__main__":
    main()

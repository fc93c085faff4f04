"""The environment of a workload with shares of GPUs: a pure function, used by every implementation of devices.

These variables are the cooperative level of isolation: they keep well-behaved programs inside their share and hide the
other GPUs. Enforcing a share against a program that does not cooperate is not done here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from commonage.domain.nodes import Isolation, Share

DEFAULT_CONTEXT_MIB = 512
"""MiB that a process's CUDA context takes of a GPU before it allocates anything, if it was not measured.

A safe value: 250 to 500 MiB have been seen, more on newer GPUs. Frameworks get a share that is smaller by it.
"""

MIB = 1024 * 1024
_PARTS = 1_000_000  # fractions have six digits, rounded down: a share is never exceeded by rounding


def share_environment(
    shares: Sequence[Share],
    context_mib: Mapping[str, int] | None = None,
    default_context_mib: int = DEFAULT_CONTEXT_MIB,
) -> dict[str, str]:
    """Variables for a workload that holds `shares`, in the order given.

    `context_mib` is the measured size of a CUDA context by device uuid, `default_context_mib` that of all others. Whole
    GPUs are only made visible; for several limited shares the values are those that hold on each of the GPUs. Without
    shares the variables hide all GPUs of the node.
    """
    if not shares:
        return {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    variables = _visibility(shares)
    variables["COMMONAGE_GPU_MEMORY_MIB"] = str(min(share.memory_mib for share in shares))
    limited = [share for share in shares if not share.whole]
    if limited:
        variables.update(_limits(limited, context_mib or {}, default_context_mib))
    return variables


def _visibility(shares: Sequence[Share]) -> dict[str, str]:
    uuids = list(dict.fromkeys(share.device_uuid for share in shares))
    real = list(dict.fromkeys(share.device_uuid for share in shares if not share.simulated))
    variables = {
        # By uuid, because an index changes its meaning inside a container and with CUDA_DEVICE_ORDER. CUDA stops at the
        # first uuid that it does not know, so a simulated one hides the real GPUs of the node.
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
        # NVIDIA's container runtime refuses to start a container with an unknown GPU.
        "NVIDIA_VISIBLE_DEVICES": ",".join(real) or "void",
    }
    if len(real) < len(uuids):
        variables["COMMONAGE_GPU_SIMULATED"] = "1"
    return variables


def _limits(limited: Sequence[Share], context_mib: Mapping[str, int], default_context_mib: int) -> dict[str, str]:
    """The limits of shares that are not whole GPUs: the smallest, so that they hold on every GPU."""

    def usable_mib(share: Share) -> int:
        # Never 0: to CuPy a limit of 0 means no limit.
        return max(1, share.memory_mib - context_mib.get(share.device_uuid, default_context_mib))

    limit = str(min(share.memory_mib for share in limited))
    usable = min(usable_mib(share) for share in limited)
    parts = min(usable_mib(share) * _PARTS // max(1, _total_mib(share)) for share in limited)
    fraction = f"{min(max(parts, 1), _PARTS) / _PARTS:.6f}"
    return {
        # Read by NVIDIA's container toolkit, which sets the driver's limits by them: whole MiB, singular names.
        "NVIDIA_GPU_MEMORY_REQUEST": limit,
        "NVIDIA_GPU_MEMORY_LIMIT": limit,
        # Read by all versions. With its successor XLA_CLIENT_MEM_FRACTION set as well, JAX finds no GPU.
        "XLA_PYTHON_CLIENT_MEM_FRACTION": fraction,
        # No variable for PyTorch: before 2.10 it does not know the allocator setting per_process_memory_fraction, and
        # then refuses CUDA. Commonage's sitecustomize limits every version.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "CUPY_GPU_MEMORY_LIMIT": str(usable * MIB),
        # Read by Commonage's sitecustomize (files/injected) and by users who set limits by hand.
        "COMMONAGE_GPU_USABLE_MIB": str(usable),
    }


def _total_mib(share: Share) -> int:
    """The GPU's memory as CUDA reports it to the workload: the limit, if the driver or an interposer enforces it."""
    limits = share.isolation in (Isolation.DRIVER_LIMIT, Isolation.PRELOAD)
    return share.memory_mib if limits else share.device_memory_mib

"""Makes the records in tests/data/nvml that come from the fake library; or rewrites the devices of all records."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fakes.nvml.harness import FakeDriver, build_library

from commonage.gpu.nvml.devices import NvmlDevices
from commonage.gpu.nvml.record import as_json
from commonage.gpu.nvml.replayed import Replayed, read_record

RECORDS = Path(__file__).parents[2] / "data" / "nvml"
NODE = ("driver 615.10", "nvml 13.615.10", "cuda 13040")
H100 = (
    "device", "uuid GPU-6b7a0b5c-9f0e-4c53-8b0e-2f6a4d1c0a01", "name NVIDIA H100 80GB HBM3", "memory 81559 512 4096",
    "utilisation 41", "temperature 48", "power 312000 700000", "energy 9876543210", "clocks 1755 2619 1980 2619",
    "throttle 0x4", "ecc 1 1", "ecc_errors 3 0 12 0", "remapped 1 0 0 0", "pci 0000:18:00.0", "numa 0",
    "capability 9 0",
    "persistence 1", "compute_mode 0", "mig 0 0", "recovery 0", "topology 1 40", "process 20111 3584 c",
    "sampled 20111 44 1763700000000000", *(f"nvlink {link} 1 0000:C4:00.0 2" for link in range(18)),
)  # fmt: skip
SECOND = tuple(
    line.replace("0a01", "0a02").replace("18:00", "2A:00").replace("topology 1", "topology 0")
    for line in H100
    if not line.startswith(("process", "sampled"))
)
SPLIT = (
    *(line for line in H100 if not line.startswith(("mig", "process", "sampled"))),
    "mig 1 1", "process 20111 3584 c 1 0",
    "instance MIG-0d3c7f52-5a2a-5b5e-a9b1-6f3c1f0d7a11 1 0 40448 3 3g.40gb",
    "instance MIG-0d3c7f52-5a2a-5b5e-a9b1-6f3c1f0d7a12 2 0 40448 3 3g.40gb",
)  # fmt: skip
T4 = (
    "device", "uuid GPU-6b7a0b5c-9f0e-4c53-8b0e-2f6a4d1c0b01", "name Tesla T4", "memory 15360 440 0", "utilisation 0",
    "temperature 39", "power 9800 70000", "clocks 300 405", "throttle 0x1", "ecc 1 1", "ecc_errors 0 0 0 0",
    "retired 0 0 0", "pci 0000:86:00.0", "capability 7 5", "persistence 0",
)  # fmt: skip
GEFORCE = (
    "device", "uuid GPU-6b7a0b5c-9f0e-4c53-8b0e-2f6a4d1c0c01", "name NVIDIA GeForce RTX 4090", "memory 24564 445 1210",
    "utilisation 2", "temperature 35", "power 21000 450000", "clocks 210 405", "throttle 0x1", "pci 0000:01:00.0",
    "capability 8 9", "persistence 0", "process 1342 1100 g",
)  # fmt: skip
FAKES = {
    "fake-h100-pair": (*NODE, *H100, *SECOND),
    "fake-h100-mig": (*NODE, *SPLIT),
    "fake-t4-older-driver": (
        "fail nvmlDeviceGetMemoryInfo_v2 13", "fail nvmlDeviceGetCurrentClocksEventReasons 13",
        "fail nvmlDeviceGetTemperatureV 13", "driver 470.256", "cuda 11040", *T4,
    ),
    "fake-geforce": (*NODE, *GEFORCE),
    "fake-t4-lost": (*NODE, *T4, "lost 15", *GEFORCE),
}  # fmt: skip
_RECORD = """
import pathlib, sys
from commonage.gpu.nvml.record import record
record(pathlib.Path(sys.argv[1]), source="fake")
"""


def make(to: Path, state: tuple[str, ...], library: Path) -> None:
    """Record the fake with this state, in a process of its own that loads it."""
    driver = FakeDriver(to.with_suffix(".state"))
    driver.says(*state)
    variables = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML_STATE": str(driver.path)}
    subprocess.run([sys.executable, "-c", _RECORD, str(to)], env=variables, check=True)
    driver.path.unlink()


def renew(path: Path) -> None:
    """Write what the code makes of the recorded answers now."""
    record = dict(read_record(path))
    record["devices"] = [as_json(device) for device in NvmlDevices(api=Replayed(record)).inventory()]
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    if "--only-devices" in sys.argv:
        for one in RECORDS.glob("*.json"):
            renew(one)
    else:
        with tempfile.TemporaryDirectory() as folder:
            built = build_library(Path(folder))
            for name, lines in FAKES.items():
                make(RECORDS / f"{name}.json", lines, built)

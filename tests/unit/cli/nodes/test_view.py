"""`commonage node show` prints all known facts of a GPU, and no unknown ones."""

from typing import Any

import pytest

from commonage.cli.nodes import view
from commonage.wire.nodes import DeviceOut, NodeOut

PLAIN: dict[str, Any] = {
    "uuid": "GPU-1", "index": 0, "label": "0", "model": "A100", "memory_mib": 81920, "free_mib": 40960,
    "free_compute_milli": 500, "used_mib": None, "utilisation": None, "simulated": False,
    "isolation": "cooperative", "faults": [],
}  # fmt: skip
MEASURED = {
    "power_w": 250.4, "power_limit_w": 400, "energy_j": 1, "temperature_c": 61, "sm_clock_mhz": 1410,
    "memory_clock_mhz": 1593, "throttle": ["temperature"], "ecc_corrected": 3, "ecc_uncorrected": 0,
    "remapped_corrected": 2, "remapped_uncorrected": 1, "xid": 31,
}  # fmt: skip


def reason(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "params": {}, "message": message}


def node_with(*devices: dict[str, Any]) -> NodeOut:
    return NodeOut(
        name="gpu-1", site="local", engine="process", state="ready", reasons=[], observed_at=0, cpus_milli=8000,
        free_cpus_milli=8000, memory_mib=1024, free_memory_mib=1024, workloads=0,
        notes=[reason("NotIsolated", "mind the gap")],
        labels={"zone": "basement"},
        devices=[DeviceOut(**PLAIN | fields) for fields in devices],
    )  # fmt: skip


def shown(capsys: pytest.CaptureFixture[str], *devices: dict[str, Any]) -> str:
    view.print_node(node_with(*devices))
    return capsys.readouterr().out


def test_all_facts_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(
        capsys,
        {
            "faults": [reason("GpuNotReachable", "It fell off the bus.")],
            "notices": [reason("PersistenceModeOff", "Persistence mode is off.")],
            "unavailable": [{"isolation": "driver-limit", "reason": reason("RootRequired", "Only root may set it.")}],
            "driver": "615.10",
            "cuda": "13.4",
            "pci": "0000:3b:00.0",
            "numa": 1,
            "slots": 3,
            "peers": [{"uuid": "GPU-2", "links": 4}],
            "measured": MEASURED,
        },
        {"uuid": "GPU-2", "label": "1"},
    )
    for words in (
        "fault        It fell off the bus.",
        "notice       Persistence mode is off.",
        "no driver-limit: Only root may set it",
        "driver 615.10, CUDA 13.4",
        "PCI 0000:3b:00.0, NUMA node 1",
        "3 equal slots",
        "4 to GPU 1",
        "250 W of 400 W, 61 °C, SM 1410 MHz, memory 1593 MHz, throttled by temperature",
        "3 corrected, 0 uncorrected",
        "3 rows of memory",
        "last Xid     31",
        "Note: mind the gap",
        "zone=basement",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("isolation", "strength", "words"),
    [
        ("preload", "soft", "isolation    preload, soft"),
        ("mps", "hard-for-each-process", "isolation    mps, hard for each process"),
        ("cooperative", "cooperative", "isolation    cooperative\n"),
        ("mps", "", "isolation    mps\n"),
    ],
)
def test_the_level_is_shown_with_its_strength(
    capsys: pytest.CaptureFixture[str], isolation: str, strength: str, words: str
) -> None:
    assert words in shown(capsys, {"isolation": isolation, "strength": strength})


def test_unknown_facts_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, {})
    assert "40 GiB of 80 GiB free\n" in text
    for words in ("measured", "PCI", "NVLink", "fault", "slots", "software", "None"):
        assert words not in text


def test_mig_instance_names_its_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, {"label": "0:1", "mig_profile": "3g.40gb", "parent_uuid": "GPU-9"})
    assert "GPU 0:1" in text
    assert "3g.40gb of GPU-9" in text


def test_faults_are_listed() -> None:
    node = node_with({"faults": [reason("GpuNotReachable", "It is lost.")]}, {})
    assert view.faults(node) == ["GPU 0 takes no workloads. It is lost."]


USAGE = {
    "cpu_cores": 1.25, "memory_mib": 512, "disk_used_mib": 1024, "disk_total_mib": 4096,
    "disk_read_bytes_per_s": 1500.0, "disk_written_bytes_per_s": None, "network_received_bytes_per_s": 0.0,
    "network_sent_bytes_per_s": 2e6, "temperature_c": 61.0, "load": 0.5,
}  # fmt: skip


def top_of(node: NodeOut) -> str:
    from commonage.cli import output

    screen = output.console()
    with screen.capture() as captured:
        screen.print(view.usage_table([node]))
        screen.print(view.device_table([node]))
    return captured.get()


def test_top_shows_used_beside_allocated() -> None:
    node = NodeOut.model_validate(node_with({"used_mib": 2048, "utilisation": 0.5}).model_dump() | {"usage": USAGE})
    text = top_of(node)
    for words in (
        "1.2 / 0 / 8", "512 MiB / 0 MiB / 1 GiB", "1 GiB of 4 GiB", "1.5 kB/s r", "0 B/s in, 2.0 MB/s out", "61 °C",
        "2 GiB / 40 GiB / 80 GiB", "50%",
    ):  # fmt: skip
        assert words in text


def test_top_marks_unknown_use_and_shows_no_old_one() -> None:
    lost = NodeOut.model_validate(node_with({}).model_dump() | {"usage": USAGE, "state": "lost"})
    for node in (node_with({}), lost):
        text = top_of(node)
        assert "? / 0 / 8" in text
        assert "61 °C" not in text
        assert "? / 40 GiB / 80 GiB" in text

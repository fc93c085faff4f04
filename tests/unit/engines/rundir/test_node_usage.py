"""Usage of a node, from a tree of files like /proc and /sys."""

from pathlib import Path

import pytest

from commonage.domain.node_usage import NodeUsage
from commonage.engines.rundir.node_usage import NodeUsageReader

TICKS = 100
MIB = 1024 * 1024


class Machine:
    """Files of a made-up computer with two processors, a disk and a network card."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 1000.0
        self.put("proc/loadavg", "0.75 0.5 0.4 1/100 999\n")
        self.put("proc/meminfo", "MemTotal: 4194304 kB\nMemFree: 10 kB\nMemAvailable: 1048576 kB\n")
        self.put("sys/block/sda/device/model", "disk")
        self.put("sys/class/net/eth0/device/vendor", "0x1")
        self.counters(0)

    def put(self, name: str, text: str) -> None:
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def counters(self, step: int) -> None:
        """All counters after `step` seconds in which one processor was busy, and 1,024,000 bytes a second moved."""
        cpu = step * TICKS
        self.put("proc/stat", f"cpu 9 9 9 9\ncpu0 {cpu} 0 0 5 5 0 0 0 0 0\ncpu1 0 0 0 {cpu} 5 0 0 0 0 0\nctxt 5\n")
        sectors = 2000 * step
        disk = f"1 0 {sectors} 0 1 0 {sectors} 0 0 0 0"
        self.put("proc/diskstats", f"8 0 sda {disk}\n8 1 sda1 {disk}\n7 0 loop0 {disk}\n253 0 dm-0 {disk}\n")
        network = f"{1_024_000 * step} 1 0 0 0 0 0 0 {512_000 * step} 1 0 0 0 0 0 0"
        lines = [f"{name}: {network}" for name in ("lo", "eth0", "veth1a", "docker0", "br-77")]
        self.put("proc/net/dev", "Inter-| Receive\n face |bytes\n" + "\n".join(lines))

    def reader(self) -> NodeUsageReader:
        return NodeUsageReader(self.root, lambda: {0, 1}, lambda: self.now)

    def later(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr("os.sysconf", lambda _name: TICKS)
    return Machine(tmp_path)


def test_levels_come_at_once_and_rates_from_the_second_measurement(machine: Machine) -> None:
    reader = machine.reader()
    first = reader.measure()
    assert first == NodeUsage(memory_mib=3072, load=0.75)
    machine.later(4)
    machine.counters(4)
    used = reader.measure(machine.root)
    assert used.cpu_cores == pytest.approx(1.0)
    assert used.disk_read_bytes_per_s == pytest.approx(1_024_000)
    assert used.disk_written_bytes_per_s == pytest.approx(1_024_000)
    assert used.network_received_bytes_per_s == pytest.approx(1_024_000), "neither loopback nor bridges count"
    assert used.network_sent_bytes_per_s == pytest.approx(512_000)
    assert used.disk_total_mib is not None and used.disk_used_mib is not None
    assert 0 < used.disk_used_mib < used.disk_total_mib


def test_a_measurement_right_after_another_repeats_its_rates(machine: Machine) -> None:
    reader = machine.reader()
    reader.measure()
    machine.later(2)
    machine.counters(2)
    rates = reader.measure().cpu_cores
    machine.later(0.1)
    assert reader.measure().cpu_cores == rates == pytest.approx(1.0)


def test_a_restarted_counter_and_a_sleep_give_no_absurd_rate(machine: Machine) -> None:
    reader = machine.reader()
    machine.counters(1000)
    reader.measure()
    machine.later(2)
    machine.counters(0)
    used = reader.measure()
    assert used.disk_read_bytes_per_s is None
    assert used.network_sent_bytes_per_s is None
    machine.later(10_000)
    machine.counters(5)
    assert reader.measure().cpu_cores is None


def test_only_own_processors_count(machine: Machine) -> None:
    reader = NodeUsageReader(machine.root, lambda: {1}, lambda: machine.now)
    reader.measure()
    machine.later(2)
    machine.counters(2)
    assert reader.measure().cpu_cores == 0.0


def test_a_container_with_limits_shows_its_own_use(machine: Machine) -> None:
    machine.put("sys/fs/cgroup/memory.max", f"{2048 * MIB}\n")
    machine.put("sys/fs/cgroup/memory.current", f"{900 * MIB}\n")
    machine.put("sys/fs/cgroup/memory.stat", f"anon 5\ninactive_file {300 * MIB}\n")
    machine.put("sys/fs/cgroup/cpu.max", "150000 100000\n")
    machine.put("sys/fs/cgroup/cpu.stat", "usage_usec 1000000\nuser_usec 5\n")
    reader = machine.reader()
    assert reader.measure().memory_mib == 600
    machine.later(2)
    machine.put("sys/fs/cgroup/cpu.stat", "usage_usec 2000000\nuser_usec 5\n")
    assert reader.measure().cpu_cores == pytest.approx(0.5)


def test_a_container_without_limits_shows_the_node(machine: Machine) -> None:
    machine.put("sys/fs/cgroup/memory.max", "max\n")
    machine.put("sys/fs/cgroup/memory.current", f"{900 * MIB}\n")
    machine.put("sys/fs/cgroup/cpu.max", "max 100000\n")
    assert machine.reader().measure().memory_mib == 3072


def test_without_a_physical_interface_the_container_s_own_counts(machine: Machine) -> None:
    (machine.root / "sys/class/net/eth0/device/vendor").unlink()
    (machine.root / "sys/class/net/eth0/device").rmdir()
    reader = machine.reader()
    reader.measure()
    machine.later(1)
    machine.counters(1)
    assert reader.measure().network_sent_bytes_per_s == pytest.approx(512_000)


def test_the_temperature_is_that_of_the_hottest_sensor_of_the_processor(machine: Machine) -> None:
    machine.put("sys/class/hwmon/hwmon0/name", "nvme\n")
    machine.put("sys/class/hwmon/hwmon0/temp1_input", "90000\n")
    assert machine.reader().measure().temperature_c is None
    machine.put("sys/class/thermal/thermal_zone0/type", "x86_pkg_temp\n")
    machine.put("sys/class/thermal/thermal_zone0/temp", "48000\n")
    assert machine.reader().measure().temperature_c == 48.0
    machine.put("sys/class/hwmon/hwmon1/name", "coretemp\n")
    machine.put("sys/class/hwmon/hwmon1/temp1_input", "51000\n")
    machine.put("sys/class/hwmon/hwmon1/temp2_input", "55500\n")
    machine.put("sys/class/hwmon/hwmon1/temp3_input", "-128000\n")
    assert machine.reader().measure().temperature_c == 55.5


@pytest.mark.parametrize("name", ["proc/stat", "proc/meminfo", "proc/diskstats", "proc/net/dev", "proc/loadavg"])
@pytest.mark.parametrize(
    "content", [None, "", "rubbish ☃ here: and -1 there\n", "cpu0 a b c d e f g h\nMemTotal: x kB\n"]
)
def test_a_missing_or_odd_file_makes_one_figure_unknown(machine: Machine, name: str, content: str | None) -> None:
    if content is None:
        (machine.root / name).unlink()
    else:
        machine.put(name, content)
    reader = machine.reader()
    used = reader.measure()
    known = {"proc/meminfo": used.memory_mib, "proc/loadavg": used.load}
    assert known.get(name) is None
    assert used.memory_mib is not None or used.load is not None


def test_this_computer_can_be_measured(tmp_path: Path) -> None:
    used = NodeUsageReader().measure(tmp_path, tmp_path / "missing")
    assert used.memory_mib and used.memory_mib > 0
    assert used.disk_total_mib and used.disk_total_mib > 0

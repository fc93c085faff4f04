"""Contract tests for every implementation of the device port.

Inherit `DevicesContract` in a test module and give it a fixture `devices` with an open implementation that has at least
one GPU. It runs on simulated GPUs and on NVML with a fake driver; a node with GPUs can run it in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from commonage.domain.nodes import Allocation, Device, Isolation, Share
from commonage.messages import TEXTS
from commonage.ports.devices import Devices, ShareAssignment

_LIMITS = (
    "NVIDIA_GPU_MEMORY_LIMIT",
    "NVIDIA_GPU_MEMORY_REQUEST",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "CUPY_GPU_MEMORY_LIMIT",
)


def share_of(device: Device, memory_mib: int | None = None) -> Share:
    """A share of `memory_mib` of the device, its compute in proportion; all of it without an amount."""
    whole = memory_mib is None
    memory = device.memory_mib if memory_mib is None else memory_mib
    return Share(
        device_uuid=device.uuid,
        device_index=device.index,
        model=device.model,
        memory_mib=memory,
        compute_milli=1000 if whole else max(1, memory * 1000 // device.memory_mib),
        whole=whole,
        device_memory_mib=device.memory_mib,
        simulated=device.simulated,
        isolation=device.isolation,
    )


def allocation_of(attempt_id: str, shares: Sequence[Share], at: float = 0.0) -> Allocation:
    return Allocation(
        attempt_id, site="local", node="here", cpus_milli=1000, memory_mib=1024, shares=tuple(shares), at=at
    )


def hold_of(attempt_id: str, devices: Devices) -> ShareAssignment:
    """A quarter of the first healthy device, for this attempt."""
    gpu = next(gpu for gpu in devices.inventory() if not gpu.faults)
    return ShareAssignment(attempt_id, (share_of(gpu, gpu.memory_mib // 4),))


class DevicesContract:
    def test_devices_are_told_apart(self, devices: Devices) -> None:
        """Uuids and indexes are unique, and the list is ordered by index."""
        gpus = devices.inventory()
        assert gpus
        assert len({gpu.uuid for gpu in gpus}) == len(gpus)
        assert [gpu.index for gpu in gpus] == sorted({gpu.index for gpu in gpus})

    def test_people_can_tell_devices_apart(self, devices: Devices) -> None:
        labels = [gpu.label for gpu in devices.inventory()]
        assert len(set(labels)) == len(labels)

    def test_instances_stand_in_the_place_of_their_device(self, devices: Devices) -> None:
        """An instance is smaller than its GPU, reports its profile, and replaces the GPU in the list."""
        gpus = devices.inventory()
        for part in (gpu for gpu in gpus if gpu.parent_uuid is not None):
            assert part.parent_uuid not in {gpu.uuid for gpu in gpus}
            assert part.mig_profile
            assert part.memory_mib <= part.parent_memory_mib

    def test_peers_are_others(self, devices: Devices) -> None:
        for gpu in devices.inventory():
            assert all(uuid != gpu.uuid and links > 0 for uuid, links in gpu.peers)

    def test_faults_and_notices_are_reasons_with_a_text(self, devices: Devices) -> None:
        for gpu in devices.inventory():
            causes = (why for _, why in gpu.unavailable)
            assert all(type(reason) in TEXTS for reason in (*gpu.faults, *gpu.notices, *causes))

    def test_resuming_harms_no_healthy_device(self, devices: Devices) -> None:
        """For any argument: one device, an unknown one, or all."""
        healthy = [gpu for gpu in devices.inventory() if not gpu.faults]
        for uuid in (healthy[0].uuid, "GPU-elsewhere", None):
            devices.resume(uuid)
            assert [gpu for gpu in devices.inventory() if gpu in healthy] == healthy

    def test_a_healthy_device_can_be_shared(self, devices: Devices) -> None:
        healthy = [gpu for gpu in devices.inventory() if not gpu.faults]
        assert healthy
        assert all(gpu.uuid and gpu.model and gpu.memory_mib > 0 for gpu in healthy)

    def test_the_inventory_is_stable(self, devices: Devices) -> None:
        assert list(devices.inventory()) == list(devices.inventory())

    def test_every_healthy_device_is_measured(self, devices: Devices) -> None:
        healthy = {gpu.uuid for gpu in devices.inventory() if not gpu.faults}
        measured = [sample.uuid for sample in devices.measure()]
        assert healthy <= set(measured)
        assert len(measured) == len(set(measured))

    def test_figures_are_possible(self, devices: Devices) -> None:
        """For any hold: memory within the device, utilisation within 0..1, no negative value for a process."""
        gpus = {gpu.uuid: gpu for gpu in devices.inventory()}
        for held in ([], [allocation_of("a-1", [share_of(gpu)]) for gpu in gpus.values()], []):
            devices.note_allocations(held)
            for sample in devices.measure():
                gpu = gpus[sample.uuid]
                assert sample.memory_used_mib is None or 0 <= sample.memory_used_mib <= gpu.memory_mib
                assert sample.utilisation is None or 0 <= sample.utilisation <= 1
                assert sample.power_w is None or sample.power_w >= 0
                assert all((process.memory_mib or 0) >= 0 for process in sample.processes)
                assert all(0 <= (process.utilisation or 0) <= 1 for process in sample.processes)
                assert sample.power_limit_w is None or sample.power_limit_w > 0
                assert all(words and not words.isdigit() for words in sample.throttle)

    def test_energy_only_rises(self, devices: Devices) -> None:
        before = {sample.uuid: sample.energy_j for sample in devices.measure()}
        for sample in devices.measure():
            assert sample.energy_j is None or sample.energy_j >= (before.get(sample.uuid) or 0)

    def test_a_held_share_of_another_node_is_no_error(self, devices: Devices) -> None:
        elsewhere = Share("GPU-elsewhere", 0, "other", 1024, 500, whole=False, device_memory_mib=2048)
        devices.note_allocations([allocation_of("b-1", [elsewhere])])
        assert all(process.attempt_id is None for sample in devices.measure() for process in sample.processes)

    def test_without_a_share_no_device_is_seen(self, devices: Devices) -> None:
        """The variables are set, not omitted: a workload must not inherit what the server itself sees."""
        hidden = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
        assert hidden.items() <= devices.environment([]).items()

    def test_a_share_shows_its_device_and_its_limits(self, devices: Devices) -> None:
        gpu = next(gpu for gpu in devices.inventory() if not gpu.faults)
        variables = devices.environment([share_of(gpu, gpu.memory_mib // 2)])
        assert variables["CUDA_VISIBLE_DEVICES"] == gpu.uuid
        assert variables["COMMONAGE_GPU_MEMORY_MIB"] == str(gpu.memory_mib // 2)
        assert set(_LIMITS) <= set(variables)
        # At these levels CUDA reports the limit as the total.
        most = 1.0 if gpu.isolation in (Isolation.DRIVER_LIMIT, Isolation.PRELOAD) else 0.5
        assert 0 < float(variables["XLA_PYTHON_CLIENT_MEM_FRACTION"]) < most

    def test_a_whole_device_has_no_limits(self, devices: Devices) -> None:
        gpu = next(gpu for gpu in devices.inventory() if not gpu.faults)
        variables = devices.environment([share_of(gpu)])
        assert variables["CUDA_VISIBLE_DEVICES"] == gpu.uuid
        assert not set(_LIMITS) & set(variables)

    def test_simulated_devices_say_so(self, devices: Devices) -> None:
        gpu = next(gpu for gpu in devices.inventory() if not gpu.faults)
        variables = devices.environment([share_of(gpu)])
        assert variables.get("COMMONAGE_GPU_SIMULATED") == ("1" if gpu.simulated else None)
        assert variables["NVIDIA_VISIBLE_DEVICES"] == ("void" if gpu.simulated else gpu.uuid)

    def test_enforcing_twice_is_enforcing_once(self, devices: Devices) -> None:
        hold = hold_of("a-1", devices)
        assert dict(devices.enforce(hold)) == dict(devices.enforce(hold))
        devices.release("a-1")
        assert not devices.enforced()

    def test_enforcement_does_not_widen_what_is_seen(self, devices: Devices) -> None:
        """Limits do not change either: those of the share are in `environment`."""
        hold = hold_of("a-1", devices)
        assert not {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", *_LIMITS} & set(devices.enforce(hold))
        devices.release("a-1")

    def test_a_whole_device_needs_no_enforcement(self, devices: Devices) -> None:
        gpu = next(gpu for gpu in devices.inventory() if not gpu.faults)
        assert not devices.enforce(ShareAssignment("a-1", (share_of(gpu),)))
        assert not devices.enforced()

    def test_releasing_twice_is_no_error(self, devices: Devices) -> None:
        """Unknown and invalid ids are no error either."""
        devices.enforce(hold_of("a-1", devices))
        for unknown in ("a-1", "a-1", "a-2", "../a"):
            devices.release(unknown)
        assert not devices.enforced()

    def test_settling_releases_what_does_not_live(self, devices: Devices) -> None:
        """The living ones stay, and none is invented."""
        devices.enforce(hold_of("a-1", devices))
        devices.enforce(hold_of("a-2", devices))
        before = set(devices.enforced())
        devices.settle(["a-2", "a-3"])
        assert set(devices.enforced()) == before & {"a-2"}
        devices.settle([])
        assert not devices.enforced()

    def test_warnings_are_given_once(self, devices: Devices) -> None:
        devices.take_warnings()
        assert not devices.take_warnings()

    def test_closing_twice_is_no_error(self, devices: Devices) -> None:
        devices.close()
        devices.close()

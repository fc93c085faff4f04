"""The contract of the device port is worth nothing if it lets a broken implementation pass: each of these must fail."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from commonage.domain.nodes import Allocation, Device, Share
from commonage.domain.reasons import Reason
from commonage.gpu.simulated import SimulatedDevices, SimulatedSpec
from commonage.ports.devices import DeviceSample, ProcessMemory, ShareAssignment
from commonage.testing.devices_contract import DevicesContract

suite = DevicesContract()


class Sound(SimulatedDevices):
    def __init__(self) -> None:
        super().__init__([SimulatedSpec(2, 24576)], node_name="here", now=lambda: 0.0)


class Twins(Sound):
    def inventory(self) -> Sequence[Device]:
        return [replace(device, uuid="GPU-1") for device in super().inventory()]


class Empty(Sound):
    def inventory(self) -> Sequence[Device]:
        return [replace(device, memory_mib=0) for device in super().inventory()]


class Forgetful(Sound):
    def measure(self) -> Sequence[DeviceSample]:
        return super().measure()[1:]


class Percent(Sound):
    def measure(self) -> Sequence[DeviceSample]:
        return [replace(sample, utilisation=37.0) for sample in super().measure()]


class Bytes(Sound):
    def measure(self) -> Sequence[DeviceSample]:
        return [replace(sample, memory_used_mib=1024**3) for sample in super().measure()]


class Gossip(Sound):
    def note_allocations(self, allocations: Sequence[Allocation]) -> None:
        self.heard = tuple(allocation.attempt_id for allocation in allocations)

    def measure(self) -> Sequence[DeviceSample]:
        heard = tuple(ProcessMemory(None, 0, attempt_id) for attempt_id in getattr(self, "heard", ()))
        return [replace(sample, processes=heard) for sample in super().measure()]


class Namesakes(Sound):
    def inventory(self) -> Sequence[Device]:
        one, two = super().inventory()
        return [
            one,
            replace(two, index=101, parent_uuid="GPU-0"),
            replace(two, uuid="GPU-3", index=101, parent_uuid="x"),
        ]


class Double(Sound):
    def inventory(self) -> Sequence[Device]:
        one, two = super().inventory()
        return [one, replace(two, index=100, mig_profile="1g.5gb", parent_uuid=one.uuid, parent_memory_mib=99999)]


class Lonely(Sound):
    def inventory(self) -> Sequence[Device]:
        return [replace(device, peers=((device.uuid, 2),)) for device in super().inventory()]


class Silent(Reason, abstract=True):
    """A reason without a text."""


class Terse(Sound):
    def inventory(self) -> Sequence[Device]:
        return [replace(device, notices=(Silent(),)) for device in super().inventory()]


class Hasty(Sound):
    resumed = 0

    def resume(self, uuid: str | None = None) -> None:
        self.resumed += 1

    def inventory(self) -> Sequence[Device]:
        return super().inventory()[self.resumed // 3 :]


class Tiring(Sound):
    energy_j = 100.0

    def measure(self) -> Sequence[DeviceSample]:
        self.energy_j -= 1
        return [replace(sample, energy_j=self.energy_j) for sample in super().measure()]


class Bits(Sound):
    def measure(self) -> Sequence[DeviceSample]:
        return [replace(sample, throttle=("36",)) for sample in super().measure()]


class Inheriting(Sound):
    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        return super().environment(shares) if shares else {}


class Generous(Sound):
    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        return super().environment([replace(share, memory_mib=share.device_memory_mib) for share in shares])


class Stingy(Sound):
    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        return super().environment([replace(share, whole=False) for share in shares])


class Pretender(Sound):
    def environment(self, shares: Sequence[Share]) -> Mapping[str, str]:
        return super().environment([replace(share, simulated=False) for share in shares])


class Remembering(Sound):
    """Keeps what is applied, as an implementation that applies something does; the next ones do it wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[str] = []

    def enforce(self, hold: ShareAssignment) -> Mapping[str, str]:
        if all(share.whole for share in hold.shares):
            return {}
        self.held = [*dict.fromkeys([*self.held, hold.attempt_id])]
        return {"HELD": "1"}

    def release(self, attempt_id: str) -> None:
        self.held = [one for one in self.held if one != attempt_id]

    def settle(self, live: Collection[str]) -> None:
        self.held = [one for one in self.held if one in live]

    def enforced(self) -> Collection[str]:
        return self.held


class Counting(Remembering):
    def enforce(self, hold: ShareAssignment) -> Mapping[str, str]:
        self.held = [*self.held, hold.attempt_id]
        return {"HELD": str(len(self.held))}


class Leaking(Remembering):
    def release(self, attempt_id: str) -> None:
        pass


class Unhiding(Remembering):
    def enforce(self, hold: ShareAssignment) -> Mapping[str, str]:
        return {**super().enforce(hold), "CUDA_VISIBLE_DEVICES": "0,1"}


class Fussy(Remembering):
    def enforce(self, hold: ShareAssignment) -> Mapping[str, str]:
        self.held = [hold.attempt_id]
        return {"HELD": "1"}


class Forgiving(Remembering):
    def settle(self, live: Collection[str]) -> None:
        pass


class Sweeping(Remembering):
    def settle(self, live: Collection[str]) -> None:
        self.held = []


class Repeating(Remembering):
    def take_warnings(self) -> Sequence[tuple[str, str]]:
        return [("a-1", "again and again")]


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Twins, suite.test_devices_are_told_apart),
        (Empty, suite.test_a_healthy_device_can_be_shared),
        (Forgetful, suite.test_every_healthy_device_is_measured),
        (Percent, suite.test_figures_are_possible),
        (Bytes, suite.test_figures_are_possible),
        (Gossip, suite.test_a_held_share_of_another_node_is_no_error),
        (Namesakes, suite.test_people_can_tell_devices_apart),
        (Double, suite.test_instances_stand_in_the_place_of_their_device),
        (Lonely, suite.test_peers_are_others),
        (Terse, suite.test_faults_and_notices_are_reasons_with_a_text),
        (Hasty, suite.test_resuming_harms_no_healthy_device),
        (Tiring, suite.test_energy_only_rises),
        (Bits, suite.test_figures_are_possible),
        (Inheriting, suite.test_without_a_share_no_device_is_seen),
        (Generous, suite.test_a_share_shows_its_device_and_its_limits),
        (Stingy, suite.test_a_whole_device_has_no_limits),
        (Pretender, suite.test_simulated_devices_say_so),
        (Counting, suite.test_enforcing_twice_is_enforcing_once),
        (Leaking, suite.test_enforcing_twice_is_enforcing_once),
        (Leaking, suite.test_releasing_twice_is_no_error),
        (Unhiding, suite.test_enforcement_does_not_widen_what_is_seen),
        (Fussy, suite.test_a_whole_device_needs_no_enforcement),
        (Forgiving, suite.test_settling_releases_what_does_not_live),
        (Sweeping, suite.test_settling_releases_what_does_not_live),
        (Repeating, suite.test_warnings_are_given_once),
    ],
)
def test_it_bites(broken: type[Sound], test: Callable[[Sound], None]) -> None:
    test(Remembering() if issubclass(broken, Remembering) else Sound())
    with pytest.raises(AssertionError):
        test(broken())

"""A node pool's nodes through apache-libcloud, which supports some fifty providers. Its calls block, so they run in
threads.

A new machine gets the user data with which it joins. Providers name that argument differently; the driver's
signature shows which name applies.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from commonage.domain.errors import InvalidInput, Unavailable
from commonage.domain.nodes import Machine
from commonage.ports.clouds import Cloud

if TYPE_CHECKING:
    from libcloud.compute.base import Node, NodeDriver

_USER_DATA = ("ex_userdata", "ex_user_data", "ex_cloud_init", "ex_custom_data", "userdata")
_GONE, _FAILED = "terminated", "error"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Rental:
    """The provider, the account and the kind of node to rent.

    `provider` is libcloud's name of it (`ec2`, `openstack`, `gce`, …) or the path of a driver, `module:Class`.
    `key` and `secret` are the account's, `arguments` further ones of the driver. `size`, `image` and `location` are
    the provider's ids or names; `options` are further arguments of `create_node`, specific to the provider.
    """

    provider: str
    size: str
    image: str
    key: str = ""
    secret: str = ""
    location: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def driver_of(rental: Rental) -> Callable[[], NodeDriver]:
    """Makes the provider's driver, which may call the provider at once. Raises InvalidInput for an unknown one."""
    module, colon, name = rental.provider.partition(":")
    if colon:
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise InvalidInput(f"Driver not found: {rental.provider}: {error}.", field="provider") from error
    else:
        # The import takes half a second, so it is only made when node pools are configured.
        from libcloud.compute.providers import get_driver  # noqa: PLC0415 - see above
        from libcloud.compute.types import Provider  # noqa: PLC0415 - see above

        known = sorted(value for key, value in vars(Provider).items() if key.isupper() and isinstance(value, str))
        if rental.provider not in known:
            raise InvalidInput(
                f"Unknown provider {rental.provider[:60]!r}. libcloud supports {', '.join(known)}.",
                field="provider",
            )
        found = get_driver(rental.provider)
    account = [part for part in (rental.key, rental.secret) if part]
    return lambda: found(*account, **rental.arguments)


class LibcloudMachines(Cloud):
    """The nodes of one account at one provider."""

    def __init__(self, rental: Rental) -> None:
        self._rental = rental
        self._make = driver_of(rental)
        self._driver: NodeDriver | None = None
        self._image: Any = None  # set on first use
        self._unlisted: dict[str, Node] = {}  # nodes just created, by id: some clouds list them later
        self._lock = asyncio.Lock()  # a driver has one connection

    @property
    def provider(self) -> str:
        """The provider's name."""
        return self._rental.provider.rpartition(":")[2]

    async def price_per_h(self) -> float | None:
        """The price of one node per hour, if libcloud knows it."""
        price = (await self._call(self._size)).price
        return float(price) if price else None

    async def machines(self) -> Sequence[Machine]:
        """All nodes of the account, also those that others made and those that failed."""
        return [_machine(node) for node in await self._call(self._listed)]

    async def create(self, name: str, user_data: str) -> Machine:
        """Create a node that boots with this user data."""
        node = await self._call(lambda driver: self._create(driver, name, user_data))
        self._unlisted[str(node.id)] = node
        return _machine(node)

    async def destroy(self, machine: Machine) -> None:
        """Destroy the node."""

        def destroy(driver: NodeDriver) -> None:
            listed = next((one for one in self._listed(driver) if str(one.id) == machine.id), None)
            node = listed or self._unlisted.pop(machine.id, None)
            if node is None:
                return
            try:
                taken = driver.destroy_node(node)
            except Exception:  # drivers raise any exception of their provider's library
                if listed is not None:
                    raise
                return  # it is gone, or is found by its name once it is listed
            if not taken:
                raise Unavailable(f"{self.provider} did not delete {machine.name}. Check the provider's console.")

        await self._call(destroy)

    def _listed(self, driver: NodeDriver) -> list[Node]:
        found = [node for node in driver.list_nodes() if str(node.state) != _GONE]
        for node in found:
            self._unlisted.pop(str(node.id), None)
        return found

    async def _call(self, work: Callable[[NodeDriver], _T]) -> _T:
        """The result of `work`; any error of the provider becomes Unavailable, with its message."""

        def ask() -> _T:
            if self._driver is None:
                self._driver = self._make()
            return work(self._driver)

        async with self._lock:
            try:
                return await asyncio.to_thread(ask)
            except (Unavailable, InvalidInput):
                raise
            except Exception as error:  # drivers raise any exception of their provider's library
                self._driver = self._image = None  # a broken connection is not kept, nor an image that may be gone
                words = " ".join(str(error).split())[:300] or type(error).__name__
                raise Unavailable(f"{self.provider} refused: {words}") from error

    def _create(self, driver: NodeDriver, name: str, user_data: str) -> Node:
        rental = self._rental
        if self._image is None:
            self._image = self._find_image(driver)
        arguments: dict[str, Any] = {
            "name": name,
            "size": self._size(driver),
            "image": self._image,
            _user_data_argument(driver): user_data,
            **rental.options,
        }
        if rental.location:
            arguments["location"] = _named(driver.list_locations(), rental.location, "location", self.provider)
        return driver.create_node(**arguments)

    def _find_image(self, driver: NodeDriver) -> Any:
        """The image by id; if the driver cannot, by name from a list, filtered if possible (EC2 has 100,000)."""
        wanted = self._rental.image
        try:
            return driver.get_image(wanted)
        except Exception:  # unsupported, or this is a name: each driver reports that in its own way
            can_filter = "ex_filters" in inspect.signature(driver.list_images).parameters
            only: dict[str, Any] = {"ex_filters": {"name": wanted}} if can_filter else {}
            return _named(driver.list_images(**only), wanted, "image", self.provider)

    def _size(self, driver: NodeDriver) -> Any:
        return _named(driver.list_sizes(), self._rental.size, "size", self.provider)


def _named(there: Iterable[Any], wanted: str, what: str, provider: str) -> Any:
    """The entry with this id, or else this name. Raises Unavailable, with some of the available ones."""
    found = list(there)
    for attribute in ("id", "name"):
        for one in found:
            if str(getattr(one, attribute)) == wanted:
                return one
    some = ", ".join(str(one.id) for one in found[:8]) or "none"
    raise Unavailable(f"{provider} has no {what} {wanted!r}. It has {len(found)}, for example {some}.")


def _user_data_argument(driver: NodeDriver) -> str:
    """The driver's argument for a node's user data. Raises Unavailable if it has none."""
    taken = inspect.signature(driver.create_node).parameters
    found = next((name for name in _USER_DATA if name in taken), None)
    if found is None:
        raise Unavailable(
            f"libcloud's driver of {driver.name} takes no user data, so its nodes could not join by themselves; "
            "use an image that runs the join command, or another provider"
        )
    return found


def _machine(node: Node) -> Machine:
    created = getattr(node, "created_at", None)
    at = created.timestamp() if isinstance(created, datetime) else None
    return Machine(str(node.id), str(node.name), at, str(node.state) == _FAILED)

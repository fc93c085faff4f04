"""NVML as the other modules call it: starts and stops it, sorts its errors, reads its Xid events.

Used by `nvml` under its lock. `api` is pynvml, or its replacement (`record`, `replayed`): everything is called through
it, by name, so that a GPU's answers can be recorded and replayed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pynvml

from commonage.gpu.nvml import errors

_WAIT_MS = 5  # queued events are returned at once; this is the wait for a new one
_MAX_AT_ONCE = 256
_NOBODY = 0xFFFFFFFF


class Message(NamedTuple):
    """An Xid of a GPU; of a MIG instance if it is known."""

    gpu: str
    number: int
    gpu_instance: int | None
    compute_instance: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that answers: the driver's handle, its index, its uuid."""

    library: Library
    handle: Any
    index: int
    uuid: str

    def ask(self, name: str, *args: Any) -> Any:
        """A value, None if it is not available. Raises pynvml.NVMLError for any other error of the GPU."""
        return self.library.ask(name, self.handle, *args)


class Library:
    """NVML, closed at first."""

    def __init__(self, api: Any = pynvml) -> None:
        self.api = api
        self.is_open = False
        self._events: Any = None
        self._listened: dict[Hashable, str] = {}  # uuids by the keys of handles

    def open(self) -> None:
        """Start it, if it is not running. Raises DevicesUnavailable."""
        if not self.is_open:
            self.whole("nvmlInit")
            self.is_open = True

    def close(self) -> None:
        """Shut it down; errors are ignored."""
        if self.is_open:
            self._end_listening()
            self.is_open = False
            self.try_to("nvmlShutdown")

    def whole(self, name: str, *args: Any) -> Any:
        """A call that concerns the driver as a whole. Raises DevicesUnavailable."""
        try:
            return getattr(self.api, name)(*args)
        except pynvml.NVMLError as error:
            raise errors.unavailable(error) from error

    def ask(self, name: str, *args: Any) -> Any:
        """A value, None if it is not available. Raises pynvml.NVMLError."""
        try:
            return getattr(self.api, name)(*args)
        except pynvml.NVMLError as error:
            if errors.is_absent(error):
                return None
            raise

    def try_to(self, name: str, *args: Any) -> Any:
        """Like `ask`, but errors are ignored."""
        try:
            return getattr(self.api, name)(*args)
        except pynvml.NVMLError:
            return None

    def gpu(self, index: int) -> Gpu:
        handle = self.api.nvmlDeviceGetHandleByIndex(index)
        return Gpu(self, handle, index, self.api.nvmlDeviceGetUUID(handle))

    # --- Xids -----------------------------------------------------------------------------------------------------

    def listen(self, gpu: Gpu) -> None:
        """Have the driver queue this GPU's Xids for `messages`, if it supports that. Idempotent."""
        key = key_of(gpu.handle)
        if key in self._listened:
            return
        if self._events is None:
            self._events = self.try_to("nvmlEventSetCreate")
        if self._events is not None:
            try:
                self.api.nvmlDeviceRegisterEvents(gpu.handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
            except pynvml.NVMLError as error:
                if not errors.is_absent(error):
                    return  # it may succeed at a later try
            self._listened[key] = gpu.uuid

    def messages(self) -> list[Message]:
        """The Xids since the last call. Also empty while a GPU that fell off the bus blocks the driver's events."""
        found: list[Message] = []
        while self._events is not None and len(found) < _MAX_AT_ONCE:
            try:
                event = self.api.nvmlEventSetWait_v2(self._events, _WAIT_MS)
            except pynvml.NVMLError:  # a timeout: no more events
                break
            uuid = self._listened.get(key_of(event.device))
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError and uuid is not None:
                parts = (None if part == _NOBODY else part for part in (event.gpuInstanceId, event.computeInstanceId))
                found.append(Message(uuid, event.eventData, *parts))
        return found

    def _end_listening(self) -> None:
        if self._events is not None:
            self.try_to("nvmlEventSetFree", self._events)
        self._events = None
        self._listened = {}


def key_of(handle: Any) -> Hashable:
    """A key for a handle: its address; a replacement object is its own key."""
    if isinstance(handle, ctypes._Pointer):
        return ctypes.cast(handle, ctypes.c_void_p).value
    return str(handle)

"""Sets the limits of a GPU share in PyTorch and TensorFlow, where no environment variable can.

Python imports this at its start, because its folder is on PYTHONPATH of every workload with a limited share. So it uses
the standard library only, imports nothing else of the package, and supports Python 3.8. It never imports a framework:
it waits until the program does. Errors are printed to stderr and never stop the program. The sitecustomize that Python
would otherwise have found is run afterwards.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing takes as long as all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_USABLE = "COMMONAGE_GPU_USABLE_MIB"
_MIB = 1024 * 1024


def _usable_mib() -> int:
    """MiB that a framework may use of each visible GPU; 0 if not set."""
    try:
        return int(os.environ.get(_USABLE, "0"))
    except ValueError:
        return 0


def _limit_torch(torch: Any) -> None:
    """Set the limit on first use of CUDA, not before: querying a GPU creates a context, which takes memory."""
    usable = _usable_mib() * _MIB

    def limit() -> None:
        try:
            for index in range(torch.cuda.device_count()):
                total = torch.cuda.get_device_properties(index).total_memory
                torch.cuda.set_per_process_memory_fraction(min(1.0, usable / total), index)
        except Exception as error:  # torch would not use CUDA at all
            _complain("torch", error)

    cuda = getattr(torch, "cuda", None)
    if cuda is None:
        return
    if hasattr(cuda, "_lazy_call"):  # private, but torch's own seeding has used it since version 0.4
        cuda._lazy_call(limit)
    elif cuda.is_initialized():
        limit()


def _limit_tensorflow(tensorflow: Any) -> None:
    """Set the limits at once: TensorFlow accepts them only before it uses the GPUs."""
    config = tensorflow.config
    devices = config.list_physical_devices("GPU")
    for device in devices:
        limit = config.LogicalDeviceConfiguration(memory_limit=_usable_mib())
        config.set_logical_device_configuration(device, [limit])
    if devices:
        _tolerate_growth(config.experimental)


def _tolerate_growth(experimental: Any) -> None:
    """Many programs first request memory growth, which TensorFlow refuses on a GPU that has a limit.

    Growth is enabled there anyway, by TF_FORCE_GPU_ALLOW_GROWTH.
    """
    asked = getattr(experimental, "set_memory_growth", None)
    if asked is None:
        return

    def set_memory_growth(device: Any, enable: bool) -> Any:
        try:
            return asked(device, enable)
        except ValueError:
            if not enable:
                raise
            return None

    experimental.set_memory_growth = set_memory_growth


def _complain(framework: str, error: Exception) -> None:
    sys.stderr.write(f"commonage: the GPU share could not be set in {framework}: {error}\n")


_LIMITS: dict[str, Callable[[Any], None]] = {"torch": _limit_torch, "tensorflow": _limit_tensorflow}


class _Loader:
    """A framework's own loader, followed by its limit."""

    def __init__(self, loader: Any, limit: Callable[[Any], None]) -> None:
        self._loader, self._limit = loader, limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            self._limit(module)
        except Exception as error:  # on any error of a framework the program continues without a limit
            _complain(module.__name__, error)


class _Finder:
    """Finds nothing itself: it asks the other finders for a framework, and wraps its loader."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name not in _LIMITS:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    loader: Any = _Loader(spec.loader, _LIMITS[name])
                    spec.loader = loader
                return spec
        return None


def _run_the_other() -> None:
    """Run the next sitecustomize on the path, under its name."""
    places = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    found = (
        finder.find_spec("sitecustomize", places)
        for finder in sys.meta_path
        if getattr(finder, "__name__", "") == "PathFinder"
    )
    spec = next(found, None)
    if spec is None or spec.loader is None:
        return
    # Searched by hand, because importing importlib.util takes longer than all of this.
    module = type(sys)("sitecustomize")
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if _usable_mib() > 0:
    sys.meta_path.insert(0, _Finder())
_run_the_other()

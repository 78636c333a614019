"""slicer: run commands in systemd scopes, with GPU and CPU leases held across the scope.

For programs: :func:`acquire`, :class:`acquire_async`, and what they raise (see :mod:`slicer.api`).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.api import CpuBusy, GpuBusy, Holder, Lease, ResourceBusy, SlotBusy, acquire
    from slicer.api_async import acquire_async
    from slicer.errors import RequestCancelled, SlicerError
    from slicer.version import __version__ as __version__

__all__ = [
    "CpuBusy", "GpuBusy", "Holder", "Lease", "RequestCancelled", "ResourceBusy", "SlicerError", "SlotBusy",
    "acquire", "acquire_async",
]  # fmt: skip

_MODULES = dict.fromkeys(__all__, "api")
_MODULES |= {"acquire_async": "api_async", "__version__": "version"}
_MODULES |= {"RequestCancelled": "errors", "SlicerError": "errors"}


def __getattr__(name: str) -> object:
    """Load what is asked for when it is asked for: ``slicer run`` comes by here too."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"slicer.{_MODULES[name]}"), name)
    globals()[name] = found
    return found

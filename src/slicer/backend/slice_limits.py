"""The drop-in that gives systemd a configuration's limits for a slice. Pure."""

from __future__ import annotations

from slicer.config.slices import Limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slicer.model import SliceName

# systemd sorts the drop-ins of all directories by name, and the last one wins. Those of `systemctl edit`
# (override.conf) and of `systemctl set-property` (50-MemoryMax.conf) come after this one.
NAME = "10-slicer-config.conf"

_TEXT = """\
# Limits of all jobs in {name}.slice together, from slicer's configuration. Change them there, then run
# `slicer install{flag}`. `systemctl{flag} edit {name}.slice` and `set-property` override them.

[Slice]
{lines}"""


def drop_in(name: SliceName, limits: tuple[Limit, ...], *, user: bool) -> bytes:
    """The text of the drop-in. Each value has its place in the configuration."""
    lines = "".join(f"# {limit.source}\n{limit.name}={limit.value}\n" for limit in limits)
    text = _TEXT.format(name=name, flag=" --user" if user else "", lines=lines)
    return text.encode("utf-8", "surrogateescape")

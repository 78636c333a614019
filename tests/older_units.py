"""What older versions of slicer installed for a group whose members shared the ledger."""

from __future__ import annotations

import hashlib
from pathlib import Path

_STAMP = "# Installed by slicer; unchanged as long as its checksum is {}\n"
_FILES = {
    "sysusers.d/slicer.conf": "g slicer -\n",
    "tmpfiles.d/slicer.conf": """\
d /run/slicer         2770 root slicer -
d /run/slicer/leases  2770 root slicer -
d /run/slicer/tickets 2770 root slicer -
d /run/slicer/bells   2770 root slicer -
f /run/slicer/lock    0660 root slicer -
d /var/lib/slicer     2750 root slicer -
""",
}


def install(lib: Path) -> tuple[Path, Path]:
    """Lay the files into a lib directory, stamped as every version does it: sysusers.d's and tmpfiles.d's."""
    for name, text in _FILES.items():
        path = lib / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + _STAMP.format(hashlib.sha256(text.encode()).hexdigest()))
    sysusers, tmpfiles = (lib / name for name in _FILES)
    return sysusers, tmpfiles

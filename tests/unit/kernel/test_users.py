"""What a user namespace shows of users."""

from __future__ import annotations

import pytest

from slicer.kernel import proc
from slicer.kernel.users import hidden_root


# S2
@pytest.mark.parametrize(
    ("uid_map", "shown"),
    [
        ("         0          0 4294967295\n", -1),  # no namespace
        ("      1000       1000          1\n", 65534),  # bubblewrap, apptainer
        ("         0       1000          1\n", 65534),  # unshare --map-root-user
        ("         0          0          1\n", -1),
        ("      1000          0          1\n", -1),
        ("         0       1000          1\n         1     100000      65536\n", -1),  # 65534 may be a subuid
        ("         0       1000          1\n         1     100000       1000\n", 65534),
        ("     65534      65534          1\n", -1),  # nobody's own namespace
        ("", 65534),  # not mapped yet
    ],
)
def test_root_is_hidden_where_a_namespace_maps_others_alone(
    uid_map: str, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"/proc/self/uid_map": uid_map, "/proc/sys/kernel/overflowuid": "65534\n"}
    monkeypatch.setattr(proc, "read_text", texts.__getitem__)
    assert hidden_root() == shown
